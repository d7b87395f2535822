"""End-to-end tests run in processes that take groups of files: none is left out, each counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.__main__ import by_file, deserve_a_second_look, failed_test, status_of
from tests.e2e.groups import HERE, WAITS, WORKS, fill, groups, share_servers, take


def test_every_file_is_in_one_group() -> None:
    files = [file for kind in groups().values() for group in kind for file in group]
    assert sorted(files) == sorted(file.name for file in HERE.glob("test_*.py"))


def test_files_of_a_group_share_servers() -> None:
    assert share_servers("test_tap.py", "test_tap_proxy.py")
    assert not share_servers("test_tap.py", "test_calibrate.py")


def test_a_process_takes_groups_of_its_kind_and_then_those_of_the_other(tmp_path: Path) -> None:
    queue = tmp_path / "groups"
    fill(queue)
    both = groups()
    taken = [take(queue, WAITS) for _ in range(len(both[WORKS]) + len(both[WAITS]))]
    assert taken == [*both[WAITS], *both[WORKS]]
    assert take(queue, WORKS) == ()


def test_the_seconds_of_files_come_in_their_order() -> None:
    result = '{"file": "tests/e2e/%s", "imported": [1, 0.5], "tests": {"a": [%d, 1.0]}}'
    assert by_file([result % ("test_a.py", 1), result % ("test_b.py", 10)]) == [
        "   11.0 s, processors    1.5 s,   1 tests  test_b.py",
        "    2.0 s, processors    1.5 s,   1 tests  test_a.py",
    ]


@pytest.mark.parametrize(
    ("ended", "status"),
    [((0, 0), 0), ((0, 1), 1), ((2, 0), 1), ((0, -9), 1), ((0, 5), 0), ((5, 5), 5), ((5, 1), 1)],
)
def test_the_status_is_zero_if_all_passed(ended: tuple[int, int], status: int) -> None:
    """Options may leave nothing to one of them."""
    assert status_of(ended) == status


@pytest.mark.parametrize(
    ("failed", "ended", "deserve"),
    [
        (1, (0, 1), True),
        (3, (1, 1), True),
        (0, (0, 0), False),
        (4, (0, 1), False),
        (1, (2, 1), False),
        (1, (-9, 1), False),
    ],
)
def test_a_few_failed_tests_run_again_and_many_do_not(
    failed: int, ended: tuple[int, int], deserve: bool
) -> None:
    """Nor is anything where a process was interrupted or died."""
    assert deserve_a_second_look(["FAILED a"] * failed, ended) is deserve


def test_tests_that_need_one_failed_fixture_count_as_one() -> None:
    page = [f"ERROR tests/e2e/a.py::t{n} - AssertionError: no page" for n in range(7)]
    assert deserve_a_second_look([*page, "FAILED tests/e2e/b.py::t - assert 1 == 2"], (0, 1))
    others = [f"ERROR tests/e2e/{n}.py::t - AssertionError: no page" for n in range(4)]
    assert not deserve_a_second_look(others, (0, 1))


def test_a_failed_test_is_read_from_its_line() -> None:
    assert (
        failed_test("FAILED tests/e2e/a.py::t[b c] - assert 1 == 2\n") == "tests/e2e/a.py::t[b c]"
    )
    assert failed_test("ERROR tests/e2e/a.py::t\n") == "tests/e2e/a.py::t"

"""The end-to-end tests run in three processes: none is left out, and each of them counts."""

from __future__ import annotations

import pytest

from tests.e2e.__main__ import (
    HERE,
    SHARING,
    WORKS,
    deserve_a_second_look,
    failed_test,
    lanes,
    status_of,
)
from tests.e2e.conftest import SHARED


def test_every_file_is_in_one_lane() -> None:
    files = [file for lane in lanes().values() for file in lane]
    assert sorted(files) == sorted(file.name for file in HERE.glob("test_*.py"))


def test_files_that_share_a_server_come_after_one_another() -> None:
    """In one of them, or each would start its own."""
    assert tuple(lanes()[WORKS][: len(SHARING)]) == SHARING
    users: dict[str, list[int]] = {}
    for at, file in enumerate(lanes()[WORKS]):
        for name in SHARED:
            if name in (HERE / file).read_text():
                users.setdefault(name, []).append(at)
    assert users.keys() == SHARED.keys()
    assert all(len(found) > 1 for found in users.values())
    others = {file for name, files in lanes().items() if name != WORKS for file in files}
    assert [file for file in others if any(n in (HERE / file).read_text() for n in SHARED)] == []


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

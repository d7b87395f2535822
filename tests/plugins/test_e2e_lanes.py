"""The end-to-end tests run in two processes: none is left out, and each of them counts."""

from __future__ import annotations

import pytest

from tests.e2e.__main__ import HERE, lanes, status_of


def test_every_file_of_tests_is_in_one_of_them() -> None:
    files = [file for lane in lanes().values() for file in lane]
    assert sorted(files) == sorted(file.name for file in HERE.glob("test_*.py"))


@pytest.mark.parametrize(
    ("ended", "status"),
    [((0, 0), 0), ((0, 1), 1), ((2, 0), 1), ((0, -9), 1), ((0, 5), 0), ((5, 5), 5), ((5, 1), 1)],
)
def test_it_is_well_when_both_are(ended: tuple[int, int], status: int) -> None:
    """Options may leave nothing to one of them."""
    assert status_of(ended) == status

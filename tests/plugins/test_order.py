"""The lists of files in tests/conftest.py name what there is."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LONGEST, SAME_EVERYWHERE

ROOT = Path(__file__).parents[2]


def test_each_file_that_is_named_is_there() -> None:
    assert [name for name in (*LONGEST, *SAME_EVERYWHERE) if not (ROOT / name).exists()] == []

"""A daemon starts on any file, or puts it aside and begins a new one.

A part of the campaign of docs/reliability.md.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.store import corruption
from tests.store.test_corruption import source

__all__ = ["source"]


def test_a_whole_file_has_no_damage(source: bytes, tmp_path: Path) -> None:
    """Nothing that a campaign finds comes from the file itself."""
    path = tmp_path / "whole.db"
    path.write_bytes(source)
    assert corruption.start(path) == corruption.Outcome()


FILES = [(kind, f"{kind}-{seed}") for kind in corruption.KINDS for seed in range(20)]
FAILED_ONCE = [("bytes", "1-366")]
"""Of campaigns, with their seed and number: a row that SQLite found by another key than its own."""


@pytest.mark.parametrize(("kind", "seed"), [*FILES, *FAILED_ONCE])
def test_a_daemon_starts_on_a_damaged_file(
    source: bytes, tmp_path: Path, kind: str, seed: str
) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(source)
    corruption.corrupt(path, kind, random.Random(seed))
    assert corruption.start(path).defects == ()

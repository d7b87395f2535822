"""A daemon starts on any file, or puts it aside and begins a new one.

A file of each kind of damage; more are in tests/nightly and in the campaign of docs/reliability.md.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.store import corruption


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with rows in every table."""
    path = tmp_path_factory.mktemp("source") / "source.db"
    corruption.populate(path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", corruption.KINDS)
def test_a_daemon_starts_on_a_damaged_file(source: bytes, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(source)
    corruption.corrupt(path, kind, random.Random(f"{kind}-0"))
    assert corruption.start(path).defects == ()

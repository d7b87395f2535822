"""Fixtures of the tests of the store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, sqlite_file: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{sqlite_file}"
    new: str = request.getfixturevalue("postgres").new_url()
    return new

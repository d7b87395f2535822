"""Fixtures of the tests of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.store import statements


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, sqlite_file: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{sqlite_file}"
    new: str = request.getfixturevalue("postgres").new_url()
    return new


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """At night every test of an empty database runs on Postgres too."""
    nightly = metafunc.config.getoption("--hypothesis-profile") == "nightly"
    marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    chosen = "url" in (*marked, *vars(metafunc.module)) or metafunc.cls
    if nightly and "url" in metafunc.fixturenames and not chosen:
        metafunc.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    """Each row that cannot be decoded is logged once in a process."""
    statements._noted.clear()

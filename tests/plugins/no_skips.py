"""A pytest plugin for CI: whatever is skipped or expected to fail there fails instead.

``CI=true python -m pytest -p tests.plugins.no_skips``. On a user's machine a skip says what is not
installed; in CI everything is, so a skip would hide that something is no longer tested.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def in_ci() -> bool:
    """Whether this run is one of CI, by the variable that the common services set."""
    return os.environ.get("CI", "").lower() in {"true", "1"}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip, an expected failure and an unexpected pass into a failure."""
    report = yield
    if in_ci() and hasattr(report, "wasxfail"):
        fail(report, f"{item.nodeid} was marked as expected to fail ({report.wasxfail})")
        del report.wasxfail
    elif in_ci() and report.skipped:
        fail(report, f"{item.nodeid} was skipped")
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into an error of its collection."""
    report = yield
    if in_ci() and report.skipped:
        fail(report, f"{collector.nodeid} was skipped")
    return report


def fail(report: pytest.TestReport | pytest.CollectReport, what: str) -> None:
    """Make the report one of a failure, with what pytest had to say about it."""
    found = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.longrepr = f"{what}; in CI nothing may be:\n{found or 'it passed'}"
    report.outcome = "failed"

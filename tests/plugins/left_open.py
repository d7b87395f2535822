"""A pytest plugin: a socket that is left to the garbage collector fails the test that left it.

Without it the next collection of garbage, in some later test, would find the socket.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

import pytest

_opened: list[str] = []
_OPENING = {"socket.__new__", "subprocess.Popen"}
"""Audit events of what has to be closed."""


def _audit(event: str, _arguments: object) -> None:
    if event in _OPENING and not _opened:
        _opened.append(event)


def pytest_configure() -> None:
    sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Look once the fixtures are torn down, if the test opened anything."""
    result = yield
    if _opened:
        _opened.clear()
        if left := found_by_collecting():
            pytest.fail(f"{item.name} left open: {'; '.join(left)}", pytrace=False)
    return result


def found_by_collecting() -> list[str]:
    """What complains when garbage is collected."""
    left: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda complaint: left.append(str(complaint.exc_value))
    try:
        gc.collect()
    finally:
        sys.unraisablehook = before
    # What has survived need not be looked at again.
    gc.freeze()
    return left

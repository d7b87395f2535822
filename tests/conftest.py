"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import gc
import signal
from types import SimpleNamespace

import pytest
import structlog
import uvicorn.server
from hypothesis import settings

from tests.fixtures import (
    log,
    no_test_hangs,
    only_ours,
    open_store,
    serve,
    server_tls,
    short_pauses,
    sqlite_file,
    store,
    url,
)
from tests.postgres import postgres

__all__ = [
    "log", "no_test_hangs", "only_ours", "open_store", "postgres", "serve", "server_tls",
    "short_pauses", "sqlite_file", "store", "url",
]  # fmt: skip

LONGEST = (
    "tests/report/test_month.py", "tests/daemon/test_tuned_schedule.py",
    "tests/alerts/test_stock.py", "tests/worlds/test_worlds.py", "tests/guard/test_groups.py",
    "tests/daemon/test_target_experiment.py", "tests/domain/test_switchback_results.py",
    "tests/backfill/test_service.py", "tests/daemon/test_guarded_switch.py",
    "tests/daemon/test_guard_service.py", "tests/store/test_damage.py",
    "tests/store/test_corruption.py", "tests/domain/test_holdout.py",
    "tests/daemon/test_target_guard.py", "tests/tap/test_proxy_process.py",
    "tests/cli/test_calibrate.py", "tests/cli/test_probe.py", "tests/cli/test_bench.py",
)  # fmt: skip
"""Files that take longest, which begin first: a worker has a file to itself, up to the end."""
SAME_EVERYWHERE = (
    "tests/worlds/", "tests/guard/test_groups.py", "tests/guard/test_holdout.py",
    "tests/rules/test_remembered.py", "tests/daemon/test_tuned_schedule.py",
    "tests/daemon/test_target_experiment.py", "tests/daemon/test_guarded_switch.py",
    "tests/daemon/test_target_guard.py", "tests/domain/test_switchback_results.py",
    "tests/domain/test_holdout.py", "tests/report/test_month.py", "tests/alerts/test_stock.py",
    "tests/test_layers.py", "tests/test_names.py", "tests/test_words.py",
)  # fmt: skip
"""Files and folders with what no machine and no version of a library changes: lives in virtual time
through parts that other tests run too, what Prometheus makes of our rules, what our sources say.
CI runs them on a new machine and once more, and leaves them out with the lowest versions."""

# A shell that starts a command in the background has it ignore interrupts, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: other work on the machine takes time, too. Every run draws new examples.
settings.register_profile("fast", deadline=None, max_examples=20)
settings.register_profile("nightly", deadline=None, max_examples=300)
settings.load_profile("fast")

# What is logged is shown with a failure: plainly, for the colours take longer than many a test.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"], repr_native_str=False),
    ]
)


async def _shorter_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds / 10)


# It looks ten times a second whether it is to stop, and waits as long again: hundreds of times.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": _shorter_sleep})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order of their names, but for the longest; and marked before any is left out."""
    for item in items:
        if item.nodeid.startswith(SAME_EVERYWHERE):
            item.add_marker("same_everywhere")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: no collection of garbage need look at them again."""
    gc.collect()
    gc.freeze()

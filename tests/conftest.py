"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import structlog
import uvicorn.server
from hypothesis import settings

from tests.fixtures import (
    log,
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
    "log",
    "only_ours",
    "open_store",
    "postgres",
    "serve",
    "server_tls",
    "short_pauses",
    "sqlite_file",
    "store",
    "url",
]

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

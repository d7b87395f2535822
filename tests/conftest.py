"""Fixtures for all tests."""

from __future__ import annotations

import structlog

from tests.postgres import postgres

__all__ = ["postgres"]

# What is logged is shown with a failure: plainly, for the colours take longer than many a test.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"], repr_native_str=False),
    ]
)

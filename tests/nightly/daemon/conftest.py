"""Fixtures of the tests of the daemon."""

from __future__ import annotations

from tests.daemon.stores import (
    database,
    empty_database,
    guard_database,
    guards_of,
    new_living,
    shared_database,
    stores,
)

__all__ = [
    "database", "empty_database", "guard_database", "guards_of", "new_living", "shared_database",
    "stores",
]  # fmt: skip

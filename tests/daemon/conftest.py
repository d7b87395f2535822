"""Fixtures of the tests of the daemon."""

from __future__ import annotations

from tests.daemon.stores import (
    database,
    guard_database,
    guards_of,
    new_living,
    stores,
)

__all__ = ["database", "guard_database", "guards_of", "new_living", "stores"]

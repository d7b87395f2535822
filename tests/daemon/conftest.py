"""Fixtures of the tests of the daemon."""

from __future__ import annotations

from tests.daemon.stores import database, empty_database, guard_database, guards_of, new_living

__all__ = ["database", "empty_database", "guard_database", "guards_of", "new_living"]

"""Fixtures of the tests of the daemon."""

from __future__ import annotations

from tests.daemon.stores import guard_database, guards_of, new_living

__all__ = ["guard_database", "guards_of", "new_living"]

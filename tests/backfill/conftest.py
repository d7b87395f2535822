"""Databases of the tests of a backfill: as those of the store."""

from tests.store.conftest import pytest_generate_tests

__all__ = ["pytest_generate_tests"]

"""Fixtures of the tests of the store."""

from tests.store.conftest import empty_url

__all__ = ["empty_url"]

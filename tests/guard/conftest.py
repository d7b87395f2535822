"""Databases of each kind and captured logs, as other tests have them."""

from __future__ import annotations

from tests.daemon.conftest import log
from tests.store.conftest import open_store, store, url

__all__ = ["log", "open_store", "store", "url"]

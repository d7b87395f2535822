"""Actuators write units and records to a disk that need not keep them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine goes on, so that nothing is lost without it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)

"""Fixtures of the tap's tests."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of its own for each test."""
    return CollectorRegistry()

"""What holds of guards, with turns as they really are."""

from __future__ import annotations

import pytest

from tests.daemon.test_target_guard import *  # noqa: F403
from tests.guard.living import TURN


@pytest.fixture
def turn_seconds() -> float:
    return TURN

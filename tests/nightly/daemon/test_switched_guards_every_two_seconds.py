"""What holds of guards with a switch, with turns as they really are."""

from __future__ import annotations

import pytest

from tests.daemon.test_guarded_deep_standby import *  # noqa: F403
from tests.daemon.test_guarded_switch import *  # noqa: F403
from tests.guard.living import TURN


@pytest.fixture
def turn_seconds() -> float:
    return TURN

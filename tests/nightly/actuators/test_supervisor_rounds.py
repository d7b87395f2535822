"""Many starts and stops of a supervised process."""

from __future__ import annotations

import pytest

from specwatch.domain.model import Mode
from tests.actuators.process_families import descendants, descriptors
from tests.actuators.test_supervisor import SPECULATING, Supervise, supervise

__all__ = ["supervise"]
pytestmark = pytest.mark.usefixtures("only_ours")


def test_a_hundred_rounds_leave_no_process_and_no_descriptor(supervise: Supervise) -> None:
    supervisor = supervise(SPECULATING)
    before = descriptors()
    for _ in range(100):
        supervisor.start(Mode.ON)
        supervisor.start(Mode.OFF)
        supervisor.stop()
    assert (descriptors(), descendants()) == (before, [])

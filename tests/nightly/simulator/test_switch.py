"""What minutes in standby cost, over many loads."""

from __future__ import annotations

import pytest

from specwatch.domain.model import Mode
from specwatch.domain.standby import standby_cost
from tests.domain import minutes
from tests.simulator.test_switch import COSTS, watched_minutes


def test_the_measured_standby_cost_is_the_true_one() -> None:
    """Also where there were fewer requests in standby than without speculation."""
    plain = [watched_minutes(batch, Mode.OFF, 100 * batch) for batch in (2, 4, 6, 8, 10)]
    known = minutes.baseline([sample for off in plain for sample in off])
    standby = [*watched_minutes(3, Mode.STANDBY, 2000), *watched_minutes(5, Mode.STANDBY, 2100)]
    cost = standby_cost(standby, known).cost
    assert cost is not None
    truth = 1 + COSTS.draft(4, 1) / COSTS.plain(4)
    assert cost.value == pytest.approx(truth, rel=0.01)
    assert cost.lower < truth < cost.upper

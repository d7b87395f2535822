"""Minutes of a holdout, which any daemon may watch, become the baseline of the other members."""

from __future__ import annotations

import msgspec
import pytest

from specwatch.daemon.holdout_minutes import HoldoutMinutes
from specwatch.daemon.rule_service import RuleService
from specwatch.domain.baseline import Baseline, Origin
from specwatch.domain.holdout import WARM_UP, Holdout
from specwatch.domain.model import HOUR, MINUTE, Batch, Histogram, Mode, Window
from tests.daemon.stores import StoreOf
from tests.daemon.test_rule_service import Scene, acceptance
from tests.store.examples import T0, batch

pytestmark = pytest.mark.usefixtures("log")

BEGAN = T0 + HOUR
SINCE = BEGAN + 3 * MINUTE
HOLDOUT = Holdout("b", float(BEGAN), float(SINCE))


@pytest.fixture
def scene(stores: StoreOf) -> Scene:
    return Scene(stores)


def timed(start: int, target: str, mode: Mode, tpot: float) -> Window:
    """A minute of one request at a time, with that time per token."""
    one = acceptance(start, 0.5, target=target, mode=mode)
    between = Histogram((), (1000,), 1000 * tpot)
    tally = msgspec.structs.replace(one.tally, inter_token=between, generation_tokens=1000)
    return msgspec.structs.replace(one, tally=tally)


def pass_time(scene: Scene, judging: RuleService | None, count: int, *, holdout: float) -> None:
    """Minutes of ``chat``, which takes 20 ms per token, and of ``b``, which has ``holdout``."""
    unwritten = []
    for _ in range(count):
        start = int(scene.time)
        shaken = 1 + 0.01 * (start // MINUTE % 5)
        own = timed(start, "chat", Mode.ON, 0.02 * shaken)
        mode = Mode.ON if start < BEGAN else Mode.OFF
        theirs = timed(start, "b", mode, holdout * shaken)
        scene.time += MINUTE
        unwritten += [batch(own), batch(theirs)]
        if judging is not None:
            scene.store.write(unwritten, now=scene.time)
            unwritten = []
            judging.observe("chat", Batch((own,), None))
            if start // MINUTE % 4 == 3:
                judging.catch_up()
    if judging is not None:
        judging.catch_up()
    scene.store.write(unwritten, now=scene.time)


def baseline(judging: RuleService) -> Baseline:
    return judging.decision_of("chat").models["llama"].baseline


def test_the_others_are_compared_with_it_at_the_same_time(scene: Scene) -> None:
    pass_time(scene, None, 60, holdout=0.02)
    judging = scene.judging()
    judging.holdouts = {"chat": (HOLDOUT,)}
    pass_time(scene, judging, 36, holdout=0.03)
    known = judging.decision_of("chat").models["llama"]
    (measurement,) = known.baseline.holdouts
    assert (measurement.holdout, measurement.origin) == ("b", Origin.HOLDOUT)
    assert min(p.at for p in measurement.points) == SINCE + WARM_UP + MINUTE
    assert measurement.pace is not None
    assert measurement.pace.ratio.value == pytest.approx(1.0)
    assert measurement.tpot is not None
    assert known.assessment.speedup is not None
    assert known.assessment.speedup.value == pytest.approx(1.5, rel=0.02)
    assert known.assessment.simultaneous > 0.3
    assert all(m.origin is not Origin.HOLDOUT for m in scene.store.measurements())
    judging.holdouts = {}
    pass_time(scene, judging, 1, holdout=0.03)
    pass_time(scene, judging, 1, holdout=0.03)
    assert baseline(judging).holdouts == ()


def test_a_slower_server_is_no_baseline_as_it_is(scene: Scene) -> None:
    pass_time(scene, None, 60, holdout=0.04)
    judging = scene.judging()
    judging.holdouts = {"chat": (HOLDOUT,)}
    pass_time(scene, judging, 16, holdout=0.06)
    (measurement,) = baseline(judging).holdouts
    assert measurement.pace is not None
    assert measurement.pace.ratio.value == pytest.approx(2.0, rel=0.01)
    assert measurement.tpot is None, "a quantile cannot be corrected"
    speedup = judging.decision_of("chat").models["llama"].assessment.speedup
    assert speedup is not None
    assert speedup.value == pytest.approx(1.5, rel=0.02)


def test_a_minute_that_was_written_late_is_read_too(scene: Scene) -> None:
    minutes = HoldoutMinutes(scene.store)
    starts = [SINCE + WARM_UP + n * MINUTE for n in range(6)]
    for start in (*starts[:2], *starts[3:]):
        scene.store.write([batch(timed(start, "b", Mode.OFF, 0.03))], now=scene.time)
    now = float(starts[-1] + MINUTE)
    assert minutes.read([HOLDOUT], now) == {HOLDOUT}
    assert minutes.read([HOLDOUT], now) == set()
    scene.store.write([batch(timed(starts[2], "b", Mode.OFF, 0.03))], now=scene.time)
    assert minutes.read([HOLDOUT], now) == {HOLDOUT}
    (measurement,) = minutes.measurements("chat", [HOLDOUT])
    assert [point.at for point in measurement.points] == [start + MINUTE for start in starts]
    assert minutes.measurements("b", [HOLDOUT]) == [], "a holdout is not its own baseline"
    assert minutes.read([], now) == set()
    assert minutes.measurements("chat", [HOLDOUT]) == []

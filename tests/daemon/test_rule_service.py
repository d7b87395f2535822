"""Verdicts are reached, kept and found again, whatever the database does meanwhile."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.config.loading import Config
from specwatch.config.rules import Condition, Rule, Rules, Scope, Slo
from specwatch.config.sections import Baselines
from specwatch.config.target import Experiments, Target
from specwatch.daemon import rule_service as judging_module
from specwatch.daemon.rule_service import RuleService
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import (
    ALL,
    HOUR,
    TEMPERATURE,
    Batch,
    Histogram,
    Mode,
    Moment,
    PodInstance,
    Window,
)
from specwatch.domain.speedup import NOT_READ, TOO_FEW
from specwatch.errors import StoreUnavailable
from specwatch.rules.decisions import Decision
from specwatch.rules.judge import Judge
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.store.repository import Store
from tests.daemon.running import config_of
from tests.daemon.stepped import SCRAPING, Stepped, StoppedClock
from tests.daemon.stores import StoreOf
from tests.fixtures import Log, Serve, events, target_of
from tests.hostile import Visit
from tests.report.experiments import switchback
from tests.scrape.pages import vllm
from tests.segments import segment
from tests.store.examples import FOREVER, T0, batch, minute

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else

LOW = Rule(
    name="low",
    conditions=(Condition(metric="acceptance_ratio", below=0.5),),
    window="2m",
    for_="1m",
    clear_for="1m",
)
SLO = Slo(name="first-token", metric="ttft", threshold="500ms", objective="99%", window="2d")


def acceptance(start: int, rate: float, **changes: Any) -> Window:
    """A minute of 100 drafts of 3 tokens, of which that share was accepted; of none when off."""
    one = minute(start, **changes)
    tally = msgspec.structs.replace(
        one.tally, accepted_tokens=round(300 * rate), tpot=Histogram((0.01, 0.1), (0, 50, 0), 2.5)
    )
    if one.mode is Mode.OFF:
        tally = msgspec.structs.replace(
            tally, drafts=None, draft_tokens=None, accepted_tokens=None, accepted_per_position=None
        )
    return msgspec.structs.replace(one, tally=tally)


class Scene:
    """A store, a clock, and judges in a row: a new one is a daemon that was restarted."""

    def __init__(self, stores: StoreOf) -> None:
        self.opened = stores
        """A store for a daemon of that name."""
        self.time = float(T0)
        self.config = self.ruled(LOW)
        self.store = self.opened("left")

    def now(self) -> Moment:
        return Moment(self.time, self.time)

    def ruled(self, *rules: Rule, targets: tuple[str, ...] = ("chat",), **changes: Any) -> Config:
        """A configuration with those rules and no others."""
        configured = [Target(url="http://127.0.0.1:1", name=name) for name in targets]
        config = config_of("sqlite:///unused.db", configured)
        return config.model_copy(
            update={"rules": Rules(use_defaults=False, extra=rules), **changes}
        )

    def judging(self, store: Store | None = None) -> RuleService:
        """A new judging that has learned what the store knows."""
        new = RuleService(store or self.store, self.config, now=self.now)
        new.catch_up()
        return new

    def pass_minutes(self, judging: RuleService, *rates: float, **changes: Any) -> None:
        """Let minutes with these acceptance rates pass, and be written to the store."""
        unwritten = []
        for rate in rates:
            window = acceptance(int(self.time), rate, **changes)
            self.time += 60
            judging.observe(window.series.target, Batch((window,), None))
            unwritten.append(batch(window))
        self.store.write(unwritten, now=self.time)

    def calibrate(self, *times: float) -> None:
        """Store a calibration that has a point at each of these times."""
        points = tuple(Point(time, 1.0, 2.5, 50.0, by_token=False) for time in times)
        key = BaselineKey("chat", "llama", "0.11.0")
        measurement = Measurement(key, 0, Origin.CALIBRATION, points)
        self.store.write_measurements([measurement], self.time)

    def stored(self) -> list[Decision]:
        """Changes of verdicts in the store, oldest first, those of one time by daemon and rule."""
        decisions = self.store.verdicts(**FOREVER)
        return sorted(decisions, key=lambda decision: (decision.at, decision.daemon, decision.rule))


@pytest.fixture
def scene(stores: StoreOf) -> Scene:
    """An empty store at a full hour."""
    return Scene(stores)


def verdicts(judging: RuleService, target: str = "chat") -> list[Verdict]:
    """The confirmed verdicts on a target."""
    return [finding.verdict for finding in judging.decision_of(target).findings]


def away(*_: object, **__: object) -> None:
    raise StoreUnavailable("the database is away")


def test_a_breach_and_its_end_are_logged_shown_and_stored_with_their_numbers(
    scene: Scene, log: Log
) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, 0.2, 0.2)
    assert verdicts(judging) == [Verdict.BREACH]
    scene.pass_minutes(judging, 0.9, 0.9, 0.9)
    assert verdicts(judging) == [Verdict.PASS]
    judging.flush()
    breach, end = scene.stored()
    assert (breach.verdict, breach.at, breach.rule) == ("breach", T0 + 120, "low")
    assert (breach.severity, breach.action, breach.daemon) == ("warning", "alert", "left")
    (read,) = breach.inputs["readings"]
    assert read["metric"] == "acceptance_ratio"
    assert (read["value"], read["below"], read["window"], read["drafts"]) == (0.2, 0.5, 120, 200)
    assert read["basis"] == "counted"
    assert breach.inputs["speedup"]["basis"] == "assumed"
    assert breach.inputs["attribution"]["missing"]
    assert (end.verdict, end.at > breach.at) == ("pass", True)
    assert [(event["value"], event["threshold"]) for event in events(log, "rule_breach")] == [
        (0.2, 0.5)
    ]
    (cleared,) = events(log, "rule_cleared")
    assert cleared["rule"] == "low"
    assert cleared["value"] > 0.5


def test_a_rule_reads_the_experiment_of_a_target_that_has_one_in_the_configuration(
    scene: Scene,
) -> None:
    faster = Rule(
        name="faster",
        conditions=(Condition(metric="experiment_speedup_ratio", above=1),),
        window="2m",
        for_="0s",
        severity="info",
    )
    scene.config = scene.ruled(faster)
    scene.store.change_switchback("chat", lambda _: switchback(scene.time), scene.time)
    judging = scene.judging()
    scene.pass_minutes(judging, 0.5, 0.5)
    assert verdicts(judging) == [Verdict.NO_DATA]
    with_one = [
        target.model_copy(update={"experiments": Experiments(arms=(0, 2))})
        for target in scene.config.targets
    ]
    judging.configure(scene.config.model_copy(update={"targets": tuple(with_one)}))
    scene.time += 60
    judging.catch_up()
    scene.pass_minutes(judging, 0.5, 0.5)
    assert verdicts(judging) == [Verdict.BREACH]
    (finding,) = judging.decision_of("chat").findings
    assert finding.readings[0][1].note == "of 2 draft tokens"


def test_what_is_assumed_follows_the_draft_cost_of_the_target_and_a_reload_of_it(
    scene: Scene,
) -> None:
    """Half of the draft tokens are accepted: too few for one that costs 0.6 steps."""
    low = LOW.model_copy(
        update={"conditions": (Condition(metric="speedup_ratio_assumed", below=1),)}
    )
    scene.config = scene.ruled(low)
    judging = scene.judging()
    scene.pass_minutes(judging, 0.5, 0.5)
    assert verdicts(judging) == [Verdict.PASS]
    (known,) = judging.decision_of("chat").models.values()
    assert (known.draft_cost_ratio, known.prior > 1) == (0.1, True)
    dear = [target.model_copy(update={"draft_cost_ratio": 0.6}) for target in scene.config.targets]
    judging.configure(scene.config.model_copy(update={"targets": tuple(dear)}))
    scene.pass_minutes(judging, 0.5, 0.5)
    assert verdicts(judging) == [Verdict.BREACH]
    (known,) = judging.decision_of("chat").models.values()
    assert (known.draft_cost_ratio, known.prior < 1) == (0.6, True)


def test_after_a_restart_it_is_known_how_fast_the_server_was_when_the_baseline_was_measured(
    scene: Scene,
) -> None:
    """A server whose clock is throttled meanwhile has lost nothing of its speedup of 1.5."""
    both = [
        Rule(name=name, conditions=(Condition(metric=name, below=1),), window="10m")
        for name in ("speedup_ratio", "speedup_ratio_unadjusted")
    ]
    scene.config = scene.ruled(*both)
    judging = scene.judging()

    def pass_by(judging: RuleService, minutes: int, seconds: float, mode: Mode = Mode.ON) -> None:
        unwritten = []
        for _ in range(minutes):
            one = acceptance(int(scene.time), 0.7, mode=mode, concurrency=2.0)
            tally = msgspec.structs.replace(
                one.tally,
                generation_tokens=310,
                ttft=Histogram((0.1,), (10, 0), 0.5),
                inter_token=Histogram((0.01, 0.1), (0, 100, 0), 300 * seconds),
            )
            one = msgspec.structs.replace(one, tally=tally)
            scene.time += 60
            judging.observe("chat", Batch((one,), None))
            unwritten.append(batch(one))
        scene.store.write(unwritten, now=scene.time)

    def read(judging: RuleService) -> dict[str, float]:
        findings = judging.decision_of("chat").findings
        return {finding.rule.name: finding.readings[0][1].value or 0.0 for finding in findings}

    pass_by(judging, 15, 0.030, Mode.OFF)
    pass_by(judging, 20, 0.020)
    judging.flush(final=True)
    scene.time += 5 * HOUR
    again = scene.judging()
    pass_by(again, 10, 0.036)
    assert read(again) == {
        "speedup_ratio": pytest.approx(1.5, rel=0.02),
        "speedup_ratio_unadjusted": pytest.approx(1.5 * 20 / 36, rel=0.02),
    }


def test_what_is_attributed_is_what_changed_before_the_window_of_the_rule(scene: Scene) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, *[0.8] * 10, 0.1, 0.1, 0.1)
    judging.flush()
    (breach,) = scene.stored()
    cause = breach.inputs["attribution"]
    assert cause["missing"] is None
    # Of tokens that come as fast as before: what acceptance took, something else gave.
    contributions = {factor["factor"]: factor["contribution"] for factor in cause["causes"]}
    assert contributions["acceptance"] < -0.3


def test_the_likely_cause_of_a_breach_is_known_after_a_restart_too(scene: Scene) -> None:
    """Fewer accepted tokens a step, at the same time a step."""
    judging = scene.judging()
    for rate, tokens in (*[(0.8, 420)] * 10, *[(0.1, 140)] * 6):
        one = acceptance(int(scene.time), rate, concurrency=2.0)
        pace = Histogram((0.01, 0.1), (0, 100, 0), 3.0)
        tally = msgspec.structs.replace(one.tally, generation_tokens=tokens, inter_token=pace)
        one = msgspec.structs.replace(one, tally=tally)
        scene.time += 60
        judging.observe("chat", Batch((one,), None))
        scene.store.write([batch(one)], now=scene.time)
    assert judging.decision_of("chat").causes == {}
    judging.flush(final=True)
    ((scope, likely),) = judging.decision_of("chat").causes.items()
    (finding,) = judging.decision_of("chat").findings
    assert scope == (finding.rule.name, finding.model_name, ALL)
    assert likely.factor == "acceptance"
    assert "fell from 80%" in likely.sentence
    assert scene.judging().decision_of("chat").causes == {scope: likely}


def test_a_daemon_that_starts_again_neither_forgets_a_breach_nor_fires_again(
    scene: Scene, log: Log
) -> None:
    before = scene.judging()
    scene.pass_minutes(before, 0.2, 0.2)
    before.flush(final=True)
    judging = scene.judging()
    (finding,) = judging.decision_of("chat").findings
    assert (finding.verdict, finding.since) == (Verdict.BREACH, T0 + 120)
    scene.pass_minutes(judging, 0.2)
    judging.flush()
    assert len(scene.stored()) == len(events(log, "rule_breach")) == 1
    scene.pass_minutes(judging, 0.9, 0.9, 0.9)
    judging.flush()
    assert [decision.verdict for decision in scene.stored()] == ["breach", "pass"]
    assert scene.judging().decision_of("chat").findings == ()


def test_a_breach_that_is_found_before_the_past_is_read_goes_on(scene: Scene) -> None:
    """A minute may end as soon as a daemon has started."""
    before = scene.judging()
    scene.pass_minutes(before, 0.2, 0.2)
    before.flush(final=True)
    judging = RuleService(scene.store, scene.config, now=scene.now)
    scene.pass_minutes(judging, 0.2, 0.2)
    assert verdicts(judging) == [Verdict.BREACH]
    judging.flush()
    judging.catch_up()
    judging.flush()
    (finding,) = judging.decision_of("chat").findings
    assert (finding.verdict, finding.since) == (Verdict.BREACH, T0 + 120)
    assert finding.readings
    assert [decision.verdict for decision in scene.stored()] == ["breach"]


def test_two_daemons_on_one_target_keep_each_its_own(scene: Scene) -> None:
    left, right = scene.judging(), scene.judging(scene.opened("right"))
    for start in (T0, T0 + 60):
        scene.time = start + 60
        for judging in (left, right):
            judging.observe("chat", Batch((acceptance(start, 0.2),), None))
    left.flush()
    assert scene.judging(scene.opened("right")).decision_of("chat").findings == ()
    right.flush()
    assert [decision.daemon for decision in scene.stored()] == ["left", "right"]


def test_hours_and_minutes_of_the_past_are_counted_once(scene: Scene) -> None:
    scene.config = scene.ruled(LOW, slos=(SLO,))
    written = [acceptance(T0 + 1200 * n, 0.8, drafts=7) for n in range(3 * 8)]
    scene.store.write([batch(*written)], now=0)
    scene.time = T0 + 8 * HOUR + 400
    scene.store.roll_up(scene.time)
    (slo,) = scene.judging().decision_of("chat").slos
    assert slo.total == sum(one.tally.ttft.count for one in written if one.tally.ttft)


def test_the_day_before_the_start_is_known_by_temperature(scene: Scene) -> None:
    """A daemon that has only just started sees that the acceptance fell since yesterday."""
    fall = Condition(metric="acceptance_change", below=-0.05)
    rule = LOW.model_copy(update={"conditions": (fall,), "window": 600.0})
    scene.config = scene.ruled(rule)
    both = ("all", "0")
    day = [acceptance(T0 + 3600 * n, 0.8, temperature=t) for n in range(25) for t in both]
    scene.store.write([batch(*day)], now=0)
    scene.time = T0 + 25.0 * HOUR
    scene.store.roll_up(scene.time)
    judging = scene.judging()
    for _ in range(8):
        start = int(scene.time)
        scene.time += 60
        windows = tuple(acceptance(start, 0.3, temperature=t) for t in both)
        judging.observe("chat", Batch(windows, None))
    (finding,) = judging.decision_of("chat").findings
    assert finding.readings[0][1].value == pytest.approx(-0.5, abs=0.01)


def test_goodput_is_of_the_time_that_minutes_cover(scene: Scene) -> None:
    """Live or from the store: what made up for a gap, or an outage, is no burst of requests."""
    scene.config = scene.ruled(LOW, slos=(SLO,))
    one = acceptance(T0, 0.8)
    late = msgspec.structs.replace(
        acceptance(T0 + 1800, 0.8), observed_seconds=500.0, down_seconds=40.0
    )
    judging = scene.judging()
    scene.time = T0 + 1860
    for judged in (one, late):
        scene.store.write([batch(judged)], now=0)
        judging.observe("chat", Batch((judged,), None))
    live = judging.decision_of("chat").goodput
    assert live["llama"][HOUR].watched == 600
    assert live["llama"][300].watched == 540
    assert live["llama"][HOUR].requests == 2 * one.tally.ttft.count
    assert scene.judging().decision_of("chat").goodput == live


def test_an_outage_of_the_database_loses_no_verdict(
    scene: Scene, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = scene.judging()
    with monkeypatch.context() as outage:
        outage.setattr(scene.store, "write_verdicts", away)
        for rates in ((0.2, 0.2), (0.9, 0.9, 0.9), (0.2, 0.2, 0.2)):
            scene.pass_minutes(judging, *rates)
            judging.flush()
    status = judging.status()
    assert (status.queued, status.dropped, status.error) == (3, 0, "the database is away")
    assert len(events(log, "verdicts_unwritten")) == 1
    judging.flush()
    assert [decision.verdict for decision in scene.stored()] == ["breach", "pass", "breach"]
    assert judging.status() == dataclasses.replace(status, queued=0, error=None)


def test_what_waits_is_bounded_and_the_newest_stay(
    scene: Scene, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging_module, "MOST_WAITING", 6)
    by_temperature = LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE)})
    scene.config = scene.ruled(by_temperature)
    judging = scene.judging()
    labels = [f"t{number}" for number in range(3)]
    for rate in (0.2, 0.2, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2):
        scene.time += 60
        windows = [acceptance(int(scene.time) - 60, rate, temperature=label) for label in labels]
        windows.append(acceptance(int(scene.time) - 60, rate))
        judging.observe("chat", Batch(tuple(windows), None))
    assert (judging.status().queued, judging.status().dropped) == (6, 3)
    judging.flush()
    kept = [one.verdict for one in scene.stored()]
    assert kept == ["pass"] * 3 + ["breach"] * 3
    assert events(log, "verdicts_dropped")


def test_a_database_that_comes_late_does_not_make_a_breach_begin_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scene.judging()
    scene.pass_minutes(first, 0.2, 0.2)
    first.flush(final=True)
    with monkeypatch.context() as outage:
        outage.setattr(scene.store, "measurements", away)
        judging = scene.judging()
    assert not judging.caught_up
    scene.pass_minutes(judging, 0.9, 0.9)
    judging.catch_up()
    assert judging.caught_up
    judging.flush()
    assert verdicts(judging) == [Verdict.PASS]
    assert [decision.verdict for decision in scene.stored()] == ["breach", "pass"]


def test_a_defect_in_judging_one_target_is_told_once_and_stops_nobody(
    scene: Scene, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.config = scene.ruled(LOW, targets=("broken", "chat"))
    judging = scene.judging()
    observe: Callable[..., Any] = Judge.observe

    def failing(self: Judge, *arguments: Any) -> Any:
        if self.target == "broken":
            raise ZeroDivisionError("a defect")
        return observe(self, *arguments)

    monkeypatch.setattr(Judge, "observe", failing)
    for _ in range(3):
        scene.pass_minutes(judging, 0.2, target="broken")
        scene.pass_minutes(judging, 0.2)
    assert judging.status().defects == 3
    (entry,) = events(log, "judging_failed")
    assert entry["target"] == "broken"
    assert entry["exc_info"]
    assert verdicts(judging) == [Verdict.BREACH]


def test_what_cannot_be_shown_is_logged_once_and_counted(scene: Scene, log: Log) -> None:
    judging = scene.judging()
    for _ in range(3):
        judging.not_shown("chat", KeyError("bins"))
    assert judging.status().defects == 3
    (entry,) = events(log, "status_not_shown")
    assert (entry["target"], bool(entry["exc_info"])) == ("chat", True)


def test_a_past_that_cannot_be_taken_in_is_not_read_again_and_again(
    scene: Scene, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Judge, "load", failing)
    judging = scene.judging()
    judging.catch_up()
    assert judging.caught_up
    assert judging.status().defects == len(events(log, "judging_failed")) == 1


def test_windows_of_a_target_that_left_are_passed_over(scene: Scene) -> None:
    judging = scene.judging()
    judging.configure(scene.ruled(LOW, targets=("code",)))
    scene.pass_minutes(judging, 0.2, 0.2)
    assert judging.decision_of("chat").findings == ()
    assert judging.status().defects == 0


def test_a_reload_keeps_what_did_not_change_and_ends_the_breaches_of_what_did(
    scene: Scene, log: Log
) -> None:
    other = LOW.model_copy(update={"name": "other"})
    scene.config = scene.ruled(LOW, other)
    judging = scene.judging()
    scene.pass_minutes(judging, 0.2, 0.2)
    stricter = other.model_copy(update={"min_drafts": 10_000})
    judging.configure(scene.ruled(LOW, stricter))
    assert [finding.rule.name for finding in judging.decision_of("chat").findings] == ["low"]
    scene.pass_minutes(judging, 0.2)
    verdicts_by_rule = {
        finding.rule.name: finding.verdict for finding in judging.decision_of("chat").findings
    }
    assert verdicts_by_rule == {"low": Verdict.BREACH, "other": Verdict.NO_DATA}
    judging.flush()
    assert [(decision.rule, decision.verdict) for decision in scene.stored()] == [
        ("low", "breach"),
        ("other", "breach"),
        ("other", "no_data"),
    ]
    assert len(events(log, "rule_breach")) == 2


def test_new_objectives_leave_breaches_open(scene: Scene, log: Log) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, 0.2, 0.2)
    judging.configure(scene.ruled(LOW, slos=(SLO,)))
    judging.catch_up()
    assert verdicts(judging) == [Verdict.BREACH]
    (objective,) = judging.decision_of("chat").slos
    assert objective.total > 0
    scene.pass_minutes(judging, 0.2)
    assert len(events(log, "rule_breach")) == 1


def test_a_breach_of_a_rule_that_is_gone_at_the_start_is_ended(scene: Scene) -> None:
    before = scene.judging()
    scene.pass_minutes(before, 0.2, 0.2)
    before.flush()
    scene.config = scene.ruled()
    judging = scene.judging()
    judging.flush()
    assert [decision.verdict for decision in scene.stored()] == ["breach", "no_data"]
    assert scene.store.open_breaches() == []


def test_a_breach_of_a_temperature_that_its_rule_no_longer_looks_at_is_ended(scene: Scene) -> None:
    by_temperature = LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE)})
    scene.config = scene.ruled(by_temperature)
    judging = scene.judging()
    for _ in range(2):
        start = int(scene.time)
        scene.time += 60
        windows = (acceptance(start, 0.9), acceptance(start, 0.2, temperature="0"))
        judging.observe("chat", Batch(windows, None))
    judging.flush()
    assert [one.segment for one in scene.store.open_breaches()] == [segment("0")]
    scene.config = scene.ruled(LOW)
    scene.judging().flush()
    assert [(one.segment.value, one.verdict) for one in scene.stored()] == [
        ("0", "breach"),
        ("0", "no_data"),
    ]
    assert scene.store.open_breaches() == []


def test_a_breach_of_a_model_that_is_gone_for_a_day_is_ended(scene: Scene, log: Log) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, 0.2, 0.2)
    scene.time += 25 * HOUR
    scene.pass_minutes(judging, 0.9, model_name="qwen")
    assert [finding.model_name for finding in judging.decision_of("chat").findings] == ["qwen"]
    judging.flush()
    breach, end = scene.stored()
    assert (breach.model_name, end.model_name, end.verdict) == ("llama", "llama", "no_data")
    assert end.inputs == {"missing": "no requests of that model or segment for a day"}
    (entry,) = events(log, "rule_ended")
    assert (entry["model_name"], entry["value"]) == ("llama", None)
    assert scene.store.open_breaches() == []


def test_a_clock_that_was_set_back_leaves_no_breach_open(scene: Scene) -> None:
    """What comes later is stored as later, in whichever order the daemon learns of it."""
    before = scene.judging()
    scene.pass_minutes(before, 0.2, 0.2)
    before.flush()
    scene.time = T0 - 2.0 * HOUR
    judging = scene.judging()
    scene.pass_minutes(judging, 0.9, 0.9, 0.9)
    judging.flush()
    assert scene.store.open_breaches() == []
    scene.pass_minutes(judging, 0.2, 0.2, 0.2)
    judging.flush()
    assert [decision.verdict for decision in scene.stored()] == ["breach", "pass", "breach"]
    assert len(scene.store.open_breaches()) == 1
    judging.configure(scene.ruled())
    judging.flush()
    assert [decision.verdict for decision in scene.stored()] == [
        "breach",
        "pass",
        "breach",
        "no_data",
    ]
    assert scene.store.open_breaches() == []


def test_what_a_rule_found_is_not_held_after_the_rule_is_gone(scene: Scene) -> None:
    """A daemon may be told to read its rules again for years."""
    gc.freeze()  # what other tests left is not looked at
    judging = scene.judging()
    for _ in range(3):
        judging.configure(scene.ruled(LOW))
        scene.pass_minutes(judging, 0.2, 0.2, 0.2)
        judging.flush()
        judging.configure(scene.ruled())
        judging.flush()
    assert [decision.verdict for decision in scene.stored()] == ["breach", "no_data"] * 3
    gc.collect()
    findings = [value for value in gc.get_objects() if isinstance(value, Finding)]
    assert [finding for finding in findings if finding.rule.name == LOW.name] == []


def test_minutes_without_speculation_become_a_baseline_that_is_kept(scene: Scene) -> None:
    """Written at most every ten minutes, and at the end."""
    judging = scene.judging()
    judging.flush()
    scene.pass_minutes(judging, *[0.0] * 6, mode=Mode.OFF)
    judging.flush()
    assert scene.store.measurements() == []
    scene.pass_minutes(judging, *[0.0] * 4, mode=Mode.OFF)
    judging.flush()
    (measurement,) = scene.store.measurements()
    assert (measurement.origin, len(measurement.points)) == (Origin.WINDOWS, 10)
    assert measurement.key == BaselineKey("chat", "llama", "0.11.0", "abc")
    scene.pass_minutes(judging, 0.0, mode=Mode.OFF)
    judging.flush()
    assert scene.store.measurements() == [measurement]
    judging.flush(final=True)
    (last,) = scene.store.measurements()
    assert len(last.points) == 11
    assert last.tpot.count == 11 * 50


def test_a_baseline_outlives_a_restart_and_an_outage(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, *[0.0] * 6, mode=Mode.OFF)
    with monkeypatch.context() as outage:
        outage.setattr(scene.store, "write_measurements", away)
        judging.flush(final=True)
    judging.flush(final=True)
    after = scene.judging()
    scene.pass_minutes(after, *[0.6] * 6)
    figures = after.decision_of("chat").models["llama"]
    assert figures.assessment.measured
    assert figures.baseline.age(scene.time) == 360.0
    assert "tpot" in figures.baseline_latencies
    assert figures.prior is None


def observations(scene: Scene) -> list[tuple[int, int]]:
    """Of each stored baseline the points, and the requests that its latencies come from."""
    return [
        (len(measurement.points), measurement.tpot.count)
        for measurement in scene.store.measurements()
        if measurement.tpot
    ]


def test_what_is_measured_before_the_past_is_read_is_added_to_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scene.judging()
    scene.pass_minutes(before, *[0.0] * 12, mode=Mode.OFF)
    before.flush(final=True)
    with monkeypatch.context() as outage:
        outage.setattr(scene.store, "measurements", away)
        judging = scene.judging()
    scene.pass_minutes(judging, *[0.0] * 12, mode=Mode.OFF)
    judging.catch_up()
    judging.flush(final=True)
    scene.pass_minutes(judging, *[0.0] * 3, mode=Mode.OFF)
    judging.flush(final=True)
    assert observations(scene) == [(27, 27 * 50)]


def test_a_write_of_which_nobody_knows_whether_it_was_done_counts_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, *[0.0] * 12, mode=Mode.OFF)
    write = scene.store.write_measurements

    def broken(*arguments: Any) -> None:
        write(*arguments)
        away()

    with monkeypatch.context() as outage:
        outage.setattr(scene.store, "write_measurements", broken)
        for _ in range(2):
            judging.flush(final=True)
            scene.pass_minutes(judging, *[0.0] * 4, mode=Mode.OFF)
    judging.flush(final=True)
    assert observations(scene) == [(20, 20 * 50)]


@pytest.mark.parametrize("change", ["slos", "baseline", "targets"])
def test_a_reload_keeps_what_was_measured_and_not_written(scene: Scene, change: str) -> None:
    judging = scene.judging()
    judging.flush()
    scene.pass_minutes(judging, *[0.0] * 12, mode=Mode.OFF)
    scene.config = {
        "slos": lambda: scene.ruled(LOW, slos=(SLO,)),
        "baseline": lambda: scene.ruled(LOW, baseline=Baselines(max_age="10d")),
        "targets": lambda: scene.ruled(LOW, targets=("code",)),
    }[change]()
    judging.configure(scene.config)
    if change != "targets":
        scene.pass_minutes(judging, *[0.6] * 6)
        assert judging.decision_of("chat").models["llama"].assessment.measured
    judging.flush(final=True)
    assert observations(scene) == [(12, 12 * 50)]


def test_a_baseline_that_somebody_measured_is_taken_up(scene: Scene) -> None:
    judging = scene.judging()
    scene.pass_minutes(judging, *[0.6] * 6)
    assert not judging.decision_of("chat").models["llama"].assessment.measured
    judging.catch_up()
    scene.calibrate(*(scene.time - n for n in range(6)))
    scene.time += 15
    judging.catch_up()
    scene.time -= 15
    scene.pass_minutes(judging, 0.6)
    assert judging.decision_of("chat").models["llama"].assessment.measured


def test_a_pod_is_compared_with_the_baseline_of_its_workload(scene: Scene) -> None:
    (workload,) = scene.config.targets
    pod = Target(url="http://127.0.0.2:1", name="pod")
    scene.calibrate(*(T0 - n for n in range(6)))
    for target, known in ((pod, False), (pod.in_pod(PodInstance("uid", 1.0), workload), True)):
        scene.config = scene.config.model_copy(update={"targets": (target,)})
        judging = scene.judging()
        scene.pass_minutes(judging, 0.6, target="pod")
        assert judging.baselines_of("pod")["llama"].known is known


def test_nothing_is_assumed_of_a_target_with_a_baseline(scene: Scene) -> None:
    """Not in its first minutes, and not before it is known whether there is one."""
    scene.calibrate(*(T0 - n for n in range(6)))
    judging = RuleService(scene.store, scene.config, now=scene.now)
    scene.pass_minutes(judging, 0.6)
    figures = judging.decision_of("chat").models["llama"]
    assert (figures.prior, figures.assessment.missing) == (None, NOT_READ)
    judging.catch_up()
    scene.pass_minutes(judging, 0.6)
    figures = judging.decision_of("chat").models["llama"]
    assert (figures.prior, figures.assessment.missing) == (None, TOO_FEW)


def test_baselines_are_read_only_once_they_changed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = scene.judging()
    read, reads = scene.store.measurements, []
    monkeypatch.setattr(scene.store, "measurements", lambda: reads.append(scene.time) or read())
    for _ in range(3):
        scene.pass_minutes(judging, 0.6)
        judging.catch_up()
    assert not reads
    newer = scene.time
    for time in (newer, newer - 9000):  # one of before is news as well
        scene.calibrate(time)
        scene.time += 60
        judging.catch_up()
        judging.catch_up()
    assert len(reads) == 2


def test_baselines_that_did_not_change_are_not_held_twice(scene: Scene) -> None:
    """They are read again and again, and are most of what is known of a target."""
    scene.calibrate(*(T0 - n for n in range(6)))
    judging = scene.judging()
    held = []
    for _ in range(2):
        scene.pass_minutes(judging, *[0.6] * 6)
        held.append(judging.decision_of("chat").models["llama"].baseline.bins[0])
        judging.catch_up()
    assert held[0] is held[1]
    scene.calibrate(*(T0 - n for n in range(6)), scene.time)
    scene.pass_minutes(judging, *[0.6] * 6)
    judging.catch_up()
    scene.pass_minutes(judging, 0.6)
    assert len(judging.decision_of("chat").models["llama"].baseline.bins[0].points) == 7


def test_the_daemon_judges_what_it_watches_and_goes_on_after_a_restart(
    serve: Serve, database: Path, log: Log
) -> None:
    """The engine accepts some drafts: a rule that wants none is in breach."""

    def counting(visit: Visit) -> bool:
        drafts = 100 * server.paths.count("/metrics")
        visit.answer(vllm(drafts, drafts=drafts))
        return True

    server = serve(counting)
    none = Condition(metric="acceptance_ratio", above=0.01)
    rule = LOW.model_copy(update={"conditions": (none,), "for_": 0.0})
    config = config_of(database, [target_of(server.url)])
    config = config.model_copy(update={"rules": Rules(use_defaults=False, extra=(rule,))})
    clock = StoppedClock()
    with Stepped(config, clock=clock, lanes=(*SCRAPING, "upkeep")) as daemon:
        daemon.scrape(36)
        assert len(events(log, "rule_breach")) == 1
        (stored,) = daemon.daemon._recorder.store.verdicts(**FOREVER)
        assert stored.rule == "low"
    with Stepped(config, clock=clock, lanes=(*SCRAPING, "upkeep")) as daemon:
        daemon.jobs.run_due()
        (finding,) = daemon.target().decision.findings
        assert (finding.verdict, finding.rule) == (Verdict.BREACH, rule)
        assert daemon.daemon.status().judging.queued == 0
    assert len(events(log, "rule_breach")) == 1

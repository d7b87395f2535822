"""Where drafts vary in length by design, acceptance is no verdict, and measured speed is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from specwatch.config.rules import DEFAULT_RULES
from specwatch.config.rules.metrics import MEASURES
from specwatch.domain import draft_lengths
from specwatch.domain.acceptance import acceptance_rate, lengths_vary
from specwatch.domain.draft_lengths import CAUSES, DraftLengths
from specwatch.domain.model import ALL, Environment, Tally
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedTraffic
from specwatch.rules.decision_view import model_view
from specwatch.rules.readings import read
from specwatch.rules.verdicts import Verdict, judge
from specwatch.wording import speculation
from tests.domain.samples import START, baseline, evidence, minutes, tally
from tests.segments import segment
from tests.web.decided import decided

ACCEPTANCE = [name for name, measure in MEASURES.items() if measure.fixed_length]
ADAPTIVE = Environment("0.32.0", "c0ffee-4 adaptive_verification")
BY_COUNTS = tally(rate=0.05, k=2, requests=100, accepted_per_position=(60, 30, 9, 1))
"""Two tokens a draft, where some had four."""


@pytest.mark.parametrize(
    ("counted", "environment", "cause"),
    [
        (tally(rate=0.05, requests=100), ADAPTIVE, DraftLengths.ADAPTIVE_VERIFICATION),
        (BY_COUNTS, Environment(), DraftLengths.UNEXPLAINED),
    ],
    ids=["by the launch", "by the counts"],
)
def test_acceptance_is_no_verdict_where_drafts_vary_and_says_why(
    counted: Tally, environment: Environment, cause: DraftLengths
) -> None:
    known = evidence(minutes(60, counted, environment=environment))
    why = f"drafts vary in length {CAUSES[cause]}, so that only a measured speedup tells"
    for metric in ACCEPTANCE:
        reading = read(metric, known, window=3600)
        assert (reading.value, reading.moot, reading.missing) == (None, True, why), metric


@pytest.mark.parametrize("rule", [r for r in DEFAULT_RULES if r.action == "disable"])
def test_measured_speed_is_judged_all_the_same(rule: Any) -> None:
    """A reported adaptive verification gained 184 % while acceptance fell, another lost 19.5 %."""
    ran = minutes(60, tally(rate=0.05, requests=100), environment=ADAPTIVE)
    known = evidence(ran, baseline=baseline(tpot=0.01))
    finding = judge(rule, known, target="t", model_name="m", segment=ALL, before=None)
    assert finding.seen is Verdict.BREACH


def test_a_default_rule_on_acceptance_does_not_fire_where_drafts_vary() -> None:
    """None does, with an acceptance of 5 % and no baseline; with drafts of one length two do.

    Both are unjudged.
    """

    def firing(environment: Environment) -> set[str]:
        ran = minutes(60, tally(rate=0.05, requests=100), environment=environment)
        known = evidence(ran, reference={"all": tally(rate=0.5, drafts=50_000)})
        return {
            rule.name
            for rule in DEFAULT_RULES
            if judge(rule, known, target="t", model_name="m", segment=ALL, before=None).seen
            is Verdict.BREACH
        }

    assert firing(Environment("0.32.0", "c0ffee-4")) == {
        "low-acceptance",
        "acceptance-shift",
        "unjudged",
    }
    assert firing(ADAPTIVE) == {"unjudged"}


def test_garbage_is_seen_at_the_first_position_where_drafts_vary() -> None:
    rule = next(rule for rule in DEFAULT_RULES if rule.name == "garbage")
    bad = tally(rate=0.001, requests=100, accepted_per_position=(4, 0, 0, 0))
    scope: dict[str, Any] = {"target": "t", "model_name": "m", "segment": segment("0.5")}
    varying = minutes(20, bad, environment=ADAPTIVE, buckets={"0.5": bad})
    assert judge(rule, evidence(varying), before=None, **scope).seen is Verdict.BREACH
    good = tally(rate=0.01, requests=100, accepted_per_position=(40, 0, 0, 0))
    after = minutes(20, good, environment=ADAPTIVE, buckets={"0.5": good})
    assert judge(rule, evidence(after), before=None, **scope).seen is Verdict.PASS


def test_drafts_of_a_pod_that_does_not_count_positions_are_no_garbage() -> None:
    """The minutes of pods are added up, of which one may have an older tap."""
    whole = tally(rate=0.5, requests=100, accepted_per_position=(10, 5, 3, 2))
    known = evidence(minutes(20, whole, buckets={"0.5": whole}))
    reading = read("first_position_acceptance", known, window=600, segment=segment("0.5"))
    assert (reading.value, reading.moot) == (None, True)


def test_garbage_needs_no_positions() -> None:
    rule = next(rule for rule in DEFAULT_RULES if rule.name == "garbage")
    plain = minutes(20, tally(), buckets={"0.5": tally()})
    seen = judge(
        rule, evidence(plain), target="t", model_name="m", segment=segment("0.5"), before=None
    ).seen
    assert seen is Verdict.PASS


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        ("c0ffee-4", None),
        (None, None),
        ("c0ffee-0", None),
        ("schedule-4", None),
        ("c0ffee-4 schedule", DraftLengths.SCHEDULE),
        ("c0ffee-schedule 1f", DraftLengths.SCHEDULE),
        ("c0ffee-? adaptive_steps", DraftLengths.ADAPTIVE_STEPS),
    ],
)
def test_a_fingerprint_shows_why(fingerprint: str | None, expected: DraftLengths | None) -> None:
    environment = Environment("0.32.0", fingerprint)
    assert draft_lengths.shown_by(environment) is expected
    assert environment.configuration in (None, "c0ffee", "schedule")


def test_ends_of_requests_and_few_drafts_are_no_design() -> None:
    counted = tally(k=4, accepted_per_position=(600, 400, 200, 100))
    assert not lengths_vary(counted)
    assert not lengths_vary(replace(counted, draft_tokens=3500)), "cut as short requests end"
    assert lengths_vary(replace(counted, draft_tokens=3300))
    assert not lengths_vary(replace(counted, drafts=90, draft_tokens=180)), "too few to tell"
    ordered = replace(counted, draft_tokens=2000, accepted_per_position=(600, 400, 0, 0))
    assert not lengths_vary(ordered), "two tokens a draft by an order, of four at launch"
    assert not lengths_vary(replace(counted, accepted_per_position=None))


def test_people_read_why_and_a_break_even_in_tokens() -> None:
    known = model_view(decided().models["llama"], START + 60)
    assert speculation.draft_lengths(None) is None
    varying = msgspec.structs.replace(known, draft_lengths="schedule")
    assert speculation.draft_lengths("schedule") == (
        "drafts vary in length by a schedule over the batch size: acceptance does not tell whether"
        " they pay, measured speed does"
    )
    unexplained = str(speculation.draft_lengths("unexplained"))
    assert "by the counts; the server does not say why" in unexplained
    assert "once the tap is loaded (`specwatch tap flags`), or if it runs vLLM" in unexplained
    assert "of_a_later_version" not in str(speculation.draft_lengths("of_a_later_version"))
    assert " tokens a step" in speculation.break_even(varying, None)
    assert "acceptance" not in speculation.break_even(varying, None)


def test_a_simulated_adaptive_verification_accepts_more_and_is_slower() -> None:
    """It verifies fewer tokens, but drafts as many: acceptance rises while speed falls."""

    def run(*, adaptive: bool) -> Tally:
        engine = SimulatedEngine(
            SimulatedSettings(
                speculation=SimulatedSpeculation(4, adaptive=adaptive),
                traffic=SimulatedTraffic(concurrency=16, temperatures=((0.0, 1.0), (1.0, 1.0))),
                costs=SimulatedCosts(free_tokens=8),
            )
        )
        engine.advance(20)
        return engine.tally()

    fixed, adaptive = run(adaptive=False), run(adaptive=True)
    assert not lengths_vary(fixed)
    assert lengths_vary(adaptive)
    assert (acceptance_rate(adaptive) or 0) > (acceptance_rate(fixed) or 1) + 0.1
    assert (adaptive.generation_tokens or 0) < (fixed.generation_tokens or 0)

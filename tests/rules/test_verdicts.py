"""A breach takes its time to be confirmed and to clear, and no data does neither."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules import DEFAULT_RULES, Condition, Rule
from specwatch.domain.model import Mode, Tally
from specwatch.domain.units import format_duration
from specwatch.rules.evidence import Evidence
from specwatch.rules.verdicts import LONGEST_GAP, Finding, Verdict, judge
from tests.domain.samples import (
    RATE_BOUNDS,
    START,
    baseline,
    evidence,
    minute,
    minutes,
    observed,
    tally,
)
from tests.segments import segment

B, P, N = Verdict.BREACH, Verdict.PASS, Verdict.NO_DATA
LOW = Condition(metric="acceptance_ratio", below=0.5, clear=0.6)


def rule(*conditions: Condition, **others) -> Rule:
    """Judged on each minute by itself, confirmed and cleared at once unless told otherwise."""
    durations = {
        key: format_duration(others.pop(key, default))
        for key, default in (("window", 60.0), ("for_", 0.0), ("clear_for", 0.0))
    }
    return Rule(name="low", conditions=conditions or (LOW,), **durations, **others)


def finding_of(
    judged_rule: Rule, known: Evidence, before: Finding | None = None, temperature="all", cost=0.1
) -> Finding:
    return judge(
        judged_rule,
        known,
        target="chat",
        model_name="model",
        segment=segment(temperature),
        before=before,
        draft_cost_ratio=cost,
    )


def judged(judged_rule: Rule, rates: Iterable[float | None], *, first: int = 0, before=None):
    """The findings of minutes with these acceptance rates, None for idle ones."""
    findings = []
    for n, rate in enumerate(rates, first):
        counted = Tally() if rate is None else tally(rate=rate)
        before = finding_of(judged_rule, evidence([minute(n, counted)]), before)
        findings.append(before)
    return findings


def verdicts(findings: Iterable[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


@pytest.mark.parametrize(
    ("condition", "rate", "seen"),
    [
        (Condition(metric="acceptance_ratio", below=0.5), 0.49, B),
        (Condition(metric="acceptance_ratio", below=0.5), 0.5, P),
        (Condition(metric="acceptance_ratio", above=0.5), 0.5, P),
        (Condition(metric="acceptance_ratio", above=0.5), 0.51, B),
        (Condition(metric="acceptance_ratio", above=0.5), None, N),
    ],
)
def test_a_threshold_itself_is_no_breach(condition, rate, seen):
    assert judged(rule(condition), [rate])[0].seen is seen


TRUTH = {True: 0.1, False: 0.9, None: None}
HIGH_TTFT = Condition(metric="ttft_p50", above="1s")


@pytest.mark.parametrize(
    ("combine", "first", "second", "seen"),
    [
        ("all", True, True, B),
        ("all", True, None, N),
        ("all", True, False, P),
        ("all", None, False, P),
        ("all", None, None, N),
        ("all", False, False, P),
        ("any", True, True, B),
        ("any", True, None, B),
        ("any", True, False, B),
        ("any", None, False, N),
        ("any", None, None, N),
        ("any", False, False, P),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_conditions_combine_by_kleenes_logic(combine, first, second, seen, swapped):
    """What is not known is no data only where it could turn the answer."""
    counted = tally(rate=TRUTH[first] or 0.0, ttft={True: 2.0, False: 0.1, None: 1.0}[second])
    if first is None:
        counted = msgspec.structs.replace(
            counted, drafts=None, draft_tokens=None, accepted_tokens=None
        )
    if second is None:
        counted = msgspec.structs.replace(counted, ttft=None)
    conditions = (HIGH_TTFT, LOW) if swapped else (LOW, HIGH_TTFT)
    judged_by = rule(*conditions, combine=combine)
    assert finding_of(judged_by, evidence([minute(0, counted)])).seen is seen


IDLE = [None] * 3


@pytest.mark.parametrize(
    ("durations", "rates", "expected"),
    [
        pytest.param(
            {"for_": 180.0},
            [0.9, 0.1, 0.1, 0.1, 0.1],
            [P, P, P, P, B],
            id="a breach is confirmed when it was seen for so long",
        ),
        pytest.param(
            {"for_": 180.0},
            [0.1, 0.1, 0.1, 0.9] * 3,
            [N, N, N, P] + [P] * 8,
            id="a pass in between begins anew",
        ),
        pytest.param(
            {"clear_for": 120.0},
            [0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9],
            [B, B, B, B, B, B, P],
            id="a breach clears when the opposite was seen for so long",
        ),
        pytest.param(
            {"for_": 120.0},
            [0.1, 0.1, *IDLE, 0.1, 0.1],
            [N] * 5 + [B, B],
            id="no data does not drop a pending breach",
        ),
        pytest.param(
            {"for_": 180.0},
            [0.1, 0.1, *IDLE, 0.1],
            [N] * 6,
            id="no data does not let a pending breach grow",
        ),
        pytest.param(
            {"clear_for": 120.0},
            [0.1, 0.9, *IDLE, 0.9, 0.9],
            [B] * 6 + [P],
            id="no data neither clears a breach nor counts as clear",
        ),
        pytest.param({}, [None, 0.9, None, 0.9], [N, P, N, P], id="no data is no pass"),
        pytest.param(
            {},
            [0.55, 0.45, 0.55, 0.59, 0.6, 0.55],
            [P, B, B, B, P, P],
            id="between the thresholds nothing changes",
        ),
        pytest.param(
            {"clear_for": 120.0},
            [0.1, 0.7, 0.55, 0.7, 0.55, 0.55],
            [B] * 6,
            id="what falls back between the thresholds is not back",
        ),
        pytest.param(
            {"clear_for": 180.0},
            [0.1, *[0.9, *[None] * 400] * 3],
            [B] * 1204,
            id="one good minute in hours never clears",
        ),
    ],
)
def test_verdicts_follow_what_was_seen_and_for_how_long(durations, rates, expected):
    assert verdicts(judged(rule(**durations), rates)) == expected


def test_a_finding_says_since_when_it_holds_or_is_pending():
    findings = judged(rule(for_=180.0), [0.9, 0.1, 0.1, 0.1, 0.1])
    assert [finding.seen for finding in findings] == [P, B, B, B, B]
    assert [finding.pending for finding in findings[1:]] == [START + 120.0] * 3 + [None]
    assert findings[-1].since == START + 300
    *_, lasts, cleared = judged(rule(clear_for=120.0), [0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9])
    assert (lasts.since, cleared.since) == (START + 60, START + 420)


@pytest.mark.parametrize(
    ("durations", "longest"),
    [
        ({"for_": 120.0}, LONGEST_GAP / 60),
        ({"for_": 600.0}, 10),
        ({"for_": 120.0, "clear_for": 900.0}, LONGEST_GAP / 60),
        ({"for_": 120.0, "window": 420.0}, 7),
    ],
    ids=["gap", "for", "clear_for", "window"],
)
def test_a_pending_verdict_survives_silence_up_to_its_longest_duration(durations, longest):
    last = judged(rule(**durations), [0.1, *[None] * round(longest)])[-1]
    assert last.pending is not None
    (later,) = judged(rule(**durations), [None], first=1 + round(longest), before=last)
    assert (later.verdict, later.pending) == (N, None)


def test_a_condition_with_a_longer_window_keeps_the_rule_pending_longer():
    long = Condition(metric="acceptance_ratio", below=0.5, window="10m")
    findings = judged(rule(long, for_=180.0), [0.1, *[None] * 11])
    assert [finding.pending is None for finding in findings] == [False] * 11 + [True]


def test_a_gap_does_not_count_as_time_that_a_condition_held():
    first = judged(rule(for_=300.0), [0.9, 0.1, 0.1])
    later = judged(rule(for_=300.0), [0.1] * 6, first=60, before=first[-1])
    assert verdicts(later) == [P, P, P, P, P, B]
    assert later[0].pending == START + 61 * 60


def test_a_short_gap_is_bridged():
    first = judged(rule(for_=300.0), [0.1, 0.1])[-1]
    missed = round(LONGEST_GAP) // 60
    assert verdicts(judged(rule(for_=300.0), [0.1], first=1 + missed, before=first)) == [N]
    assert verdicts(judged(rule(for_=240.0), [0.1], first=1 + missed, before=first)) == [B]
    assert verdicts(judged(rule(for_=240.0), [0.1], first=2 + missed, before=first)) == [N]


def test_a_clock_that_steps_back_confirms_nothing():
    first = judged(rule(for_=120.0), [0.1, 0.1], first=100)[-1]
    again = judged(rule(for_=120.0), [0.1, 0.1, 0.1], before=first)
    assert verdicts(again) == [N, N, B]


def test_a_breach_that_an_earlier_daemon_left_is_still_one():
    left = replace(judged(rule(), [0.1])[0], at=0.0, held=(), readings=(), pending=None)
    findings = judged(rule(clear_for=60.0), [None, 0.55, 0.7, 0.7], first=500, before=left)
    assert verdicts(findings) == [B, B, B, P]
    assert findings[0].since == left.since


def test_a_condition_that_did_not_fire_keeps_no_breach_alive():
    """Its clearing threshold is for the breach that it was part of."""
    slow = Condition(metric="ttft_p50", above="1s", clear="0.01s")
    findings = judged(rule(LOW, slow, combine="any"), [0.1, 0.7])
    assert [finding.held for finding in findings] == [(True, False), ()]
    assert verdicts(findings) == [B, P]


SLOW = Condition(metric="speedup_ratio", below=1.0)
"""The baseline takes 30 ms for a token."""


def paced(*paces: float):
    return evidence(
        [minute(n, tally(tpot=pace)) for n, pace in enumerate(paces)], baseline=baseline()
    )


def test_an_interval_is_beyond_a_threshold_only_with_the_whole_of_it():
    loses, unsure = paced(*[0.043, 0.047] * 5), paced(*[0.02, 0.05] * 5)
    assert unsure.compared(600).interval().value < 1 < unsure.compared(600).interval().upper
    assert finding_of(rule(SLOW, window=600), loses).verdict is B
    assert finding_of(rule(SLOW, window=600), unsure).verdict is P


def test_a_breach_is_not_over_while_the_interval_reaches_back():
    loses, unsure, wins = paced(*[0.05] * 10), paced(*[0.015, 0.04] * 5), paced(*[0.02] * 10)
    first = finding_of(rule(SLOW, window=600), loses)
    assert unsure.compared(600).interval().value > 1 > unsure.compared(600).interval().lower
    assert finding_of(rule(SLOW, window=600), unsure, first).verdict is B
    assert finding_of(rule(SLOW, window=600), wins, first).verdict is P


@pytest.mark.parametrize(
    ("condition", "seen", "in_breach"),
    [
        (Condition(metric="ttft_p50", above="2.5s"), B, B),
        (Condition(metric="ttft_p50", above="5s"), B, B),
        (Condition(metric="ttft_p50", above="7.5s"), N, N),
        (Condition(metric="ttft_p50", above="7.5s", clear="2.5s"), N, B),
        (Condition(metric="ttft_p50", below="5s"), P, P),
        (Condition(metric="ttft_p50", below="7.5s"), N, N),
        (Condition(metric="ttft_p50", below="4s", clear="7.5s"), P, N),
    ],
)
def test_a_quantile_beyond_the_last_bound_is_compared_as_far_as_it_is_known(
    condition, seen, in_breach
):
    """All that is known is that it is greater than 5 s."""
    known = evidence([minute(0, tally(ttft=40.0))])
    first = finding_of(rule(condition), known)
    assert first.seen is seen
    left = replace(first, verdict=B, held=(True,), at=known.now)
    assert finding_of(rule(condition), known, left).seen is in_breach


@pytest.mark.parametrize(
    ("least", "window", "temperature", "seen"),
    [
        ({"min_drafts": 3000}, 180.0, "all", B),
        ({"min_drafts": 3001}, 180.0, "all", N),
        ({"min_requests": 60}, 180.0, "all", B),
        ({"min_requests": 61}, 180.0, "all", N),
        ({"min_drafts": 600}, 180.0, "0", B),
        ({"min_drafts": 601}, 180.0, "0", N),
        ({"min_requests": 16}, 180.0, "0", N),
    ],
)
def test_traffic_has_to_suffice_in_the_window_and_at_the_temperature(
    least, window, temperature, seen
):
    part = tally(rate=0.2, drafts=200, requests=5)
    known = evidence(minutes(9, tally(rate=0.2), buckets={"0": part}))
    assert (
        finding_of(rule(LOW, window=window, **least), known, temperature=temperature).seen is seen
    )


def test_traffic_has_to_suffice_in_the_window_of_each_condition():
    short = Condition(metric="acceptance_ratio", below=0.5, window="1m")
    known = evidence(minutes(9, tally(rate=0.2)))
    assert finding_of(rule(short, window=540, min_drafts=5000), known).seen is N
    assert finding_of(rule(LOW, short, combine="any", window=540, min_drafts=5000), known).seen is B


def test_a_breach_of_an_assumption_is_over_once_it_is_measured():
    """The question does not arise any more, and no data would keep it for good."""
    assumed = rule(Condition(metric="acceptance_ratio_unmeasured", below=0.5), window=600)
    samples = [minute(n, tally(rate=0.2, tpot=0.02 + n / 1000)) for n in range(10)]
    first = finding_of(assumed, evidence(samples))
    assert first.verdict is B
    measured = evidence(samples, baseline=baseline())
    assert finding_of(assumed, measured, first).verdict is P
    assert finding_of(assumed, measured).verdict is N


def test_an_assumption_is_not_pending_on_once_it_is_measured():
    """Nine minutes of assuming, a baseline, its expiry: what was pending begins anew."""
    assumed = rule(
        Condition(metric="acceptance_ratio_unmeasured", below=0.5), window=600, for_=540.0
    )
    samples = minutes(20, tally(rate=0.2))
    before = None
    for n in range(20):
        known = baseline() if n == 9 else None
        before = finding_of(assumed, evidence(samples[: n + 1], baseline=known), before)
        if n == 9:
            assert (before.seen, before.pending) == (N, None)
        assert before.verdict is (B if n == 19 else N)


def test_a_moot_condition_keeps_no_breach_of_another():
    """It has never held in this breach, and would stand in the way of its end for ever."""
    either = rule(
        Condition(metric="acceptance_ratio_unmeasured", below=0.5),
        HIGH_TTFT,
        combine="any",
    )
    first = finding_of(either, evidence([minute(0, tally(ttft=2.0))]))
    assert (first.verdict, first.held) == (B, (False, True))
    after = evidence([minute(1, tally(ttft=0.1))], baseline=baseline())
    assert finding_of(either, after, first).verdict is P


def default(name: str):
    """A default rule, confirmed at once."""
    (known,) = [rule for rule in DEFAULT_RULES if rule.name == name]
    return known.model_copy(update={"for_": 0.0, "clear_for": 0.0})


def hour(rate: float, tpot: float, requests: Sequence[float], losing: float = 0.0):
    """An hour of requests with these acceptance rates; of the drafts, a share that loses."""
    rates = observed(list(requests) * 10, RATE_BOUNDS)
    cold = tally(rate=rate, drafts=round(1000 * (1 - losing)))
    hot = tally(rate=0.0, drafts=round(1000 * losing))
    whole = tally(rate=rate, tpot=tpot, request_acceptance=rates)
    return [minute(n, whole, buckets={"0": cold, ">1": hot}) for n in range(60)]


UNEVEN = (0.2, *[0.9] * 8, 0.95)
"""Acceptance rates of requests, of which a tenth stay about 20 %."""


def test_low_acceptance_does_not_fire_at_an_assumed_speedup_of_two():
    """Acceptance 0.37 of 5 tokens with a cheap draft: S = 2.85 / 1.25, and 5 % would pay."""
    known = evidence(minutes(20, tally(rate=0.37, k=5)))
    low = default("low-acceptance")
    assert finding_of(low, known, cost=0.05).seen is P
    assert finding_of(low, known, cost=0.1).seen is P
    assert finding_of(low, known, cost=0.4).seen is B
    assert low.action == "alert"


def test_with_a_baseline_losing_bucket_uses_the_measured_share():
    """The healthiest server there is: low acceptance of a few is no loss where it pays."""
    rule_ = default("losing-bucket")
    gaining = evidence(hour(0.8, 0.01, [0.05] * 10), baseline=baseline())
    assert finding_of(rule_, gaining).seen is P
    losing = evidence(hour(0.8, 0.02, UNEVEN, losing=0.45), baseline=baseline())
    assert finding_of(rule_, losing).seen is B
    few = evidence(hour(0.8, 0.02, UNEVEN, losing=0.3), baseline=baseline())
    assert finding_of(rule_, few).seen is P


def test_without_a_baseline_a_tenth_of_the_requests_has_to_be_below_the_assumed_line():
    rule_ = default("losing-bucket")
    assert finding_of(rule_, evidence(hour(0.8, 0.02, UNEVEN))).seen is P
    low = evidence(hour(0.8, 0.02, [0.02, 0.02, *[0.9] * 8]))
    first = finding_of(rule_, low)
    assert first.verdict is B
    assert finding_of(rule_, evidence(hour(0.8, 0.02, UNEVEN)), first).verdict is P
    assert finding_of(rule_, evidence(hour(0.8, 0.02, UNEVEN)), cost=0.4).seen is B


def test_minutes_without_data_keep_what_is_pending_although_one_condition_is_moot():
    """With a baseline only the share counts: a slow minute between is no new question."""
    rule_ = default("losing-bucket").model_copy(update={"for_": 120.0})
    samples = hour(0.8, 0.02, UNEVEN, losing=0.45)
    first = finding_of(rule_, evidence(samples, baseline=baseline()))
    idle = minute(60, tally(drafts=0, requests=0))
    short = rule_.model_copy(update={"min_drafts": 10**6})
    second = finding_of(short, evidence([*samples, idle], baseline=baseline()), first)
    assert (second.seen, second.pending) == (N, first.pending + 60)


def test_minutes_before_a_silence_are_no_data():
    """The window still has the minutes of before, and they are a breach."""
    samples = minutes(10, tally(rate=0.1))
    silent = evidence(samples, now=START + 600 + LONGEST_GAP)
    last = evidence(samples, now=START + 599 + LONGEST_GAP)
    assert finding_of(rule(window=1800), last).seen is B
    assert finding_of(rule(window=1800), silent).seen is N


rates = st.sampled_from([None, 0.1, 0.45, 0.55, 0.9])
patience = st.sampled_from([0.0, 60.0, 180.0])


@given(st.lists(rates, max_size=25), patience, patience, st.integers(1, 10))
def test_minutes_without_data_never_fire_and_never_clear(seen, for_, clear_for, more):
    """However many there are, and whatever came before."""
    patient = rule(for_=for_, clear_for=clear_for)
    findings = judged(patient, seen)
    last = findings[-1] if findings else None
    idle = judged(patient, [None] * more, first=len(seen), before=last)
    was = last is not None and last.verdict is B
    assert all((decision.verdict is B) is was for decision in idle)


short_silences = st.lists(
    st.tuples(st.sampled_from([0.1, 0.45, 0.55, 0.9]), st.integers(0, round(LONGEST_GAP / 60))),
    max_size=15,
).map(lambda made: [rate for known, idle in made for rate in (known, *[None] * idle)])


@given(short_silences, patience, patience)
def test_minutes_without_data_change_no_verdict(seen, for_, clear_for):
    """But for the time that they take: what is known is confirmed no sooner and no later."""
    patient = rule(for_=for_, clear_for=clear_for)
    known = [verdict for verdict in seen if verdict is not None]
    with_gaps = [
        decision
        for decision, rate in zip(judged(patient, seen), seen, strict=True)
        if rate is not None
    ]
    breaches = [decision.verdict is B for decision in with_gaps]
    assert breaches == [decision.verdict is B for decision in judged(patient, known)]


SLOW_ALL = rule(
    Condition(metric="tpot_p99_ratio", above=1.1),
    Condition(metric="speedup_ratio", below=1.0),
    Condition(metric="ttft_p99", above="1s"),
    Condition(metric="acceptance_ratio", below=0.5),
    Condition(metric="kv_cache_usage", above=0.9),
    Condition(metric="preemptions", above=0.0),
    combine="any",
    window=1200.0,
)
troubles = st.lists(
    st.sampled_from([None, "restart", "mixed", "silent", "lost"]), min_size=1, max_size=20
)


@given(troubles)
def test_restarts_gaps_and_changes_of_mode_never_breach(made):
    """Whatever their latencies say, while the minutes around them are good."""
    wild = tally(rate=0.6, tpot=0.4, ttft=4.0, preemptions=9)
    healthy = tally(rate=0.6, tpot=0.02, ttft=0.1, preemptions=0)
    samples = []
    for n, trouble in enumerate(made):
        if trouble is None:
            samples.append(minute(n, healthy))
        elif trouble == "restart":
            samples.append(minute(n, wild, sound=False))
        elif trouble == "mixed":
            samples.append(minute(n, wild, mode=Mode.MIXED, sound=False))
        elif trouble == "silent":
            samples.append(minute(n, Tally(), sound=False))
    known = evidence(samples, baseline=baseline(), now=START + 60.0 * len(made))
    assert finding_of(SLOW_ALL, known).verdict is not B


def test_the_same_latencies_breach_when_they_are_sound():
    """What the property above shows is not that nothing can fire."""
    wild = tally(rate=0.6, tpot=0.4, ttft=4.0, preemptions=9, requests=200)
    known = evidence(minutes(10, wild), baseline=baseline())
    readings = finding_of(SLOW_ALL, known).readings
    beyond = {condition.metric for condition, reading in readings if reading.value is not None}
    assert finding_of(SLOW_ALL, known).verdict is B
    assert "tpot_p99_ratio" in beyond


FAST, LATELY_SLOW = [0.0195, 0.0205] * 25, [0.0365, 0.0375] * 5
"""Ten minutes of a loss, and fifty of a gain."""


def test_the_shortest_certain_stretch_decides_and_is_shown():
    """Over the whole hour speculation pays, and now it does not."""
    known = paced(*FAST, *LATELY_SLOW)
    low = rule(SLOW, window=3600)
    assert known.compared(3600).interval().above(1.0)
    seen = finding_of(low, known)
    ((_, reading),) = seen.readings
    assert seen.verdict is B
    assert reading.interval.below(1.0)
    assert reading.interval in reading.stretches
    assert reading.value == reading.interval.value == pytest.approx(0.03 / 0.037, rel=0.02)
    assert reading.note == f"of the last {reading.interval.samples} minutes of traffic"


def test_stretches_that_nobody_looks_at_are_left_out():
    """All are kept of a breach, whose guard looks for another answer among them."""
    pays, loses = paced(*FAST, *FAST), paced(*LATELY_SLOW, *LATELY_SLOW)
    low = rule(SLOW, window=3600)
    ((_, passing),) = finding_of(low, pays).readings
    ((_, losing),) = finding_of(low, loses).readings
    every = pays.compared(3600).stretches(pays.now)
    assert 0 < len(passing.stretches) < len(every)
    assert passing.stretches == every[: len(passing.stretches)]
    assert [stretch.above(1.0) for stretch in passing.stretches].index(True) + 1 == len(
        passing.stretches
    )
    assert losing.stretches == loses.compared(3600).stretches(loses.now)
    assert len(losing.stretches) > 1


def test_what_passes_shows_the_whole_window_unless_it_still_has_the_loss():
    recovered = paced(*LATELY_SLOW, *FAST)
    seen = finding_of(rule(SLOW, window=3600), recovered)
    ((_, reading),) = seen.readings
    assert (seen.verdict, reading.note) == (P, None)
    assert reading.interval == recovered.compared(3600).interval()
    slow, fast = [pace for pace in LATELY_SLOW for _ in range(5)], FAST[:10]
    known = paced(*slow, *fast)
    assert known.compared(3600).interval().below(1.0)
    seen = finding_of(rule(SLOW, window=3600), known)
    ((_, reading),) = seen.readings
    assert seen.verdict is P
    assert reading.interval.above(1.0)


def test_a_loss_that_seems_over_is_not_a_breach():
    """Five minutes tell for certain neither that it lasts nor that it is over."""
    loss, gain = [0.0305, 0.0345] * 30, [0.0240, 0.0280] * 2
    low = rule(SLOW, window=3600)
    assert finding_of(low, paced(*loss)).verdict is B
    over = finding_of(low, paced(*loss, *gain))
    ((_, reading),) = over.readings
    newest, *longer = reading.stretches
    assert not newest.above(1.0)
    assert any(stretch.below(1.0) for stretch in longer)
    assert over.verdict is P


def test_a_gain_is_found_by_the_shortest_stretch_too():
    pays = rule(Condition(metric="speedup_ratio", above=1.0), window=3600)
    ((_, reading),) = finding_of(pays, paced(*LATELY_SLOW, *FAST)).readings
    assert finding_of(pays, paced(*LATELY_SLOW, *FAST)).verdict is B
    assert reading.interval.above(1.0)
    assert reading.interval.samples < 60
    assert finding_of(pays, paced(*FAST, *LATELY_SLOW)).verdict is P

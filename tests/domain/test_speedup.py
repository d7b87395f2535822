"""A speedup is that at equal conditions, and of now: in a world whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.baseline import Baseline, Origin, choose, measured
from specwatch.domain.counterfactual import LIKE, Memory
from specwatch.domain.model import MINUTE, Environment, Gauges, Histogram, Mode, Objective, Tally
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import NO_STANDBY, STRETCHES, TOO_FEW, Comparison
from specwatch.domain.standby import standby_cost
from tests.domain import minutes
from tests.domain.minutes import KEY, on, per_request

STEP, SEQUENCE, PREFILL, CONTEXT = 0.012, 0.0004, 1e-4, 1e-7
"""Seconds of a step, and more for each request, prompt token that others wait for, and token in
use."""
OUTPUT, TOKENS = 200.0, 6000.0


def plain_seconds(running: float, tokens: float, prompt: float, requests: float) -> float:
    """What tokens take without speculation."""
    context = running * (prompt + OUTPUT / 2)
    decoding = tokens * (STEP + SEQUENCE * running + CONTEXT * context)
    return decoding + PREFILL * prompt * requests * (running - 1)


def minute(
    n: int,
    *,
    mode: Mode = Mode.ON,
    running: float = 6.0,
    prompt: float = 1000.0,
    speedup: float = 1.0,
    first: float = 1.0,
    noise: float = 1.0,
    requests: int = 30,
    busy: float = 60.0,
) -> Sample:
    """Minute number ``at``; ``speedup`` is that of tokens, ``first`` that of first tokens."""
    tokens = TOKENS
    seconds = noise * plain_seconds(running, tokens, prompt, requests) / speedup
    waited = noise * requests * (0.02 * running + 1e-4 * prompt) / first
    counted = Tally(
        prompt_tokens=round(prompt * requests),
        generation_tokens=round(tokens) + requests,
        inter_token=Histogram((), (round(tokens),), seconds),
        ttft=Histogram((), (requests,), waited),
        output_length=Histogram((), (requests,), OUTPUT * requests),
    )
    if mode is Mode.ON:
        drafts = round(tokens / 2)
        counted = msgspec.structs.replace(
            counted, drafts=drafts, draft_tokens=4 * drafts, accepted_tokens=round(tokens) - drafts
        )
    return Sample(
        n * MINUTE, MINUTE, mode, counted, Gauges(60.0, busy, busy * running, 0.0), Environment()
    )


def unlike(
    seed: int, count: int, *, noise: float = 0.03, wide: float = 3.0, **others
) -> list[dict]:
    """Loads and noise of so many minutes, which come slowly and go slowly."""
    chance = random.Random(seed)
    samples, shaken = [], 0.0
    for n in range(count):
        shaken = 0.4 * shaken + math.sqrt(1 - 0.4**2) * chance.gauss(0.0, noise)
        requests = chance.randint(10, 50)
        running = 7.0 + wide * math.sin(n / 9 + seed) + chance.uniform(-1.0, 1.0)
        samples.append(
            {"running": running, "noise": math.exp(shaken), "requests": requests, **others}
        )
    return samples


def off(begin: int, given: Iterable[dict]) -> list[Sample]:
    return [minute(begin + n, mode=Mode.OFF, **shape) for n, shape in enumerate(given)]


def running_on(begin: int, given: Iterable[dict], **others) -> list[Sample]:
    return [minute(begin + n, **(shape | others)) for n, shape in enumerate(given)]


def baseline(samples: Iterable[Sample]) -> Baseline:
    return choose(measured(KEY, Origin.CALIBRATION, samples), Environment(), now=0.0)


SHORT = off(-2000, unlike(1, 90, wide=5.0, prompt=500.0))
MIXED = off(
    -2000,
    (
        shape | {"prompt": 9000.0 if n % 8 == 7 else 500.0}
        for n, shape in enumerate(unlike(2, 200, wide=5.0))
    ),
)
"""Most of what was measured without speculation had short prompts."""


@pytest.mark.parametrize("truth", [1.37, 0.85, 1.0])
@pytest.mark.parametrize("prompt", [2500.0, 5000.0])
def test_longer_prompts_than_those_of_the_baseline_are_not_a_loss(truth, prompt):
    """Time per token is driven by the prompts that share its steps."""
    samples = running_on(0, unlike(3, 60), prompt=prompt, speedup=truth)
    interval = Comparison(samples, baseline(MIXED), objective=Objective.TPOT).interval()
    assert interval is not None
    assert interval.lower <= truth <= interval.upper
    assert interval.value == pytest.approx(truth, rel=0.04)


def test_unlike_prompts_are_not_compared_and_the_reason_has_the_factor():
    known = baseline(SHORT)
    longer = Comparison(running_on(0, unlike(4, 20), prompt=6000.0), known)
    assert longer.missing == "prompts are 12 times longer than those of the baseline"
    assert (longer.interval(), longer.of(Objective.TPOT)) == (None, None)
    assert longer.stretches(20.0 * MINUTE) == ()
    shorter = Comparison(running_on(0, unlike(4, 20), prompt=50.0), known)
    assert shorter.missing == "prompts are 10 times shorter than those of the baseline"
    for alike in (0.55, 1 / 0.55):
        near = running_on(0, unlike(4, 20), prompt=500.0 * alike)
        assert Comparison(near, known).missing is None
    assert LIKE == 2.0


@pytest.mark.parametrize("first", [100, 40], ids=["later", "at once"])
def test_a_few_long_prompts_are_left_out_and_the_rest_is_compared(first):
    samples = running_on(0, unlike(4, 40), prompt=500.0, speedup=1.3)
    samples += running_on(first, unlike(4, 12), prompt=9000.0, speedup=0.2)
    comparison = Comparison(samples, baseline(SHORT), objective=Objective.TPOT)
    assert comparison.covered == pytest.approx(40 / 52)
    interval = comparison.interval()
    assert interval is not None
    assert interval.value == pytest.approx(1.3, rel=0.03)
    assert interval.samples == 40


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(Objective.TPOT, 1.3), (Objective.TTFT, 0.25), (Objective.E2E, None)],
)
def test_the_objective_decides_where_the_first_token_comes_later(objective, expected):
    samples = running_on(0, unlike(5, 60), prompt=500.0, speedup=1.3, first=0.25)
    compared = Comparison(samples, baseline(SHORT), objective=objective)
    interval = compared.interval()
    assert interval is not None
    assert compared.objective is objective
    if expected is None:
        firsts = sum(sample.tally.ttft.sum for sample in samples)
        tokens = sum(sample.pace.seconds for sample in samples)
        expected = (1.3 * tokens + 0.25 * firsts) / (tokens + firsts)
    assert interval.lower <= expected <= interval.upper
    assert interval.value == pytest.approx(expected, rel=0.03)
    assert compared.of(objective) == interval


def test_where_first_tokens_are_not_known_it_is_the_time_per_token():
    """As of a server that does not say when they came."""

    def silent(samples: Iterable[Sample]) -> list[Sample]:
        return [
            replace(sample, tally=msgspec.structs.replace(sample.tally, ttft=None))
            for sample in samples
        ]

    samples = silent(running_on(0, unlike(5, 20), speedup=1.3))
    compared = Comparison(samples, baseline(silent(off(-100, unlike(5, 20)))))
    assert compared.objective is Objective.TPOT
    assert compared.interval() == compared.of(Objective.TPOT)
    assert compared.of(Objective.E2E) is None
    assert compared.of(Objective.TTFT) is None
    # What prompts cost is known, and not how long they were.
    unknown = Comparison(samples, baseline(MIXED))
    assert unknown.missing == "the length of prompts is not known"


def dropping(after: int, speedup: float, seed: int = 6) -> list[Sample]:
    """Three hours of a gain of a half, and so many minutes of something else."""
    given = unlike(seed, 180 + after, prompt=500.0)
    return running_on(0, given[:180], speedup=1.5) + running_on(180, given[180:], speedup=speedup)


def lost_after(speedup: float, seed: int) -> int | None:
    """Minutes of a drop until it is certain that speculation loses."""
    known = baseline(SHORT)
    whole, memory = dropping(60, speedup, seed), Memory()
    for after in range(1, 61):
        compared = Comparison(whole[: 180 + after], known, memory=memory)
        stretches = compared.stretches((180.0 + after) * MINUTE)
        certain = next((e for e in stretches if e.below(1.0) or e.above(1.0)), None)
        if certain is not None and certain.below(1.0):
            return after
    return None


def test_a_sudden_drop_is_found_within_minutes():
    assert (lost_after(0.6, 0) or 99) <= 6
    assert (lost_after(0.85, 1) or 99) <= 15
    whole = Comparison(dropping(6, 0.6), baseline(SHORT)).since(126.0 * MINUTE).interval()
    assert whole is not None
    assert whole.above(1.0), "of the whole hour it is a gain"


def check_stretches(seed: int, ends: range) -> None:
    """None is certain after so many minutes without any speedup, in spite of correlated noise."""
    samples, memory = running_on(0, unlike(seed, ends[-1], prompt=500.0)), Memory()
    known = baseline(SHORT)
    for end in ends:
        compared = Comparison(samples[:end], known, memory=memory)
        stretches = compared.stretches(float(end * MINUTE))
        assert [e.samples for e in stretches] == list(STRETCHES)
        assert not any(stretch.below(1.0) or stretch.above(1.0) for stretch in stretches)


def test_no_stretch_is_certain_where_speculation_changes_nothing():
    check_stretches(7, range(60, 121, 10))


def test_stretches_are_of_the_minutes_that_there_were():
    samples = [sample for sample in dropping(0, 1.0) if sample.start % (3 * MINUTE) == 0]
    compared = Comparison(samples, baseline(SHORT))
    stretches = compared.stretches(180.0 * MINUTE)
    assert [stretch.samples for stretch in stretches] == [6, 9, 13, 20]
    assert all(stretch.confidence > 0.9999 for stretch in stretches)
    assert compared.stretches(400.0 * MINUTE) == ()
    few = Comparison(dropping(0, 1.0)[-20:], baseline(SHORT)).stretches(180.0 * MINUTE)
    assert [stretch.samples for stretch in few] == [5, 7, 10, 14, 20], "longer ones add no minutes"


def share_covered(runs: int) -> float:
    missed = 0
    given = {"noise": 0.1, "wide": 0.0, "prompt": 500.0, "requests": 30}
    for run in range(runs):
        plain = off(-100, unlike(run, 12, **given))
        samples = running_on(0, unlike(run + runs, 12, **given), speedup=1.2)
        interval = Comparison(samples, baseline(plain), objective=Objective.TPOT).interval()
        assert interval is not None
        missed += interval.below(1.2) or interval.above(1.2)
    return 1 - missed / runs


def test_95_of_100_intervals_contain_the_truth_although_the_baseline_is_short():
    """Twelve minutes of each: the uncertainty of the baseline counts as much."""
    assert 0.9 <= share_covered(40) < 1.0


def test_stretches_include_the_uncertainty_of_the_baseline():
    samples, now = dropping(0, 1.0), 180.0 * MINUTE
    known = baseline(SHORT)
    short = baseline(off(-100, unlike(12, 12, noise=0.1, wide=5.0, prompt=500.0)))
    (*_, sure), (*_, unsure) = (Comparison(samples, b).stretches(now) for b in (known, short))
    assert unsure.upper / unsure.lower > 1.2 * sure.upper / sure.lower


def test_remembered_rows_change_no_result():
    """Although lengths of prompts come from minutes on both sides of each."""
    chance = random.Random(9)
    samples = [
        minute(n, running=6.0, prompt=chance.choice([400.0, 900.0]), speedup=1.2) for n in range(90)
    ]
    known, memory = baseline(MIXED), Memory()
    for end in range(5, 91, 5):
        window = samples[max(end - 60, 0) : end]
        again, anew = Comparison(window, known, memory=memory), Comparison(window, known)
        settled = [sample for sample in window if sample.start >= window[0].start + 300]
        assert [
            plain
            for minute, plain in zip(again.known, again.plain, strict=True)
            if minute.sample in settled
        ] == anew.plain[len(window) - len(settled) :]
    assert set(memory) <= {sample.start for sample in samples[30:]}, "what is gone is forgotten"
    assert len(memory) > 50


def test_minutes_without_requests_are_like_those_around_them():
    """What runs in them was asked for before."""
    samples = running_on(0, unlike(10, 30), prompt=5000.0, speedup=1.37)
    known = baseline(MIXED)

    def without(one: Sample) -> Sample:
        counted = msgspec.structs.replace(
            one.tally, ttft=Histogram((), (0,), 0.0), prompt_tokens=0, output_length=None
        )
        seconds = one.pace.seconds - PREFILL / 1.37 * one.tally.prompt_tokens * (
            one.gauges.concurrency - 1
        )
        between = msgspec.structs.replace(counted.inter_token, sum=seconds)
        return replace(one, tally=msgspec.structs.replace(counted, inter_token=between))

    some = [without(sample) if n % 3 else sample for n, sample in enumerate(samples)]
    comparison = Comparison(some, known, objective=Objective.TPOT)
    assert comparison.covered == 1.0
    interval = comparison.interval()
    assert interval is not None
    assert interval.value == pytest.approx(1.37, rel=0.05)
    far = Comparison([*samples[:6], *map(without, samples[20:])], known)
    assert len(far.known) == 6, "of what no request is near it is not known"
    assert far.missing == "the length of prompts is not known"


def test_a_baseline_that_is_wrong_by_a_factor_is_corrected_by_minutes_without_speculation():
    """The server has become a third slower since it was measured."""
    known = baseline(off(-2000, unlike(1, 90, wide=5.0, prompt=500.0)))
    given = unlike(11, 80, prompt=500.0)
    slow = [shape | {"noise": 1.33 * shape["noise"]} for shape in given]
    with_it = Comparison(running_on(0, slow[:60], speedup=1.25), known)
    without = Comparison(off(60, slow[60:]), known, mode=Mode.OFF)
    wrong = with_it.of(Objective.TPOT)
    assert wrong is not None
    assert wrong.below(1.0)
    plain = without.of(Objective.TPOT)
    assert plain is not None
    assert plain.value == pytest.approx(1 / 1.33, rel=0.03)
    firsts, tokens = (
        sum(amounts)
        for amounts in zip(
            *((e.tally.ttft.sum, e.pace.seconds) for e in running_on(0, slow[:60], speedup=1.25)),
            strict=True,
        )
    )
    truth = (1.25 * tokens + firsts) / (tokens + firsts)
    corrected = with_it.corrected_by(without)
    assert corrected is not None
    assert corrected.lower <= truth <= corrected.upper
    assert corrected.value == pytest.approx(truth, rel=0.03)
    assert corrected.samples == 20
    assert corrected.above(1.0)


def test_a_correction_needs_enough_minutes_of_both():
    known = baseline(SHORT)
    given = unlike(11, 40, prompt=500.0)
    with_it = Comparison(running_on(0, given[:20], speedup=1.25), known)
    few = Comparison(off(60, given[:4]), known, mode=Mode.OFF)
    assert with_it.corrected_by(few) is None
    crowded = [
        replace(sample, gauges=msgspec.structs.replace(sample.gauges, waiting_seconds=60 * 90.0))
        for sample in off(60, given[20:])
    ]
    tokens = with_it.corrected_by(Comparison(crowded, known, mode=Mode.OFF))
    assert tokens is not None
    assert tokens.value == pytest.approx(1.25, rel=0.05)


@pytest.mark.parametrize(
    ("samples", "known", "missing"),
    [
        ([], SHORT, "nothing was generated with speculation"),
        (running_on(0, unlike(3, 9), prompt=500.0), [], "no baseline"),
        (running_on(0, unlike(3, 4), prompt=500.0), SHORT, "too few minutes of traffic"),
        ([per_request(on(n)) for n in range(9)], SHORT, "no baseline at the load that there was"),
    ],
)
def test_it_says_why_nothing_can_be_compared(samples, known, missing):
    compared = Comparison(samples, baseline(known))
    assert (compared.missing, compared.interval()) == (missing, None)


def test_a_load_that_occurs_only_with_speculation_is_compared_at_its_demand():
    """Forty requests at a time, as each takes so long: without it few would run."""
    samples = running_on(0, [{"running": 40.0}] * 9, prompt=500.0)
    compared = Comparison(samples, baseline(SHORT))
    interval = compared.interval()
    assert (compared.missing, compared.covered) == (None, 1.0)
    assert interval is not None
    assert interval.upper < 1, "what takes ten times as many requests at a time takes longer"


def test_loads_that_alternate_are_no_noise_where_they_are_given():
    """Of a report it is asked what was gained at the loads that there were."""
    given = [{"running": (4.0, 11.0)[n % 2], "prompt": 500.0} for n in range(60)]
    samples = [minute(n, speedup=(1.4, 0.8)[n % 2], **shape) for n, shape in enumerate(given)]
    known = baseline(off(-1000, given))
    mixed, apart = (
        Comparison(samples, known, given_loads=given_loads, objective=Objective.TPOT).interval()
        for given_loads in (False, True)
    )
    assert mixed is not None
    assert apart is not None
    assert mixed.value == apart.value
    assert mixed.upper - mixed.lower > 0.05
    assert apart.upper - apart.lower < 1e-6


def test_minutes_without_a_baseline_do_not_hide_those_with_one() -> None:
    known = choose(
        measured(KEY, Origin.WINDOWS, [minute(n, mode=Mode.OFF) for n in range(20)]),
        Environment(),
        now=0.0,
    )
    old, new = Environment("0.32.0"), Environment("0.33.0")
    samples = [replace(minute(n), environment=old) for n in range(30, 50)]
    samples += [replace(minute(n), environment=new) for n in range(50, 55)]
    asked = {old: known, new: Baseline()}
    compared = Comparison(samples, asked.__getitem__, objective=Objective.TPOT)
    assert compared.missing is None
    assert compared.covered == pytest.approx(20 / 25)
    interval = compared.interval()
    assert interval is not None
    assert interval.value == pytest.approx(1.0, rel=0.02)
    assert Comparison(samples[20:], asked.__getitem__).missing == "no baseline"


def standby(
    first: int, count: int, tpot: float, *, step: int = 1, **changes: object
) -> list[Sample]:
    return [
        replace(minutes.off(first + n * step, tpot=tpot), mode=Mode.STANDBY, **changes)
        for n in range(count)
    ]


PLAIN = minutes.baseline([minutes.off(n, tpot=0.05) for n in range(20)])


def test_the_standby_cost_is_its_time_over_the_time_without_speculation() -> None:
    """In a baseline and in standby that vary."""
    plain = minutes.baseline([minutes.off(n, tpot=0.05 * (1 + n % 5 / 50)) for n in range(25)])
    served = [one for n in range(5) for one in standby(100 + n, 3, 0.06 * (1 + n / 50), step=5)]
    others = [
        *(on(n, tpot=0.2) for n in range(112, 124)),
        *(minutes.off(130 + n) for n in range(9)),
    ]
    cost, missing = standby_cost([*served, *others], plain)
    assert missing is None
    assert (cost.value, cost.samples) == (pytest.approx(1.2), 15)
    assert cost.lower < 1.2 < cost.upper


def test_the_standby_cost_is_that_of_the_newest_environment() -> None:
    """Another version costs twice as much; the order of the minutes does not count."""
    older = standby(60, 30, 0.1, environment=Environment("0.31.0"))
    newer = standby(100, 12, 0.06, environment=Environment("0.32.0"))
    assert standby_cost([*newer, *older], PLAIN).cost.value == pytest.approx(1.2)
    assert standby_cost([*older, *newer], lambda _: PLAIN).cost.samples == 12


@pytest.mark.parametrize(
    ("samples", "known", "missing"),
    [
        ([on(n) for n in range(20)], PLAIN, NO_STANDBY),
        (standby(100, 12, 0.06, sound=False), PLAIN, NO_STANDBY),
        (standby(100, 4, 0.06), PLAIN, TOO_FEW),
        (standby(100, 12, 0.06), Baseline(), "no baseline"),
    ],
    ids=["no standby", "unsound", "too few", "no baseline"],
)
def test_it_says_why_the_standby_cost_is_not_known(samples, known, missing) -> None:
    assert standby_cost(samples, known) == (None, missing)

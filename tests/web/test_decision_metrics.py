"""The exported metrics of decisions: speedups, break-even, rules, objectives and baselines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specwatch.config.rules import Condition, Rule, Slo
from specwatch.domain.model import ALL, Histogram
from specwatch.rules.attribution import ChangeCause, Factor
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.objectives import SloBook
from specwatch.rules.verdicts import Verdict
from specwatch.status import DaemonStatus
from specwatch.web import metric_subjects
from tests.segments import segment
from tests.web.decided import SLO, decided
from tests.web.exported import samples
from tests.web.statuses import NOW, daemon, target

START = 1_699_999_980
FULL = daemon(
    target(decision=decided()),
    target("guessed", decision=decided(measured=False, target="guessed")),
)
CHAT, FIRST_TOKEN = ("llama", "chat"), ("llama", "first-token", "chat")
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
PACE = Slo(name="pace", metric="tpot", threshold="16ms", objective="99%")
(UNUSED,) = SloBook([SLO]).statuses("llama", NOW)
EITHER = Rule(
    name="either",
    conditions=(
        Condition(metric="ttft_p99", above="10s"),
        Condition(metric="acceptance_ratio", below=0.9),
    ),
    combine="any",
)


def of_decision(decision: TargetDecision) -> DaemonStatus:
    return daemon(target(decision=decision))


def about(values: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {labels: pytest.approx(value) for labels, value in values.items()}


@pytest.mark.parametrize(
    ("status", "values"),
    [
        pytest.param(
            FULL,
            {
                "speedup_ratio": about(
                    {
                        ("all", *CHAT, "all"): 2.0,
                        ("temperature", *CHAT, "0"): 8 / 3,
                        ("temperature", *CHAT, ">1"): 0.8,
                    }
                ),
                "break_even_acceptance_ratio": about({("3-4", *CHAT): 0.125}),
                "step_cost_ratio": about({("3-4", *CHAT): 1.5}),
                "baseline_age_seconds": {CHAT: NOW - START + 660},
            },
            id="a measured speedup, the break-even of each load, and the baseline behind it",
        ),
        pytest.param(
            FULL,
            {
                "speedup_measured": {CHAT: 1, ("llama", "guessed"): 0},
                "assumed_speedup_ratio": about({("llama", "guessed"): 3 / 1.4}),
                "assumed_break_even_acceptance_ratio": {("llama", "guessed"): 0.1},
            },
            id="what is assumed has names of its own",
        ),
        pytest.param(
            of_decision(decided(slos=(SLO.model_copy(update={"window": 3600.0}),))),
            {
                "slo_objective_ratio": {FIRST_TOKEN: 0.99},
                # A hundred requests a minute; six minutes without speculation, twelve with it.
                "slo_requests": {
                    (*FIRST_TOKEN, window): 500 if window == "5m" else 1800 for window in WINDOWS
                },
            },
            id="requests of an objective, so that nobody is paged for the burn of two",
        ),
        pytest.param(
            of_decision(TargetDecision(slos=(UNUSED,))),
            {
                "slo_burn_rate": {},
                "slo_requests": {(*FIRST_TOKEN, window): 0 for window in WINDOWS},
            },
            id="an objective without requests has only their count",
        ),
        pytest.param(
            of_decision(decided(slos=(SLO, PACE))),
            # Half of a hundred requests a minute met one objective; of twenty that have a time per
            # token half, or without speculation all, are in the bucket of the other's threshold.
            {
                "goodput_requests_per_second": about(
                    {
                        ("lower", *CHAT, "5m"): 40 / 60,
                        ("upper", *CHAT, "5m"): 50 / 60,
                        ("lower", *CHAT, "1h"): (6 * 30 + 12 * 40) / (18 * 60),
                        ("upper", *CHAT, "1h"): 50 / 60,
                    }
                ),
                "offered_requests_per_second": about(
                    {
                        (*CHAT, "5m"): 100 / 60,
                        (*CHAT, "1h"): 100 / 60,
                    }
                ),
            },
            id="goodput of two objectives has two bounds",
        ),
        pytest.param(
            of_decision(decided(slos=())),
            {"goodput_requests_per_second": {}, "offered_requests_per_second": {}},
            id="without objectives there is no goodput",
        ),
        pytest.param(
            of_decision(decided(rules=(EITHER,))),
            {"rule_value": {("all", "acceptance_ratio", "llama", "either", "chat", "all"): 0.5}},
            id="a rule of several conditions shows the one that is met",
        ),
    ],
)
def test_the_page_has_exactly_these_samples(
    status: DaemonStatus, values: dict[str, dict[tuple[str, ...], float]]
) -> None:
    assert {name: samples(status, f"specwatch_{name}") for name in values} == values


def test_a_breach_that_has_ended_is_not_pending() -> None:
    passing = replace(decided().findings[1], seen=Verdict.PASS)
    ended = of_decision(TargetDecision(findings=(passing,)))
    assert set(samples(ended, "specwatch_rule_pending").values()) == {0}


def test_the_likely_cause_of_a_breach_is_exported_while_it_lasts() -> None:
    likely = ChangeCause(Factor.LOAD, -0.5, -0.6, 0.97, "running requests rose from 3.0 to 9.1")
    causes = {(name, "llama", ALL): likely for name in ("too-slow", "fine")}
    status = of_decision(replace(decided(), causes=causes))
    assert samples(status, "specwatch_rule_cause_ratio") == {
        (likely.sentence, "all", "llama", "too-slow", "chat", "all"): 0.97
    }


def test_the_mean_break_even_weighs_loads_by_their_tokens() -> None:
    known = decided().models["llama"]
    (load,) = known.assessment.bins
    busy = replace(load, load_bin=7, share=0.25, acceptance=replace(load.acceptance, value=0.525))
    bins = (replace(load, share=0.75), busy)
    changed = replace(known, assessment=replace(known.assessment, bins=bins))
    status = of_decision(replace(decided(), models={"llama": changed}))
    assert samples(status, "specwatch_mean_break_even_acceptance_ratio") == about({CHAT: 0.225})
    assert samples(FULL, "specwatch_mean_break_even_acceptance_ratio") == about({CHAT: 0.125})


def test_objectives_that_are_too_many_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metric_subjects, "MOST_SERIES", 50)
    many = tuple(replace(UNUSED, model_name=f"m{number}") for number in range(60))
    status = of_decision(TargetDecision(slos=many))
    assert len(samples(status, "specwatch_slo_objective_ratio")) == 50
    assert samples(status, "specwatch_series_left_out") == {("chat",): 10}


def test_latencies_of_the_baseline_are_those_of_minutes_without_speculation() -> None:
    """Plain tokens take 10 to 30 ms: the quantiles are interpolated in that bucket."""
    tpot = {("tpot", "llama", str(q), "chat"): 0.01 + 0.02 * q for q in (0.5, 0.95, 0.99)}
    ttft = {"0.5": 0.1, "0.95": 0.1 + 0.4 * 45 / 49, "0.99": 0.5}
    assert samples(FULL, "specwatch_baseline_latency_seconds") == about(
        tpot | {("ttft", "llama", q, "chat"): value for q, value in ttft.items()}
    )


def test_a_quantile_of_the_baseline_beyond_the_last_bound_is_infinite() -> None:
    latencies = {"ttft": Histogram((0.5,), (98, 2), 60.0), "tpot": Histogram((), (9,), 1.0)}
    beyond = replace(decided().models["llama"], baseline_latencies=latencies)
    status = of_decision(replace(decided(), models={"llama": beyond}))
    shown = dict(samples(status, "specwatch_baseline_latency_seconds"))
    assert shown.pop(("ttft", "llama", "0.99", "chat")) == math.inf
    assert {labels[:1] + labels[2:3] for labels in shown} == {("ttft", "0.5"), ("ttft", "0.95")}


@pytest.mark.parametrize(("most", "shown"), [(50, 50), (1, 32)])
def test_however_many_findings_there_are_breaches_are_shown(
    monkeypatch: pytest.MonkeyPatch, most: int, shown: int
) -> None:
    """And some in each target, however many targets there are."""
    monkeypatch.setattr(metric_subjects, "MOST_SERIES", most)
    findings = {finding.rule.name: finding for finding in decided().findings}
    many = [replace(findings["fine"], segment=segment(f"t{number}")) for number in range(300)]
    status = of_decision(TargetDecision(findings=(*many, findings["too-slow"])))
    values = samples(status, "specwatch_rule_verdict")
    assert len(values) == shown
    assert values["all", "llama", "too-slow", "chat", "all"] == 1
    assert samples(status, "specwatch_series_left_out") == {("chat",): 301 - shown}

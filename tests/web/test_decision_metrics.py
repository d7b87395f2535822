"""What is decided, as figures of the metrics page."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specwatch.config.rules import Condition, Rule, Slo
from specwatch.domain.model import Histogram
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.objectives import SloBook
from specwatch.web.metric_subjects import MOST_SERIES
from tests.web.decided import SLO, decided
from tests.web.exported import samples
from tests.web.statuses import NOW, daemon, target

START = 1_699_999_980
FULL = daemon(
    target(decision=decided()),
    target("guessed", decision=decided(measured=False, target="guessed")),
)


def test_a_measured_speedup_has_its_interval_for_each_temperature() -> None:
    value = samples(FULL, "specwatch_speedup_ratio")
    assert value == {
        ("llama", "chat", "all"): pytest.approx(2.0),
        ("llama", "chat", "0"): pytest.approx(8 / 3),
        ("llama", "chat", ">1"): pytest.approx(0.8),
    }
    lower = samples(FULL, "specwatch_speedup_ratio_lower")
    upper = samples(FULL, "specwatch_speedup_ratio_upper")
    assert all(lower[labels] < value[labels] < upper[labels] for labels in value)


def test_an_assumption_is_not_to_be_mistaken_for_a_measurement() -> None:
    """It has a name of its own, and a gauge says which of the two there is."""
    assert samples(FULL, "specwatch_speedup_measured") == {
        ("llama", "chat"): 1, ("llama", "guessed"): 0,
    }  # fmt: skip
    assumed = samples(FULL, "specwatch_assumed_speedup_ratio")
    assert assumed == {("llama", "guessed"): pytest.approx(3 / 1.4)}
    line = samples(FULL, "specwatch_assumed_break_even_acceptance_ratio")
    assert line == {("llama", "guessed"): 0.1}
    for name in ("speedup_ratio", "break_even_acceptance_ratio", "step_cost_ratio"):
        values = samples(FULL, f"specwatch_{name}")
        assert values
        assert not any("guessed" in labels for labels in values)


def test_the_break_even_line_is_that_of_each_load() -> None:
    line = samples(FULL, "specwatch_break_even_acceptance_ratio")
    assert line == {("3-4", "llama", "chat"): pytest.approx(0.125)}
    assert samples(FULL, "specwatch_step_cost_ratio") == {
        ("3-4", "llama", "chat"): pytest.approx(1.5)
    }
    assert samples(FULL, "specwatch_baseline_age_seconds") == {("llama", "chat"): NOW - START + 660}


def test_verdicts_have_three_states() -> None:
    values = samples(FULL, "specwatch_rule_verdict")
    assert {labels[1]: value for labels, value in values.items() if "chat" in labels} == {
        "too-slow": 1, "fine": 0, "silent": -1, "soon": -1,
    }  # fmt: skip


def test_objectives_show_their_budget_and_how_fast_it_burns() -> None:
    assert samples(FULL, "specwatch_slo_error_ratio")[("llama", "first-token", "chat")] == 0.5
    left = samples(FULL, "specwatch_slo_budget_left_ratio")[("llama", "first-token", "chat")]
    assert left == pytest.approx(-49)
    burn = samples(FULL, "specwatch_slo_burn_rate")
    assert burn[("llama", "first-token", "chat", "5m")] == pytest.approx(50)


def test_an_objective_says_how_many_requests_it_was_held_against() -> None:
    """So that nobody is woken by the burn of two requests."""
    slo = SLO.model_copy(update={"window": 3600.0})
    decision = decided(slos=(slo,))
    status = daemon(target(decision=decision))
    assert samples(status, "specwatch_slo_objective_ratio") == {
        ("llama", "first-token", "chat"): 0.99
    }
    # A hundred requests a minute; six minutes without speculation and twelve with it.
    assert samples(status, "specwatch_slo_requests") == {
        ("llama", "first-token", "chat", window): 500 if window == "5m" else 1800
        for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
    }


def test_an_objective_says_how_much_of_each_window_was_watched() -> None:
    """So that nobody is woken by the burn of an hour of which four minutes are known."""
    status = daemon(target(decision=decided()))
    values = samples(status, "specwatch_slo_watched_ratio")
    of = {
        window: values[("llama", "first-token", "chat", window)] for window in ("5m", "30m", "1h")
    }
    assert of == {"5m": 1.0, "30m": pytest.approx(18 / 30), "1h": pytest.approx(18 / 60)}


def test_an_objective_without_requests_has_a_count_and_nothing_else() -> None:
    (status,) = SloBook([SLO]).statuses("llama", NOW)
    shown = daemon(target(decision=TargetDecision(slos=(status,))))
    assert samples(shown, "specwatch_slo_burn_rate") == {}
    assert set(samples(shown, "specwatch_slo_requests").values()) == {0}


def test_goodput_has_two_bounds_beside_what_was_offered() -> None:
    """Half of a hundred requests a minute met one objective; of twenty that have a time per token
    half, or without speculation all, are in the bucket of the other's threshold."""
    pace = Slo(name="pace", metric="tpot", threshold="16ms", objective="99%")
    status = daemon(target(decision=decided(slos=(SLO, pace))))
    met = samples(status, "specwatch_goodput_requests_per_second")
    assert met == {
        ("lower", "llama", "chat", "5m"): pytest.approx(40 / 60),
        ("upper", "llama", "chat", "5m"): pytest.approx(50 / 60),
        ("lower", "llama", "chat", "1h"): pytest.approx((6 * 30 + 12 * 40) / (18 * 60)),
        ("upper", "llama", "chat", "1h"): pytest.approx(50 / 60),
    }
    assert samples(status, "specwatch_offered_requests_per_second") == {
        ("llama", "chat", window): pytest.approx(100 / 60) for window in ("5m", "1h")
    }


def test_one_objective_has_one_goodput_and_none_has_none() -> None:
    met = samples(FULL, "specwatch_goodput_requests_per_second")
    of_chat = {labels: value for labels, value in met.items() if "chat" in labels}
    assert of_chat[("lower", "llama", "chat", "1h")] == of_chat[("upper", "llama", "chat", "1h")]
    without = daemon(target(decision=decided(slos=())))
    assert samples(without, "specwatch_goodput_requests_per_second") == {}
    assert samples(without, "specwatch_offered_requests_per_second") == {}


def test_objectives_that_are_too_many_are_left_out_and_counted() -> None:
    (status,) = SloBook([SLO]).statuses("llama", NOW)
    many = tuple(replace(status, model_name=f"m{at}") for at in range(MOST_SERIES + 10))
    shown = daemon(target(decision=TargetDecision(slos=many)))
    assert len(samples(shown, "specwatch_slo_objective_ratio")) == MOST_SERIES
    assert samples(shown, "specwatch_series_left_out") == {("chat",): 10}


def test_a_rule_shows_what_it_compares_with_what() -> None:
    """Where it has a value, even if there are too few drafts to say more of it."""
    value = samples(FULL, "specwatch_rule_value")
    threshold = samples(FULL, "specwatch_rule_threshold")
    assert value.keys() == threshold.keys()
    chat = {labels[0:3:2]: at for labels, at in value.items() if "chat" in labels}
    assert chat == {
        ("speedup_ratio", "too-slow"): pytest.approx(2 / 1.002),
        ("acceptance_ratio", "soon"): 0.5,
        ("ttft_p99", "fine"): pytest.approx(0.5),
        ("ttft_p99", "silent"): pytest.approx(0.5),
    }
    guessed = {labels[2] for labels in value if "guessed" in labels}
    assert guessed == {"soon", "fine", "silent"}, "what was not measured has no value"
    assert threshold["speedup_ratio", "llama", "too-slow", "chat", "all"] == 2.5
    assert threshold["acceptance_ratio", "llama", "soon", "chat", "all"] == 0.9
    assert threshold["ttft_p99", "llama", "fine", "chat", "all"] == 10


def test_a_rule_of_several_conditions_shows_the_one_that_is_met() -> None:
    either = Rule(
        name="either",
        conditions=(
            Condition(metric="ttft_p99", above="10s"),
            Condition(metric="acceptance_ratio", below=0.9),
        ),
        combine="any",
    )
    status = daemon(target(decision=decided(rules=(either,))))
    assert samples(status, "specwatch_rule_value") == {
        ("acceptance_ratio", "llama", "either", "chat", "all"): 0.5
    }


def test_latencies_of_the_baseline_are_those_of_minutes_without_speculation() -> None:
    """Plain tokens take 10 to 30 ms: the quantiles are interpolated in that bucket."""
    values = samples(FULL, "specwatch_baseline_latency_seconds")
    tpot = {q: 0.01 + 0.02 * q for q in (0.5, 0.95, 0.99)}
    assert values == {
        ("tpot", "llama", str(q), "chat"): pytest.approx(at) for q, at in tpot.items()
    } | {
        ("ttft", "llama", "0.5", "chat"): pytest.approx(0.1),
        ("ttft", "llama", "0.95", "chat"): pytest.approx(0.1 + 0.4 * 45 / 49),
        ("ttft", "llama", "0.99", "chat"): pytest.approx(0.5),
    }


def test_a_quantile_of_the_baseline_beyond_the_last_bound_is_infinite() -> None:
    decision = decided()
    latencies = {"ttft": Histogram((0.5,), (98, 2), 60.0), "tpot": Histogram((), (9,), 1.0)}
    beyond = replace(decision.models["llama"], baseline_latencies=latencies)
    status = daemon(target(decision=replace(decision, models={"llama": beyond})))
    shown = samples(status, "specwatch_baseline_latency_seconds")
    assert shown.pop(("ttft", "llama", "0.99", "chat")) == math.inf
    assert {labels[:1] + labels[2:3] for labels in shown} == {("ttft", "0.5"), ("ttft", "0.95")}


def test_however_many_findings_there_are_breaches_are_shown() -> None:
    (breach,) = (finding for finding in decided().findings if finding.rule.name == "too-slow")
    other = next(finding for finding in decided().findings if finding.rule.name == "fine")
    many = [replace(other, temperature=f"t{number}") for number in range(10_000)]
    status = daemon(target(decision=TargetDecision(findings=(*many, breach))))
    values = samples(status, "specwatch_rule_verdict")
    assert len(values) == MOST_SERIES
    assert values[("llama", "too-slow", "chat", "all")] == 1
    left_out = samples(status, "specwatch_series_left_out")
    assert left_out == {("chat",): 10_001 - MOST_SERIES}

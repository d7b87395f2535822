"""The answer, and what to do: every variant, word for word."""

from __future__ import annotations

import shlex
import textwrap

import click
import pytest
from msgspec.structs import replace

from specwatch.cli import group
from specwatch.cli.calibrate import command
from specwatch.report.answer_and_advice import best_change, recommendation, sentence
from specwatch.report.estimates import Amount, Ratio, ReportBestK, WhatIf
from specwatch.report.model import ReportIncident, ReportLoad, ReportStep
from tests.report import sample
from tests.report.hours import at
from tests.segments import segment

FASTER = Ratio(value=1.62, lower=1.55, upper=1.70)
SLOWER = Ratio(value=0.92, lower=0.90, upper=0.94)
EVEN = Ratio(value=1.01, lower=0.97, upper=1.05)
ASSUMED = Ratio(value=1.83, basis="assumed")
HEALTHY = replace(sample.blank().health, observed=604_800.0, coverage=1.0)


def report(outcome, *, health=None, others=None, **answer):
    """A model that was watched all the time, with an answer."""
    plain = sample.blank("chat", "chat-70b", outcome)
    given = {"sentence": "", "recommendation": "", **answer}
    return replace(
        plain,
        answer=replace(plain.answer, **given),
        health=replace(HEALTHY, **(health or {})),
        **(others or {}),
    )


def hours(value):
    return Amount(value=value, lower=value - 1, upper=value + 1)


def incident(outcome, *phases):
    steps = tuple(ReportStep(at=at(n), phase=phase, reason="r") for n, phase in enumerate(phases))
    return ReportIncident(
        id="chat-1", began=at(0), ended=None, cause="c", outcome=outcome, steps=steps
    )


def pays(*, health=None, others=None, **answer):
    return report("pays", health=health, others=others, speedup=FASTER, **answer)


def loses(*, health=None, others=None, **answer):
    return report("loses", health=health, others=others, speedup=SLOWER, **answer)


def told(models, tell):
    """What is said of each model, below what it is an example of."""
    texts = {why: textwrap.wrap(tell(given), 96) for why, given in models.items()}
    return "\n".join(f"{why}:\n  " + "\n  ".join(lines) for why, lines in texts.items()) + "\n"


SENTENCES = {
    "pays": pays(hours_saved=hours(41.4)),
    "pays, and what that is of": pays(objective="e2e"),
    "pays, on GPUs": pays(hours_saved=hours(1.2), gpu_hours_saved=hours(9.64)),
    "pays, by requests and not by hours": pays(hours_saved=hours(-2.0)),
    "pays, hardly used": pays(hours_saved=hours(0.02)),
    "pays here and there": pays(
        winning_segments=(segment("0"), segment("(0,0.3]")),
        losing_segments=(segment(">1"),),
        winning_loads=("1", "2", "3-4"),
        losing_loads=("33-64", "65+"),
    ),
    "pays at scattered loads": pays(winning_loads=("1", "3-4", "5-8", "65+")),
    "pays for one request at once": pays(winning_loads=("1",)),
    "many temperatures": pays(winning_segments=tuple(map(segment, "abcdefgh"))),
    "not worth it": report(
        "not_worth_it",
        speedup=Ratio(value=1.12, lower=1.05, upper=1.19),
        hours_saved=hours(3.06),
    ),
    "even": report("even", speedup=EVEN, hours_saved=hours(0.8)),
    "loses": loses(hours_saved=hours(-19.3), gpu_hours_saved=hours(-154)),
    "off": report("off"),
    "off by the guard": report("off", others={"seconds_off_by_guard": 86_400.0 * 3}),
    "off by order": report("off", others={"seconds_off_by_order": 660.0}),
    "no traffic": report("no_traffic"),
    "not watched": report("no_traffic", health={"observed": 0.0}),
    "down": report("no_traffic", health={"observed": 0.0, "down": 604_800.0}),
    "no baseline": report("unknown", speedup=ASSUMED, missing="no baseline"),
    "too little": report("unknown", missing="too few minutes of traffic"),
    "nothing known": report("unknown"),
}


@pytest.mark.golden
def test_the_answer_comes_first(golden):
    golden("report/answers.txt", told(SENTENCES, sentence))


WHAT_IF = WhatIf(
    loads=("1", "2"), setting=((1, 2, 4), (3, 256, 0)), share=0.6, now=0.8, without_drafts=1 / 1.1
)
IN_STANDBY = replace(
    WHAT_IF,
    gain=1.01,
    without_drafts=1 / 1.12,
    standby_cost=Ratio(value=1.12, lower=1.1, upper=1.14),
)
ROUTE = (
    "Send requests at temperature >1 (40% of all) to a server without speculation, if there is one:"
    " it can be switched for a whole server only."
)
HOT = {"losing_segments": (segment(">1"),)}
SHARES = tuple(
    replace(
        sample.blank().segments[0],
        segment=segment(label),
        requests=1,
        share=share,
        speedup=Ratio(value=0.8, lower=0.75, upper=0.85),
    )
    for label, share in (("all", 1.0), ("0", 0.4), (">1", 0.4), ("unknown", 0.2))
)


def load(label, running, share=0.5):
    return ReportLoad(load=label, share=share, busy=1.0, running=running, acceptance_rate=None)


LOADS = (load("1", 0.2), load("9-16", 11.7), load("17-32", 23.4))
ANOTHER_K = ReportBestK(k=2, now=4, speedups=(1.0, 1.2, 1.73, 1.68, 1.62))
LOOKED_ON = replace(incident("still in breach", "confirmed"), would_have_acted=True)


def accepting(rate):
    """All temperatures together, at an acceptance."""
    acceptance = replace(sample.NOTHING, drafts=1000, mean_length=1 + 4 * rate)
    return {"segments": (replace(sample.blank().segments[0], acceptance=acceptance),)}


def two_tokens(best, *speedups):
    return {"best_k": ReportBestK(k=best, now=2, speedups=speedups)}


KEPT = {
    "it pays": pays(),
    "the guard would, and it pays": pays(others={"incidents": (LOOKED_ON,)}),
    "a schedule that gains 4 %": pays(others={"what_if": replace(WHAT_IF, share=0.2)}),
    "another k that gains 4 %": pays(
        others={"best_k": replace(ANOTHER_K, k=3, speedups=(1.0, 1.2, 1.5, 1.684, 1.62))}
    ),
    "another k by chance": pays(
        others={"best_k": replace(ANOTHER_K, k=3, speedups=(1.0, 1.2, 1.5, 1.64, 1.62))}
    ),
    "the k that there is": pays(others={"best_k": replace(ANOTHER_K, k=4)}),
    "a few requests": pays(losing_segments=(segment("unknown"),), others={"segments": SHARES}),
    "down, which specwatch saw": pays(health={"observed": 302_400.0, "down": 302_400.0}),
    "no tap at all": pays(health={"coverage": None}),
    "the guard was held": pays(
        others={"incidents": (replace(incident("held", "held"), ended=at(2)),)}
    ),
}
SWITCHED_OFF = {
    "it loses": {},
    "the trial was won": {"incidents": (replace(incident("over", "disabled"), ended=at(2)),)},
    "what a schedule gains is not known": {"what_if": WHAT_IF},
    "it loses at every load": {"what_if": replace(WHAT_IF, loads=(), setting=())},
    "off is as good as another k": two_tokens(1, 1.0, 1.02, 0.92),
    "no k at all": two_tokens(0, 1.0, 0.95, 0.92),
    "not one temperature but all": {"segments": SHARES},
}
ADVICE = {
    **{f"keep: {why}": given for why, given in KEPT.items()},
    **{f"off: {why}": loses(**HOT, others=others) for why, others in SWITCHED_OFF.items()},
    "keep what hardly pays": report("not_worth_it", speedup=FASTER),
    "keep what makes no difference": report("even", speedup=EVEN),
    "nothing to do": report("no_traffic"),
    "off gains 4 %": report("loses", speedup=Ratio(value=0.96, lower=0.95, upper=0.97)),
    "off": report("off"),
    "off by the guard": report("off", others={"seconds_off_by_guard": 3600.0}),
    "off by order": report("off", others={"seconds_off_by_order": 3600.0}),
    "calibrate": report("unknown", missing="no baseline", others={"loads": LOADS}),
    "calibrate again": report("unknown", missing="no baseline that is young enough"),
    "calibrate for a reason not given": report("unknown"),
    "calibrate with prompts such as there are": report(
        "unknown", missing="prompts are 4 times longer than those of the baseline"
    ),
    "calibrate at the loads that there are": report(
        "unknown",
        missing="no baseline at the load that there was",
        others={"loads": LOADS},
    ),
    "calibrate at those with most traffic": report(
        "unknown",
        missing="no baseline at that load",
        others={
            "loads": (
                load("1", 1.0, 0.02),
                load("2", 2.0, 0.3),
                load("3-4", 3.4, 0.2),
                load("5-8", 6.2, 0.4),
                load("9-16", 11.0, 0.08),
            )
        },
    ),
    "wait": report("unknown", missing="too few minutes of traffic"),
    "leave it off": loses(others={"incidents": (incident("off", "disabled"),)}),
    "switch it off, and the guard would": loses(others={"incidents": (LOOKED_ON, LOOKED_ON)}),
    "the guard would": report("even", speedup=EVEN, others={"incidents": (LOOKED_ON,)}),
    "restrict it": pays(others={"what_if": WHAT_IF}),
    "restrict it, on a vLLM that can": pays(
        others={"what_if": WHAT_IF, "engine_version": "0.24.0"}
    ),
    "restrict it, on a vLLM that is too old": pays(
        others={"what_if": WHAT_IF, "engine_version": "0.20.1"}
    ),
    "restrict it, with a load of which nothing is known": pays(
        others={"what_if": WHAT_IF, "loads": LOADS[:1]}
    ),
    "no schedule, where the drafter alone costs as much": pays(
        others={"what_if": replace(WHAT_IF, now=0.92)}
    ),
    "a schedule, where the drafter is known to cost less than drafts": pays(
        others={"what_if": IN_STANDBY}
    ),
    "a schedule to one draft token, where that is faster than now and none is not": pays(
        others={
            "what_if": replace(IN_STANDBY, setting=((1, 2, 4), (3, 256, 1)), now=0.9, fewer=0.95)
        }
    ),
    "no schedule, where the drafter alone is known to cost as much": pays(
        others={"what_if": replace(IN_STANDBY, now=0.9)}
    ),
    "another k": pays(others={"best_k": ANOTHER_K}),
    "another k before a schedule that gains less": pays(
        others={"what_if": replace(WHAT_IF, share=0.2), "best_k": ANOTHER_K}
    ),
    "another k for what loses": loses(others=two_tokens(1, 1.0, 1.1, 0.92)),
    "off, where next to nothing is accepted": report(
        "even", speedup=EVEN, others={"what_if": WHAT_IF, **accepting(0.004)}
    ),
    "off, where next to nothing is accepted and nothing is measured": report(
        "unknown", missing="no baseline", others=accepting(0.0)
    ),
    "route": pays(**HOT, others={"segments": SHARES}),
    "route, where it makes no difference": report(
        "even", speedup=EVEN, **HOT, others={"segments": SHARES}
    ),
    "watch first": pays(health={"observed": 302_400.0}),
    "watch first, without traffic": report("no_traffic", health={"observed": 0.0}),
    "cover first": report("unknown", missing="no baseline", health={"coverage": 0.4}),
    "the guard is held": report(
        "no_traffic", others={"incidents": (incident("held", "verifying", "held"),)}
    ),
    "three at most": pays(
        **HOT,
        health={"observed": 60_480.0},
        others={
            "what_if": WHAT_IF,
            "segments": SHARES,
            "incidents": (incident("held", "held"),),
        },
    ),
}


@pytest.mark.golden
def test_what_is_to_be_done_is_said(golden):
    golden("report/advice.txt", told(ADVICE, recommendation))


@pytest.mark.parametrize("then", [1.73, 1.9])
def test_what_gains_most_is_advised_first(then):
    """A server without speculation for temperature >1 gains 8.7 %."""
    best_k = replace(ANOTHER_K, speedups=(1.0, 1.2, then, 1.68, 1.62))
    given = pays(**HOT, others={"segments": SHARES, "best_k": best_k})
    of_k = then / 1.62 - 1
    first, second = (ROUTE, "Set `num") if of_k < 0.087 else ("Set `num", ROUTE)
    assert recommendation(given).startswith(first)
    assert second in recommendation(given)
    change = best_change(given)
    assert change.gain == pytest.approx(max(of_k, 1 / 0.92 - 1))
    assert change.short[:8] == first[:8]


def test_what_is_off_already_gains_nothing_by_a_change():
    assert best_change(loses())[:2] == (pytest.approx(1 / 0.92 - 1), "Switch speculation off.")
    assert best_change(loses(others={"incidents": (incident("off", "disabled"),)})) is None
    assert best_change(report("no_traffic")) is None


def test_a_calibration_that_is_advised_is_a_command_that_runs():
    """Its options are those of the command, and a target's name is one word."""
    model = replace(report("unknown", missing="no baseline at that load"), target="my chat")
    expected = recommendation(replace(model, loads=LOADS)).split("`")[1]
    asked = shlex.split(expected)[2:]
    # With the settings of its group: a command keeps its option for help from the first context.
    parent = click.Context(group, **group.context_settings)
    context = command.make_context("calibrate", asked, parent=parent, resilient_parsing=True)
    assert context.params["target"] == "my chat"
    assert context.params["off"] == "URL"


@pytest.mark.parametrize("given", sample.hostile().targets)
def test_foreign_text_is_clean_and_short(given):
    for expected in (sentence(given), recommendation(given)):
        assert expected.isprintable()
        assert len(expected) < 3000

"""The answer, and what to do: every variant, word for word."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from specwatch.cli.calibrate import command
from specwatch.report.estimates import Amount, Ratio
from specwatch.report.model import (
    ReportBestK,
    ReportIncident,
    ReportLoad,
    ReportStep,
    Temperature,
    WhatIf,
)
from specwatch.report.sentences import recommendation, sentence
from tests.report import pieces, sample
from tests.report.hours import at

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


SENTENCES = {
    "pays": (
        report("pays", speedup=FASTER, hours_saved=hours(41.4)),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured), which saved 41"
        " server hours.",
    ),
    "pays, and what that is of": (
        report("pays", speedup=FASTER, objective="e2e"),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, of whole requests, measured).",
    ),
    "pays, on GPUs": (
        report("pays", speedup=FASTER, hours_saved=hours(1.2), gpu_hours_saved=hours(9.64)),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured), which saved 9.6"
        " GPU hours.",
    ),
    "pays, by requests and not by hours": (
        report("pays", speedup=FASTER, hours_saved=hours(-2.0)),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured), yet it lost 2.0"
        " server hours.",
    ),
    "pays, hardly used": (
        report("pays", speedup=FASTER, hours_saved=hours(0.02)),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured).",
    ),
    "pays here and there": (
        report(
            "pays", speedup=FASTER,
            winning_temperatures=("0", "(0,0.3]"), losing_temperatures=(">1",),
            winning_loads=("1", "2", "3-4"), losing_loads=("33-64", "65+"),
        ),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured). It pays at"
        " temperatures 0 and (0,0.3], and with 1-4 requests running. It loses at temperature >1,"
        " and with 33 or more requests running.",
    ),
    "pays at scattered loads": (
        report("pays", speedup=FASTER, winning_loads=("1", "3-4", "5-8", "65+")),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured). It pays with 1,"
        " 3-8 and 65 or more requests running.",
    ),
    "pays for one request at once": (
        report("pays", speedup=FASTER, winning_loads=("1",)),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured). It pays with 1"
        " request running.",
    ),
    "many temperatures": (
        report("pays", speedup=FASTER, winning_temperatures=tuple("abcdefgh")),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured). It pays at"
        " temperatures a, b, c, d, e, f and 2 more.",
    ),
    "not worth it": (
        report(
            "not_worth_it", speedup=Ratio(value=1.12, lower=1.05, upper=1.19),
            hours_saved=hours(3.06),
        ),
        "Hardly: speculation made chat-70b only 1.12x faster (1.05 to 1.19, measured), which"
        " saved 3.1 server hours.",
    ),
    "even": (
        report("even", speedup=EVEN, hours_saved=hours(0.8)),
        "No certain difference: speculation made chat-70b 1.01x as fast (0.97 to 1.05,"
        " measured).",
    ),
    "loses": (
        report("loses", speedup=SLOWER, hours_saved=hours(-19.3), gpu_hours_saved=hours(-154)),
        "No: speculation made chat-70b slower, 0.92x as fast (0.90 to 0.94, measured), which"
        " lost 154 GPU hours.",
    ),
    "off": (report("off"), "Speculation was off all the time for chat-70b."),
    "off by the guard": (
        report("off", others={"seconds_off_by_guard": 86_400.0 * 3}),
        "Speculation was off all the time for chat-70b, 3 days of it by the guard.",
    ),
    "off by order": (
        report("off", others={"seconds_off_by_order": 660.0}),
        "Speculation was off all the time for chat-70b, 11 min of it by order of a person.",
    ),
    "no traffic": (report("no_traffic"), "No traffic: nothing was asked of chat-70b."),
    "not watched": (
        report("no_traffic", health={"observed": 0.0}),
        "Not known: chat-70b was not watched.",
    ),
    "down": (
        report("no_traffic", health={"observed": 0.0, "down": 604_800.0}),
        "No traffic: the server of chat-70b was down.",
    ),
    "no baseline": (
        report("unknown", speedup=ASSUMED, missing="no baseline"),
        "Not known yet whether speculation pays for chat-70b: there is no baseline; a speedup"
        " of about 1.8x is assumed.",
    ),
    "too little": (
        report("unknown", missing="too few minutes of traffic"),
        "Not known yet whether speculation pays for chat-70b: too few minutes of traffic.",
    ),
    "nothing known": (
        report("unknown"),
        "Not known yet whether speculation pays for chat-70b.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), SENTENCES.values(), ids=SENTENCES)
def test_the_answer_comes_first(given, said):
    assert sentence(given) == said


CALIBRATE = (
    "with the URL of a server without speculation: it measures what serving costs there, against"
    " which a speedup is measured."
)
WHAT_IF = WhatIf(loads=("1", "2"), setting=((1, 2, 4), (3, 256, 0)), share=0.05,
                  now=0.8, without_drafts=1 / 1.1)  # fmt: skip
RESTRICT = (
    "Speculation loses above 2 running requests, 5.0% of the time: send what is above to a server"
    " of its own without speculation, or switch it off while that lasts (`specwatch guard disable"
    " chat`). Or measure"
    ' `"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 256, 0]]` in the speculative'
    " configuration (needs vLLM 0.24 or later, no data parallelism; tested by vLLM with Eagle,"
    " Eagle-3 and DFlash only) with `specwatch bench` before you keep it: with 0 draft tokens the"
    " drafter still runs, which is slower than off: at most 0.91x of it by the assumed draft cost,"
    " and 0.80x is measured now."
)
OFF = (
    "Switch speculation off: `specwatch guard disable chat`, or let the guard (`guard.mode: act`)."
)
ROUTE = (
    "Send requests at temperature >1 (4% of all) to a server without speculation, if there is one:"
    " it can be switched for a whole server only."
)
HOT = {"losing_temperatures": (">1",)}
SHARES = tuple(
    Temperature(
        temperature=label,
        requests=1,
        share=share,
        acceptance=pieces.acceptance(0, 0.0),
        acceptance_before=None,
        ttft=sample.blank().temperatures[0].ttft,
        tpot=sample.blank().temperatures[0].tpot,
    )
    for label, share in (("all", 1.0), ("0", 0.955), (">1", 0.04), ("unknown", 0.005))
)
LOADS = tuple(
    ReportLoad(load=load, share=0.5, busy=1.0, running=running, acceptance_rate=None)
    for load, running in (("1", 0.2), ("9-16", 11.7), ("17-32", 23.4))
)
ANOTHER_K = ReportBestK(k=2, now=4, speedups=(1.0, 1.2, 1.7, 1.68, 1.62))


def accepting(rate):
    """All temperatures together, at an acceptance."""
    whole = replace(sample.blank().temperatures[0], acceptance=pieces.acceptance(1000, rate))
    return (whole,)


USELESS = (
    "Switch speculation off: so few draft tokens are accepted that it cannot pay (`specwatch guard"
    " disable chat`)."
)
LOOKED_ON = replace(incident("still in breach", "confirmed"), would_have_acted=True)

ADVICE = {
    "keep": (report("pays", speedup=FASTER), "Keep it as it is."),
    "keep what hardly pays": (
        report("not_worth_it", speedup=FASTER),
        "Keep it if the memory of the draft model is not needed for something better.",
    ),
    "keep what makes no difference": (
        report("even", speedup=EVEN),
        "Keep it for now, and report on a longer period: that narrows the interval.",
    ),
    "nothing to do": (
        report("no_traffic"),
        "Nothing to do; if there should have been traffic, look where it went.",
    ),
    "off": (
        report("off"),
        "Nothing to do: what was served meanwhile is a baseline for when speculation is on again.",
    ),
    "off by the guard": (
        report("off", others={"seconds_off_by_guard": 3600.0}),
        "Nothing to do: `specwatch guard status` says when speculation is tried again.",
    ),
    "off by order": (
        report("off", others={"seconds_off_by_order": 3600.0}),
        "A person ordered it: `specwatch guard enable` switches speculation on again.",
    ),
    "calibrate": (
        report("unknown", missing="no baseline", others={"loads": LOADS}),
        f"Run `specwatch calibrate --off URL --target chat`, {CALIBRATE}",
    ),
    "calibrate again": (
        report("unknown", missing="no baseline that is young enough"),
        f"Run `specwatch calibrate --off URL --target chat`, {CALIBRATE}",
    ),
    "calibrate for a reason not given": (
        report("unknown"), f"Run `specwatch calibrate --off URL --target chat`, {CALIBRATE}",
    ),
    "calibrate at the loads that there are": (
        report(
            "unknown", missing="no baseline at the load that there was", others={"loads": LOADS},
        ),
        f"Run `specwatch calibrate --off URL --target chat --concurrency 1,12,23`, {CALIBRATE}",
    ),
    "calibrate with prompts such as there are": (
        report("unknown", missing="prompts are 4 times longer than those of the baseline"),
        f"Run `specwatch calibrate --off URL --target chat`, {CALIBRATE}",
    ),
    "wait": (
        report("unknown", missing="too few minutes of traffic"),
        "Wait for more traffic, or report on a longer period.",
    ),
    "switch it off": (
        report("loses", speedup=SLOWER),
        "Switch speculation off: `specwatch guard disable chat`, or let the guard"
        " (`guard.mode: act`).",
    ),
    "leave it off": (
        report("loses", speedup=SLOWER, others={"incidents": (incident("off", "disabled"),)}),
        "Leave speculation off: the guard has switched it off, and tries it again by itself.",
    ),
    "switch it off, as the trial was won": (
        report(
            "loses", speedup=SLOWER,
            others={"incidents": (replace(incident("over", "disabled"), ended=at(2)),)},
        ),
        OFF,
    ),
    "switch it off, and the guard would": (
        report("loses", speedup=SLOWER, others={"incidents": (LOOKED_ON, LOOKED_ON)}),
        "Switch speculation off: `specwatch guard disable chat`. The guard only looks on, and"
        " would have acted 2 times: set `guard.mode` to `act` to have it switch speculation by"
        " itself.",
    ),
    "the guard would, and it pays": (
        report("pays", speedup=FASTER, others={"incidents": (LOOKED_ON,)}), "Keep it as it is.",
    ),
    "the guard would": (
        report("even", speedup=EVEN, others={"incidents": (LOOKED_ON,)}),
        "The guard only looks on, and would have acted once: set `guard.mode` to `act` to have it"
        " switch speculation by itself.",
    ),
    "restrict it": (
        report("pays", speedup=FASTER, others={"what_if": WHAT_IF}), RESTRICT,
    ),
    "no schedule, where the drafter alone costs as much": (
        report("pays", speedup=FASTER, others={"what_if": replace(WHAT_IF, now=0.95)}),
        "Speculation loses above 2 running requests, 5.0% of the time: send what is above to a"
        " server of its own without speculation, or switch it off while that lasts (`specwatch"
        " guard disable chat`). A schedule by batch size does not help: with 0 draft tokens the"
        " drafter still runs, which is slower than off: at most 0.91x of it by the assumed draft"
        " cost, and 0.95x is measured now.",
    ),
    "off, where what a schedule gains is not known": (
        report("loses", speedup=SLOWER, others={"what_if": WHAT_IF}), OFF,
    ),
    "not for half a percent": (
        report("pays", speedup=FASTER, others={"what_if": replace(WHAT_IF, share=0.005)}),
        "Keep it as it is.",
    ),
    "off at every load": (
        report(
            "loses", speedup=SLOWER,
            others={"what_if": replace(WHAT_IF, loads=(), setting=())},
        ),
        "Switch speculation off: `specwatch guard disable chat`, or let the guard"
        " (`guard.mode: act`).",
    ),
    "another k": (
        report("pays", speedup=FASTER, others={"best_k": ANOTHER_K}),
        "Set `num_speculative_tokens` to 2 (now 4): a speedup of 1.70x per token is predicted in"
        " place of 1.62x; off is 1.00x.",
    ),
    "another k for what loses": (
        report(
            "loses", speedup=SLOWER,
            others={"best_k": ReportBestK(k=1, now=2, speedups=(1.0, 1.1, 0.92))},
        ),
        "Set `num_speculative_tokens` to 1 (now 2): a speedup of 1.10x per token is predicted in"
        " place of 0.92x; off is 1.00x.",
    ),
    "no other k where off is as good": (
        report(
            "loses", speedup=SLOWER,
            others={"best_k": ReportBestK(k=1, now=2, speedups=(1.0, 1.02, 0.92))},
        ),
        "Switch speculation off: `specwatch guard disable chat`, or let the guard"
        " (`guard.mode: act`).",
    ),
    "another k before a schedule": (
        report(
            "pays", speedup=FASTER, others={"what_if": WHAT_IF, "best_k": ANOTHER_K},
        ),
        "Set `num_speculative_tokens` to 2 (now 4): a speedup of 1.70x per token is predicted in"
        " place of 1.62x; off is 1.00x.",
    ),
    "off, where next to nothing is accepted": (
        report("even", speedup=EVEN, others={"what_if": WHAT_IF, "temperatures": accepting(0.004)}),
        USELESS,
    ),
    "off, where next to nothing is accepted and nothing is measured": (
        report("unknown", missing="no baseline", others={"temperatures": accepting(0.0)}), USELESS,
    ),
    "restrict it, on a vLLM that can": (
        report("pays", speedup=FASTER, others={"what_if": WHAT_IF, "engine_version": "0.24.0"}),
        RESTRICT.replace("vLLM 0.24 or later, ", ""),
    ),
    "restrict it, on a vLLM that is too old": (
        report("pays", speedup=FASTER, others={"what_if": WHAT_IF, "engine_version": "0.20.1"}),
        RESTRICT.replace("later, no", "later, this is 0.20.1, no"),
    ),
    "restrict it, with a load of which nothing is known": (
        report("pays", speedup=FASTER, others={"what_if": WHAT_IF, "loads": LOADS[:1]}),
        f"{RESTRICT} It drafts on with 1 request running too, where nothing was measured.",
    ),
    "k by chance": (
        report(
            "pays", speedup=FASTER,
            others={"best_k": replace(ANOTHER_K, k=3, speedups=(1.0, 1.2, 1.5, 1.64, 1.62))},
        ),
        "Keep it as it is.",
    ),
    "the k that there is": (
        report("pays", speedup=FASTER, others={"best_k": replace(ANOTHER_K, k=4)}),
        "Keep it as it is.",
    ),
    "no k at all": (
        report(
            "loses", speedup=SLOWER,
            others={"best_k": ReportBestK(k=0, now=2, speedups=(1.0, 0.95, 0.92))},
        ),
        "Switch speculation off: `specwatch guard disable chat`, or let the guard"
        " (`guard.mode: act`).",
    ),
    "route": (report("pays", speedup=FASTER, **HOT, others={"temperatures": SHARES}), ROUTE),
    "route, where it makes no difference": (
        report("even", speedup=EVEN, **HOT, others={"temperatures": SHARES}), ROUTE,
    ),
    "not for a few requests": (
        report(
            "pays", speedup=FASTER, losing_temperatures=("unknown",),
            others={"temperatures": SHARES},
        ),
        "Keep it as it is.",
    ),
    "not where all loses": (
        report("loses", speedup=SLOWER, **HOT, others={"temperatures": SHARES}),
        "Switch speculation off: `specwatch guard disable chat`, or let the guard"
        " (`guard.mode: act`).",
    ),
    "watch first": (
        report("pays", speedup=FASTER, health={"observed": 302_400.0}),
        "First have specwatch watch all the time: it saw 50% of this period.",
    ),
    "watch first, without traffic": (
        report("no_traffic", health={"observed": 0.0}),
        "First have specwatch watch all the time: it saw 0% of this period.",
    ),
    "down, which specwatch saw": (
        report("pays", speedup=FASTER, health={"observed": 302_400.0, "down": 302_400.0}),
        "Keep it as it is.",
    ),
    "cover first": (
        report("unknown", missing="no baseline", health={"coverage": 0.4}),
        "First have all traffic pass the tap: the temperature of 60% of the drafts is not known."
        f" Run `specwatch calibrate --off URL --target chat`, {CALIBRATE}",
    ),
    "no tap at all": (
        report("pays", speedup=FASTER, health={"coverage": None}), "Keep it as it is.",
    ),
    "the guard is held": (
        report("no_traffic", others={"incidents": (incident("held", "verifying", "held"),)}),
        "The guard is held since 2026-11-02 01:00 UTC: look at the server (`specwatch guard"
        " explain chat-1`), then `specwatch guard resume chat`.",
    ),
    "the guard was held": (
        report(
            "pays", speedup=FASTER,
            others={"incidents": (replace(incident("held", "held"), ended=at(2)),)},
        ),
        "Keep it as it is.",
    ),
    "three at most": (
        report(
            "pays", speedup=FASTER, **HOT, health={"observed": 60_480.0},
            others={
                "what_if": WHAT_IF, "temperatures": SHARES,
                "incidents": (incident("held", "held"),),
            },
        ),
        "The guard is held since 2026-11-02 00:00 UTC: look at the server (`specwatch guard explain"
        " chat-1`), then `specwatch guard resume chat`. First have specwatch watch all the time: it"
        f" saw 10% of this period. {RESTRICT}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), ADVICE.values(), ids=ADVICE)
def test_what_is_to_be_done_is_said(given, said):
    assert recommendation(given) == said


def test_the_calibration_that_is_advised_has_few_loads_and_those_with_most_traffic():
    loads = tuple(
        ReportLoad(load=load, share=share, busy=1.0, running=running, acceptance_rate=None)
        for load, share, running in (
            ("1", 0.02, 1.0), ("2", 0.3, 2.0), ("3-4", 0.2, 3.4), ("5-8", 0.4, 6.2),
            ("9-16", 0.08, 11.0),
        )
    )  # fmt: skip
    found = report("unknown", missing="no baseline at that load", others={"loads": loads})
    assert "--concurrency 2,3,6`" in recommendation(found)


def test_a_calibration_that_is_advised_is_a_command_that_runs():
    """Its options are those of the command, and a target's name is one word."""
    found = replace(report("unknown", missing="no baseline at that load"), target="my chat")
    said = recommendation(replace(found, loads=LOADS)).split("`")[1]
    asked = shlex.split(said)[2:]
    context = command.make_context("calibrate", asked, resilient_parsing=True)
    assert context.params["target"] == "my chat"
    assert context.params["off"] == "URL"


@pytest.mark.parametrize("given", [*sample.full().targets, *sample.partial().targets])
def test_they_are_sentences(given):
    for said in (sentence(given), recommendation(given)):
        assert said.endswith(".")
        assert said[0].isupper()
        assert len(said) < 900


@pytest.mark.parametrize("given", sample.hostile().targets)
def test_foreign_text_is_clean_and_short(given):
    for said in (sentence(given), recommendation(given)):
        assert said.isprintable()
        assert len(said) < 3000

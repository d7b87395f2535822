"""The answer, and what to do: every variant, word for word."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from specwatch.cli.calibrate import command
from specwatch.report.answer_and_advice import best_change, recommendation, sentence
from specwatch.report.estimates import Amount, Ratio, ReportBestK, WhatIf
from specwatch.report.model import ReportIncident, ReportLoad, ReportStep
from tests.report import sample
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


def pays(*, health=None, others=None, **answer):
    return report("pays", health=health, others=others, speedup=FASTER, **answer)


def loses(*, health=None, others=None, **answer):
    return report("loses", health=health, others=others, speedup=SLOWER, **answer)


YES = "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, measured)"
SENTENCES = {
    "pays": (pays(hours_saved=hours(41.4)), f"{YES}, which saved 41 server hours."),
    "pays, and what that is of": (
        pays(objective="e2e"),
        "Yes: speculation made chat-70b 1.62x faster (1.55 to 1.70, of whole requests, measured).",
    ),
    "pays, on GPUs": (
        pays(hours_saved=hours(1.2), gpu_hours_saved=hours(9.64)),
        f"{YES}, which saved 9.6 GPU hours.",
    ),
    "pays, by requests and not by hours": (
        pays(hours_saved=hours(-2.0)), f"{YES}, yet it lost 2.0 server hours.",
    ),
    "pays, hardly used": (pays(hours_saved=hours(0.02)), f"{YES}."),
    "pays here and there": (
        pays(
            winning_temperatures=("0", "(0,0.3]"), losing_temperatures=(">1",),
            winning_loads=("1", "2", "3-4"), losing_loads=("33-64", "65+"),
        ),
        f"{YES}. It pays at temperatures 0 and (0,0.3], and with 1-4 requests running. It loses at"
        " temperature >1, and with 33 or more requests running.",
    ),
    "pays at scattered loads": (
        pays(winning_loads=("1", "3-4", "5-8", "65+")),
        f"{YES}. It pays with 1, 3-8 and 65 or more requests running.",
    ),
    "pays for one request at once": (
        pays(winning_loads=("1",)), f"{YES}. It pays with 1 request running.",
    ),
    "many temperatures": (
        pays(winning_temperatures=tuple("abcdefgh")),
        f"{YES}. It pays at temperatures a, b, c, d, e, f and 2 more.",
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
        loses(hours_saved=hours(-19.3), gpu_hours_saved=hours(-154)),
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
    "nothing known": (report("unknown"), "Not known yet whether speculation pays for chat-70b."),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), SENTENCES.values(), ids=SENTENCES)
def test_the_answer_comes_first(given, expected):
    assert sentence(given) == expected


def calibrate(options=""):
    return (
        f"Run `specwatch calibrate --off URL --target chat{options}`, with the URL of a server"
        " without speculation: it measures what serving costs there, against which a speedup is"
        " measured."
    )


WHAT_IF = WhatIf(loads=("1", "2"), setting=((1, 2, 4), (3, 256, 0)), share=0.6,
                  now=0.8, without_drafts=1 / 1.1)  # fmt: skip
ABOVE_2 = (
    "Speculation loses above 2 running requests, 60.0% of the time: send what is above to a"
    " separate server without speculation, or switch it off while that lasts"
    " (`specwatch guard disable chat`)."
)
DRAFTER = (
    "0 is standby: the drafter still runs; its cost is not measured here (at most 0.91x of off by"
    " the assumed draft cost); now it is"
)
IN_STANDBY = replace(
    WHAT_IF, gain=1.01, without_drafts=1 / 1.12,
    standby_cost=Ratio(value=1.12, lower=1.1, upper=1.14),
)  # fmt: skip
KNOWN = (
    "0 is standby: the drafter still runs, and takes 1.12 times as long as off there (1.10 to 1.14,"
    " measured):"
)
RESTRICT = (
    f"{ABOVE_2} Or measure"
    ' `"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 256, 0]]` in the speculative'
    " configuration (needs vLLM 0.24 or later, no data parallelism; tested by vLLM with Eagle,"
    f" Eagle-3 and DFlash only) with `specwatch bench` before you keep it: {DRAFTER} 0.80x."
)
KEEP = "Keep it as it is."
OFF = (
    "Switch speculation off: `specwatch guard disable chat`, or let the guard (`guard.mode: act`)."
)
USELESS = (
    "Switch speculation off: so few draft tokens are accepted that it cannot pay (`specwatch guard"
    " disable chat`)."
)
ROUTE = (
    "Send requests at temperature >1 (40% of all) to a server without speculation, if there is one:"
    " it can be switched for a whole server only."
)
HOT = {"losing_temperatures": (">1",)}
SHARES = tuple(
    replace(
        sample.blank().temperatures[0],
        temperature=label,
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
SET_K = (
    "Set `num_speculative_tokens` to 2 (now 4): a speedup of 1.73x per token is predicted in"
    " place of 1.62x; off is 1.00x."
)
LOOKED_ON = replace(incident("still in breach", "confirmed"), would_have_acted=True)
WOULD_HAVE = "set `guard.mode` to `act` to have it switch speculation by itself."
HELD = (
    "The guard is held since 2026-11-02 0{}:00 UTC: look at the server (`specwatch guard explain"
    " chat-1`), then `specwatch guard resume chat`."
).format


def accepting(rate):
    """All temperatures together, at an acceptance."""
    acceptance = replace(sample.NOTHING, drafts=1000, mean_length=1 + 4 * rate)
    return {"temperatures": (replace(sample.blank().temperatures[0], acceptance=acceptance),)}


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
    "a few requests": pays(losing_temperatures=("unknown",), others={"temperatures": SHARES}),
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
    "not one temperature but all": {"temperatures": SHARES},
}
ADVICE = {
    **{f"keep: {why}": (given, KEEP) for why, given in KEPT.items()},
    **{f"off: {why}": (loses(**HOT, others=others), OFF) for why, others in SWITCHED_OFF.items()},
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
    "off gains 4 %": (
        report("loses", speedup=Ratio(value=0.96, lower=0.95, upper=0.97)),
        "Keep it as it is: switching speculation off would gain less than 5 %.",
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
        report("unknown", missing="no baseline", others={"loads": LOADS}), calibrate(),
    ),
    "calibrate again": (
        report("unknown", missing="no baseline that is young enough"), calibrate(),
    ),
    "calibrate for a reason not given": (report("unknown"), calibrate()),
    "calibrate with prompts such as there are": (
        report("unknown", missing="prompts are 4 times longer than those of the baseline"),
        calibrate(),
    ),
    "calibrate at the loads that there are": (
        report(
            "unknown", missing="no baseline at the load that there was", others={"loads": LOADS},
        ),
        calibrate(" --concurrency 1,12,23"),
    ),
    "calibrate at those with most traffic": (
        report("unknown", missing="no baseline at that load", others={"loads": (
            load("1", 1.0, 0.02), load("2", 2.0, 0.3), load("3-4", 3.4, 0.2),
            load("5-8", 6.2, 0.4), load("9-16", 11.0, 0.08),
        )}),
        calibrate(" --concurrency 2,3,6"),
    ),
    "wait": (
        report("unknown", missing="too few minutes of traffic"),
        "Wait for more traffic, or report on a longer period.",
    ),
    "leave it off": (
        loses(others={"incidents": (incident("off", "disabled"),)}),
        "Leave speculation off: the guard has switched it off, and tries it again by itself.",
    ),
    "switch it off, and the guard would": (
        loses(others={"incidents": (LOOKED_ON, LOOKED_ON)}),
        "Switch speculation off: `specwatch guard disable chat`. The guard only looks on, and"
        f" would have acted 2 times: {WOULD_HAVE}",
    ),
    "the guard would": (
        report("even", speedup=EVEN, others={"incidents": (LOOKED_ON,)}),
        f"The guard only looks on, and would have acted once: {WOULD_HAVE}",
    ),
    "restrict it": (pays(others={"what_if": WHAT_IF}), RESTRICT),
    "restrict it, on a vLLM that can": (
        pays(others={"what_if": WHAT_IF, "engine_version": "0.24.0"}),
        RESTRICT.replace("vLLM 0.24 or later, ", ""),
    ),
    "restrict it, on a vLLM that is too old": (
        pays(others={"what_if": WHAT_IF, "engine_version": "0.20.1"}),
        RESTRICT.replace("later, no", "later, this is 0.20.1, no"),
    ),
    "restrict it, with a load of which nothing is known": (
        pays(others={"what_if": WHAT_IF, "loads": LOADS[:1]}),
        f"{RESTRICT} It drafts on with 1 request running too, where nothing was measured.",
    ),
    "no schedule, where the drafter alone costs as much": (
        pays(others={"what_if": replace(WHAT_IF, now=0.92)}),
        f"{ABOVE_2} A schedule by batch size does not help: {DRAFTER} 0.92x.",
    ),
    "a schedule, where the drafter is known to cost less than drafts": (
        pays(others={"what_if": IN_STANDBY}),
        RESTRICT.replace("Or measure", "Or set").replace(
            f" with `specwatch bench` before you keep it: {DRAFTER}",
            f": {KNOWN} 0.89x of off; now it is",
        ),
    ),
    "a schedule to one draft token, where that is faster than now and none is not": (
        pays(
            others={
                "what_if": replace(
                    IN_STANDBY, setting=((1, 2, 4), (3, 256, 1)), now=0.9, fewer=0.95
                )
            }
        ),
        RESTRICT.replace("Or measure", "Or set").replace("256, 0", "256, 1").replace(
            f" with `specwatch bench` before you keep it: {DRAFTER} 0.80x.",
            f": {KNOWN} 0.89x of off; with 1 draft token 0.95x is predicted; now it is 0.90x.",
        ),
    ),
    "no schedule, where the drafter alone is known to cost as much": (
        pays(others={"what_if": replace(IN_STANDBY, now=0.9)}),
        f"{ABOVE_2} A schedule by batch size does not help: {KNOWN} 0.89x of off; now it is 0.90x.",
    ),
    "another k": (pays(others={"best_k": ANOTHER_K}), SET_K),
    "another k before a schedule that gains less": (
        pays(others={"what_if": replace(WHAT_IF, share=0.2), "best_k": ANOTHER_K}), SET_K,
    ),
    "another k for what loses": (
        loses(others=two_tokens(1, 1.0, 1.1, 0.92)),
        "Set `num_speculative_tokens` to 1 (now 2): a speedup of 1.10x per token is predicted in"
        " place of 0.92x; off is 1.00x.",
    ),
    "off, where next to nothing is accepted": (
        report("even", speedup=EVEN, others={"what_if": WHAT_IF, **accepting(0.004)}), USELESS,
    ),
    "off, where next to nothing is accepted and nothing is measured": (
        report("unknown", missing="no baseline", others=accepting(0.0)), USELESS,
    ),
    "route": (pays(**HOT, others={"temperatures": SHARES}), ROUTE),
    "route, where it makes no difference": (
        report("even", speedup=EVEN, **HOT, others={"temperatures": SHARES}), ROUTE,
    ),
    "watch first": (
        pays(health={"observed": 302_400.0}),
        "First have specwatch watch all the time: it saw 50% of this period.",
    ),
    "watch first, without traffic": (
        report("no_traffic", health={"observed": 0.0}),
        "First have specwatch watch all the time: it saw 0% of this period.",
    ),
    "cover first": (
        report("unknown", missing="no baseline", health={"coverage": 0.4}),
        "First have all traffic pass the tap: the temperature of 60% of the drafts is not known."
        f" {calibrate()}",
    ),
    "the guard is held": (
        report("no_traffic", others={"incidents": (incident("held", "verifying", "held"),)}),
        HELD(1),
    ),
    "three at most": (
        pays(
            **HOT, health={"observed": 60_480.0},
            others={
                "what_if": WHAT_IF, "temperatures": SHARES,
                "incidents": (incident("held", "held"),),
            },
        ),
        f"{HELD(0)} First have specwatch watch all the time: it saw 10% of this period. {RESTRICT}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), ADVICE.values(), ids=ADVICE)
def test_what_is_to_be_done_is_said(given, expected):
    assert recommendation(given) == expected


@pytest.mark.parametrize("then", [1.73, 1.9])
def test_what_gains_most_is_advised_first(then):
    """A server without speculation for temperature >1 gains 8.7 %."""
    best_k = replace(ANOTHER_K, speedups=(1.0, 1.2, then, 1.68, 1.62))
    given = pays(**HOT, others={"temperatures": SHARES, "best_k": best_k})
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
    context = command.make_context("calibrate", asked, resilient_parsing=True)
    assert context.params["target"] == "my chat"
    assert context.params["off"] == "URL"


@pytest.mark.parametrize("given", sample.hostile().targets)
def test_foreign_text_is_clean_and_short(given):
    for expected in (sentence(given), recommendation(given)):
        assert expected.isprintable()
        assert len(expected) < 3000

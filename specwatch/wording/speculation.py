"""Sentences about whether speculation pays, and about rules and objectives."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from specwatch.domain.draft_lengths import CAUSES, DraftLengths
from specwatch.domain.interval import Interval
from specwatch.domain.model import HOUR, Mode, Segment
from specwatch.rules.decision_view import (
    AssumedSpeedup,
    FindingView,
    GoodputView,
    MeasuredSpeedup,
    ModelView,
    ReadingView,
    SloView,
)
from specwatch.rules.decisions import Decision
from specwatch.rules.summary import WindowView
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import Means
from specwatch.wording import figures
from specwatch.wording.figures import moment
from specwatch.wording.rules import amount
from specwatch.wording.segments import where
from specwatch.wording.text import LONGEST_SENTENCE, shown

OBJECTIVES = {"e2e": "of whole requests", "tpot": "per token", "ttft": "to the first token"}
"""What a speedup is of, by objective."""
STOPPED_REMEDY = (
    "It stays off until the engine starts again: TensorRT-LLM switches it off permanently below"
    " acceptance_rate_threshold, and its log then has `[SpeculationGate] Speculative decoding"
    " disabled`. Take a better draft, or serve without one. Without that line, max_concurrency or"
    " draft_len_schedule paused it, and drafts come back at a lower load."
)
WHY_NOT_SHOWN = (
    "why is on its command line alone, as num_speculative_tokens_per_batch_size of vLLM (a"
    " schedule) or --spec-draft-p-min of llama.cpp; for vLLM specwatch knows it once the tap is"
    " loaded (`specwatch tap flags`), or if it runs vLLM itself (`specwatch run -- vllm serve ...`)"
)
"""Of drafts that vary in length, by their counts alone."""
MODE_NOT_KNOWN = "not known whether the server speculates"
MODE_REMEDY = (
    "llama-server tells it at /slots (unless it was started with --no-slots) and SGLang at"
    " /server_info, perhaps for an API key only; otherwise the first draft will."
)
_MOSTLY = 0.5
"""Share of the work from which on it was compared with a holdout at the same time."""
_UNLIKE = 1.1
"""Factor from which on it is said that a holdout is slower or faster than the target."""
_WHOLE = 0.95
"""Share of an hour from which on it was watched throughout."""


def switch(setting: SwitchSetting | None) -> str | None:
    """What the switch of a server orders; None if nothing."""
    if setting is None or not setting.ordered:
        return None
    if setting.followed is False:
        return "the switch has an order, which the server does not follow"
    if setting.mode is Mode.STANDBY:
        return "standby: the switch is at 0 draft tokens, the drafter still runs"
    most = figures.counted(setting.draft_tokens, "draft token")
    if setting.schedule:
        return f"the switch follows a schedule of up to {most} a step"
    return f"the switch is at {most} a step"


def engine_stop(stop: EngineStop | None) -> str:
    """``switched off by the engine since 2026-11-19 14:33 UTC (inferred: ...)``."""
    if stop is None:
        return "switched off by the engine"
    earlier = " or earlier" if stop.at_least else ""
    rate = stop.acceptance_rate
    after = "" if rate is None else f", after an acceptance of {figures.percent(rate)}"
    return (
        f"switched off by the engine since {moment(stop.since)}{earlier} (inferred from its"
        f" counters: {figures.number(stop.tokens)} tokens without a draft{after})"
    )


def speedup(known: ModelView) -> str:
    """The speedup of a model, measured or assumed, and its basis.

    If there is no current one: why, and the command that measures it.
    """
    speedup = known.speedup
    if known.current and isinstance(speedup, MeasuredSpeedup):
        return f"speedup {_measured(speedup, known)}"
    why = shown(str(known.missing), LONGEST_SENTENCE)
    if known.remedy and known.unjudged_since is None:
        why += f"; run {known.remedy}"
    if speedup is None:
        return f"the speedup is not known yet: {why}"
    if isinstance(speedup, AssumedSpeedup):
        return f"speedup about {speedup.value:.1f}, assumed: {why}"
    before = f"until {moment(known.until)} it was {_measured(speedup, known)}"
    return f"the speedup is not known now: {why}; {before}"


def measured_by(means: Means, target: str) -> str:
    """How to measure what cannot be judged, as a sentence."""
    return _MEASURED_BY[means].format(target=shlex.quote(shown(target)))


_MEASURED_BY: Mapping[Means, str] = {
    Means.EXPLORE: (
        "The guard serves without speculation for a while as soon as its budget allows"
        " (guard.explore)."
    ),
    Means.EXPERIMENT: (
        "Its experiment compares with standby: `specwatch experiment results {target}`."
    ),
    Means.SWITCH: (
        "Compare at run time, without a restart: give the target `experiments: {{arms: [0]}}`, then"
        " `specwatch experiment results {target}`."
    ),
    Means.DISABLE: (
        "Serve without speculation for a while, which costs two restarts:"
        " `specwatch guard disable {target} --for 15m`; or let the guard do so when it is needed:"
        " `guard: {{explore: {{budget: 1%}}}}`."
    ),
    Means.CALIBRATE: (
        "Measure a server without speculation at the present load:"
        " `specwatch calibrate --off URL --target {target}`."
    ),
}


def _measured(speedup: MeasuredSpeedup, known: ModelView) -> str:
    bounds = f"{speedup.lower:.2f} to {speedup.upper:.2f}"
    age = figures.span(known.baseline.age or 0.0)
    of = OBJECTIVES[known.objective or "e2e"]
    hour = f"{speedup.value:.2f} ({bounds}) {of} over the last hour"
    now = known.present
    if now is not None:
        hour = f"now {now.value:.2f} ({now.lower:.2f} to {now.upper:.2f}), {hour}"
    if known.simultaneous >= _MOSTLY:
        return f"{hour}, measured at the same time as {holdouts(known)}"
    return f"{hour}, measured against a baseline {age} old"


def holdouts(known: ModelView) -> str:
    """``the holdout chat-3 (at 9-16 running it had other loads)``."""
    names = ", ".join(shown(one.target) for one in known.baseline.holdouts)
    notes = [
        f"{shown(one.target)} takes {one.pace.value:.2f} times as long at equal work,"
        " which is corrected"
        for one in known.baseline.holdouts
        if one.pace is not None and not 1 / _UNLIKE < one.pace.value < _UNLIKE
    ]
    apart = [shown(bin_.load_bin) for bin_ in known.bins if bin_.simultaneous < _MOSTLY]
    if apart:
        notes.append(f"not at {', '.join(apart)} running, where it had other loads")
    holdout = "the holdout" if len(known.baseline.holdouts) == 1 else "the holdouts"
    return f"{holdout} {names}" + (f" ({'; '.join(notes)})" if notes else "")


def break_even(known: ModelView, window: WindowView | None) -> str:
    """The break-even line of a model at the load of a window, and the acceptance now."""
    rate = None if window is None else window.acceptance_rate
    now = "" if rate is None else f", now {figures.percent(rate)}"
    if known.assumed_acceptance is not None:
        least = figures.percent(known.assumed_acceptance)
        return f"break-even at about {least} acceptance, by the assumed draft cost{now}"
    if known.draft_lengths is not None:
        length = None if window is None else window.mean_acceptance_length
        now = "" if length is None else f", now {length:.2f} tokens a step"
    if not known.bins:
        return f"break-even not known{now}"
    load = None if window is None else window.load_bin
    line = next(
        (bin_ for bin_ in known.bins if bin_.load_bin == load),
        max(known.bins, key=lambda bin_: bin_.share),
    )
    cost, needed = line.step_cost.value, line.break_even_acceptance.value
    where = f"at {shown(line.load_bin)} running"
    if known.draft_lengths is not None:
        return f"break-even {where}: {cost:.2f}{now or ' tokens a step'}"
    least = "any acceptance" if needed <= 0 else f"{figures.percent(needed)} acceptance"
    least = least if needed <= 1 else "out of reach"
    return f"break-even {where}: {least}{now} (a step costs {cost:.2f}x)"


def draft_lengths(cause: str | None) -> str | None:
    """That drafts vary in length, and what that means; None if they do not."""
    if cause is None:
        return None
    why = CAUSES.get(DraftLengths(cause)) if cause in set(DraftLengths) else None
    known = f"; {WHY_NOT_SHOWN}" if cause == DraftLengths.UNEXPLAINED else ""
    return (
        f"drafts vary in length{f' {why}' if why else ''}: acceptance does not tell whether they"
        f" pay, measured speed does{known}"
    )


def answer(
    known: ModelView | None,
    mode: Mode | None,
    stop: EngineStop | None = None,
    *,
    minutes: bool = True,
) -> tuple[str, str]:
    """Whether speculation pays for a model in this mode: the outcome, and a sentence.

    ``minutes`` is whether a minute of the target has ended since the daemon began. Outcomes are
    those of :data:`specwatch.report.model.Outcome`.
    """
    if mode is Mode.OFF:
        return "off", "Speculation is off."
    if mode is Mode.STOPPED:
        return "off", f"Speculation is {engine_stop(stop)}. {STOPPED_REMEDY}"
    if mode is not None and mode.unjudged:
        return "unknown", f"Speculation is not judged: {mode.unjudged}."
    measured = None if known is None else known.speedup
    if measured is None and mode is Mode.UNKNOWN:
        return "unknown", f"It is {MODE_NOT_KNOWN}. {MODE_REMEDY}"
    if known is None or (measured is None and not known.minutes):
        if not minutes:
            return "unknown", "Not known yet: no minute has ended since specwatch began to read it."
        sentence = "Nothing was generated with speculation in the last hour."
        return "no_traffic", sentence
    rests_on = speedup(known)
    if known.unjudged_since is not None:
        since = moment(known.unjudged_since)
        return "unjudged", f"Speculation is unjudged since {since}: {rests_on}."
    if not isinstance(measured, MeasuredSpeedup) or not known.current:
        return "unknown", f"Whether speculation pays is not measured: {rests_on}."
    if known.losing_since is not None:
        return "loses", f"Speculation loses since {moment(known.losing_since)}: {rests_on}."
    outcome = outcome_of(measured)
    return outcome, f"Speculation {_OUTCOMES[outcome]}: {rests_on}."


def outcome_of(measured: MeasuredSpeedup | Interval) -> Outcome:
    """The outcome that the interval of a speedup is."""
    if measured.upper < 1:
        return "loses"
    if measured.lower <= 1:
        return "even"
    return "not_worth_it" if measured.upper < WORTH_IT else "pays"


Outcome = Literal["pays", "not_worth_it", "even", "loses"]
WORTH_IT = 1.3
"""The speedup below which the default rule ``not-worth-it`` fires."""
_OUTCOMES: Mapping[str, str] = {
    "pays": "pays",
    "not_worth_it": "pays, but little",
    "even": "neither clearly pays nor clearly loses",
    "loses": "loses",
}


def best_k(known: ModelView) -> str | None:
    """The gain of a smaller number of draft tokens, or why it is not known; None without a gain."""
    best = known.best_k
    if best is None:
        why = known.best_k_unknown
        return f"best k: not known, {BEST_K_UNKNOWN[why]}" if why else None
    k = len(best.speedups) - 1
    now, then = best.speedups[-1], best.speedups[best.k]
    if best.k == k or then <= 1.01 * now:
        return None
    what = best_of(best.k)
    return f"best k: {what}, predicted speedup per token {then:.2f}; with {k} now {now:.2f}"


def best_of(k: int) -> str:
    """The best number of draft tokens: 0 is a server without speculation."""
    return str(k) if k else "none (speculation off)"


BEST_K_UNKNOWN = {
    "no_positions": "accepted tokens are not counted by position",
    "varying_length": "drafts vary in length, and how many reach a position is not counted",
}
"""Why the best number of draft tokens is not known, by the API's field ``best_k_unknown``."""


def confirmed(finding: FindingView, now: float) -> str:
    """A breach and its duration; ``now`` is a Unix time."""
    sentence = f"{_of_finding(finding)}, for {figures.span(now - finding.since)}"
    if finding.seen == "pass":
        return f"{sentence}, about to clear"
    return f"{sentence}, no data now" if finding.seen == "no_data" else sentence


def may_become(finding: FindingView) -> bool:
    """Whether a breach is seen, and not confirmed yet."""
    pending = finding.pending is not None and finding.seen == "breach"
    return finding.verdict != "breach" and pending


def pending(finding: FindingView, now: float) -> str:
    """A breach that is not confirmed yet, and its duration."""
    return f"{_of_finding(finding)}, for {figures.span(now - (finding.pending or now))}"


def counts(findings: Sequence[FindingView]) -> str:
    """``1 in breach, 12 pass, 3 without data``; empty without rules."""
    verdicts = Counter(finding.verdict for finding in findings)
    words = {"breach": "in breach", "pass": "pass", "no_data": "without data"}
    return ", ".join(
        f"{verdicts[name]} {phrase}" for name, phrase in words.items() if verdicts[name]
    )


def objective(slo: SloView) -> str | None:
    """The error budget left of an objective; None without requests."""
    left, burning = slo.budget_left, slo.burn_rates.get("1h")
    if left is None:
        return None
    sentence = figures.budget_left(left)
    if slo.unknown > slo.total * (1 - slo.objective):
        share = slo.unknown / slo.total
        sentence += f"; {share:.0%} of the requests unknown"
    return sentence if burning is None else f"{sentence}, burn rate {burning:.1f}"


def goodput(by_window: Mapping[str, GoodputView]) -> str | None:
    """How many requests a second met all objectives of a model in the last hour.

    None without requests, or if an objective was not evaluated.
    """
    known = by_window.get("1h")
    if known is None or not known.offered_per_second or known.lower_per_second is None:
        return None
    offered = known.offered_per_second
    lower = figures.rate(known.lower_per_second, offered)
    upper = figures.rate(known.upper_per_second, offered)
    sentence = (
        f"{figures.between(lower, upper)} of {figures.rate(offered, offered)} requests/s"
        " met all objectives"
    )
    watched = known.watched_seconds
    if watched >= _WHOLE * HOUR:
        return f"{sentence} in the last hour"
    return f"{sentence} in the {figures.span(watched)} watched of the last hour"


def change(decision: Decision) -> str:
    """A stored change of a verdict: ``too-slow: speedup_ratio 0.91 (0.88 to 0.94), below 1``."""
    stored = map(stored_reading, decision.inputs.get("readings") or ())
    readings = [reading for reading in stored if reading is not None]
    leading = next((reading for reading in readings if reading.breached), None)
    return breach(decision.rule, decision.segment, leading or next(iter(readings), None))


def stored_reading(reading: Mapping[str, Any] | None) -> ReadingView | None:
    """A reading in the stored inputs of a decision or a step; None for one of another version."""
    try:
        return msgspec.convert(reading, ReadingView | None)
    except msgspec.ValidationError:
        return None


def _of_finding(finding: FindingView) -> str:
    return breach(finding.rule, finding.segment, finding.leading)


def breach(rule: str, segment: Segment, leading: ReadingView | None) -> str:
    """``low-acceptance at temperature (0,0.3]: acceptance_ratio 0.42, below 0.5``."""
    sentence = f"{shown(rule)}{where(segment)}"
    if leading is None:
        return sentence
    if leading.metric in SAID_BY_NOTE and leading.note:
        return f"{sentence}: {shown(leading.note, LONGEST_SENTENCE)}"
    return f"{sentence}: {shown(leading.metric)} {value(leading)}, {threshold(leading)}"


SAID_BY_NOTE = ("outlier_ranks", "unjudged")
"""Metrics whose note says more than their value."""


def value(reading: ReadingView) -> str:
    """``0.91 (0.88 to 0.94)``, without the bounds for a value without an interval."""
    interval = bounds(reading)
    return amount(reading.metric, reading.value) + (f" ({interval})" if interval else "")


def bounds(reading: ReadingView) -> str | None:
    """``0.88 to 0.94``; None for a value without an interval."""
    if reading.lower is None or reading.upper is None:
        return None
    return f"{amount(reading.metric, reading.lower)} to {amount(reading.metric, reading.upper)}"


def threshold(reading: ReadingView) -> str:
    """``below 0.5``: when the condition is in breach."""
    side, line = ("below", reading.below) if reading.above is None else ("above", reading.above)
    return f"{side} {amount(reading.metric, line)}"

"""One model of one target on the status page, as plain text and figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.domain import histogram
from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.histogram import Quantile
from specwatch.domain.interval import Interval
from specwatch.domain.model import (
    ALL,
    Histogram,
    Mode,
    Segment,
    Source,
    Window,
    events_of,
)
from specwatch.rules import summary
from specwatch.rules.decision_view import (
    FindingView,
    MeasuredSpeedup,
    ModelView,
    SloView,
    finding_view,
    goodput_view,
    model_view,
    slo_view,
)
from specwatch.rules.decisions import ModelDecision
from specwatch.rules.last_hour import ModelHour, Points
from specwatch.rules.summary import LatencyView
from specwatch.scrape.coverage import leading_reasons
from specwatch.status import DaemonStatus, TargetStatus
from specwatch.wording import figures, speculation
from specwatch.wording.segments import segment_title, segment_words
from specwatch.wording.speculation import MODE_NOT_KNOWN
from specwatch.wording.text import LONGEST_SENTENCE, shown

_MOST_RULES = 10
_MOST_SLOS = 10
_METRICS = {"ttft": "TTFT", "tpot": "TPOT"}
_QUANTILES = {"P50": 0.5, "P99": 0.99}
_LATE = 120.0
"""Seconds since the last minute shown after which the page says when that was."""
_COUNTED_BY = {Source.SERVER: "the engine"}


class StatusAnswer(NamedTuple):
    """Whether speculation pays: the badge's outcome, a sentence, and the badge's own words."""

    outcome: str
    said: str
    badge: str = ""


def unread(target: TargetStatus, stuck: Iterable[str], now: float) -> float | None:
    """Seconds since a target that cannot be read was last read; infinite if it never was.

    None if it can be read.
    """
    if target.last_success is None:
        return math.inf
    if target.failure is None and target.name not in stuck:
        return None
    return max(0.0, now - target.last_success)


def models_of(target: TargetStatus) -> list[str]:
    """The models that are known of a target, in order."""
    judged = {finding.model_name for finding in target.decision.findings}
    seen = {window.series.model_name for window in target.recent}
    return sorted({*target.models, *judged, *seen})


def recent_of(target: TargetStatus, model: str) -> Window | None:
    """The last minutes of a model, of all requests."""
    return next(
        (
            window
            for window in target.recent
            if window.series.model_name == model and window.series.segment == ALL
        ),
        None,
    )


def answer_of(target: TargetStatus, model: str, status: DaemonStatus) -> StatusAnswer:
    """Whether speculation pays for a model."""
    silent = unread(target, status.stuck, status.now)
    if silent == math.inf:
        return StatusAnswer("not_read", "The target has not been read yet.")
    if silent is not None:
        sentence = "The target cannot be read, so its present state is not known."
        return StatusAnswer("not_read", sentence, f"not read for {figures.span(silent)}")
    known = target.decision.models.get(model)
    answer = None if known is None else model_view(known, status.now)
    mode = target.models.get(model)
    outcome, sentence = speculation.answer(
        answer, mode, target.stops.get(model), minutes=target.has_minutes
    )
    return StatusAnswer(outcome, sentence, "off by the engine" if mode is Mode.STOPPED else "")


class StatusSegment(NamedTuple):
    """One segment over the last hour; ``points`` are None where there is no history.

    ``cells`` are its acceptance, share of the drafts, acceptance per request, requests, TTFT, TPOT
    and speedup.
    """

    name: str
    points: Points
    cells: tuple[str, ...]
    loses: bool


@dataclass(frozen=True, slots=True)
class RuleLine:
    """The state of a rule: ``kind`` is ``breach`` or ``pending``."""

    kind: str
    severity: str
    said: str
    summary: str


@dataclass(frozen=True, slots=True)
class StatusModel:
    """One model. ``span`` says over how long its figures are."""

    name: str
    answer: StatusAnswer
    more: tuple[str, ...] = ()
    facts: str = ""
    span: str = "not known"
    sources: str = ""
    """Who counted the segments."""
    segments: tuple[StatusSegment, ...] = ()
    coverage: str = ""
    latencies: tuple[tuple[str, str, str, str], ...] = ()
    """Name, with speculation, without it, and the change of a mean: quantiles are too coarse."""
    compared: bool = False
    """Whether any latency without speculation is known."""
    objectives: tuple[tuple[str, str, bool], ...] = ()
    """Name, what is left of it, and whether it is overspent."""
    goodput: str | None = None
    """None where it is not known."""
    rules: tuple[RuleLine, ...] = ()
    rules_said: str = ""


NOT_SHOWN = StatusAnswer("failed", "It cannot be shown, for a defect of specwatch: see its log.")


def shown_name(model: str) -> str:
    """The name of a model; some have none."""
    return shown(model) or "(no name)"


def model_of(
    target: TargetStatus,
    name: str,
    hour: ModelHour | None,
    recent: Window | None,
    now: float,
    answer: StatusAnswer,
) -> StatusModel:
    """One model; ``hour`` is None where no minute was seen in it, ``recent`` its last minutes,
    None of a target that cannot be read."""
    known = target.decision.models.get(name)
    dead = answer.outcome == "not_read"
    judged = None if known is None or dead else model_view(known, now)
    findings = [
        finding_view(finding) for finding in target.decision.findings if finding.model_name == name
    ]
    slos = [slo_view(slo) for slo in target.decision.slos if slo.model_name == name]
    met = {} if dead else goodput_view(target.decision.goodput.get(name, {}))
    mode = str(target.models.get(name, figures.UNKNOWN))
    return StatusModel(
        name=shown_name(name),
        answer=answer,
        more=tuple(_more(judged, recent, answer.outcome, target.models.get(name))),
        facts="" if dead else _facts(mode, recent),
        span=_span(hour, now, before=dead),
        sources="" if hour is None else _sources(hour),
        segments=() if hour is None else tuple(_segments(hour, judged)),
        coverage=_coverage(target, name, hour),
        latencies=tuple(_latencies(hour, known)),
        compared=known is not None and bool(known.baseline_latencies),
        objectives=tuple(_objectives(slos)),
        goodput=speculation.goodput(met),
        rules=tuple(_rules(findings, now)),
        rules_said=speculation.counts(findings),
    )


def _more(
    answer: ModelView | None, recent: Window | None, outcome: str, mode: Mode | None
) -> Iterator[str]:
    if answer is None or outcome in ("off", "no_traffic") or (mode and mode.unjudged):
        return
    window = None if recent is None else summary.window_view(recent)
    varying = speculation.draft_lengths(answer.draft_lengths)
    if varying is not None:
        yield _sentence(varying)
    yield _sentence(speculation.break_even(answer, window))
    best = speculation.best_k(answer)
    if best is not None:
        yield _sentence(best)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _facts(mode: str, recent: Window | None) -> str:
    facts = [f"speculation {mode}"]
    if recent is not None:
        mean = recent.gauges.running_mean
        if mean is not None:
            facts.append(
                f"{figures.number(mean, 1)} running over the last {figures.span(recent.length)}"
            )
        if recent.gauges.kv_cache_usage_max is not None:
            facts.append(f"KV cache up to {figures.percent(recent.gauges.kv_cache_usage_max)}")
        facts += figures.events(events_of(recent.tally))
    return _sentence(", ".join(facts))


def _span(hour: ModelHour | None, now: float, *, before: bool) -> str:
    """``last 30 min with speculation``; ``before``: since then the target cannot be read."""
    if hour is None:
        return "no whole minute seen since the last start or switch"
    on = "with speculation" if hour.on else "without speculation throughout"
    if hour.whole is not None and hour.whole.mode is Mode.UNKNOWN:
        on = MODE_NOT_KNOWN
    late = now - hour.end
    whole = hour.seconds >= hour.end - hour.start
    sentence = f"{figures.span(hour.seconds)} {on}"
    if late <= _LATE and whole:
        sentence = f"last {sentence}"
    else:
        if not whole:
            sentence += f" within {figures.span(hour.end - hour.start)}"
        if late > _LATE:
            sentence += f", which ended {figures.span(late)} ago"
    return f"{sentence}; of before the target could not be read" if before else sentence


def _sources(hour: ModelHour) -> str:
    """Who counted the row of all requests, and who counted the others."""
    whole = None if hour.whole is None else _counter(hour.whole)
    parts = sorted({_counter(segment) for segment in hour.segments})
    if not parts or parts == [whole]:
        return f"Counted by {whole or parts[0]}." if whole or parts else ""
    sentence = f"The other rows are counted by {' and '.join(parts)}"
    if whole is None:
        return f"{sentence}."
    own = hour.whole.tally.request_acceptance if hour.whole is not None else None
    spread = "" if own is not None and own.count else ", but per request the others together"
    return (
        f"Row {segment_words(ALL)} is counted by {whole}{spread}; its latencies lie in"
        f" {whole}'s buckets, which are coarser. {sentence}."
    )


def _counter(window: Window) -> str:
    return _COUNTED_BY.get(window.source, f"the {shown(str(window.source))}")


def _segments(hour: ModelHour, answer: ModelView | None) -> Iterator[StatusSegment]:
    speedups = _speedups(answer)
    whole = () if hour.whole is None else (hour.whole,)
    for window in (*whole, *hour.segments):
        segment = window.series.segment
        shares = segment != ALL
        observed = window.tally.request_acceptance if shares else hour.request_acceptance
        speedup = speedups.get(segment)
        share = hour.share(window) if shares else 1.0
        cells = (
            figures.percent(acceptance_rate(window.tally)),
            figures.UNKNOWN if share is None else f"{share:.0%}",
            figures.percents(summary.request_acceptance(observed), " / "),
            figures.number(sum(window.tally.requests.values())),
            _both(summary.latency(window.tally.ttft)),
            _both(summary.latency(window.tally.tpot)),
            figures.UNKNOWN if speedup is None else figures.number(speedup.value, 2),
        )
        loses = speedup is not None and speedup.upper < 1
        points = hour.points.get(segment, ())
        yield StatusSegment(segment_title(segment), points, cells, loses)


def _speedups(answer: ModelView | None) -> dict[Segment, Interval | MeasuredSpeedup]:
    """The measured speedups by segment, that of all requests among them."""
    if answer is None:
        return {}
    speedups: dict[Segment, Interval | MeasuredSpeedup] = {
        one.segment: one.speedup for one in answer.segments
    }
    if isinstance(answer.speedup, MeasuredSpeedup):
        speedups[ALL] = answer.speedup
    return speedups


def _both(latency: LatencyView | None) -> str:
    """``235 ms / 1.20 s``: P50 and P99; the mean where only that is known."""
    quantiles = [figures.quantile(latency, name) for name in ("p50", "p99")]
    known = quantiles != [figures.UNKNOWN] * 2
    return " / ".join(quantiles) if known else figures.mean(latency)


def _coverage(target: TargetStatus, name: str, hour: ModelHour | None) -> str:
    """For how many of the drafts the temperature is known."""
    seen = None if hour is None else hour.coverage
    if seen is None:
        if not target.tap.source and target.models.get(name) != "off":
            return "No tap: temperatures are unknown (specwatch tap flags, or tap proxy, adds one)."
        return ""
    who = shown(str(seen.source))
    if seen.coverage is None:
        return f"The {who} saw {figures.counted(seen.drafts, 'draft')}, the server counted none."
    sentence = f"The {who} covers {figures.percent(seen.coverage)} of drafts"
    reasons = [
        f"{figures.counted(count, 'request')} ({shown(reason)})"
        for count, reason in leading_reasons(seen.uncovered)
    ]
    return f"{sentence}; not covered: {', '.join(reasons)}." if reasons else f"{sentence}."


def _latencies(
    hour: ModelHour | None, known: ModelDecision | None
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the latencies with speculation beside the baseline at equal load."""
    on = None if hour is None or not hour.on or hour.whole is None else hour.whole.tally
    baseline = {} if known is None else known.baseline_latencies
    for metric, name in _METRICS.items():
        sides: tuple[Histogram | None, Histogram | None] = (
            None if on is None else getattr(on, metric),
            baseline.get(metric),
        )
        now, then = (None if side is None else histogram.mean(side) for side in sides)
        if now is not None or then is not None:
            change = _change(now, then)
            yield f"{name} mean", figures.seconds(now), figures.seconds(then), change
        for label, q in _QUANTILES.items():
            on_q, off_q = (
                _time(None if side is None else histogram.quantile(side, q)) for side in sides
            )
            if (on_q, off_q) != (figures.UNKNOWN, figures.UNKNOWN):
                yield f"{name} {label}", on_q, off_q, figures.UNKNOWN


def _time(quantile: Quantile | None) -> str:
    if quantile is None or quantile.value is None:
        return figures.UNKNOWN
    if not quantile.open_ended and histogram.wide(quantile.lower, quantile.upper):
        return figures.within(quantile.lower, quantile.upper)
    return figures.bounded(quantile.value, beyond=quantile.open_ended)


def _change(after: float | None, before: float | None) -> str:
    if after is None or not before:
        return figures.UNKNOWN
    percents = round(100 * (after / before - 1))
    if not percents:
        return "the same"
    return f"{abs(percents)}% {'slower' if percents > 0 else 'faster'}"


def _objectives(slos: Iterable[SloView]) -> Iterator[tuple[str, str, bool]]:
    for slo in list(slos)[:_MOST_SLOS]:
        sentence = speculation.objective(slo)
        yield shown(slo.name), sentence or "no requests", (slo.budget_left or 0.0) < 0


def _rules(findings: list[FindingView], now: float) -> Iterator[RuleLine]:
    breaches = [finding for finding in findings if finding.verdict == "breach"]
    breaches.sort(key=lambda breach: breach.since)
    pending = filter(speculation.may_become, findings)
    for kind, chosen, sentence in (
        ("breach", breaches, speculation.confirmed),
        ("pending", pending, speculation.pending),
    ):
        for finding in itertools.islice(chosen, _MOST_RULES):
            summary = shown(finding.summary, LONGEST_SENTENCE)
            if summary and not summary.endswith((".", "!", "?")):
                summary += "."
            yield RuleLine(kind, shown(finding.severity), sentence(finding, now), summary)

"""The answer and what to do, as sentences: pure functions of the report of one model."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specwatch.domain.model import LOAD_BINS, TEMPERATURE, Mode, Segment, load_bin_label
from specwatch.domain.speedup import NO_BASELINE, mended_by_calibration
from specwatch.report import schedule
from specwatch.report.estimates import Ratio, ReportBestK, WhatIf
from specwatch.report.loads import LEAST_GAIN, WORTH_ANOTHER_K
from specwatch.report.model import ModelReport, ReportAnswer, ReportSegment
from specwatch.wording import figures
from specwatch.wording.figures import moment
from specwatch.wording.segments import segment_words, segments_words
from specwatch.wording.speculation import (
    MODE_NOT_KNOWN,
    MODE_REMEDY,
    OBJECTIVES,
    STOPPED_REMEDY,
)
from specwatch.wording.text import LONGEST_SENTENCE, shown

WORTH_A_CHANGE = 0.05
"""Gain below which no change is recommended."""
_SPARSE = 0.8
"""Share of the time that has to be watched, and of the drafts that need a temperature, for reliable
figures."""
_LEAST_HOURS, _FEW_HOURS = 0.1, 10.0
"""Hours below which they are not mentioned, and below which they have a decimal."""
_MOST = 3
"""Sentences of a recommendation."""
_MOST_NAMES = 6
_MOST_LOADS = 3


def sentence(report: ModelReport) -> str:
    """Did speculation pay: the answer first, then the temperatures and loads."""
    text = [_answer(report), *_where(report.answer)]
    if report.stopped_since is not None:
        text.append(f"The engine itself switched it off by {moment(report.stopped_since)}.")
    return " ".join(sentence for sentence in text if sentence)


def recommendation(report: ModelReport) -> str:
    """What to do, in one to three sentences, the most urgent first."""
    advice = list(itertools.islice(_advice(report), _MOST))
    return " ".join(advice) if advice else _no_advice(report)


class Change(NamedTuple):
    """A change with what it gains: 0.24 is 24 % more work in the same time; in a few words, and
    whole."""

    gain: float
    short: str
    text: str


def best_change(report: ModelReport) -> Change | None:
    """The recommended change that gains most; None without one."""
    if report.answer.outcome == "no_traffic" or _is_off(report) or _useless(report):
        return None
    return next(iter(_changes(report)), None)


def _answer(report: ModelReport) -> str:
    answer, name = report.answer, shown(report.model_name)
    if answer.outcome == "no_traffic":
        if not report.health.observed:
            if report.health.down:
                return f"No traffic: the server of {name} was down."
            return f"Not known: {name} was not watched."
        return f"No traffic: nothing was asked of {name}."
    if answer.outcome == "off":
        return _off(report, name)
    if answer.speedup is None or answer.outcome == "unknown":
        return _unknown(answer, name)
    return _ANSWERS[answer.outcome].format(
        name=name,
        times=f"{answer.speedup.value:.2f}x",
        within=_within(answer.speedup, answer),
        saved=_saved(answer),
    )


_ANSWERS = {
    "pays": "Yes: speculation made {name} {times} faster ({within}){saved}.",
    "not_worth_it": "Hardly: speculation made {name} only {times} faster ({within}){saved}.",
    "even": "No certain difference: speculation made {name} {times} as fast ({within}).",
    "loses": "No: speculation made {name} slower, {times} as fast ({within}){saved}.",
}


def _within(speedup: Ratio, answer: ReportAnswer) -> str:
    if speedup.lower is None or speedup.upper is None:
        return str(speedup.basis)
    of = "" if answer.objective is None else f", {OBJECTIVES[answer.objective]}"
    return f"{speedup.lower:.2f} to {speedup.upper:.2f}{of}, {speedup.basis}"


def _saved(answer: ReportAnswer) -> str:
    """``, which saved 328 GPU hours``; nothing where that is less than a tenth of an hour."""
    hours, unit = answer.gpu_hours_saved, "GPU hour"
    if hours is None:
        hours, unit = answer.hours_saved, "server hour"
    if hours is None or abs(hours.value) < _LEAST_HOURS:
        return ""
    count = abs(hours.value)
    many = f"{figures.number(count, 1 if count < _FEW_HOURS else 0)} {unit}s"
    did = f"{'saved' if hours.value > 0 else 'lost'} {many}"
    # A speedup weighs an hour by its requests, the server's time does not: they may disagree.
    faster = answer.speedup is not None and answer.speedup.value > 1
    return f", which {did}" if faster == (hours.value > 0) else f", yet it {did}"


def _off(report: ModelReport, name: str) -> str:
    text = f"Speculation was off all the time for {name}"
    for seconds, whom in (
        (report.seconds_off_by_guard, "the guard"),
        (report.seconds_off_by_order, "order of a person"),
        (report.traffic.seconds.get(Mode.STOPPED, 0.0), "the engine itself"),
    ):
        if seconds:
            text += f", {figures.span(seconds)} of it by {whom}"
    return f"{text}."


def _unknown(answer: ReportAnswer, name: str) -> str:
    text = f"Not known yet whether speculation pays for {name}"
    if answer.missing:
        there = "there is " if answer.missing.startswith(NO_BASELINE) else ""
        there = "it is " if answer.missing == MODE_NOT_KNOWN else there
        text += f": {there}{shown(answer.missing, LONGEST_SENTENCE)}"
    if answer.speedup is not None:
        text += f"; a speedup of about {answer.speedup.value:.1f}x is assumed"
    return f"{text}."


def _where(answer: ReportAnswer) -> Iterator[str]:
    """Yield the segments and loads at which it pays, and those at which it loses."""
    for verb, segments, loads in (
        ("pays", answer.winning_segments, answer.winning_loads),
        ("loses", answer.losing_segments, answer.losing_loads),
    ):
        places = [place for place in (*_segments(segments), _loads(loads)) if place]
        if places:
            yield f"It {verb} {', and '.join(places)}."


def _segments(segments: Sequence[Segment]) -> Iterator[str]:
    """Yield the temperatures, and the other segments."""
    buckets = [segment_words(one) for one in _buckets(segments)]
    others = segments_words(one for one in segments if one.dimension != TEMPERATURE)
    if buckets:
        yield f"at temperature{'s' * (len(buckets) > 1)} {_listed(buckets)}"
    if others:
        yield f"for {_listed(others)}"


def _buckets(segments: Sequence[Segment]) -> list[Segment]:
    return [one for one in segments if one.dimension == TEMPERATURE]


def _loads(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    joined = _joined(labels)
    return f"with {_listed(joined)} {'request' if joined == ['1'] else 'requests'} running"


def _joined(labels: Sequence[str]) -> list[str]:
    """Load bins with neighbours as one: ``1-16``, ``33 or more``."""
    order = {load_bin_label(index): index for index in range(len(LOAD_BINS))}
    known = sorted(order[label] for label in labels if label in order)
    others = [shown(label) for label in labels if label not in order]
    runs: list[list[int]] = []
    for position in known:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    joined = []
    for run in runs:
        first, last = LOAD_BINS[run[0]][0], LOAD_BINS[run[-1]][1]
        end = " or more" if last is None else f"-{last}" if last > first else ""
        joined.append(f"{first}{end}")
    return [*joined, *others]


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], f"{len(names) - _MOST_NAMES} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


def _advice(report: ModelReport) -> Iterator[str]:
    """Yield what is to be done, the most urgent first."""
    yield from _held(report)
    yield from _data(report)
    if report.stopped_since is not None:
        yield STOPPED_REMEDY
    if report.answer.outcome == "no_traffic":
        return
    if _is_off(report) and (report.answer.outcome == "loses" or _useless(report)):
        yield "Leave speculation off: the guard has switched it off, and tries it again by itself."
        return
    if _useless(report):
        yield (
            "Switch speculation off: so few draft tokens are accepted that it cannot pay"
            f" (`specwatch guard disable {shown(report.target)}`)."
        )
        return
    yield from _measuring(report)
    for change in _changes(report):
        yield change.text
    yield from _guarding(report)


def _held(report: ModelReport) -> Iterator[str]:
    for incident in report.incidents:
        if incident.ended is None and incident.steps and incident.steps[-1].phase == "held":
            yield (
                f"The guard is held since {moment(incident.steps[-1].at)}: look at the server"
                f" (`specwatch guard explain {shown(incident.id)}`), then"
                f" `specwatch guard resume {shown(report.target)}`."
            )
            return


def _data(report: ModelReport) -> Iterator[str]:
    """Yield what makes the figures unreliable."""
    health = report.health
    watched = health.observed + health.down
    if watched < _SPARSE * health.expected:
        yield (
            f"First have specwatch watch all the time: it saw"
            f" {watched / health.expected:.0%} of this period."
        )
    if health.coverage is not None and health.coverage < _SPARSE:
        yield (
            f"First have all traffic pass the tap: the temperature of"
            f" {1 - health.coverage:.0%} of the drafts is not known."
        )


def _measuring(report: ModelReport) -> Iterator[str]:
    if report.answer.outcome != "unknown":
        return
    missing = report.answer.missing or NO_BASELINE
    if missing == MODE_NOT_KNOWN:
        yield MODE_REMEDY
        return
    if missing == Mode.PREFILL.unjudged:
        yield "Nothing to do: look at the servers that decode."
    if any(missing == mode.unjudged for mode in Mode):
        return
    if not mended_by_calibration(missing):
        yield "Wait for more traffic, or report on a longer period."
        return
    unmeasured = sorted(
        (load for load in report.loads if load.speedup is None), key=lambda load: -load.share
    )
    loads = sorted({max(round(load.running), 1) for load in unmeasured[:_MOST_LOADS]})
    option = f" --concurrency {','.join(map(str, loads))}" if "load" in missing and loads else ""
    whose = shlex.quote(shown(report.target))
    yield (
        f"Run `specwatch calibrate --off URL --target {whose}{option}`, with the URL of a server"
        " without speculation: it measures what serving costs there, against which a speedup is"
        " measured."
    )


def _useless(report: ModelReport) -> bool:
    """Whether it could not pay even if drafts were free; a measured gain takes precedence."""
    length = report.segments[0].acceptance.mean_length
    too_little = length is not None and length - 1 < LEAST_GAIN
    return too_little and report.answer.outcome not in ("pays", "not_worth_it", "off")


def _is_off(report: ModelReport) -> bool:
    """Whether the guard has it off at the end of the period."""
    last = report.incidents[-1] if report.incidents else None
    return last is not None and last.ended is None and last.steps[-1].phase == "disabled"


def _changes(report: ModelReport) -> list[Change]:
    """What to change, by its gain, the greatest first; none below 5 %.

    Of the changes of the whole server only the best counts: the gains of two do not add up.
    """
    whole = max(_switching(report), default=None)
    changes = [*_routing(report), *([] if whole is None else [whole])]
    return sorted((one for one in changes if one.gain >= WORTH_A_CHANGE), reverse=True)


def _switching(report: ModelReport) -> Iterator[Change]:
    """Yield changes of speculation for the whole server."""
    answer, what_if = report.answer, report.what_if
    yield from _another_k(report.best_k)
    if answer.outcome == "loses" and answer.speedup is not None:
        short = "Switch speculation off"
        text = f"{short}: `specwatch guard disable {shown(report.target)}`"
        end = "." if _missed(report) else ", or let the guard (`guard.mode: act`)."
        yield Change(1 / answer.speedup.value - 1, f"{short}.", f"{text}{end}")
    elif what_if is not None and what_if.setting:
        # A server without speculation takes ``now`` of the time at these loads.
        elsewhere = _gain_of(what_if.share * (1 - (what_if.now or 1.0)))
        yield Change(
            max((what_if.gain or 1.0) - 1, elsewhere),
            f"Do without speculation above {schedule.limit(what_if)} running requests.",
            _restricted(report, what_if),
        )


def _gain_of(saved: float) -> float:
    """The gain of doing without a share of the time."""
    return 1 / (1 - saved) - 1 if saved < 1 else 0.0


def _another_k(best: ReportBestK | None) -> Iterator[Change]:
    """Yield another number of draft tokens, if it is better than the present one, and than none."""
    if best is None or not 0 < best.k < len(best.speedups):
        return
    now, then = best.speedups[min(best.now, len(best.speedups) - 1)], best.speedups[best.k]
    if now > 0 and then > WORTH_ANOTHER_K:
        short = f"Set `num_speculative_tokens` to {best.k}"
        yield Change(
            then / now - 1,
            f"{short}.",
            f"{short} (now {best.now}): a speedup of {then:.2f}x per token is predicted in place of"
            f" {now:.2f}x; off is 1.00x.",
        )


def _restricted(report: ModelReport, what_if: WhatIf) -> str:
    most = schedule.limit(what_if)
    text = (
        f"Speculation loses above {most} running requests, {figures.percent(what_if.share)} of the"
        " time: send what is above to a separate server without speculation, or switch it off"
        f" while that lasts (`specwatch guard disable {shown(report.target)}`)."
    )
    if not schedule.stops_the_loss(what_if):
        return f"{text} A schedule by batch size does not help: {schedule.expected(what_if)}."
    known = what_if.standby_cost is not None
    text += (
        f" Or {'set' if known else 'measure'} `{schedule.setting(what_if)}` in the speculative"
        f" configuration ({schedule.needs(report.engine_version)})"
        f"{'' if known else ' with `specwatch bench` before you keep it'}:"
        f" {schedule.expected(what_if)}."
    )
    unmeasured = schedule.unmeasured(report, what_if)
    if unmeasured:
        text += f" It drafts on {_loads(unmeasured)} too, where nothing was measured."
    return text


def _routing(report: ModelReport) -> Iterator[Change]:
    """Yield what losing temperatures, and each other losing segment, gain elsewhere; their share of
    the requests is taken for that of the time."""
    losing: dict[str, list[ReportSegment]] = {}
    for one in report.segments:
        if one.segment in report.answer.losing_segments:
            what = segment_words(one.segment)
            if one.segment.dimension == TEMPERATURE:
                what = f"requests {next(_segments(_buckets(report.answer.losing_segments)))}"
            losing.setdefault(what, []).append(one)
    for what, parts in losing.items():
        share = sum(part.share or 0.0 for part in parts)
        saved = sum((e.share or 0.0) * (1 - e.speedup.value) for e in parts if e.speedup)
        if report.answer.outcome not in ("loses", "off"):
            yield Change(
                _gain_of(saved),
                f"Send {what} to a server without speculation.",
                f"Send {what} ({share:.0%} of all) to a server without speculation, if there is"
                " one: it can be switched for a whole server only.",
            )


def _guarding(report: ModelReport) -> Iterator[str]:
    missed = _missed(report)
    if missed and report.answer.outcome in ("loses", "even"):
        times = "once" if missed == 1 else f"{missed} times"
        yield (
            f"The guard is in observe mode, and would have acted {times}: set `guard.mode` to"
            " `act` to have it switch speculation by itself."
        )


def _missed(report: ModelReport) -> int:
    """Incidents in which the guard did nothing only because of its mode."""
    return sum(incident.would_have_acted for incident in report.incidents)


def _no_advice(report: ModelReport) -> str:
    outcome = report.answer.outcome
    if outcome == "off" and report.seconds_off_by_guard:
        return "Nothing to do: `specwatch guard status` says when speculation is tried again."
    if outcome == "off" and report.seconds_off_by_order:
        return "A person ordered it: `specwatch guard enable` switches speculation on again."
    return _NO_ADVICE.get(outcome, "Keep it as it is.")


_NO_ADVICE = {
    "loses": "Keep it as it is: switching speculation off would gain less than 5 %.",
    "no_traffic": "Nothing to do; if there should have been traffic, look where it went.",
    "off": "Nothing to do: what was served meanwhile is a baseline for when speculation is on"
    " again.",
    "not_worth_it": "Keep it if the memory of the draft model is not needed for something better.",
    "even": "Keep it for now, and report on a longer period: that narrows the interval.",
}

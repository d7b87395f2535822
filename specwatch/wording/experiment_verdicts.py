"""Whether to ship speculation: the verdict, its sentence, and the loads at which it changes.

The verdict of several loads is that of their mean speedup, except that ``ship`` also needs that no
load loses: that none is slower, and none has requests that fail only with speculation. If all loads
that lose are above those that ship, the verdict is ``ship`` up to these, with the setting that
turns speculation off above; else it is ``not_worth_it``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from specwatch.domain.experiments import LEAST_SPEEDUP, ComparedLevel, Estimate, Level, Verdict
from specwatch.wording import figures

LABELS: dict[Verdict, str] = {
    "ship": "ship",
    "not_worth_it": "not worth it",
    "do_not": "do not",
    "unknown": "unknown",
}
"""Verdicts in texts."""
_REMEDY = (
    "Send more to a separate server without speculation, or measure vLLM's"
    " num_speculative_tokens_per_batch_size (tested with Eagle, Eagle-3 and DFlash): with k = 0 the"
    " drafter still runs."
)

_Point = tuple[float, Estimate]
"""Load and speedup."""


class Judgement(NamedTuple):
    """The verdict of all levels; ``limit`` is the highest load with speculation, None for any."""

    verdict: Verdict
    limit: ComparedLevel | None = None


def verdict_of(speedup: Estimate | None) -> Verdict:
    """The verdict of a speedup, by its whole interval."""
    if speedup is None or speedup.lower is None or speedup.upper is None:
        return "unknown"
    if speedup.upper < 1:
        return "do_not"
    if speedup.upper < LEAST_SPEEDUP:
        return "not_worth_it"
    return "ship" if speedup.lower >= LEAST_SPEEDUP else "unknown"


def judge(levels: Sequence[ComparedLevel]) -> Judgement:
    """The verdict of all levels, as described above."""
    verdict = verdict_of(overall(levels))
    loses = [level for level in levels if level.verdict == "do_not"]
    if loses and not any(level.speedup is not None for level in levels):
        return Judgement("do_not")
    if verdict != "ship" or not loses:
        return Judgement(verdict)
    below = _below(levels, loses)
    if below and verdict_of(overall(below)) == "ship":
        return Judgement("ship", below[-1])
    return Judgement("not_worth_it")


def overall(levels: Sequence[ComparedLevel]) -> Estimate | None:
    """The geometric mean over levels; of those with an interval, if there are any.

    Distances of the limits are added as squares, on the logarithm (G. Y. Zou, A. Donner,
    *Construction of confidence limits about effect measures: a general approach*, Statistics in
    Medicine 27, 2008).
    """
    speedups = [level.speedup for level in levels if level.speedup is not None]
    sure = [ratio for ratio in speedups if ratio.lower is not None and ratio.upper is not None]
    speedups = sure or speedups
    count = len(speedups)
    if not count:
        return None
    value = math.exp(math.fsum(math.log(ratio.value) for ratio in speedups) / count)
    if not sure:
        return Estimate(value=value)
    down = [math.log(ratio.value / (ratio.lower or ratio.value)) ** 2 for ratio in sure]
    up = [math.log((ratio.upper or ratio.value) / ratio.value) ** 2 for ratio in sure]
    return Estimate(
        value=value,
        lower=value * math.exp(-math.sqrt(math.fsum(down)) / count),
        upper=value * math.exp(math.sqrt(math.fsum(up)) / count),
    )


def sentence(
    judgement: Judgement,
    levels: Sequence[ComparedLevel],
    crossing: float | None,
    rising: float | None = None,
) -> str:
    """The verdict as a text; its first sentence says whether speculation pays, and up to which
    load."""
    main = _main(judgement, levels, crossing)
    where = _where(judgement, levels, crossing, rising) if len(levels) > 1 else []
    remedy = [_REMEDY] if judgement.limit is not None else []
    return " ".join([main, *where, *remedy])


def _main(judgement: Judgement, levels: Sequence[ComparedLevel], crossing: float | None) -> str:
    verdict, limit = judgement
    loses = [level for level in levels if level.verdict == "do_not"]
    speedup = overall(levels if limit is None else _below(levels, loses))
    if speedup is None or speedup.lower is None or speedup.upper is None:
        reasons = [f"at {place(level)} {level.missing}" for level in levels if level.missing]
        reason = reasons[0] if reasons else "too little was measured"
        return f"{'Speculation fails' if verdict == 'do_not' else 'Not clear yet'}: {reason}."
    figure = figures.times(speedup)
    if limit is not None:
        slower = [level for level in loses if level.speedup is not None]
        above = f"; it loses at {place(*slower)}" if slower else ""
        if crossing is not None:
            above = f"; from about {crossing:.3g} on it loses"
        return f"Speculation pays up to {place(limit)}: {figure}{above}."
    known = [level for level in levels if level.speedup is not None]
    if verdict == "ship" and len(known) > 1:
        least = min(known, key=lambda level: level.speedup.value if level.speedup else 0.0)
        lowest = f"{least.speedup.value:.2f}x" if least.speedup else ""
        return f"Speculation pays: {figure} over all loads, least at {place(least)}: {lowest}."
    if verdict == "ship":
        return f"Speculation pays: {figure}."
    if verdict == "do_not":
        return f"Speculation loses: {figure}. Switch it off."
    if verdict == "not_worth_it":
        if speedup.upper >= LEAST_SPEEDUP:
            return f"Speculation does not pay at all loads: {figure} over all of them."
        what = "pays too little" if speedup.lower > 1 else "makes no clear difference"
        return f"Speculation {what}: {figure}, and {LEAST_SPEEDUP:g}x is needed."
    if speedup.lower > 1:
        return (
            f"Speculation is faster, but maybe by less than the {LEAST_SPEEDUP:g}x that is needed:"
            f" {figure}. Measure longer."
        )
    return f"Not clear yet: {figure}. Measure longer."


def _where(
    judgement: Judgement,
    levels: Sequence[ComparedLevel],
    crossing: float | None,
    rising: float | None,
) -> list[str]:
    """Sentences about loads that differ from the verdict."""
    sentences = []
    ships = [level for level in levels if level.verdict == "ship"]
    slower = [level for level in levels if level.verdict == "do_not" and level.speedup is not None]
    failing = [level for level in levels if level.verdict == "do_not" and level.speedup is None]
    if rising is not None:
        sentences.append(f"It loses below about {rising:.3g} {unit(levels[0])}, and pays above.")
    elif judgement.limit is None and crossing is not None:
        sentences.append(f"It loses from about {crossing:.3g} {unit(levels[0])} on.")
    elif judgement.limit is None and slower and judgement.verdict != "do_not":
        sentences.append(f"It loses at {place(*slower)}.")
    if failing and len(failing) < len(levels):
        sentences.append(f"Requests fail with speculation only at {place(*failing)}.")
    if ships and judgement.verdict != "ship":
        sentences.append(f"It pays at {place(*ships)}.")
    missing = [level for level in levels if level.missing and level not in failing]
    if missing and len(missing) < len(levels):
        sentences.append(f"No result for {place(*missing)}: {missing[0].missing}.")
    return sentences


def falling_crossing(levels: Sequence[ComparedLevel]) -> float | None:
    """The load above which speculation loses, None if not known.

    At all measured loads above it the speedup is below 1, at least once with its whole interval.
    It is interpolated on the logarithms of load and speedup.
    """
    points = _points(levels)
    index = max((i for i, (_, speedup) in enumerate(points) if speedup.value >= 1), default=None)
    if index is None or not any(_loses(speedup) for _, speedup in points[index + 1 :]):
        return None
    return _between(*points[index : index + 2])


def rising_crossing(levels: Sequence[ComparedLevel]) -> float | None:
    """The load above which speculation gains, None if not known.

    All measured loads below it have a speedup below 1 and all above it do not, at least one of each
    with its whole interval.
    """
    points = _points(levels)
    index = next((i for i, (_, speedup) in enumerate(points) if speedup.value >= 1), 0)
    before, after = points[:index], points[index:]
    if not any(_loses(speedup) for _, speedup in before) or any(
        speedup.value < 1 for _, speedup in after
    ):
        return None
    if not any(speedup.lower is not None and speedup.lower > 1 for _, speedup in after):
        return None
    return _between(*points[index - 1 : index + 1])


def _points(levels: Sequence[ComparedLevel]) -> list[_Point]:
    points = [
        (_height(level), level.speedup)
        for level in levels
        if level.speedup is not None and level.speedup.value > 0
    ]
    return sorted(points, key=lambda point: point[0])


def _loses(speedup: Estimate) -> bool:
    return speedup.upper is not None and speedup.upper < 1


def _between(one: _Point, other: _Point) -> float:
    (low, first), (high, second) = one, other
    share = math.log(first.value) / (math.log(first.value) - math.log(second.value))
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _below(levels: Sequence[ComparedLevel], loses: Sequence[ComparedLevel]) -> list[ComparedLevel]:
    """The levels below the first that loses, in order."""
    first = min(map(_height, loses), default=math.inf)
    return sorted((level for level in levels if _height(level) < first), key=_height)


def _height(level: ComparedLevel) -> float:
    return float(level.concurrency or level.rate or 0)


def unit(level: Level | ComparedLevel) -> str:
    """The unit of its load."""
    return "requests at once" if level.concurrency is not None else "requests a second"


def place(*levels: Level | ComparedLevel) -> str:
    """Loads as a text: ``4, 16 requests at once``."""
    numbers = ", ".join(f"{level.concurrency or level.rate or 0:g}" for level in levels)
    name = unit(levels[0])
    return f"{numbers} {name.replace('requests', 'request') if numbers == '1' else name}"

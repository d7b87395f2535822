"""Whether to ship speculation: the verdict of an interval, and the sentence that goes with it."""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.experiments.model import LEAST_SPEEDUP, ComparedLevel, Estimate, Verdict

LABELS: dict[Verdict, str] = {
    "ship": "ship", "not_worth_it": "not worth it", "do_not": "do not", "unknown": "unknown",
}  # fmt: skip
"""What people read."""


def verdict_of(speedup: Estimate | None) -> Verdict:
    """By the whole interval: one that lies across a line says nothing of it."""
    if speedup is None or speedup.lower is None or speedup.upper is None:
        return "unknown"
    if speedup.upper < 1:
        return "do_not"
    if speedup.upper < LEAST_SPEEDUP:
        return "not_worth_it"
    return "ship" if speedup.lower >= LEAST_SPEEDUP else "unknown"


def sentence(
    verdict: Verdict,
    speedup: Estimate | None,
    levels: Sequence[ComparedLevel],
    crossing: float | None,
) -> str:
    """The verdict for somebody who reads nothing else."""
    said = [_main(verdict, speedup, levels)]
    if len(levels) > 1:
        said += _where(verdict, levels, crossing)
    return " ".join(said)


def _main(verdict: Verdict, speedup: Estimate | None, levels: Sequence[ComparedLevel]) -> str:
    if speedup is None or speedup.lower is None or speedup.upper is None:
        reasons = [f"at {_load(each)} {each.missing}" for each in levels if each.missing]
        return f"It cannot be told: {reasons[0] if reasons else 'too little was measured'}."
    figure = f"{speedup.value:.2f} times as fast (95% interval {_bounds(speedup)})"
    if verdict == "ship":
        return f"Ship it: with speculation requests are {figure}."
    if verdict == "do_not":
        return f"Do not: speculation makes requests slower, {figure}."
    if verdict == "not_worth_it":
        told = speedup.lower > 1
        what = "it is faster" if told else "no difference can be told"
        return f"Not worth it: {what}, {figure}, and {LEAST_SPEEDUP:g} is the least that is."
    if speedup.lower > 1:
        return (
            f"It cannot be told: requests are {figure}, which is faster, but may be less than the"
            f" {LEAST_SPEEDUP:g} that are worth it; measure longer."
        )
    return f"It cannot be told: requests are {figure}; measure longer."


def _where(verdict: Verdict, levels: Sequence[ComparedLevel], crossing: float | None) -> list[str]:
    """Loads that are unlike the whole."""
    said = []
    ships = [each for each in levels if each.verdict == "ship"]
    loses = [each for each in levels if each.verdict == "do_not"]
    if crossing is not None:
        unit = "requests at once" if levels[0].concurrency is not None else "requests a second"
        said.append(f"From about {crossing:.3g} {unit} on it is slower.")
    elif loses and verdict != "do_not":
        said.append(f"It is slower at {_list(loses)}.")
    if ships and verdict != "ship":
        said.append(f"It is worth it at {_list(ships)}.")
    missing = [each for each in levels if each.missing]
    if missing and len(missing) < len(levels):
        said.append(f"Of {_list(missing)} nothing can be told: {missing[0].missing}.")
    return said


def _list(levels: Sequence[ComparedLevel]) -> str:
    return ", ".join(_load(each) for each in levels)


def _load(level: ComparedLevel) -> str:
    if level.concurrency is not None:
        return f"concurrency {level.concurrency}"
    return f"{level.rate:g} requests a second"


def _bounds(speedup: Estimate) -> str:
    return f"{speedup.lower:.2f} to {speedup.upper:.2f}"

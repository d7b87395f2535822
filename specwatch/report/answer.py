"""The answer: did speculation pay, at how much traffic, and what was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.domain.model import (
    ALL,
    HOUR,
    Mode,
    load_bin_label,
)
from specwatch.report.estimates import Amount, Ratio
from specwatch.report.loads import losing, winning
from specwatch.report.model import (
    Outcome,
    ReportAnswer,
    ReportLoad,
    ReportSegment,
    ReportTraffic,
)
from specwatch.report.speedups import Speedups
from specwatch.report.window_sums import LedgerCell
from specwatch.wording.speculation import MODE_NOT_KNOWN, WORTH_IT
from specwatch_tap.segment_kinds import UNKNOWN

_ENOUGH = 0.9
"""Least time watched in the period before, relative to this one, for a comparison of amounts."""


def traffic(cells: Sequence[LedgerCell]) -> ReportTraffic:
    """Of all requests; figures of the period before are None if it was watched much less."""
    now = [cell for cell in cells if cell.place.now]
    before = [cell for cell in cells if not cell.place.now and cell.observed]
    if sum(cell.observed for cell in before) < _ENOUGH * sum(cell.observed for cell in now):
        before = []
    observed, busy = dict.fromkeys(Mode, 0.0), dict.fromkeys(Mode, 0.0)
    for cell in now:
        observed[cell.place.mode] += cell.observed
        busy[cell.place.mode] += cell.busy
    return ReportTraffic(
        requests=_requests(now),
        prompt_tokens=sum(cell.all.prompt_tokens or 0 for cell in now),
        generation_tokens=_generated(now),
        seconds=observed,
        busy_on=busy[Mode.ON],
        busy_off=busy[Mode.OFF],
        requests_before=_requests(before) if before else None,
        generation_tokens_before=_generated(before) if before else None,
    )


def _requests(cells: Sequence[LedgerCell]) -> int:
    return sum(sum(cell.all.requests.values()) for cell in cells)


def _generated(cells: Sequence[LedgerCell]) -> int:
    return sum(cell.all.generation_tokens or 0 for cell in cells)


def answer(
    cells: Sequence[LedgerCell],
    measured: Speedups,
    traffic: ReportTraffic,
    segments: Sequence[ReportSegment],
    loads: Sequence[ReportLoad],
    gpus: int | None,
) -> ReportAnswer:
    """All of it but the sentences, which are left empty."""
    by_segment = [
        (one.segment, one.speedup)
        for one in segments
        if one.segment != ALL and one.segment.value != UNKNOWN
    ]
    by_load = [(load.load, load.speedup) for load in loads]
    now = [cell for cell in cells if cell.place.now]
    # Whether anything was served with speculation.
    ran = any(
        cell.all.drafts or (cell.all.generation_tokens and cell.place.mode is Mode.ON)
        for cell in now
    )
    speedup = measured.overall if ran else None
    hours = _saved(speedup, loads, _measured(cells, measured))
    counted = (traffic.requests, traffic.generation_tokens, traffic.busy_on, traffic.busy_off)
    outcome = _outcome(speedup, ran=ran, any_traffic=any(counted))
    served = {cell.place.mode for cell in now if cell.all.generation_tokens}
    undecided = outcome == "off" and Mode.UNKNOWN in served and Mode.OFF not in served
    unjudged = served.pop().unjudged if outcome == "off" and len(served) == 1 else ""
    missing = MODE_NOT_KNOWN if undecided else unjudged or measured.assessment.missing
    return ReportAnswer(
        outcome="unknown" if undecided or unjudged else outcome,
        sentence="",
        recommendation="",
        speedup=speedup,
        objective=measured.assessment.objective.value if measured.assessment.measured else None,
        missing=missing,
        hours_saved=hours,
        gpu_hours_saved=None if hours is None or gpus is None else _times(hours, gpus),
        gpus=gpus,
        winning_segments=winning(by_segment),
        losing_segments=losing(by_segment),
        winning_loads=winning(by_load),
        losing_loads=losing(by_load),
    )


def _outcome(speedup: Ratio | None, *, ran: bool, any_traffic: bool) -> Outcome:
    if not any_traffic and not ran:
        return "no_traffic"
    if not ran:
        return "off"
    if speedup is None or speedup.lower is None or speedup.upper is None:
        return "unknown"
    if speedup.lower > 1.0:
        return "pays" if speedup.value >= WORTH_IT else "not_worth_it"
    return "loses" if speedup.upper < 1.0 else "even"


def _measured(cells: Sequence[LedgerCell], measured: Speedups) -> dict[str, float]:
    """Busy seconds with speculation by load, in the environments that have a baseline of it."""
    seconds: dict[str, float] = {}
    for cell in cells:
        place = cell.place
        if not place.now or place.mode is not Mode.ON or place.load_bin is None:
            continue
        if measured.knows(place.environment, place.load_bin):
            label = load_bin_label(place.load_bin)
            seconds[label] = seconds.get(label, 0.0) + cell.busy
    return seconds


def _saved(
    speedup: Ratio | None, loads: Sequence[ReportLoad], busy: Mapping[str, float]
) -> Amount | None:
    """Additional hours of the same work without speculation; measured speedups only.

    They are summed by load: the overall speedup weighs an hour by its requests, but an hour of the
    server is one hour whatever runs. Loads that were not measured are left out, and so are servers
    without a baseline, which ``busy`` lacks. The interval assumes that the errors of all loads are
    correlated, as they are with a wrong baseline.
    """
    if speedup is None or speedup.lower is None or speedup.upper is None:
        return None
    measured_loads = [
        (busy.get(load.load, 0.0), load.speedup) for load in loads if load.speedup is not None
    ]
    measured = [
        (seconds / HOUR, ratio.value, ratio.lower, ratio.upper)
        for seconds, ratio in measured_loads or [(sum(busy.values()), speedup)]
        if ratio.lower is not None and ratio.upper is not None
    ]
    return Amount(
        value=sum(hours * (value - 1) for hours, value, _, _ in measured),
        lower=sum(hours * (lower - 1) for hours, _, lower, _ in measured),
        upper=sum(hours * (upper - 1) for hours, _, _, upper in measured),
    )


def _times(amount: Amount, factor: int) -> Amount:
    lower = None if amount.lower is None else amount.lower * factor
    upper = None if amount.upper is None else amount.upper * factor
    return Amount(value=amount.value * factor, lower=lower, upper=upper)

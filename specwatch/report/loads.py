"""Speculation by load: where it pays, where it loses, and what to do about that."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from specwatch.domain import acceptance, breakeven
from specwatch.domain.interval import Interval
from specwatch.domain.merge import sum_fields, sum_tallies
from specwatch.domain.model import ALL, LOAD_BINS, Mode, Tally, load_bin_label
from specwatch.domain.sample import total
from specwatch.domain.tuning import LARGEST_BATCH
from specwatch.report import latencies
from specwatch.report.estimates import Crossing, Ratio, ReportBestK, WhatIf, ratio_of
from specwatch.report.latencies import summed
from specwatch.report.model import ReportLoad
from specwatch.report.segments import without_speculation
from specwatch.report.speedups import Speedups
from specwatch.report.window_sums import LedgerCell

LEAST_GAIN = 0.05
"""Tokens of a step beyond one below which speculation is not worth a schedule: it gains no more
even if drafts cost nothing."""
WORTH_ANOTHER_K = 1.03
"""Predicted gain over the present k, and over none, below which no other k is recommended:
predictions are wrong by as much."""
_Name = TypeVar("_Name")
_COUNTED = ("draft_tokens", "accepted_tokens", "generation_tokens")


def loads(cells: Sequence[LedgerCell], measured: Speedups) -> tuple[ReportLoad, ...]:
    """A row for each load bin in which speculation ran."""
    ran: dict[int, list[LedgerCell]] = {}
    for cell in cells:
        bin_ = cell.place.load_bin
        if cell.place.now and cell.place.mode is Mode.ON and bin_ is not None and cell.busy:
            ran.setdefault(bin_, []).append(cell)
    counted = {
        bin_: Tally(**sum_fields((cell.all for cell in inside), _COUNTED))
        for bin_, inside in ran.items()
    }
    tokens = sum(tally.generation_tokens or 0 for tally in counted.values())
    bins = {load.load_bin: load for load in measured.assessment.bins}
    rows = []
    for bin_ in sorted(ran):
        inside, line = ran[bin_], bins.get(bin_)
        busy = sum(cell.busy for cell in inside)
        now = [(cell, cell.all.tpot) for cell in inside if cell.all.tpot is not None]
        rows.append(
            ReportLoad(
                load=load_bin_label(bin_),
                share=(counted[bin_].generation_tokens or 0) / tokens if tokens else 0.0,
                busy=busy,
                running=sum(cell.running for cell in inside) / busy,
                acceptance_rate=acceptance.acceptance_rate(counted[bin_]),
                speedup=None if line is None else ratio_of(line.speedup),
                step_cost=None if line is None else ratio_of(line.step_cost),
                break_even_acceptance=None if line is None else ratio_of(line.acceptance),
                tpot_on=latencies.quantiles(summed(tally for _, tally in now)),
                tpot_off=without_speculation(cells, measured, ALL, "tpot", now),
            )
        )
    return tuple(rows)


def crossing(rows: Sequence[ReportLoad]) -> Crossing | None:
    """The load above which speculation loses, at every load that was measured.

    Between the two loads about it the logarithm of the speedup is taken to be linear in that of
    the running requests. None where speculation pays at the highest load, or nowhere.
    """
    points = [(row.running, row.speedup.value) for row in rows if row.speedup is not None]
    for (low, above), (high, below) in reversed(list(itertools.pairwise(points))):
        if below >= 1.0:
            return None
        if above >= 1.0:
            share = math.log(above) / (math.log(above) - math.log(below))
            return Crossing(running=low * (high / low) ** share)
    return None


def best_k(measured: Speedups) -> ReportBestK | None:
    """Predicted speedups for up to the present number of draft tokens."""
    best = measured.assessment.best_k
    if best is None:
        return None
    return ReportBestK(k=best.k, now=len(best.speedups) - 1, speedups=best.speedups)


def what_if(
    rows: Sequence[ReportLoad],
    measured: Speedups,
    k: int | None,
    draft_cost_ratio: float,
    standby: Callable[[Collection[str]], Interval | None],
) -> WhatIf | None:
    """What to do about the loads at which speculation loses; None if nothing can be recommended.

    A load loses if its whole interval is below 1. A schedule stops drafting from a losing load on,
    if every higher load that ran loses too; below, it keeps ``k`` draft tokens, if speculation is
    measured to pay there. If speculation pays at no measured load, it should be off.
    ``draft_cost_ratio`` is the assumed cost of a draft token in steps of the target. ``standby``
    gives the standby cost at some loads, if that was measured: then the schedule ends with fewer
    draft tokens instead of none if they are predicted to be faster.
    """
    seconds: dict[str, float] = {}
    for sample in measured.samples:
        if sample.pace is not None and sample.load_bin is not None:
            label = load_bin_label(sample.load_bin)
            seconds[label] = seconds.get(label, 0.0) + sample.pace.seconds
    measured_loads = {
        row.load: (seconds[row.load], row.speedup)
        for row in rows
        if row.speedup is not None and seconds.get(row.load)
    }
    lost = losing((load, speedup) for load, (_, speedup) in measured_loads.items())
    if not lost:
        return None
    took = sum(seconds for seconds, _ in measured_loads.values())
    share = sum(measured_loads[load][0] for load in lost) / took
    paying = set(winning((load, speedup) for load, (_, speedup) in measured_loads.items()))
    length = acceptance.mean_acceptance_length(total(list(measured.samples)))
    if not paying or (length is not None and length - 1 < LEAST_GAIN):
        plain = sum(seconds * speedup.value for seconds, speedup in measured_loads.values())
        off = WhatIf(loads=(), setting=(), share=share, gain=took / plain)
        return off if plain < took else None
    above = list(itertools.takewhile(lambda row: row.load in lost, reversed(rows)))
    kept = rows[: len(rows) - len(above)]
    if not above or not k or not paying & {load.load for load in kept}:
        return None
    of_these = [measured_loads[load.load] for load in above]
    spent = sum(seconds for seconds, _ in of_these)
    now = sum(seconds * speedup.value for seconds, speedup in of_these) / spent
    highest = [load.load for load in above]
    cost = standby(highest)
    without_drafts = 1 / (1 + draft_cost_ratio if cost is None else cost.value)
    best = _fewer(measured, highest) if cost is not None else None
    last, fewer = (
        best if best and best[1] > WORTH_ANOTHER_K * max(without_drafts, now) else (0, None)
    )
    begin = next(
        first
        for index, (first, _) in enumerate(LOAD_BINS)
        if load_bin_label(index) == above[-1].load
    )
    return WhatIf(
        loads=tuple(load.load for load in kept),
        setting=((1, begin - 1, k), (begin, max(LARGEST_BATCH, begin), last)),
        share=spent / took,
        gain=None
        if cost is None
        else took / (took + spent * (now / (fewer or without_drafts) - 1)),
        now=now,
        without_drafts=without_drafts,
        standby_cost=ratio_of(cost),
        fewer=fewer,
    )


def _fewer(measured: Speedups, loads: Collection[str]) -> tuple[int, float] | None:
    """Of fewer draft tokens than now the number with the greatest speedup that is predicted at
    these loads, and that speedup; None where nothing can be predicted, or the present one is 1."""
    samples = [
        sample
        for sample in measured.samples
        if sample.load_bin is not None and load_bin_label(sample.load_bin) in loads
    ]
    best = breakeven.assess(samples, measured.baseline, given_loads=True).best_k
    among = () if best is None else tuple(enumerate(best.speedups))[1:-1]
    return max(among, key=lambda predicted: predicted[1], default=None)


def present_k(cells: Sequence[LedgerCell], measured: Speedups) -> int | None:
    """Draft tokens of every draft now; None where that varies, or the server does not say."""
    newest = [
        cell.all for cell in cells if cell.place.now and cell.place.environment == measured.present
    ]
    return acceptance.fixed_draft_length(sum_tallies(newest))


def winning(rows: Iterable[tuple[_Name, Ratio | None]]) -> tuple[_Name, ...]:
    """Those whose whole interval is above 1."""
    return tuple(
        name for name, speedup in rows if speedup and speedup.lower and speedup.lower > 1.0
    )


def losing(rows: Iterable[tuple[_Name, Ratio | None]]) -> tuple[_Name, ...]:
    """Those whose whole interval is below 1."""
    return tuple(
        name for name, speedup in rows if speedup and speedup.upper and speedup.upper < 1.0
    )

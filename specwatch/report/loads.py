"""Speculation by load: where it pays, from where on it does not, and what that would be worth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from specwatch.core import acceptance
from specwatch.core.merge import sum_fields
from specwatch.model import ALL_TEMPERATURES, LOAD_BINS, Mode, Tally, load_bin_label
from specwatch.report import latencies
from specwatch.report.latencies import summed
from specwatch.report.ledger import Cell
from specwatch.report.model import BestK, Crossing, Load, Ratio, WhatIf
from specwatch.report.speedups import Speedups, ratio
from specwatch.report.temperatures import without_speculation

LARGEST_BATCH = 256
"""Where a schedule by batch size ends, unless its load bins reach further."""
_COUNTED = ("draft_tokens", "accepted_tokens", "generation_tokens")


def loads(cells: Sequence[Cell], measured: Speedups) -> tuple[Load, ...]:
    """A row for each load bin in which speculation ran."""
    ran: dict[int, list[Cell]] = {}
    for cell in cells:
        bin_ = cell.place.load_bin
        if cell.place.now and cell.place.mode is Mode.ON and bin_ is not None and cell.busy:
            ran.setdefault(bin_, []).append(cell)
    counted = {
        bin_: Tally(**sum_fields((each.all for each in inside), _COUNTED))
        for bin_, inside in ran.items()
    }
    tokens = sum(each.generation_tokens or 0 for each in counted.values())
    found = {each.load_bin: each for each in measured.assessment.bins}
    rows = []
    for bin_ in sorted(ran):
        inside, line = ran[bin_], found.get(bin_)
        busy = sum(each.busy for each in inside)
        now = [(each, each.all.tpot) for each in inside if each.all.tpot is not None]
        rows.append(
            Load(
                load=load_bin_label(bin_),
                share=(counted[bin_].generation_tokens or 0) / tokens if tokens else 0.0,
                busy=busy,
                running=sum(each.running for each in inside) / busy,
                acceptance_rate=acceptance.acceptance_rate(counted[bin_]),
                speedup=None if line is None else ratio(line.speedup),
                step_cost=None if line is None else ratio(line.step_cost),
                break_even_acceptance=None if line is None else ratio(line.acceptance),
                tpot_on=latencies.quantiles(summed(each for _, each in now)),
                tpot_off=without_speculation(cells, measured, ALL_TEMPERATURES, "tpot", now),
            )
        )
    return tuple(rows)


def crossing(rows: Sequence[Load]) -> Crossing | None:
    """The load above which speculation loses, at every load that was measured.

    Between the two loads about it the logarithm of the speedup is taken to be linear in that of
    the running requests. None where speculation pays at the highest load, or nowhere.
    """
    known = [(each.running, each.speedup.value) for each in rows if each.speedup is not None]
    for (low, above), (high, below) in reversed(list(itertools.pairwise(known))):
        if below >= 1.0:
            return None
        if above >= 1.0:
            share = math.log(above) / (math.log(above) - math.log(below))
            return Crossing(running=low * (high / low) ** share)
    return None


def best_k(measured: Speedups) -> BestK | None:
    """Predicted speedups for up to the present number of draft tokens."""
    found = measured.assessment.best_k
    if found is None:
        return None
    return BestK(k=found.k, now=len(found.speedups) - 1, speedups=found.speedups)


def what_if(rows: Sequence[Load], measured: Speedups, k: int | None) -> WhatIf | None:
    """Speculation with ``k`` draft tokens up to the load that is best to stop at, none above.

    The time of the requests at a load above becomes that which its speedup says they take
    without. None where nothing would be gained, or nothing was measured.
    """
    seconds: dict[str, float] = {}
    for sample in measured.samples:
        if sample.pace is not None and sample.load_bin is not None:
            label = load_bin_label(sample.load_bin)
            seconds[label] = seconds.get(label, 0.0) + sample.pace.seconds
    known = [
        (each.load, seconds[each.load], each.speedup.value)
        for each in rows
        if each.speedup is not None and seconds.get(each.load)
    ]
    if not known or not k:
        return None
    took = sum(each for _, each, _ in known)
    plain = sum(each * speedup for _, each, speedup in known)
    times = [
        sum(each if at < kept else each * speedup for at, (_, each, speedup) in enumerate(known))
        for kept in range(len(known) + 1)
    ]
    best = min(range(len(times)), key=lambda kept: (times[kept], -kept))
    if best == len(known) or times[best] >= took:
        return None
    other = sum(seconds.values()) - took
    labels = tuple(load for load, _, _ in known[:best])
    return WhatIf(
        loads=labels,
        setting=_setting(labels[-1] if labels else None, k),
        speedup=plain / times[best],
        gain=(took + other) / (times[best] + other),
    )


def _setting(last: str | None, k: int) -> tuple[tuple[int, int, int], ...]:
    """``k`` draft tokens up to the end of a load bin, and none above."""
    if last is None:
        return ((1, LARGEST_BATCH, 0),)
    end = next(end for at, (_, end) in enumerate(LOAD_BINS) if load_bin_label(at) == last)
    if end is None:
        raise AssertionError("nothing is above the last load bin")
    return (1, end, k), (end + 1, max(LARGEST_BATCH, end + 1), 0)


def present_k(cells: Sequence[Cell], measured: Speedups) -> int | None:
    """Draft tokens of a draft now, where the server says."""
    newest = [
        each.all for each in cells if each.place.now and each.place.environment == measured.present
    ]
    positions = max((len(each.accepted_per_position or ()) for each in newest), default=0)
    if positions:
        return positions
    drafts, drafted = (
        sum(getattr(each, name) or 0 for each in newest) for name in ("drafts", "draft_tokens")
    )
    return math.ceil(drafted / drafts) if drafts and drafted else None


def winning(rows: Iterable[tuple[str, Ratio | None]]) -> tuple[str, ...]:
    """Those whose whole interval is above 1."""
    return tuple(name for name, each in rows if each and each.lower and each.lower > 1.0)


def losing(rows: Iterable[tuple[str, Ratio | None]]) -> tuple[str, ...]:
    """Those whose whole interval is below 1."""
    return tuple(name for name, each in rows if each and each.upper and each.upper < 1.0)

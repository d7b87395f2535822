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
"""Where a schedule by batch size ends."""
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
    """Speculation with ``k`` draft tokens below the loads at which it loses, none from there on.

    It loses where the whole interval is below 1, and so it has to at every load above that was
    measured; the time of their requests becomes that which the speedup says they take without.
    Where nothing was measured all stays as it was. None where there is no such load.
    """
    seconds: dict[str, float] = {}
    for sample in measured.samples:
        if sample.pace is not None and sample.load_bin is not None:
            label = load_bin_label(sample.load_bin)
            seconds[label] = seconds.get(label, 0.0) + sample.pace.seconds
    known = [
        (at, seconds[each.load], each.speedup)
        for at, each in enumerate(rows)
        if each.speedup is not None and seconds.get(each.load)
    ]
    dropped = list(
        itertools.takewhile(
            lambda each: each[2].upper is not None and each[2].upper < 1.0, reversed(known)
        )
    )
    if not dropped or not k:
        return None
    took = sum(each for _, each, _ in known)
    plain = sum(each * speedup.value for _, each, speedup in known)
    saved = sum(each * (1.0 - speedup.value) for _, each, speedup in dropped)
    kept = rows[: dropped[-1][0]]
    return WhatIf(
        loads=tuple(each.load for each in kept),
        setting=_setting(rows[dropped[-1][0]].load, k) if kept else (),
        speedup=plain / (took - saved),
        gain=sum(seconds.values()) / (sum(seconds.values()) - saved),
    )


def _setting(losing: str, k: int) -> tuple[tuple[int, int, int], ...]:
    """``k`` draft tokens below a load bin, and none from there on."""
    begin = next(first for at, (first, _) in enumerate(LOAD_BINS) if load_bin_label(at) == losing)
    return (1, begin - 1, k), (begin, max(LARGEST_BATCH, begin), 0)


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

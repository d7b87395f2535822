"""Load, the best number of draft tokens, and what a restriction would bring, as sections."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.charts.scale import finite
from specwatch.report.model import BestK, Load, ModelReport, WhatIf
from specwatch.report.told import cells
from specwatch.report.told.parts import Figure, Part, Section, Sentence, table


def by_load(model: ModelReport) -> Section:
    """The speedup at each load, and where it crosses 1."""
    return Section("Load", [*_loads(model)])


def choices(model: ModelReport) -> Section:
    """The best number of draft tokens; speculation at some loads only."""
    return Section("Draft tokens, and what if", [*_best_k(model.best_k), *_what_if(model.what_if)])


def _loads(model: ModelReport) -> Iterator[Part]:
    if not model.loads:
        yield Sentence("Nothing ran with speculation, so nothing is known by load.")
        return
    yield Sentence(_crossing(model))
    if any(each.speedup for each in model.loads):
        yield Figure(
            "speedup",
            "Speedup at each load, with its 95 % interval where it was measured, and the"
            " break-even line at 1. The table has the figures.",
        )
    yield table(
        "Speculation by load",
        "*Running requests|Mean|Share of tokens|Acceptance|Break-even acceptance|Speedup"
        "|Cost of a step|TPOT P50|P50 against off|P99|P99 against off",
        [_row(each) for each in model.loads],
    )


def _crossing(model: ModelReport) -> str:
    running = None if model.crossing is None else finite(model.crossing.running)
    if running is not None:
        return f"Speculation pays up to about {running:.0f} running requests, and loses above that."
    known = [value for each in model.loads if (value := _value(each)) is not None]
    if not known:
        return "No speedup is known at any load."
    if min(known) > 1:
        return "At no load that there was does speculation lose."
    if max(known) < 1:
        return "At no load that there was does speculation pay."
    return "There is no one load at which speculation stops to pay."


def _value(each: Load) -> float | None:
    return None if each.speedup is None else finite(each.speedup.value)


def _row(each: Load) -> tuple[str, ...]:
    return (
        cells.name(each.load),
        cells.number(each.running, 1),
        cells.percent(each.share),
        cells.percent(each.acceptance_rate),
        cells.rate(each.break_even_acceptance),
        cells.ratio(each.speedup),
        cells.ratio(each.step_cost),
        cells.quantile(each.tpot_on, "p50"),
        cells.change(each.tpot_on, each.tpot_off, "p50"),
        cells.quantile(each.tpot_on, "p99"),
        cells.change(each.tpot_on, each.tpot_off, "p99"),
    )


def _best_k(found: BestK | None) -> Iterator[Part]:
    if found is None:
        yield Sentence("The best number of draft tokens cannot be told.")
        return
    if found.k == found.now:
        yield Sentence(f"The number of draft tokens is right: {found.now}.")
    else:
        best = "none at all" if found.k == 0 else str(found.k)
        yield Sentence(
            f"The best number of draft tokens is predicted to be {best}; it is {found.now}."
        )
    if found.speedups:
        yield table(
            "Speedup predicted for each number of draft tokens",
            "|".join(["*Draft tokens", *map(str, range(len(found.speedups)))]),
            [("Predicted speedup", *(_times(each) for each in found.speedups))],
        )


def _what_if(found: WhatIf | None) -> Iterator[Part]:
    if found is None:
        yield Sentence("Nothing is known to be gained by speculation at some loads only.")
        return
    setting = ", ".join(f"[{first}, {last}, {k}]" for first, last, k in found.setting)
    kept = ", ".join(f"{first}-{last}" for first, last, k in found.setting if k > 0)
    where = f"with {kept} running requests only" if kept else "at no load"
    yield Sentence(
        f"Speculation {where} would have given a speedup of {_times(found.speedup)}: the same work"
        f" {_times(found.gain)} as fast as it was done."
    )
    yield Sentence(
        f'The setting for that: `"num_speculative_tokens_per_batch_size": [{setting}]` in the'
        " speculative configuration."
    )


def _times(value: float) -> str:
    known = finite(value)
    return cells.UNKNOWN if known is None else f"{known:.2f}x"

"""Load, the best number of draft tokens, and what a restriction would bring, as sections."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.report import schedule
from specwatch.report.charts.scale import finite
from specwatch.report.model import Load, ModelReport
from specwatch.report.told import cells
from specwatch.report.told.parts import Figure, Part, Section, Sentence, table
from specwatch.wording import speculation


def by_load(model: ModelReport) -> Section:
    """The speedup at each load, and where it crosses 1."""
    return Section("Load", [*_loads(model)])


def choices(model: ModelReport) -> Section:
    """The best number of draft tokens; speculation at some loads only."""
    return Section("Draft tokens, and what if", [*_best_k(model), *_what_if(model)])


def _loads(model: ModelReport) -> Iterator[Part]:
    if not model.loads:
        yield Sentence("Nothing ran with speculation, so nothing is known by load.")
        return
    yield Sentence(_crossing(model))
    if any(each.speedup for each in model.loads):
        yield Figure(
            "speedup",
            "Speedup per token at each load, with its 95 % interval where it was measured, and the"
            " break-even line at 1. The table has the figures.",
        )
    yield table(
        "Speculation by load",
        "*Running requests|Mean|Share of tokens|Acceptance|Break-even acceptance|Speedup per token"
        "|Cost of a step|Mean TPOT|Against off|P99|P99 off",
        [_row(each) for each in model.loads],
    )


def _crossing(model: ModelReport) -> str:
    running = None if model.crossing is None else finite(model.crossing.running)
    if running is not None:
        return f"Speculation pays up to about {running:.0f} running requests, and loses above that."
    known = [value for each in model.loads if (value := _value(each)) is not None]
    if not known:
        return "No speedup was measured at any load."
    if min(known) > 1:
        return "At no load that was measured does speculation lose."
    if max(known) < 1:
        return "At no load that was measured does speculation pay."
    return "Speculation does not stop paying at any one load."


def _value(each: Load) -> float | None:
    found = each.speedup
    return None if found is None or found.basis != "measured" else finite(found.value)


def _row(each: Load) -> tuple[str, ...]:
    return (
        cells.name(each.load),
        cells.number(each.running, 1),
        cells.percent(each.share),
        cells.percent(each.acceptance_rate),
        cells.rate(each.break_even_acceptance),
        cells.ratio(each.speedup),
        cells.ratio(each.step_cost),
        cells.mean(each.tpot_on),
        cells.change(each.tpot_on, each.tpot_off),
        cells.quantile(each.tpot_on, "p99"),
        cells.quantile(each.tpot_off, "p99"),
    )


def _best_k(model: ModelReport) -> Iterator[Part]:
    found = model.best_k
    if found is None:
        why = model.best_k_unknown
        because = f": {speculation.BEST_K_UNKNOWN[why]}" if why else ""
        yield Sentence(f"The best number of draft tokens is not known{because}.")
        return
    if found.k == found.now:
        yield Sentence(f"The number of draft tokens is right: {found.now}.")
    else:
        yield Sentence(
            f"The best number of draft tokens is predicted to be {speculation.best_of(found.k)}; it"
            f" is {found.now}."
        )
    if found.speedups:
        yield table(
            "Speedup per token predicted for each number of draft tokens",
            "|".join(["*Draft tokens", "off", *map(str, range(1, len(found.speedups)))]),
            [("Predicted speedup", *(_times(each) for each in found.speedups))],
        )


def _what_if(model: ModelReport) -> Iterator[Part]:
    found = model.what_if
    if found is None:
        yield Sentence("Nothing is known to be gained by speculation at some loads only.")
        return
    most = schedule.limit(found)
    if not most:
        yield Sentence(
            "It pays at no load that was measured, so switch it off: the same work would have been"
            f" done {_times(found.gain)} as fast as it was."
        )
        return
    yield Sentence(
        f"It loses above {most} running requests, {cells.percent(found.share)} of the measured"
        " time: a server of its own without speculation, or switching it off, ends that."
    )
    if not schedule.stops_the_loss(found):
        yield Sentence(f"A schedule by batch size does not: {schedule.expected(found)}.")
        return
    yield Sentence(
        f"`{schedule.setting(found)}` in the speculative configuration stops drafting there;"
        f" it {schedule.needs(model.engine_version)}."
    )
    yield Sentence(f"What that gains has to be measured: {schedule.expected(found)}.")
    yield Sentence(schedule.WITH_MTP)
    unmeasured = schedule.unmeasured(model, found)
    if unmeasured:
        loads = ", ".join(map(cells.name, unmeasured))
        yield Sentence(f"Of these loads nothing was measured: {loads}.")


def _times(value: float | None) -> str:
    known = None if value is None else finite(value)
    return cells.UNKNOWN if known is None else f"{known:.2f}x"

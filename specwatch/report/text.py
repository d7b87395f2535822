"""A report as lines for a terminal: the answer of each target first, then its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from specwatch.domain.model import ALL_TEMPERATURES
from specwatch.report import schedule, told
from specwatch.report.columns import Bar, Cell, Line, columns, cut, table, wrapped
from specwatch.report.model import (
    Acceptance,
    Amount,
    Latency,
    Load,
    ModelReport,
    Outcome,
    Ratio,
    Report,
    Temperature,
    WhatIf,
)
from specwatch.report.text_events import event_lines
from specwatch.report.text_experiments import experiment_lines
from specwatch.report.told import cells
from specwatch.wording import figures, speculation
from specwatch.wording.moments import moment
from specwatch.wording.text import MOST_COLUMNS, shown

LEAST_WIDTH = 40
STYLES: dict[Outcome, str] = {"pays": "green", "not_worth_it": "yellow", "loses": "red"}
_MOST_LENGTHS = 17
_LEAST_NAME = 8
_LONGEST_ANSWER = 1000
_MUCH = 0.1
"""Change of a latency that is coloured."""


def lines(report: Report, width: int, *, bar: str = "#") -> Iterator[Line]:
    """Yield lines of texts with their styles, none of more than ``width`` columns.

    ``bar`` is the character that bars are made of. All that is foreign in them is clean.
    """
    width = max(width, LEAST_WIDTH)
    span = figures.span(report.until - report.since)
    yield (("specwatch report", "bold"),)
    yield from _paragraph(f"{moment(report.since)} to {moment(report.until)} ({span})", width)
    for note in report.notes:
        yield from _paragraph(f"note: {shown(note, _LONGEST_ANSWER)}", width, "yellow")
    if len(report.targets) > 1:
        yield ()
        yield from _summary(report.targets, width)
    for model in report.targets:
        yield ()
        yield from _model(model, width, bar)


def plain(report: Report, width: int = MOST_COLUMNS) -> str:
    """The same as text without styles, for a file or a mail."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines(report, width, bar="█"))
    return "\n".join(texts) + "\n"


def _paragraph(text: str, width: int, style: str = "", indent: int = 2) -> Iterator[Line]:
    for line in wrapped(text, width, indent=indent):
        yield ((line, style),)


def _summary(targets: Sequence[ModelReport], width: int) -> Iterator[Line]:
    names = Counter(each.target for each in targets)
    headers = ("target", "answer", "speedup", "hours saved", "GPU hours", "requests", "accept")
    rows = [
        (
            Cell(_name(each, alone=names[each.target] == 1)),
            Cell(told.outcome(each), STYLES.get(each.answer.outcome, "")),
            Cell(ratio(each.answer.speedup)),
            Cell(_signed(each.answer.hours_saved)),
            Cell(_signed(each.answer.gpu_hours_saved)),
            Cell(figures.compact(each.traffic.requests)),
            Cell(figures.percent(_whole_rate(each))),
        )
        for each in targets
    ]
    yield from table(headers, rows, width)


def _name(model: ModelReport, *, alone: bool) -> str:
    target = shown(model.target)
    return target if alone else f"{target} {shown(model.model_name)}"


def _whole_rate(model: ModelReport) -> float | None:
    return next(
        (
            each.acceptance.rate
            for each in model.temperatures
            if each.temperature == ALL_TEMPERATURES
        ),
        None,
    )


def _model(model: ModelReport, width: int, bar: str) -> Iterator[Line]:
    name = cut(shown(model.target), width)
    room = width - columns(name) - 2
    of = f"  {cut(shown(model.model_name), room)}" if room >= _LEAST_NAME else ""
    yield (name, "bold underline"), (of, "")
    style = STYLES.get(model.answer.outcome, "")
    for said, how in (
        (model.answer.sentence, f"bold {style}".strip()),
        (model.answer.recommendation, "bold"),
    ):
        yield from _paragraph(shown(said, _LONGEST_ANSWER), width, how, indent=0)
    yield from _paragraph(_traffic(model), width, indent=0)
    yield from _temperatures(model.temperatures, width, bar)
    yield from _lengths(model.temperatures, width, bar)
    yield from _latencies(model.temperatures, width)
    yield from _loads(model, width, bar)
    yield from experiment_lines(model, width)
    yield from event_lines(model, width)


def _traffic(model: ModelReport) -> str:
    counted = model.traffic
    said = figures.counted(counted.requests, "request")
    if counted.requests_before:
        said += f" ({_change(counted.requests, counted.requests_before)} on the period before)"
    said += f", {figures.compact(counted.generation_tokens)} tokens generated"
    modes = (
        (counted.seconds_on, "with speculation"),
        (counted.seconds_off, "without"),
        (counted.seconds_mixed, "in between"),
        (counted.seconds_unknown, speculation.MODE_NOT_KNOWN),
    )
    watched = ", ".join(f"{figures.span(length)} {how}" for length, how in modes if length)
    return f"{said}; watched {watched}" if watched else said


def _temperatures(found: Sequence[Temperature], width: int, bar: str) -> Iterator[Line]:
    headers = (
        "temp", "share", "requests", "accept", "change", "tau", "P10/50/90", "speedup",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for each in found:
        counted = each.acceptance
        rows.append(
            (
                Cell(shown(each.temperature)),
                Cell(figures.UNKNOWN if each.share is None else f"{each.share:.0%}"),
                Cell(figures.compact(each.requests)),
                Cell(figures.percent(counted.rate)),
                Cell(_points(counted.rate, each.acceptance_before)),
                Cell(figures.number(counted.mean_length, 2)),
                Cell(_spread(counted)),
                Cell(ratio(each.speedup), _ratio_style(each.speedup)),
            )
        )
        bars.append(Bar(counted.rate, "cyan"))
    if any(each.requests or each.acceptance.drafts for each in found):
        yield ()
        yield from table(headers, rows, width, bars=bars, bar=bar, full=1.0)


def _points(now: float | None, before: float | None) -> str:
    """A change of a rate in percentage points."""
    if now is None or before is None:
        return figures.UNKNOWN
    return f"{100 * (now - before):+.1f} pt"


def _spread(counted: Acceptance) -> str:
    spread = counted.per_request
    if spread is None:
        return figures.UNKNOWN
    return figures.percents(
        {"p10": spread.p10, "p50": spread.p50, "p90": spread.p90}, ("p10", "p50", "p90")
    )


def _lengths(found: Iterable[Temperature], width: int, bar: str) -> Iterator[Line]:
    """How many tokens of a draft were accepted, over all temperatures."""
    whole = next((each for each in found if each.temperature == ALL_TEMPERATURES), None)
    counts = whole.acceptance.histogram if whole else None
    if not counts or not sum(counts) or len(counts) > _MOST_LENGTHS:
        return
    shares = [count / sum(counts) for count in counts]
    rows = [
        (Cell(str(length)), Cell(figures.percent(share))) for length, share in enumerate(shares)
    ]
    bars = [Bar(share, "cyan") for share in shares]
    yield ()
    yield from table(("accepted", "drafts"), rows, width, bars=bars, bar=bar)


def _latencies(found: Iterable[Temperature], width: int) -> Iterator[Line]:
    headers = ("temp", "", "mean", "+/-", "off", "p50", "p95", "p99", "off p50", "off p99")
    rows = [
        (
            Cell(shown(each.temperature)),
            Cell(name),
            Cell(cells.mean(latency.on)),
            _changed(latency),
            Cell(cells.mean(latency.off)),
            *(Cell(cells.quantile(latency.on, which)) for which in ("p50", "p95", "p99")),
            Cell(cells.quantile(latency.off, "p50")),
            Cell(cells.quantile(latency.off, "p99")),
        )
        for each in found
        for name, latency in (("TTFT", each.ttft), ("TPOT", each.tpot))
        if latency.on is not None or latency.off is not None
    ]
    if not rows:
        return
    yield ()
    yield from table(headers, rows, width)
    words = (
        ("+/-: change of the mean on the period before", 3),
        ("off: mean without speculation at the same load", 4),
    )
    known = [said for said, at in words if any(row[at].text != figures.UNKNOWN for row in rows)]
    if any(" to " in row[at].text for row in rows for at in (5, 6, 7)):
        known.append("10 to 25 ms: the bucket that a quantile lies in")
    if known:
        yield from _paragraph("; ".join(known), width, "dim")


def _changed(latency: Latency) -> Cell:
    said = cells.change(latency.on, latency.before)
    means = [None if each is None else each.mean for each in (latency.on, latency.before)]
    if said == figures.UNKNOWN or means[0] is None or not means[1]:
        return Cell(said)
    share = means[0] / means[1] - 1
    return Cell(said, "red" if share > _MUCH else "green" if share < -_MUCH else "")


def _loads(model: ModelReport, width: int, bar: str) -> Iterator[Line]:
    if model.loads:
        headers = (
            "load", "share", "busy", "running", "accept", "speedup", "step", "break-even",
        )  # fmt: skip
        rows = [_load(each) for each in model.loads]
        bars = [
            Bar(each.speedup.value if each.speedup else None, _ratio_style(each.speedup), 1.0)
            for each in model.loads
        ]
        yield ()
        yield from table(headers, rows, width, bars=bars, bar=bar)
    for said in _load_sentences(model):
        yield from _paragraph(said, width)
    if model.loads and model.answer.objective is not None:
        yield from _paragraph(told.units(model.answer.objective), width, "dim")


def _load(each: Load) -> tuple[Cell, ...]:
    return (
        Cell(shown(each.load)),
        Cell(f"{each.share:.0%}"),
        Cell(figures.span(each.busy)),
        Cell(figures.number(each.running, 1)),
        Cell(figures.percent(each.acceptance_rate)),
        Cell(ratio(each.speedup), _ratio_style(each.speedup)),
        Cell(figures.UNKNOWN if each.step_cost is None else f"{each.step_cost.value:.2f}x"),
        Cell(cells.rate(each.break_even_acceptance)),
    )


def _load_sentences(model: ModelReport) -> Iterator[str]:
    if model.crossing is not None:
        at = figures.number(model.crossing.running)
        yield f"the speedup falls below 1 from about {at} running requests on"
    best = model.best_k
    if best is not None and 0 <= best.k < len(best.speedups) and 0 <= best.now < len(best.speedups):
        now = f"with {best.now} now {best.speedups[best.now]:.2f}"
        if best.k == best.now:
            yield f"best k: {best.k}, as it is"
        else:
            what = speculation.best_of(best.k)
            yield f"best k: {what} (predicted speedup per token {best.speedups[best.k]:.2f}, {now})"
    elif model.best_k_unknown is not None:
        yield f"best k: not known, {speculation.BEST_K_UNKNOWN[model.best_k_unknown]}"
    if model.what_if is not None:
        yield _restricted(model, model.what_if)


def _restricted(model: ModelReport, found: WhatIf) -> str:
    """What to do about the loads at which it loses."""
    if found.gain is not None:
        return f"it pays at no load that was measured: switch it off, {found.gain - 1:+.1%}"
    loses = (
        f"it loses above {schedule.limit(found)} running requests,"
        f" {figures.percent(found.share)} of the time"
    )
    if not schedule.stops_the_loss(found):
        return f"{loses}; a schedule does not help: {schedule.expected(found)}"
    unmeasured = ", ".join(map(shown, schedule.unmeasured(model, found)))
    return (
        f"{loses}; to be measured there: {schedule.setting(found)}, where the drafter still runs"
        f" ({schedule.needs(model.engine_version)})"
        f"{f'; not measured: {unmeasured}' if unmeasured else ''}"
    )


def ratio(found: Ratio | None) -> str:
    """``1.61 (1.50-1.72)``, or ``~1.6`` where it is assumed."""
    if found is None:
        return figures.UNKNOWN
    if found.basis == "assumed":
        return f"~{found.value:.1f}"
    if found.lower is None or found.upper is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.lower:.2f}-{found.upper:.2f})"


def _ratio_style(found: Ratio | None) -> str:
    if found is None or found.basis == "assumed":
        return ""
    if found.upper is not None and found.upper < 1:
        return "red"
    return "green" if found.lower is not None and found.lower > 1 else ""


def _signed(amount: Amount | None) -> str:
    return figures.UNKNOWN if amount is None else f"{amount.value:+,.1f}"


def _change(now: float, before: float) -> str:
    return f"{now / before - 1:+.1%}"

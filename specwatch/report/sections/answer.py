"""The answers: of all models as one table, and of one as its first figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specwatch.domain.model import Mode
from specwatch.report import layout
from specwatch.report.fleet import fleet, to_change, worst_first
from specwatch.report.layout import (
    Cell,
    Figure,
    Listing,
    Part,
    ReportSection,
    Sentence,
    Style,
    Table,
    table,
)
from specwatch.report.model import ModelReport, Outcome, Report, ReportSeries
from specwatch.wording import figures
from specwatch.wording.figures import finite, moment
from specwatch.wording.speculation import OBJECTIVES
from specwatch.wording.text import shown

_MOST_CHANGES = 3


class Words(NamedTuple):
    """An outcome by itself, as what is said of speculation, and how it is coloured."""

    alone: str
    verb: str
    style: Style = "warn"


OUTCOMES: dict[Outcome, Words] = {
    "pays": Words("pays", "pays", "good"),
    "not_worth_it": Words("hardly pays", "hardly pays"),
    "even": Words("no difference", "makes no difference"),
    "loses": Words("loses", "loses", "bad"),
    "off": Words("off", "was off", ""),
    "no_traffic": Words("no traffic", "had no traffic", ""),
    "unknown": Words("not known", "has not been measured"),
}
"""Outcomes in words."""


def all_targets(report: Report) -> ReportSection:
    """Of all models: the total, what to do, and their speedups; the worst come first."""
    models = worst_first(report.targets)
    total = fleet(models)
    parts: list[Part] = [Sentence(total.sentence), *_to_do(models)]
    if any(model.answer.speedup for model in models):
        caption = "Speedup of each target with its 95 % interval, the worst first."
        parts.append(Figure("forest", caption))
    return ReportSection("All targets", [*parts, _overview(models, total.unit)])


def _to_do(models: Sequence[ModelReport]) -> Iterator[Part]:
    """Yield the changes that save most hours."""
    changes = to_change(models)
    if not changes:
        return
    items = [
        f"{shown(model.target)}, {figures.percent(model.answer.gain, 0)} faster:"
        f" {layout.short(model.answer.change)}"
        for model in changes[:_MOST_CHANGES]
    ]
    if len(changes) > _MOST_CHANGES:
        items.append(f"{figures.counted(len(changes) - _MOST_CHANGES, 'more change')}.")
    yield Listing(items, title="What to do, the greatest saving first")


def _overview(models: Sequence[ModelReport], unit: str) -> Table:
    """A row for each model; ``unit`` is that of the total."""
    targets = Counter(model.target for model in models)
    rows = []
    for number, model in enumerate(models, 1):
        target, name, answer = shown(model.target), shown(model.model_name), model.answer
        words = OUTCOMES[answer.outcome]
        if unit == "GPU hours":
            saved = layout.hours(answer.gpu_hours_saved, "GPU h")
        else:
            saved = layout.hours(answer.hours_saved, "server h")
        rows.append(
            (
                Cell(
                    target,
                    f"{target} {name}" if targets[model.target] > 1 else "",
                    link=f"#target-{number}",
                ),
                name,
                Cell(words.alone, style=words.style),
                layout.ratio(answer.speedup),
                Cell(saved, saved.partition(" (")[0]),
                layout.count(model.traffic.requests),
                figures.percent(model.segments[0].acceptance.rate),
                layout.short(answer.change or answer.recommendation),
            )
        )
    return table(
        "All models: does speculation pay, and what to do",
        "@Target|@Model=-|*Speculation|Speedup|Time saved|Requests|Acceptance|**What to do=-",
        rows,
        bars=[
            (speedup.value if (speedup := model.answer.speedup) else None, layout.verdict(speedup))
            for model in models
        ],
        mark=1.0,
    )


def speedups_in_words(series: ReportSeries) -> str:
    """What the speedup was over time, in a sentence; empty if nothing was measured."""
    points = [(value, one.start) for one in series.speedup if (value := finite(one.value))]
    if not points:
        return ""
    (lowest, start), (highest, _) = min(points), max(points)
    below = sum(value < 1 for value, _ in points)
    return (
        f"In stretches of {figures.span(series.speedup_step)} the speedup was {lowest:.2f}x to"
        f" {highest:.2f}x, and below 1 in {below} of {len(points)}; the lowest was"
        f" {moment(start)}."
    )


def answer(model: ModelReport) -> ReportSection:
    """What the sentences of the answer rest on."""
    result, traffic = model.answer, model.traffic
    parts: list[Part] = []
    over_time = speedups_in_words(model.series)
    if over_time:
        parts.append(Sentence(over_time))
        parts.append(
            Figure(
                "over_time",
                "Speedup over time; times without speculation are shaded, and incidents of the"
                " guard are marked above.",
            )
        )
    if result.missing:
        parts.append(Sentence(f"Not measured: {layout.sentence(result.missing)}."))
    if model.standby_cost_missing:
        why = layout.sentence(model.standby_cost_missing)
        parts.append(Sentence(f"What standby costs against off is not known: {why}."))
    of = "" if result.objective is None else f" {OBJECTIVES[result.objective]}"
    speedup = Cell(f"Speedup{of}, with its 95 % interval", f"Speedup{of}")
    rows: list[tuple[str | Cell, str | Cell, str]] = [(speedup, layout.ratio(result.speedup), "")]
    if result.hours_saved is not None:
        rows.append(("Server hours saved", layout.hours(result.hours_saved), ""))
    if result.gpu_hours_saved is not None:
        of = "" if result.gpus is None else f", of {result.gpus} GPUs"
        rows.append((f"GPU hours saved{of}", layout.hours(result.gpu_hours_saved), ""))
    requests, generated = traffic.requests, traffic.generation_tokens
    before = layout.relative(requests, traffic.requests_before)
    rows.append(("Requests", figures.number(requests), before))
    rows.append(("Prompt tokens", figures.compact(traffic.prompt_tokens), ""))
    before = layout.relative(generated, traffic.generation_tokens_before)
    rows.append(("Generated tokens", figures.compact(generated), before))
    watched = {mode: layout.length(traffic.seconds.get(mode, 0.0)) for mode in Mode}
    for mode, busy in ((Mode.ON, traffic.busy_on), (Mode.OFF, traffic.busy_off)):
        rows.append((mode.time, f"{watched[mode]}, busy {layout.length(busy)}", ""))
    for mode in Mode:
        if mode in (Mode.ON, Mode.OFF) or not traffic.seconds.get(mode):
            continue
        rows.append((mode.time, watched[mode], ""))
        if mode is Mode.STANDBY:
            cost = Cell(layout.ratio(model.standby_cost).text)
            rows.append(("Time per token in standby over off", cost, ""))
    columns = "*What|Figure|Against the period before=Change"
    parts.append(table("Speedup, traffic and time", columns, rows))
    if result.objective == "tpot":
        parts.append(Sentence("All speedups are per token."))
    elif result.objective is not None:
        parts.append(
            Sentence(
                "The speedup of the answer and of all requests is"
                f" {OBJECTIVES[result.objective]}; those of single segments, loads"
                " and numbers of draft tokens are per token."
            )
        )
    return ReportSection("The answer in figures", parts)

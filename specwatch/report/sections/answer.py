"""The answers: of all models as one table, and of one as its first figures."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from specwatch.report import layout
from specwatch.report.layout import Cell, Part, ReportSection, Sentence, Style, Table, table
from specwatch.report.model import ModelReport, Outcome, Report
from specwatch.wording import figures
from specwatch.wording.speculation import MODE_NOT_KNOWN, OBJECTIVES
from specwatch.wording.text import shown


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


def overview(report: Report) -> Table:
    """A row for each model."""
    models = Counter(model.target for model in report.targets)
    rows = []
    for number, model in enumerate(report.targets, 1):
        target, name, answer = shown(model.target), shown(model.model_name), model.answer
        words = OUTCOMES[answer.outcome]
        if answer.gpu_hours_saved is not None:
            saved = layout.hours(answer.gpu_hours_saved, "GPU h")
        else:
            saved = layout.hours(answer.hours_saved, "server h")
        rows.append(
            (
                Cell(
                    target,
                    f"{target} {name}" if models[model.target] > 1 else "",
                    link=f"#target-{number}",
                ),
                name,
                Cell(words.alone, style=words.style),
                layout.ratio(answer.speedup),
                Cell(saved, saved.partition(" (")[0]),
                layout.count(model.traffic.requests),
                figures.percent(model.temperatures[0].acceptance.rate),
                layout.sentence(answer.recommendation),
            )
        )
    return table(
        "All models: does speculation pay, and what to do",
        "@Target|@Model=-|*Speculation|Speedup|Time saved|Requests|Acceptance|**What to do=-",
        rows,
    )


def answer(model: ModelReport) -> ReportSection:
    """What the sentences of the answer rest on."""
    result, traffic = model.answer, model.traffic
    parts: list[Part] = []
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
    for mode, seconds, busy in (
        ("on", traffic.seconds_on, traffic.busy_on),
        ("off", traffic.seconds_off, traffic.busy_off),
    ):
        time = f"{layout.length(seconds)}, busy {layout.length(busy)}"
        rows.append((f"Time with speculation {mode}", time, ""))
    if traffic.seconds_standby:
        rows.append(("Time in standby", layout.length(traffic.seconds_standby), ""))
        cost = Cell(layout.ratio(model.standby_cost).text)
        rows.append(("Time per token in standby over off", cost, ""))
    if traffic.seconds_deep:
        rows.append(("Time in deep standby", layout.length(traffic.seconds_deep), ""))
    if traffic.seconds_mixed:
        rows.append(("Time in which it changed", layout.length(traffic.seconds_mixed), ""))
    if traffic.seconds_unknown:
        time = layout.length(traffic.seconds_unknown)
        rows.append((f"Time in which it is {MODE_NOT_KNOWN}", time, ""))
    columns = "*What|Figure|Against the period before=Change"
    parts.append(table("Speedup, traffic and time", columns, rows))
    if result.objective == "tpot":
        parts.append(Sentence("All speedups are per token."))
    elif result.objective is not None:
        parts.append(
            Sentence(
                "The speedup of the answer and of all temperatures is"
                f" {OBJECTIVES[result.objective]}; those of single temperatures, loads"
                " and numbers of draft tokens are per token."
            )
        )
    return ReportSection("The answer in figures", parts)

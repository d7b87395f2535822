"""The answers: of all models as one table, and of one as its first figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from specwatch.report.model import ModelReport, Outcome, Report
from specwatch.report.told import cells
from specwatch.report.told.parts import Part, Section, Sentence, Table, table
from specwatch.wording.speculation import MODE_NOT_KNOWN, OBJECTIVES


class Words(NamedTuple):
    """An outcome by itself, and as what is said of speculation."""

    alone: str
    verb: str


OUTCOMES: dict[Outcome, Words] = {
    "pays": Words("pays", "pays"),
    "not_worth_it": Words("hardly pays", "hardly pays"),
    "even": Words("no difference", "makes no difference"),
    "loses": Words("loses", "loses"),
    "off": Words("off", "was off"),
    "no_traffic": Words("no traffic", "had no traffic"),
    "unknown": Words("not known", "has not been measured"),
}
"""Outcomes in words."""
_CAPTION = "All models: does speculation pay, and what to do"


def outcome(model: ModelReport) -> str:
    """The outcome in a word or two."""
    return OUTCOMES[model.answer.outcome].alone


def units(objective: str) -> str:
    """What the speedups of a model are of."""
    if objective == "tpot":
        return "All speedups are per token."
    return (
        f"The speedup of the answer and of all temperatures is {OBJECTIVES[objective]}; those of"
        " single temperatures, loads and numbers of draft tokens are per token."
    )


def overview(report: Report) -> Table:
    """A row for each model."""
    rows = [
        (
            cells.name(each.target),
            cells.name(each.model_name),
            outcome(each),
            cells.ratio(each.answer.speedup),
            _saved(each),
            cells.sentence(each.answer.recommendation),
        )
        for each in report.targets
    ]
    return table(_CAPTION, "*Target|*Model|*Speculation|Speedup|Time saved|**What to do", rows)


def answer(model: ModelReport) -> Section:
    """What the sentences of the answer rest on."""
    return Section("The answer in figures", [*_parts(model)])


_NONE = ""
"""Where there is nothing to compare with."""


def _saved(model: ModelReport) -> str:
    found = model.answer.gpu_hours_saved
    if found is not None:
        return cells.hours(found, "GPU h")
    return cells.hours(model.answer.hours_saved, "server h")


def _parts(model: ModelReport) -> Iterator[Part]:
    found, traffic = model.answer, model.traffic
    if found.missing:
        yield Sentence(f"Not measured: {cells.sentence(found.missing)}.")
    of = "" if found.objective is None else f" {OBJECTIVES[found.objective]}"
    rows = [(f"Speedup{of}, with its 95 % interval", cells.ratio(found.speedup), _NONE)]
    if found.hours_saved is not None:
        rows.append(("Server hours saved", cells.hours(found.hours_saved), _NONE))
    if found.gpu_hours_saved is not None:
        of = "" if found.gpus is None else f", of {found.gpus} GPUs"
        rows.append((f"GPU hours saved{of}", cells.hours(found.gpu_hours_saved), _NONE))
    rows += [
        (
            "Requests",
            cells.number(traffic.requests),
            cells.relative(traffic.requests, traffic.requests_before),
        ),
        ("Prompt tokens", cells.compact(traffic.prompt_tokens), _NONE),
        (
            "Generated tokens",
            cells.compact(traffic.generation_tokens),
            cells.relative(traffic.generation_tokens, traffic.generation_tokens_before),
        ),
        ("Time with speculation on", *_time(traffic.seconds_on, traffic.busy_on)),
        ("Time with speculation off", *_time(traffic.seconds_off, traffic.busy_off)),
    ]
    if traffic.seconds_mixed:
        rows.append(("Time in which it changed", *_time(traffic.seconds_mixed, None)))
    if traffic.seconds_unknown:
        rows.append(
            (f"Time in which it is {MODE_NOT_KNOWN}", *_time(traffic.seconds_unknown, None))
        )
    yield table("Speedup, traffic and time", "*What|Figure|Against the period before", rows)
    if found.objective is not None:
        yield Sentence(units(found.objective))


def _time(seconds: float, busy: float | None) -> tuple[str, str]:
    said = cells.length(seconds)
    return (said if busy is None else f"{said}, busy {cells.length(busy)}"), _NONE

"""Acceptance and speed by segment, as a section."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from specwatch.domain.segments import kind_of, value_of
from specwatch.report import layout
from specwatch.report.layout import Part, ReportSection, Sentence, table
from specwatch.report.model import ModelReport, ReportSegment
from specwatch.wording import figures
from specwatch.wording.segments import kind_title, segment_words
from specwatch.wording.text import shown


def segments(model: ModelReport) -> ReportSection | None:
    """A table for each kind; None where no tap counts segments."""
    return ReportSection("Segments", [*_parts(model)]) if model.segments else None


def _parts(model: ModelReport) -> Iterator[Part]:
    for one in model.segments:
        if layout.verdict(one.speedup) == "bad":
            yield Sentence(_loss(one))
    if not any(one.speedup for one in model.segments):
        missing = model.answer.missing or "too few drafts"
        yield Sentence(f"Whether speculation pays for single segments is not known: {missing}.")
    for kind, parts in groupby(model.segments, key=lambda one: kind_of(one.segment)):
        rows = list(parts)
        yield table(
            f"Traffic, acceptance and speed by {kind_title(kind)}",
            "*Segment|Requests|Share|Acceptance=Accept|Points against before=Change"
            "|Tokens a step=Tau|Speedup|Mean TPOT=TPOT|TPOT against off=?Vs off",
            [
                (
                    shown(value_of(one.segment)),
                    layout.count(one.requests),
                    figures.percent(one.share),
                    figures.percent(one.acceptance.rate),
                    layout.points(one.acceptance.rate, one.acceptance_before),
                    figures.number(one.acceptance.mean_length, 2),
                    layout.ratio(one.speedup),
                    layout.mean(one.tpot.on),
                    layout.change(one.tpot.on, one.tpot.off),
                )
                for one in rows
            ],
            bars=[(one.acceptance.rate, layout.verdict(one.speedup)) for one in rows],
        )
    yield Sentence(
        "The speedup of a segment is that of its tokens a step, in steps of the time that all"
        " requests share. TPOT is measured by the tap; against off it is compared with requests of"
        " the same segment without speculation, at the same loads. The time to the first token by"
        " segment is not known."
    )


def _loss(one: ReportSegment) -> str:
    share = "" if one.share is None else f", {figures.percent(one.share, 0)} of the requests"
    return (
        f"Speculation loses for {segment_words(one.segment)}:"
        f" speedup {layout.ratio(one.speedup).text},"
        f" acceptance {figures.percent(one.acceptance.rate)}{share}."
    )

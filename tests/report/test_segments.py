"""By segment: what stands in the report, and that temperatures stay what they were."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.domain.model import TEMPERATURE, Histogram, Mode, Tally
from specwatch.report.layout import Table
from specwatch.report.model import ModelReport, ReportSegment
from specwatch.report.sections.segments import latencies, segments
from specwatch.wording.segments import segment_words, segments_words
from tests.report.history import HOURS, bucket, drafted, flat, hour, measurement, report
from tests.segments import segment

LABELS = ("all", "0", "output=text", "output=tool_call", "stream=yes")
HALVES = {"output=text": 0.8, "output=tool_call": 0.02}


def part(rate: float | None, tokens: int = 5000, tpot: float = 0.02) -> Tally:
    """What a tap counts of a segment: of TPOT only the mean is known."""
    known = {} if rate is None else drafted(tokens, rate)
    kept = {k: v for k, v in known.items() if k != "accepted_per_position"}
    return Tally(requests={"other": 50}, tpot=Histogram((), (tokens,), tokens * tpot), **kept)


def day(*, off: bool = False, rates: dict[str, float] = HALVES) -> ModelReport:
    """A day in which half of the traffic loses, and a baseline of 30 ms."""
    divided = {"stream=yes": part(0.41, 10_000)} | {k: part(rate) for k, rate in rates.items()}
    hours = [
        hour(n, buckets={"0": bucket(100, rate=0.6, tokens=10_000), **divided})
        for n in range(HOURS)
    ]
    if off:
        plain = {"output=tool_call": part(None, tpot=0.01), "output=text": part(None, tpot=0.03)}
        hours.append(hour(-1, mode=Mode.OFF, buckets=plain))
    return report(flat(hours), measurement())


def rows_of(model: ModelReport) -> dict[str, ReportSegment]:
    """The segments, temperatures by their label and others by dimension and value."""
    return {text: one for one in model.segments for text in LABELS if segment(text) == one.segment}


def test_each_segment_has_its_acceptance_and_share() -> None:
    rows = rows_of(day())
    assert list(rows) == ["all", "0", "output=text", "output=tool_call", "stream=yes"]
    assert {label: one.share for label, one in rows.items()} == {
        "all": 1.0,
        "0": 1.0,
        "output=text": 0.5,
        "output=tool_call": 0.5,
        "stream=yes": 1.0,
    }
    assert rows["output=text"].acceptance.rate == pytest.approx(0.8, abs=0.001)
    assert rows["output=tool_call"].requests == 50 * HOURS
    assert rows["stream=yes"].tpot.on.mean == pytest.approx(0.02)


def test_a_segment_that_loses_is_said() -> None:
    """Steps of 20 ms x 3.4 tokens; off 30 ms a token: a step of 1.08 tokens does not pay."""
    model = day()
    assert model.answer.losing_segments == (segment("output=tool_call"),)
    assert segment("output=text") in model.answer.winning_segments
    assert "It loses for tool calls." in model.answer.sentence
    assert "Send tool calls (50% of all) to a server without speculation" in (
        model.answer.recommendation
    )


def test_temperatures_do_not_change_by_segments() -> None:
    divided, plain = day(), day(rates={})
    assert [one.segment.value for one in divided.of(TEMPERATURE)] == ["all", "0"]
    assert divided.of(TEMPERATURE) == plain.of(TEMPERATURE)
    assert divided.series == plain.series
    assert divided.health == plain.health
    assert divided.answer.speedup == plain.answer.speedup


def test_tpot_is_compared_with_that_of_the_same_segment_without_speculation() -> None:
    rows = rows_of(day(off=True))
    assert rows["output=tool_call"].tpot.off.mean == pytest.approx(0.01)
    assert rows["output=text"].tpot.off.mean == pytest.approx(0.03)
    assert rows["stream=yes"].tpot.off is None
    (table,) = [
        one
        for one in latencies(day(off=True)).parts
        if isinstance(one, Table) and "output token" in one.caption
    ]
    changes = {row[0].text: row[2].text for row in table.rows}
    assert (changes["plain text"], changes["tool calls"]) == ("-33%", "+100%")


def test_each_dimension_has_a_table() -> None:
    tables = [one for one in segments(day()).parts if isinstance(one, Table)]
    assert [table.caption.partition(" by ")[2] for table in tables[:3]] == [
        "temperature",
        "output",
        "streaming",
    ]
    assert [row[0].text for row in tables[1].rows] == ["all", "plain text", "tool calls"]


def test_without_a_baseline_nothing_is_known_of_them() -> None:
    hours = [hour(n, buckets={"output=text": part(0.8)}) for n in range(HOURS)]
    model = report(flat(hours))
    assert model.answer.winning_segments == model.answer.losing_segments == ()


def test_a_server_that_counts_no_drafts_is_completed_by_temperature_alone() -> None:
    """What its tap counts twice, by temperature and by segment, counts once."""
    silent = replace(
        hour(0)[0].tally,
        drafts=None,
        draft_tokens=None,
        accepted_tokens=None,
        accepted_per_position=None,
    )
    parts = {"0": bucket(rate=0.8), "output=text": part(0.8)}
    (whole, *_) = report(flat([hour(0, silent, buckets=parts)])).segments
    assert whole.acceptance.drafts == bucket(rate=0.8).drafts


def test_losing_prompt_lengths_with_neighbours_are_one() -> None:
    """Also of a period in which 8192 became an edge, whose older class overlaps."""
    rates = {"1-256": 0.8, "2049-16384": 0.05, "8193-16384": 0.05, "16385+": 0.05}
    model = day(rates={f"prompt_length={value}": rate for value, rate in rates.items()})
    assert "It loses for prompts of 2,049 to 16,384 tokens and prompts above 8,192 tokens." in (
        model.answer.sentence
    )
    both = ["output=text", "prompt_length=16385+", "prompt_length=8193-16384"]
    assert segments_words(map(segment, both)) == ["prompts above 8,192 tokens", "plain text"]
    some = "prompt_length=1-256", "prompt_length=8193-16384"
    assert segments_words(map(segment, some)) == [
        "prompts up to 256 tokens",
        "prompts of 8,193 to 16,384 tokens",
    ]


WORDS = {
    "prompt_length=16385+": "prompts above 16,384 tokens",
    "prompt_length=1-256": "prompts up to 256 tokens",
    "prompt_length=257-2048": "prompts of 257 to 2,048 tokens",
    "prompt_length=8193-16384": "prompts of 8,193 to 16,384 tokens",
    "prompt_length=unknown": "requests of unknown prompt length",
    "output=tool_call": "tool calls",
    "stream=no": "requests that are not streamed",
    "adapter=sql": "adapter sql",
    "adapter=none": "the model without an adapter",
    "header:x-tenant=acme": "x-tenant acme",
    "header:x-tenant=none": "requests without x-tenant",
    "header:x-tenant=other": "other x-tenant",
}


def test_what_segments_are_called() -> None:
    assert {label: segment_words(segment(label)) for label in WORDS} == WORDS

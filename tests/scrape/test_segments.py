"""Segments that a tap counts: windows of their own, which add up to the same as temperatures."""

from __future__ import annotations

from typing import Any

from specwatch.domain.buckets import MOST_VALUES
from specwatch.domain.model import Window
from specwatch.domain.sample import samples_of
from specwatch.domain.segments import kind_of
from specwatch.scrape.taps import COUNTS_TWICE
from tests import pages
from tests.scrape.test_taps import Story, drafts, engine

QUANTITIES = ("drafts", "draft_tokens", "accepted_tokens", "requests")


def page(counted: int, *tap: pages.Request, segments: dict[str, int]) -> dict[Any, float]:
    """A page with a tap's drafts by segment (``KIND=VALUE``), of one accepted token of four."""
    text = "\n"
    for label, count in segments.items():
        kind, _, value = label.partition("=")
        labels = f'{{model_name="m",segment="{kind}",value="{value}"}}'
        for quantity, times in zip(QUANTITIES, (1, 4, 1, 0.1), strict=True):
            text += f"specwatch_segment_{quantity}_total{labels} {times * count}\n"
        text += f"specwatch_segment_decode_seconds_total{labels} {0.02 * count}\n"
        text += f"specwatch_segment_decode_tokens_total{labels} {2 * count}\n"
    return engine(counted, *tap, inside=True) | pages.read(text)


def story_of(counted: int, *tap: pages.Request, segments: dict[str, int]) -> Story:
    story = Story()
    story.see(page(0, segments={}))
    story.see(page(counted, *tap, segments=segments))
    return story


def by_segment(windows: list[Window]) -> dict[str, Window]:
    return {w.series.temperature: w for w in windows if kind_of(w.series.temperature)}


BOTH = {"output=text": 300, "output=tool_call": 200, "stream=yes": 500}


def test_each_kind_is_all_that_the_tap_saw() -> None:
    story = story_of(1000, drafts(500), segments=BOTH)
    assert story.trouble() == {}
    windows = story.end()
    segments = by_segment(windows)
    assert {label: window.tally.drafts for label, window in segments.items()} == BOTH
    assert {window.coverage for window in segments.values()} == {0.5}
    tool_call = segments["output=tool_call"].tally
    assert (tool_call.draft_tokens, tool_call.accepted_tokens) == (800, 200)
    assert tool_call.requests == {"other": 20}
    assert tool_call.tpot is not None
    assert (tool_call.tpot.count, tool_call.tpot.sum) == (400, 4.0)
    (bucket,) = [w for w in windows if w.series.temperature == "0"]
    assert (bucket.tally.drafts, bucket.source_drafts) == (500, 500)


def test_they_are_apart_from_temperatures_in_a_sample() -> None:
    (sample,) = samples_of(story_of(1000, drafts(500), segments=BOTH).end())
    assert set(sample.buckets) == {"0"}
    assert set(sample.segments) == set(BOTH)
    assert sample.coverage == 0.5


def test_a_segment_that_counts_more_than_the_server_is_left_out() -> None:
    story = story_of(100, drafts(50), segments={"stream=yes": 50, "output=text": 200})
    assert set(story.trouble()) == {COUNTS_TWICE}
    assert "200 drafts where the server counted 100" in story.trouble()[COUNTS_TWICE].text
    assert len(story.end()) == 1


def test_more_values_than_there_may_be_count_as_other() -> None:
    made_up = {f"header:x-tenant=t{n}": 1 for n in range(100)}
    story = story_of(100, drafts(50), segments=made_up)
    segments = by_segment(story.end())
    assert len(segments) == MOST_VALUES + 1
    assert segments["header:x-tenant=other"].tally.drafts == 100 - MOST_VALUES
    assert sum(window.tally.drafts or 0 for window in segments.values()) == 100
    assert story.problems == []


def test_kinds_of_a_hostile_page_are_bounded() -> None:
    story = story_of(100, drafts(50), segments={f"kind{n}=x": 1 for n in range(50)})
    assert len(by_segment(story.end())) == 4
    (problem,) = story.problems
    assert problem.endswith("or more than 4 kinds of segments")


def test_a_temperature_cannot_pass_for_a_segment() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(10, drafts(3, temperature="output=text")))
    assert [window.series.temperature for window in story.end()] == ["all", "unknown"]

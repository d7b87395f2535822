"""Segments that a tap counts: windows of their own, which add up to the same as temperatures."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.domain.buckets import MOST_VALUES
from specwatch.domain.model import ALL, TEMPERATURE, Segment, Window
from specwatch.domain.sample import samples_of
from specwatch.scrape.taps import COUNTS_TWICE
from tests import pages
from tests.scrape.test_taps import Story, drafts, engine
from tests.segments import segment

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
    """Those of other dimensions, by dimension and value."""
    return {
        f"{one.dimension}={one.value}": window
        for window in windows
        if (one := window.series.segment).dimension not in (ALL.dimension, TEMPERATURE)
    }


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
    (bucket,) = [w for w in windows if w.series.segment == segment("0")]
    assert (bucket.tally.drafts, bucket.source_drafts) == (500, 500)


def test_they_are_apart_from_temperatures_in_a_sample() -> None:
    (sample,) = samples_of(story_of(1000, drafts(500), segments=BOTH).end())
    assert sample.buckets == sample.segments[TEMPERATURE]
    assert {one for by in sample.segments.values() for one in by} == {
        segment(text) for text in ("0", *BOTH)
    }
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
    assert problem.endswith("by more than 5 dimensions")


def test_a_temperature_cannot_pass_for_a_segment() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(10, drafts(3, temperature="output=text")))
    segments = [window.series.segment for window in story.end()]
    assert segments == [ALL, Segment(TEMPERATURE, "output=text")]


@pytest.mark.parametrize("kind", ["all", "temperature"])
def test_a_segment_cannot_pass_for_a_temperature_or_for_all(kind: str) -> None:
    story = story_of(100, drafts(50), segments={f"{kind}=0": 30})
    windows = {window.series.segment: window for window in story.end()}
    assert windows[segment("0")].tally.drafts == 50
    assert windows[Segment("unknown", "0")].tally.drafts == 30
    assert windows[ALL].tally.drafts == 100

"""Segments in the JSON of the API, on the status page and in ``specwatch status``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.breakeven import SegmentSpeedup
from specwatch.domain.interval import Interval
from specwatch.domain.model import Histogram, Window
from specwatch.rules.decisions import TargetDecision
from tests.cli.conftest import Run
from tests.report import page
from tests.segments import segment
from tests.web.decided import decided
from tests.web.statuses import Surface, daemon, minute, of_tap, serving, target

START = 1_699_999_980
LOSS = SegmentSpeedup(Interval(0.82, 0.76, 0.9, 6), 0.1, 0.1)


def counted(label: str, *, drafts: int, accepted: int, requests: int) -> Window:
    one = of_tap(START, label, drafts=drafts, of=1000, server=1000)
    counted = msgspec.structs.replace(
        one.tally,
        drafts=drafts,
        draft_tokens=4 * drafts,
        accepted_tokens=accepted,
        requests={"stop": requests},
        tpot=Histogram((), (100,), 2.0),
        ttft=None,
        request_acceptance=None,
        accepted_per_position=None,
    )
    return msgspec.structs.replace(one, tally=counted)


SEGMENTS = (
    counted("prompt_length=8193-16384", drafts=200, accepted=100, requests=8),
    counted("prompt_length=1-256", drafts=400, accepted=500, requests=120),
    counted("output=tool_call", drafts=600, accepted=600, requests=128),
)


@pytest.fixture
def surface() -> Iterator[Surface]:
    with serving() as served:
        served.windows = lambda **_: iter((minute(START), *SEGMENTS))
        served.verdicts = served.steps = lambda **_: []
        served.status = daemon(target(decision=losing(), recent=(minute(START), *SEGMENTS)))
        yield served


def losing() -> TargetDecision:
    decision = decided()
    (name, known), *_ = decision.models.items()
    by_segment = {segment("prompt_length=8193-16384"): LOSS}
    known = replace(known, assessment=replace(known.assessment, segments=by_segment))
    return replace(decision, models={name: known})


def test_the_api_has_the_last_minutes_and_the_speedup_of_each(surface: Surface) -> None:
    (shown,) = surface.get("/api/v1/targets").json["targets"]
    assert [one["segment"]["value"] for one in shown["recent"]] == [
        "all",
        "8193-16384",
        "1-256",
        "tool_call",
    ]
    (measured,) = shown["decision"]["models"]["llama"]["segments"]
    assert measured["segment"] == {"dimension": "prompt_length", "value": "8193-16384"}
    assert (measured["speedup"]["value"], measured["loses"]) == (0.82, True)


def test_the_status_page_has_a_row_of_each(surface: Surface) -> None:
    words = page.read(surface.get("/").body.decode()).words
    assert "By segment, " in words
    assert "25.0% 100% - 128 - 20.0 ms -" in words[words.index("tool calls") :]
    assert "31.2% 67% - 120 - 20.0 ms -" in words[words.index("prompts up to 256 tokens") :]
    assert "12.5% 33% - 8 - 20.0 ms 0.82 loses" in words


def test_the_status_command_has_a_table_of_each_dimension(run: Run, surface: Surface) -> None:
    lines = [
        " ".join(line.split()) for line in run("status", "--url", surface.url).stdout.split("\n")
    ]
    first = lines.index("prompt length share drafts accept faster TPOT")
    assert lines[first + 1 : first + 3] == [
        "1-256 67% 400 31.2% - 20.0 ms",
        "8193-16384 33% 200 12.5% 0.82x 20.0 ms",
    ]

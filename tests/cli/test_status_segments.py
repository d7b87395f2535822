"""Segments in the JSON of the API, on the status page and in ``specwatch status``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.breakeven import BucketSpeedup
from specwatch.domain.interval import Interval
from specwatch.domain.model import Histogram, Window
from specwatch.rules.decisions import TargetDecision
from tests.cli.conftest import Run
from tests.report import page
from tests.web.decided import decided
from tests.web.statuses import Surface, daemon, minute, of_tap, serving, target

START = 1_699_999_980
LOSS = BucketSpeedup(Interval(0.82, 0.76, 0.9, 6), 0.1, 0.1)


def segment(label: str, *, drafts: int, accepted: int, requests: int) -> Window:
    one = of_tap(START, label, drafts=drafts, of=1000, server=1000)
    counted = msgspec.structs.replace(
        one.tally, drafts=drafts, draft_tokens=4 * drafts, accepted_tokens=accepted,
        requests={"stop": requests}, tpot=Histogram((), (100,), 2.0),
    )  # fmt: skip
    return msgspec.structs.replace(one, tally=counted)


SEGMENTS = (
    segment("prompt_length=8193-16384", drafts=200, accepted=100, requests=8),
    segment("prompt_length=1-256", drafts=400, accepted=500, requests=120),
    segment("output=tool_call", drafts=600, accepted=600, requests=128),
)


@pytest.fixture
def surface() -> Iterator[Surface]:
    with serving() as served:
        served.windows = lambda **_: iter(())
        served.verdicts = served.steps = lambda **_: []
        served.status = daemon(
            target(decision=losing(), segments=SEGMENTS, recent=(minute(START),))
        )
        yield served


def losing() -> TargetDecision:
    decision = decided()
    (name, known), *_ = decision.models.items()
    by_segment = {"prompt_length=8193-16384": LOSS}
    known = replace(known, assessment=replace(known.assessment, segments=by_segment))
    return replace(decision, models={name: known})


def test_the_api_has_their_shares_of_each_kind(surface: Surface) -> None:
    (shown,) = surface.get("/api/v1/targets").json["targets"]
    assert [(one["value"], one["token_share"]) for one in shown["segments"]] == [
        ("tool_call", 1.0), ("1-256", 0.75), ("8193-16384", 0.25),
    ]  # fmt: skip
    assert shown["segments"][2]["speedup"]["value"] == 0.82


def test_the_status_page_has_a_table_of_them(surface: Surface) -> None:
    words = page.read(surface.get("/").body.decode()).words
    assert "By segment, last minutes" in words
    assert "Output tool calls - 100% 25.0% 2.00 20.0 ms 128" in words
    assert "Prompt length prompts up to 256 tokens - 75% 31.2% 2.25 20.0 ms 120" in words
    assert "prompts of 8,193 to 16,384 tokens loses 0.82 25% 12.5% 1.50 20.0 ms 8" in words


def test_the_status_command_has_a_table_of_each_kind(run: Run, surface: Surface) -> None:
    lines = [
        " ".join(line.split()) for line in run("status", "--url", surface.url).stdout.split("\n")
    ]
    first = lines.index("prompt length tokens requests acceptance tok/step mean TPOT faster")
    assert lines[first + 1 : first + 3] == [
        "1-256 75% 120 31.2% 2.25 20.0 ms -", "8193-16384 25% 8 12.5% 1.50 20.0 ms 0.82x",
    ]  # fmt: skip
    assert "tool_call 100% 128 25.0% 2.00 20.0 ms" in lines

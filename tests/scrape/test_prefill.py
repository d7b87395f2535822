"""A server that only prefills is recognised, left out of verdicts, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.domain.group import Member, verdict_of
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode, Moment
from specwatch.engines.sglang import SGLANG
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.wording import groups, speculation
from tests.pages import capture, faithful, read

FIRST, SECOND = capture("draft-k4.2"), capture("draft-k4.3")
PRODUCER = b'specwatch_launch_total{setting="kv_producer"} 0.0\n'
GENERATED = b'vllm:generation_tokens_total{engine="0",model_name="tiny"} '


def one_token_each(page: bytes) -> bytes:
    """The page as if each of its requests had generated one token."""
    lines = page.splitlines(keepends=True)
    count = next(
        line for line in lines if line.startswith(b"vllm:time_to_first_token_seconds_count")
    )
    requests = count.rsplit(b" ", 1)[1]
    return b"".join(GENERATED + requests if line.startswith(GENERATED) else line for line in lines)


def mode_of(*pages: bytes) -> Mode:
    watch = WindowBuilder("d", "t", max_gap=15)
    for number, page in enumerate(pages):
        watch.observe(read(page), Moment(5.0 * number, 5.0 * number))
    batch = watch.close().batch
    assert batch is not None
    return batch.windows[0].mode


def test_a_server_that_only_prefills_is_not_judged_and_is_no_baseline() -> None:
    assert mode_of(FIRST, SECOND) is Mode.ON
    assert mode_of(FIRST + PRODUCER, SECOND + PRODUCER) is Mode.PREFILL
    assert mode_of(one_token_each(SECOND), one_token_each(SECOND)) is Mode.PREFILL
    few = one_token_each(capture("draft-k4.1"))
    assert mode_of(few, few) is Mode.ON, "one token each of a few requests tells nothing"
    assert Mode.PREFILL.without_speculation


def test_sglang_says_that_it_only_prefills_until_it_is_restarted() -> None:
    info: dict[str, Any] = {"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"}
    assert SGLANG.identify({"/server_info": info}.get).prefills
    assert not SGLANG.identify(
        {"/server_info": info | {"disaggregation_mode": "decode"}}.get
    ).prefills
    watch, page = WindowBuilder("d", "t", max_gap=15), read(faithful("sglang-0.5.23-eagle-dp2"))
    watch.prefills = True
    watch.observe(page, Moment(0, 0))
    assert set(watch.models.values()) == {Mode.PREFILL}
    watch.observe({series: value / 2 for series, value in page.items()}, Moment(5, 5))
    assert set(watch.models.values()) == {Mode.ON}


@pytest.mark.parametrize("count", [1, 2])
def test_a_group_leaves_them_out_and_says_so(count: int) -> None:
    decoding = [Member(f"d-{n}", Interval(1.2, 1.1, 1.3, 60), 60.0) for n in range(3)]
    prefilling = [Member(f"p-{n}", prefills=True) for n in range(count)]
    verdict = verdict_of("chat", "m", [*decoding, *prefilling])
    assert (verdict.members, verdict.watched, verdict.measured) == (3, 3, 3)
    said = {1: "p-0 only prefills, and is left out", 2: "p-0, p-1 only prefill, and are left out"}
    assert groups.group_servers(verdict) == f"3 of 3 servers measured; {said[count]}"


def test_people_read_that_it_is_not_judged() -> None:
    outcome, sentence = speculation.answer(None, Mode.PREFILL)
    assert outcome == "unknown"
    assert sentence.startswith("Speculation is not judged: the server only prefills")

"""The framework of the field is applied to what is said of the traffic."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.advise import use
from specwatch.advise.asked import Asked, Hints
from specwatch.advise.model import Finding


def findings(
    method: str = "draft_model", asked: Asked | None = None, **hints: Any
) -> list[Finding]:
    return list(use.findings(method, asked or Asked(), Hints(**hints)))


def only(method: str = "draft_model", asked: Asked | None = None, **hints: Any) -> Finding:
    (found,) = findings(method, asked, **hints)
    return found


JUDGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "answers of 10 tokens": ({"output_tokens": 10}, "doubt", "barely gain"),
    "answers of 40 tokens": ({"output_tokens": 40}, "doubt", "more than about 50"),
    "answers of 300 tokens": ({"output_tokens": 300}, "ok", "long enough"),
    "agents": ({"tool_calls": True}, "doubt", "TTFT rises by 30 to 80 ms"),
    "agents with lookup": ({"method": "ngram", "tool_calls": True}, "note", "tool calls"),
    "TTFT": ({"latency": "ttft"}, "doubt", "speculation improves TPOT only"),
    "TPOT": ({"latency": "tpot"}, "ok", "what speculation improves"),
    "throughput": ({"latency": "throughput"}, "note", "both ways"),
    "creative text": ({"workload": "creative"}, "doubt", "40 to 50 %"),
    "code": ({"workload": "code"}, "ok", "predictable"),
    "summaries by lookup": (
        {"method": "ngram", "workload": "summarization"}, "ok", "repeats its input",
    ),
    "chat by lookup": ({"method": "suffix", "workload": "chat"}, "doubt", "chat does little"),
    "chat": ({"workload": "chat"}, "ok", "1.5 to 2.5 times"),
    "cold": ({"temperatures": ((0.2, 1.0),)}, "ok", "median temperature 0.2"),
    "at the bound": ({"temperatures": ((0.7, 1.0),)}, "note", "above 0.5"),
    "hot": ({"temperatures": ((0.9, 1.0),)}, "doubt", "leave speculation off above 0.7"),
    "saturated": ({"saturated": True}, "doubt", "leave it off"),
    "2 at once": ({"concurrency": 2}, "ok", "moderate"),
    "12 at once": ({"concurrency": 12}, "note", "2 to 8 for chat"),
    "16 at once": ({"concurrency": 16}, "doubt", "2 to 8 for chat"),
}  # fmt: skip


@pytest.mark.parametrize(("hints", "level", "said"), JUDGED.values(), ids=JUDGED.keys())
def test_each_hint_is_judged_as_reported(hints: dict[str, Any], level: str, said: str) -> None:
    found = only(**hints)
    assert (found.topic, found.level) == ("use", level)
    assert said in found.text
    assert found.source.startswith("reported [")


def test_nothing_said_is_nothing_judged() -> None:
    assert findings() == []


def test_temperatures_far_apart_share_one_verification() -> None:
    mixed = findings(temperatures=((0.0, 0.6), (1.0, 0.4)))
    assert [each.level for each in mixed] == ["ok", "doubt"]
    assert "P99 gets worse" in mixed[1].reason
    near = findings(temperatures=((0.0, 0.6), (0.4, 0.4)))
    few = findings(temperatures=((0.0, 0.95), (1.0, 0.05)))
    assert len(near) == len(few) == 1


@pytest.mark.parametrize(
    ("mix", "median"),
    [(((0.7, 1.0),), 0.7), (((0.0, 0.5), (0.9, 0.5)), 0.0), (((0.0, 0.4), (0.9, 0.6)), 0.9),
     (((0.0, 0.3), (0.5, 0.3), (1.0, 0.4)), 0.5)],
)  # fmt: skip
def test_the_median_is_weighted(mix: tuple[tuple[float, float], ...], median: float) -> None:
    assert use.median(mix) == median


def test_the_shape_of_acceptance_over_temperature_is_the_report_s() -> None:
    points = {0.0: 0.81, 0.4: 0.71, 0.8: 0.52, 1.0: 0.38, 1.5: 0.38, 0.2: 0.76}
    for temperature, acceptance in points.items():
        assert use.acceptance_at(temperature) == pytest.approx(acceptance)


def test_code_completion_wants_fewer_at_once_than_chat() -> None:
    assert findings(workload="code", concurrency=4)[-1].level == "note"
    assert findings(workload="chat", concurrency=4)[-1].level == "ok"


def test_high_load_is_remedied_by_fewer_drafts_where_the_server_can() -> None:
    key = "num_speculative_tokens_per_batch_size"
    for method in ("eagle", "eagle3", "dflash"):
        assert key in only(method, saturated=True).remedy
    for method in ("draft_model", "mtp", "ngram"):
        remedy = only(method, saturated=True).remedy
        assert remedy.startswith("a server of its own without speculation")
        assert key not in remedy, "not known to work"
    assert key not in only("eagle3", asked=Asked(data_parallel=2), saturated=True).remedy
    falls = Asked(speculation={key: [[1, 8, 5]]})
    assert key not in only(asked=falls, saturated=True).remedy
    assert key not in only(asked=Asked(server="llama.cpp"), saturated=True).remedy


def test_the_report_s_sixteen_at_once_were_without_speculation() -> None:
    """No difference at 16, as it was switched off there [T]: not that nothing was gained."""
    assert "switched off from 16 on [T]" in only(concurrency=16).reason


def test_long_contexts_need_the_memory_of_a_draft() -> None:
    found = only(asked=Asked(context=65_536))
    assert (found.level, found.source) == ("note", "reported [F] [T]")
    assert findings(asked=Asked(context=8192)) == []

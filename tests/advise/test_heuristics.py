"""Sizes, families and formats are judged as the reports judge them."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.lab.advise.advice import Finding, ServerPlan, Traffic
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.heuristics import (
    median_temperature,
    quantization_findings,
    size_findings,
    temperature_finding,
    traffic_findings,
)
from tests.advise.models import LLAMA, candidate


def ratio(target: float, draft: float) -> Finding:
    result = size_findings(candidate(target), candidate(draft))
    return next(item for item in result if item.text.startswith("size ratio"))


PAIRS = {
    "Llama-3.1 8B for 70B": (70.6, 8.03, "ok"),
    "Qwen2.5 7B for 72B": (72.7, 7.6, "ok"),
    "Qwen2.5 0.5B for 32B": (32.8, 0.494, "ok"),
    "Qwen2.5 1.5B for 72B": (72.7, 1.54, "ok"),
    "Llama-3.2 3B for 70B": (70.6, 3.2, "ok"),
    "Llama-3.2 1B for 70B": (70.6, 1.24, "ok"),
    "0.5B for 70B": (70.0, 0.5, "doubt"),
    "0.1B for 70B": (70.0, 0.1, "doubt"),
    "3B for 14B": (14.0, 3.2, "doubt"),
    "8B for 8B": (8.0, 8.0, "wrong"),
    "8B for 3B": (3.0, 8.0, "wrong"),
}


def test_pairs_that_reports_name() -> None:
    found = {name: ratio(target, draft) for name, (target, draft, _) in PAIRS.items()}
    levels = {name: level for name, (_, _, level) in PAIRS.items()}
    assert {name: result.level for name, result in found.items()} == levels
    for result in found.values():
        assert result.source.startswith("arithmetic" if result.level == "wrong" else "reported [")


@pytest.mark.parametrize(
    ("billions", "level"),
    [(0.5, "doubt"), (3.09, "doubt"), (8.03, "doubt"), (14.8, "ok"), (70.6, "ok")],
)
def test_small_targets_hardly_gain(billions: float, level: str) -> None:
    (result,) = size_findings(candidate(billions), None)
    assert result.level == level
    assert ("never" in result.text) == (billions < 3.15)


def texts(target: Candidate, draft: Candidate) -> str:
    return "\n".join(f"{item.level}: {item.text}" for item in size_findings(target, draft))


def test_very_small_and_very_large_drafts_have_a_finding() -> None:
    assert "doubt: the draft has 270M parameters: drafts of 0.3B and below collapse" in texts(
        candidate(30), candidate(0.27)
    )
    assert "note: the draft has 3.2B parameters: reports contradict" in texts(
        candidate(70), candidate(3.2)
    )
    assert "the draft has" not in texts(candidate(32), candidate(0.5))


def test_families_by_configuration_else_by_name() -> None:
    named = candidate(70, name="meta-llama/Llama-3.1-70B")
    other = candidate(0.5, name="Qwen/Qwen2.5-0.5B")
    assert "doubt: different families: llama and qwen" in texts(named, other)
    assert "ok: both are of the llama family" in texts(named, candidate(8, name="x", config=LLAMA))
    assert "famil" not in texts(named, candidate(8, name="mine"))


def test_a_mixture_of_experts_is_noted_with_its_active_parameters() -> None:
    target = candidate(30, active=3_000_000_000)
    assert "note: the target is a mixture of experts: a token uses 3B" in texts(
        target, candidate(0.6)
    )


def test_a_draft_for_shorter_texts_is_noted() -> None:
    short = LLAMA | {"max_position_embeddings": 4096}
    text = texts(candidate(70, config=LLAMA), candidate(8, config=short))
    assert "note: the draft was trained for 4,096 tokens, the target for 131,072" in text


@pytest.mark.parametrize(
    ("quantization", "bits", "level"),
    [("awq", 4.4, "doubt"), ("Q4_K_M", 4.9, "doubt"), ("fp8", 8.2, "note"), ("w8a8", 8.2, "note")],
)
def test_a_quantized_target_hurts_acceptance(quantization: str, bits: float, level: str) -> None:
    target = candidate(70, bits=bits, quantization=quantization)
    first, *others = quantization_findings(target, candidate(8))
    assert first.level == level
    assert quantization in first.text
    assert "5 points" in first.reason
    assert [other.level for other in others] == ["note"], "the draft is not quantized"
    assert others[0].source.startswith("arithmetic"), "no report says so"


def test_a_quantized_draft_hardly_does() -> None:
    result = list(quantization_findings(candidate(70), candidate(8, bits=4.2, quantization="awq")))
    assert [item.level for item in result] == ["ok"]
    assert list(quantization_findings(candidate(70), candidate(8))) == []


def findings(
    method: str = "draft_model", plan: ServerPlan | None = None, **traffic: Any
) -> list[Finding]:
    return list(traffic_findings(method, plan or ServerPlan(), Traffic(**traffic)))


def only(method: str = "draft_model", plan: ServerPlan | None = None, **traffic: Any) -> Finding:
    (result,) = findings(method, plan, **traffic)
    return result


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
        {"method": "ngram", "workload": "summarization"},
        "ok",
        "repeats its input",
    ),
    "chat by lookup": ({"method": "suffix", "workload": "chat"}, "doubt", "is rare in chat"),
    "chat": ({"workload": "chat"}, "ok", "1.5 to 2.5 times"),
    "cold": ({"temperatures": ((0.2, 1.0),)}, "ok", "median temperature 0.2"),
    "at the bound": ({"temperatures": ((0.7, 1.0),)}, "note", "above 0.5"),
    "hot": ({"temperatures": ((0.9, 1.0),)}, "doubt", "leave speculation off above 0.7"),
    "saturated": ({"saturated": True}, "doubt", "leave it off"),
    "2 at once": ({"concurrency": 2}, "ok", "moderate"),
    "12 at once": ({"concurrency": 12}, "note", "2 to 8 for chat"),
    "16 at once": ({"concurrency": 16}, "doubt", "2 to 8 for chat"),
}


@pytest.mark.parametrize(("hints", "level", "text"), JUDGED.values(), ids=JUDGED.keys())
def test_each_hint_is_judged_as_reported(hints: dict[str, Any], level: str, text: str) -> None:
    result = only(**hints)
    assert (result.topic, result.level) == ("use", level)
    assert text in result.text
    assert result.source.startswith("reported [")


def test_temperatures_far_apart_share_one_verification() -> None:
    mixed = findings(temperatures=((0.0, 0.6), (1.0, 0.4)))
    assert [item.level for item in mixed] == ["ok", "doubt"]
    assert "P99 gets worse" in mixed[1].reason
    near = findings(temperatures=((0.0, 0.6), (0.4, 0.4)))
    few = findings(temperatures=((0.0, 0.95), (1.0, 0.05)))
    assert len(near) == len(few) == 1


@pytest.mark.parametrize(
    ("mix", "median"),
    [
        (((0.7, 1.0),), 0.7),
        (((0.0, 0.5), (0.9, 0.5)), 0.0),
        (((0.0, 0.4), (0.9, 0.6)), 0.9),
        (((0.0, 0.3), (0.5, 0.3), (1.0, 0.4)), 0.5),
    ],
)
def test_the_median_is_weighted(mix: tuple[tuple[float, float], ...], median: float) -> None:
    assert median_temperature(mix) == median


def test_the_shape_of_acceptance_over_temperature_is_the_report_s() -> None:
    points = {0.0: 0.81, 0.4: 0.71, 0.8: 0.52, 1.0: 0.38, 1.5: 0.38, 0.2: 0.76}
    for temperature, acceptance in points.items():
        assert temperature_finding(temperature).reason.startswith(f"{acceptance:.0%} acceptance")


def test_code_completion_wants_fewer_at_once_than_chat() -> None:
    assert findings(workload="code", concurrency=4)[-1].level == "note"
    assert findings(workload="chat", concurrency=4)[-1].level == "ok"


def test_high_load_is_remedied_by_fewer_drafts_where_the_server_can() -> None:
    key = "num_speculative_tokens_per_batch_size"
    for method in ("eagle", "eagle3", "dflash"):
        assert key in only(method, saturated=True).remedy
    for method in ("draft_model", "mtp", "ngram"):
        remedy = only(method, saturated=True).remedy
        assert remedy.startswith("a separate server without speculation")
        assert key not in remedy, "not known to work"
    assert key not in only("eagle3", plan=ServerPlan(data_parallel=2), saturated=True).remedy
    falls = ServerPlan(speculation={key: [[1, 8, 5]]})
    assert key not in only(plan=falls, saturated=True).remedy
    assert key not in only(plan=ServerPlan(server="llama.cpp"), saturated=True).remedy


def test_long_contexts_need_the_memory_of_a_draft() -> None:
    result = only(plan=ServerPlan(context=65_536))
    assert (result.level, result.source) == ("note", "reported [F] [T]")
    assert findings(plan=ServerPlan(context=8192)) == []

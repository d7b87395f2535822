"""Sizes, families and formats are judged as the reports judge them."""

from __future__ import annotations

import pytest

from specwatch.advise import pairing, precision
from specwatch.advise.candidate import Candidate
from specwatch.advise.model import Finding
from tests.advise.shapes import LLAMA, candidate


def ratio(target: float, draft: float) -> Finding:
    found = pairing.findings(candidate(target), candidate(draft))
    return next(each for each in found if each.text.startswith("size ratio"))


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


@pytest.mark.parametrize(("target", "draft", "level"), PAIRS.values(), ids=PAIRS.keys())
def test_pairs_that_reports_name(target: float, draft: float, level: str) -> None:
    found = ratio(target, draft)
    assert found.level == level, found
    assert found.source.startswith("arithmetic" if level == "wrong" else "reported [")


@pytest.mark.parametrize(
    ("billions", "level"),
    [(0.5, "doubt"), (3.09, "doubt"), (8.03, "doubt"), (14.8, "ok"), (70.6, "ok")],
)
def test_small_targets_hardly_gain(billions: float, level: str) -> None:
    (found,) = pairing.of_target(candidate(billions))
    assert found.level == level
    assert ("never" in found.text) == (billions < 3.15)


def texts(target: Candidate, draft: Candidate) -> str:
    return "\n".join(f"{e.level}: {e.text}" for e in pairing.findings(target, draft))


def test_very_small_and_dear_drafts() -> None:
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


def test_a_mixture_of_experts_is_told_by_what_a_token_uses() -> None:
    target = candidate(30, active=3_000_000_000)
    assert "note: the target is a mixture of experts: a token uses 3B" in texts(
        target, candidate(0.6)
    )


def test_a_draft_for_shorter_texts_is_noted() -> None:
    short = LLAMA | {"max_position_embeddings": 4096}
    said = texts(candidate(70, config=LLAMA), candidate(8, config=short))
    assert "note: the draft was trained for 4,096 tokens, the target for 131,072" in said


def test_unknown_sizes_say_nothing() -> None:
    assert list(pairing.findings(candidate(), candidate())) == []


@pytest.mark.parametrize(
    ("quantization", "bits", "level"),
    [("awq", 4.4, "doubt"), ("Q4_K_M", 4.9, "doubt"), ("fp8", 8.2, "note"), ("w8a8", 8.2, "note")],
)
def test_a_quantised_target_hurts_acceptance(quantization: str, bits: float, level: str) -> None:
    target = candidate(70, bits=bits, quantization=quantization)
    first, *others = precision.findings(target, candidate(8))
    assert first.level == level
    assert quantization in first.text
    assert "5 points" in first.reason
    assert [each.level for each in others] == ["note"], "the draft is not quantised"
    assert others[0].source.startswith("arithmetic"), "no report says so"


def test_a_quantised_draft_hardly_does() -> None:
    found = list(precision.findings(candidate(70), candidate(8, bits=4.2, quantization="awq")))
    assert [each.level for each in found] == ["ok"]
    assert list(precision.findings(candidate(70), candidate(8))) == []


@pytest.mark.parametrize(
    ("count", "said"), [(70_553_706_496, "70.6B"), (494e6, "494M"), (8_030, "8.03K")]
)
def test_sizes_in_words(count: float, said: str) -> None:
    assert pairing.size(int(count)) == said

"""Does it fit: weights, the KV cache that is left, and the requests that it holds."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Finding, Memory
from specwatch.lab.advise.architecture import Architecture, read_architecture
from specwatch.lab.advise.memory import (
    RESERVED,
    UTILIZATION,
    Footprint,
    kv_bytes,
    kv_bytes_per_token,
    mtp_footprint,
    plan_memory,
)
from tests.advise.models import shape

GB = 10**9
KIB = 1024


def footprint(model: Architecture, weights: float | None = 0) -> Footprint:
    return Footprint(None if weights is None else round(weights * GB), model.layers, model.kv_heads)


PER_TOKEN = {
    "MHA: 2 x 32 layers x 32 heads x 128 x 2 bytes": ("Llama-2-7b-hf", 512 * KIB),
    "GQA: 8 heads of 32": ("Llama-3.1-8B", 128 * KIB),
    "GQA: 80 layers": ("Llama-3.1-70B", 320 * KIB),
    "GQA: 2 heads of 64": ("Qwen2.5-0.5B", 12 * KIB),
    "heads that are wider than hidden size / heads": ("Qwen3-0.6B", 112 * KIB),
    "MLA: 61 layers x (512 + 64) x 2 bytes": ("DeepSeek-V3", 61 * 576 * 2),
    "half of the layers have a window": ("gpt-oss-20b", 12 * 2 * 8 * 64 * 2),
    "one of six layers has none": ("gemma-3-1b-it", 4 * 2 * 256 * 2),
    "one of four layers has attention": ("Qwen3-Next-80B-A3B-Instruct", 12 * 2 * 2 * 256 * 2),
    "all layers have a window, as long as it is not full": ("Mistral-7B-v0.1", 128 * KIB),
}


@pytest.mark.parametrize("bits", [16, 8])
def test_bytes_of_a_token(bits: int) -> None:
    found = {
        why: kv_bytes_per_token(shape(name), bits=bits) for why, (name, _) in PER_TOKEN.items()
    }
    assert found == {why: size * bits / 16 for why, (_, size) in PER_TOKEN.items()}


@pytest.mark.parametrize(
    ("name", "gpus", "share"),
    [
        ("Llama-3.1-8B", 4, 1 / 4),
        ("Llama-3.1-8B", 16, 1 / 8),  # 8 heads: each is on two GPUs
        ("Qwen2.5-0.5B", 4, 1 / 2),
        ("DeepSeek-V3", 8, 1),  # one entry for all heads
    ],
)
def test_heads_are_divided_among_gpus_and_no_further(name: str, gpus: int, share: float) -> None:
    model = footprint(shape(name))
    assert kv_bytes([(model, gpus)], 1000) == kv_bytes([(model, 1)], 1000) * share


def test_a_window_bounds_a_request() -> None:
    mistral = footprint(shape("Mistral-7B-v0.1"))
    full = kv_bytes([(mistral, 1)], 4096)
    assert full == 4096 * 128 * KIB
    assert kv_bytes([(mistral, 1)], 32768) == full
    layer = 2 * 8 * 64 * 2
    mixed = kv_bytes([(footprint(shape("gpt-oss-20b")), 1)], 10_000)
    assert mixed == 12 * layer * 10_000 + 12 * layer * 128


def test_linear_attention_keeps_a_state_for_the_sequence_and_for_each_draft_token() -> None:
    """Qwen3-Next: 36 layers of 32 x 128 x 128 elements, and 8192 x 3 of the convolution."""
    model = footprint(shape("Qwen3-Next-80B-A3B-Instruct"))
    state = 36 * (32 * 128 * 128 + 8192 * 3) * 2
    assert kv_bytes([(model, 1)], 0) == state
    assert kv_bytes([(model, 2)], 0) == state / 2
    more = 36 * (32 * 128 * 128 + 8192 * 5) * 2
    assert kv_bytes([(model, 1)], 0, draft_tokens=2) == 3 * more


TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
GEMMA = TINY | {
    "head_dim": 32,
    "sliding_window": 256,
    "model_type": "gemma3_text",
    "num_hidden_layers": 13,
    "num_key_value_heads": 1,
}
MLA = TINY | {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 3,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MEASURED = {
    "GQA and a draft with more heads": (
        TINY,
        TINY | {"num_hidden_layers": 2, "num_key_value_heads": 4},
        32,
        16384,
    ),
    "MLA": (MLA, None, 16, 19328),
}


@pytest.mark.parametrize(("target", "draft", "bits", "tokens"), MEASURED.values(), ids=MEASURED)
def test_tokens_are_those_that_vllm_reports(
    target: dict[str, Any], draft: dict[str, Any] | None, bits: int, tokens: int
) -> None:
    """Reported by vLLM 0.32 on a CPU of such models with random weights, with 64 MiB of cache."""
    models = [
        (footprint(read_architecture(config, "here")), 1)
        for config in (target, draft)
        if config is not None
    ]
    request = kv_bytes(models, 2048, bits=bits)
    assert 64 * 2**20 / request * 2048 == pytest.approx(tokens, rel=0.01)


def test_layers_of_several_kinds_are_rounded_up_to_groups_of_equal_length() -> None:
    """vLLM's blocks: 12 layers of gpt-oss 20B with windows and 12 without, and a draft's layer."""
    draft = footprint(
        read_architecture(
            TINY | {"num_hidden_layers": 1, "num_key_value_heads": 8, "head_dim": 64}, "here"
        )
    )
    layer = 2 * 8 * 64 * 2
    both = kv_bytes([(footprint(shape("gpt-oss-20b")), 1), (draft, 1)], 10_000)
    assert both == 13 * layer * 10_000 + 13 * layer * 128
    gemma = footprint(read_architecture(GEMMA, "here"))
    # 11 with windows and 2 without: groups of 2, so 12 and 2.
    assert kv_bytes([(gemma, 1)], 1000) == (12 * 256 + 2 * 1000) * 2 * 32 * 2


IN_BLOCKS = [
    ("gemma-3-4b-it", "gemma-3-1b-it", 32768, 1, 41_456),
    ("gemma-3-4b-it", "gemma-3-1b-it", 32768, 8, 10_832),
    ("gemma-2-27b", "gemma-2-2b", 8192, 2, 199_993),
    ("Qwen3-Next-80B-A3B-Instruct", "Qwen3-0.6B", 2048, 1, 442_719),
    ("Qwen3-Next-80B-A3B-Instruct", "Qwen3-0.6B", 262144, 4, 49_441),
]


@pytest.mark.parametrize(("target", "draft", "context", "gpus", "token_bytes"), IN_BLOCKS)
def test_mixed_layers_take_what_the_blocks_of_vllm_take(
    target: str, draft: str, context: int, gpus: int, token_bytes: int
) -> None:
    """Bytes of a token as vLLM 0.32's block pool (v1/core/kv_cache_utils.py) has it, with k = 5."""
    models = [(footprint(shape(name)), gpus) for name in (target, draft)]
    request = kv_bytes(models, context, draft_tokens=5)
    assert request / context == pytest.approx(token_bytes, rel=0.1)


def test_layers_that_read_the_cache_of_others_have_none() -> None:
    """Gemma 3n."""
    config = TINY | {"num_hidden_layers": 10, "num_kv_shared_layers": 4}
    assert kv_bytes_per_token(read_architecture(config, "here")) == 6 * 2 * 2 * 32 * 2


LARGE, SMALL = shape("Llama-3.1-70B"), shape("Llama-3.1-8B")
UNKNOWN = -1


def planned(target: float, draft: float | None, **changes: Any) -> tuple[Memory, list[Finding]]:
    """The plan of Llama 3.1 70B and 8B with so many GB of weights, on two GPUs of 80 GB."""
    given: dict[str, Any] = {"gpus": 2, "gpu_memory": 80 * GB, "context": 8192}
    theirs = None if draft is None else footprint(SMALL, None if draft == UNKNOWN else draft)
    return plan_memory(footprint(LARGE, target), theirs, **(given | changes))


def texts(findings: list[Finding], level: str) -> list[str]:
    return [finding.text for finding in findings if finding.level == level]


REPORTED = [
    (140, 16, 80, 156, 4),
    (70, 16, 80, 86, 74),
    (70, 8, 80, 78, 82),
    (35, 16, 80, 51, 109),
    (35, 4, 80, 39, 121),
    (140, 16, 141, 156, 126),
]


@pytest.mark.parametrize(("target", "draft", "memory", "weights", "left"), REPORTED)
def test_the_published_example_comes_out(
    target: float, draft: float, memory: int, weights: int, left: int
) -> None:
    """70B + 8B on two GPUs, with every byte used and nothing reserved, as [F] reckons."""
    planned_memory, _ = planned(target, draft, gpu_memory=memory * GB, utilization=1.0, reserved=0)
    assert 2 * (planned_memory.target_weights + (planned_memory.draft_weights or 0)) / GB == weights
    assert 2 * (planned_memory.kv_with or 0) / GB == pytest.approx(left, abs=0.1)


def test_the_recommended_start_has_nothing_wrong() -> None:
    memory, findings = planned(70, 16, concurrency=10)
    assert {finding.level for finding in findings} == {"ok"}
    assert texts(findings, "ok")[-1] == (
        "15 requests of 8,192 tokens fit at once; without the draft 27, 10 are wanted"
    )
    assert memory.usable == int(80 * GB * UTILIZATION)
    assert memory.kv_without == memory.usable - memory.target_weights - RESERVED
    assert memory.kv_with == memory.kv_without - 8 * GB
    # 320 KiB a token, and 128 KiB of the draft's, on two GPUs.
    assert memory.tokens_without == memory.kv_without // (160 * KIB)
    assert memory.tokens_with == memory.kv_with // (224 * KIB)


def test_without_a_draft_both_are_the_same() -> None:
    memory, findings = planned(70, None)
    assert memory.draft_weights == 0
    assert (memory.kv_with, memory.tokens_with) == (memory.kv_without, memory.tokens_without)
    assert texts(findings, "ok") == ["27 requests of 8,192 tokens fit at once"]


def test_a_draft_of_unknown_size_leaves_no_figure_beside_it() -> None:
    memory, findings = planned(70, UNKNOWN)
    unknown = (memory.draft_weights, memory.kv_with, memory.tokens_with, memory.requests_with)
    assert unknown == (None, None, None, None)
    assert texts(findings, "ok") == ["27 requests of 8,192 tokens fit at once, without the draft"]


def test_without_an_architecture_only_bytes_are_planned() -> None:
    memory, findings = plan_memory(
        Footprint(70 * GB), Footprint(8 * GB), gpus=2, gpu_memory=80 * GB, context=8192
    )
    assert (memory.tokens_without, memory.requests_with) == (None, None)
    assert texts(findings, "note") == [
        "32.5 GB of each GPU are left for the KV cache, 36.5 GB without the draft"
    ]


def test_parallelism() -> None:
    divided, _ = planned(70, 16)
    whole, _ = planned(70, 16, draft_tensor_parallel=1)
    assert (divided.draft_weights, whole.draft_weights) == (8 * GB, 16 * GB)
    assert (whole.tokens_with or 0) < (divided.tokens_with or 0)
    tensor, _ = planned(140, 16, gpus=4)
    pipeline, _ = planned(140, 16, gpus=4, tensor_parallel=2)
    assert pipeline.target_weights == tensor.target_weights
    assert pipeline.draft_weights == 2 * (tensor.draft_weights or 0)
    # Half of the layers, each with half of the heads.
    assert pipeline.tokens_without == tensor.tokens_without
    with pytest.raises(ConfigError, match="tensor parallelism 4 on 2 GPUs: expected 1 to 2"):
        planned(70, 16, tensor_parallel=4)


def test_layers_for_multi_token_prediction_have_weights_and_a_cache() -> None:
    deepseek = shape("DeepSeek-V3")
    memory, _ = plan_memory(
        footprint(deepseek, 671),
        mtp_footprint(deepseek, 11 * GB),
        gpus=8,
        gpu_memory=141 * GB,
        context=8192,
        utilization=1.0,
    )
    assert memory.draft_weights == 11 * GB / 8
    request = 61 * 576 * 2 * 8192
    assert memory.requests_without == memory.kv_without // request
    assert memory.requests_with == (memory.kv_with or 0) * 61 // (request * 62)


LINES: list[tuple[float, float, dict[str, Any], str, str]] = [
    (160, 16, {}, "wrong", "the target alone does not fit"),
    (140, 16, {}, "wrong", "with the draft no memory is left"),
    (
        140,
        16,
        {"utilization": 1.0, "reserved": 0},
        "wrong",
        "weights take 98% of each GPU: do not start it",
    ),
    (140, 12, {}, "doubt", "nearly: with the draft no memory is left"),
    (113, 1, {}, "doubt", "the target's weights take 71% of each GPU"),
    (70, 25, {}, "doubt", "the draft's weights take 16% of each GPU"),
    (70, 23, {}, "ok", "the draft's weights take 14.4% of each GPU"),
    (70, 16, {"context": 131072}, "doubt", "nearly: not one request of 131,072 tokens fits"),
    (70, 16, {"context": 163840}, "wrong", "not one request of 163,840 tokens fits"),
    (143, 1, {}, "doubt", "nearly: the target alone does not fit"),
    (70, 16, {"concurrency": 16}, "doubt", "15 requests of 8,192 tokens fit at once"),
    (70, 16, {"concurrency": 15}, "ok", "15 requests of 8,192 tokens fit at once"),
    (70, 16, {"context": 65536}, "ok", "1 request of 65,536 tokens fits at once"),
]


@pytest.mark.parametrize(("target", "draft", "changes", "level", "start"), LINES)
def test_findings_at_the_thresholds(
    target: float, draft: float, changes: dict[str, Any], level: str, start: str
) -> None:
    _, findings = planned(target, draft, **changes)
    assert [text for text in texts(findings, level) if text.startswith(start)], findings
    for finding in findings:
        assert finding.reason, finding
        assert finding.source, finding
        assert finding.remedy or finding.level == "ok", finding


def test_too_few_requests_point_to_what_would_help() -> None:
    for concurrency, remedy in ((20, "leave the draft off"), (200, "add memory")):
        _, findings = planned(70, 16, concurrency=concurrency)
        (few,) = (finding for finding in findings if finding.level == "doubt")
        assert few.text.endswith(f"without the draft 27, and {concurrency} are wanted")
        assert remedy in few.remedy


def test_a_shortage_is_given_in_gigabytes() -> None:
    _, findings = planned(140, 16)
    assert findings[0].reason == (
        "70.0 GB of weights and 8.0 GB of the draft's, 2.1 GB for the runtime (assumed), of "
        "73.6 GB that the server may use on each GPU: 6.5 GB short"
    )

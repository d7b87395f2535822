"""Does it fit: weights, the KV cache that is left, and the requests that it holds."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.advise.memory import RESERVED, UTILIZATION, Footprint, held, of_prediction, plan
from specwatch.advise.model import Finding, Memory
from specwatch.advise.parameters import share
from specwatch.errors import ConfigError
from tests.advise.published import shape

GB = 10**9
LARGE, SMALL = shape("Llama-3.1-70B"), shape("Llama-3.1-8B")
BYTES = {"BF16": 2.0, "INT8": 1.0, "INT4": 0.5}


def planned(target: float, draft: float | None, **changes: Any) -> tuple[Memory, list[Finding]]:
    """The plan of Llama 3.1 70B and 8B with so many GB of weights, on two GPUs of 80 GB."""
    given: dict[str, Any] = {"gpus": 2, "gpu_memory": 80 * GB, "context": 8192}
    theirs = None if draft is None else Footprint(SMALL, round(draft * GB))
    return plan(Footprint(LARGE, round(target * GB)), theirs, **(given | changes))


def texts(findings: list[Finding], level: str) -> list[str]:
    return [each.text for each in findings if each.level == level]


REPORTED = [
    ("BF16", "BF16", 80, 156, 4),
    ("INT8", "BF16", 80, 86, 74),
    ("INT8", "INT8", 80, 78, 82),
    ("INT4", "BF16", 80, 51, 109),
    ("INT4", "INT4", 80, 39, 121),
    ("BF16", "BF16", 141, 156, 126),
]


@pytest.mark.parametrize(("target", "draft", "memory", "weights", "left"), REPORTED)
def test_the_published_example_comes_out(
    target: str, draft: str, memory: int, weights: int, left: int
) -> None:
    """70B + 8B on two GPUs, with every byte used and nothing reserved, as [F] reckons."""
    found, _ = planned(
        70 * BYTES[target], 8 * BYTES[draft], gpu_memory=memory * GB, utilization=1.0, reserved=0
    )
    assert 2 * (found.target_weights + found.draft_weights) / GB == pytest.approx(weights, abs=0.1)
    assert 2 * found.kv_with / GB == pytest.approx(left, abs=0.1)


def test_the_example_that_is_called_unusable_is_wrong() -> None:
    """At 98 % even if every byte could be used; with what vLLM leaves free there is no cache."""
    _, findings = planned(140, 16, utilization=1.0, reserved=0)
    assert texts(findings, "wrong") == ["weights take 98% of each GPU: do not start it"]
    memory, findings = planned(140, 16)
    assert memory.kv_with == 0
    assert texts(findings, "wrong") == ["beside the draft no memory is left for any KV cache"]


def test_the_recommended_start_has_nothing_wrong() -> None:
    memory, findings = planned(70, 16, concurrency=10)
    assert {each.level for each in findings} == {"ok"}
    assert memory.requests_with is not None
    assert texts(findings, "ok")[-1] == (
        "15 requests of 8,192 tokens fit at once; without the draft 27, 10 are wanted"
    )


def test_kv_cache_is_what_weights_and_runtime_leave() -> None:
    memory, _ = planned(70, 16)
    assert memory.usable == int(80 * GB * UTILIZATION)
    assert memory.reserved == RESERVED
    assert memory.kv_without == memory.usable - memory.target_weights - RESERVED
    assert memory.kv_with == memory.kv_without - memory.draft_weights
    # 320 KiB a token, and 128 KiB of the draft's, on two GPUs; whole blocks of 16.
    assert memory.tokens_without == memory.kv_without // (16 * 160 * 1024) * 16
    assert memory.tokens_with == memory.kv_with // (16 * 224 * 1024) * 16


def test_without_a_draft_both_are_the_same() -> None:
    memory, findings = planned(70, None)
    assert memory.draft_weights == 0
    assert (memory.kv_with, memory.tokens_with) == (memory.kv_without, memory.tokens_without)
    assert texts(findings, "ok") == ["27 requests of 8,192 tokens fit at once"]


def test_a_draft_is_divided_as_its_target_unless_told() -> None:
    divided, _ = planned(70, 16)
    whole, _ = planned(70, 16, draft_tensor_parallel=1)
    assert divided.draft_weights == held(Footprint(SMALL, 16 * GB), 2)
    assert divided.draft_weights / (8 * GB) == pytest.approx(1, abs=0.001)
    assert whole.draft_weights == 16 * GB
    assert (whole.tokens_with or 0) < (divided.tokens_with or 0)


def test_what_tensor_parallelism_does_not_divide_is_on_every_gpu() -> None:
    deepseek = shape("DeepSeek-V3")
    assert held(Footprint(deepseek, 671 * GB), 8) == pytest.approx(
        671 * GB * share(deepseek, 8), abs=1
    )
    assert held(Footprint(deepseek, 671 * GB), 8) > 671 * GB / 8 * 1.005


def test_stages_of_a_pipeline_share_layers_and_the_last_has_the_draft() -> None:
    tensor, _ = planned(140, 16, gpus=4)
    pipeline, _ = planned(140, 16, gpus=4, tensor_parallel=2)
    assert pipeline.target_weights == pytest.approx(tensor.target_weights, rel=0.001)
    assert pipeline.draft_weights == pytest.approx(2 * tensor.draft_weights, rel=0.001)
    # Half of the layers, each with half of the heads.
    assert pipeline.tokens_without == pytest.approx(tensor.tokens_without, rel=0.001)


def test_more_parts_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor parallelism 4 on 2 GPUs: expected 1 to 2"):
        planned(70, 16, tensor_parallel=4)


def test_a_card_may_have_more_than_it_is_sold_as() -> None:
    """What 80 GiB hold is no error with --gpu-memory 80GB, whose shortfall is below 8 %."""
    (short,) = (each for each in planned(140, 12)[1] if each.text.startswith("nearly: beside"))
    assert short.level == "doubt"
    assert "a card sold as 80 GB may have 80 GiB" in short.reason
    memory, findings = planned(140, 12, gpu_memory=80 * 2**30)
    assert (memory.kv_with or 0) > 0
    assert not texts(findings, "wrong")


def test_beside_a_draft_that_nothing_is_known_of_no_figure_is_told() -> None:
    memory, findings = planned(70, None, draft_known=False)
    told = (memory.draft_weights, memory.kv_with, memory.tokens_with, memory.requests_with)
    assert told == (None, None, None, None)
    assert memory.requests_without == 27
    assert texts(findings, "ok") == ["27 requests of 8,192 tokens fit at once, without the draft"]


def test_linear_layers_keep_a_state_for_each_draft_token() -> None:
    """Whatever drafts: vLLM allots a block of state more for each."""
    qwen = Footprint(shape("Qwen3-Next-80B-A3B-Instruct"), 160 * GB)
    given: dict[str, Any] = {"gpus": 4, "gpu_memory": 80 * GB, "context": 8192}
    memory, _ = plan(qwen, None, draft_tokens=3, **given)
    assert memory.kv_with == memory.kv_without
    assert (memory.requests_with or 0) < (memory.requests_without or 0)


def test_layers_for_multi_token_prediction_have_weights_and_a_cache() -> None:
    deepseek = shape("DeepSeek-V3")
    given: dict[str, Any] = {"gpus": 8, "gpu_memory": 141 * GB, "context": 8192}
    theirs = of_prediction(deepseek, 11 * GB)
    assert len(theirs.architecture.layers) == deepseek.mtp_layers == 1
    memory, _ = plan(Footprint(deepseek, 671 * GB), theirs, **given)
    assert memory.draft_weights == held(theirs, 8)
    stored = plan(Footprint(deepseek, 671 * GB), of_prediction(deepseek, 0), **given)[0]
    assert stored.draft_weights == 0
    # One more layer of 61 that keeps as much as the others.
    assert stored.tokens_with == pytest.approx((stored.tokens_without or 0) * 61 / 62, rel=0.001)


def test_fp8_has_room_for_twice_as_many() -> None:
    wide, _ = planned(70, 16)
    narrow, _ = planned(70, 16, kv_bits=8)
    assert narrow.tokens_with == pytest.approx(2 * (wide.tokens_with or 0), rel=0.001)


@pytest.mark.parametrize(
    ("target", "draft", "changes", "level", "starts"),
    [
        (160, 16, {}, "wrong", "the target alone does not fit"),
        (140, 16, {}, "wrong", "beside the draft no memory is left"),
        (113, 1, {}, "doubt", "the target's weights take 71% of each GPU"),
        (70, 25, {}, "doubt", "the draft's weights take 16% of each GPU"),
        (70, 23, {}, "ok", "the draft's weights take 14.4% of each GPU"),
        (70, 16, {"context": 131072}, "doubt", "nearly: not one request of 131,072 tokens fits"),
        (70, 16, {"context": 163840}, "wrong", "not one request of 163,840 tokens fits"),
        (142, 1, {}, "doubt", "nearly: beside the draft no memory is left"),
        (143, 1, {}, "doubt", "nearly: the target alone does not fit"),
        (70, 16, {"concurrency": 16}, "doubt", "15 requests of 8,192 tokens fit at once"),
        (70, 16, {"concurrency": 15}, "ok", "15 requests of 8,192 tokens fit at once"),
        (70, 16, {"context": 65536}, "ok", "1 request of 65,536 tokens fits at once"),
    ],
)
def test_what_is_said_at_the_lines(
    target: float, draft: float, changes: dict[str, Any], level: str, starts: str
) -> None:
    _, findings = planned(target, draft, **changes)
    assert [text for text in texts(findings, level) if text.startswith(starts)], findings


def test_too_few_requests_point_to_what_would_help() -> None:
    _, findings = planned(70, 16, concurrency=20)
    (few,) = (each for each in findings if each.level == "doubt")
    assert few.text.endswith("without the draft 27, and 20 are wanted")
    assert "leave the draft off" in few.remedy
    _, findings = planned(70, 16, concurrency=200)
    (few,) = (each for each in findings if each.level == "doubt")
    assert "add memory" in few.remedy


def test_every_finding_has_its_reason_and_its_source() -> None:
    for target, draft, context in ((160, 16, 1), (140, 16, 1), (113, 25, 8192), (70, 16, 131072)):
        _, findings = planned(target, draft, context=context, concurrency=10**6)
        assert findings
        for each in findings:
            assert each.topic == "memory"
            assert each.reason
            assert each.source
            assert each.remedy or each.level == "ok"


def test_small_figures_are_told_in_gigabytes() -> None:
    _, findings = planned(140, 16)
    (wrong,) = (each for each in findings if each.level == "wrong")
    assert wrong.reason == (
        "70.0 GB of weights and 8.0 GB of the draft's, 2.1 GB for the runtime (assumed), of "
        "73.6 GB that the server may use on each GPU: 6.5 GB short"
    )

"""Advice as a whole: what is put together from all that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from specwatch.lab.advise import advise as advising
from specwatch.lab.advise.advice import LEVELS, Advice, Finding, ServerPlan, Traffic
from specwatch.lab.advise.advise import AdviceRequest
from specwatch.lab.advise.candidate import Candidate, from_files, from_name, from_size
from specwatch.lab.advise.model_files import ModelFiles, Weights
from specwatch.lab.advise.model_names import plain_size
from tests.advise.models import LLAMA, candidate

GB = 10**9


def sized(text: str, quantized: str | None = None) -> Candidate:
    size = plain_size(text)
    assert size is not None
    return from_size(text, size, dtype=None, quantized=quantized)


def advise(target: Candidate, draft: Candidate | None = None, **given: Any) -> Advice:
    traffic = {name: given.pop(name) for name in list(given) if name in Traffic.__slots__}
    gpus = {name: given.pop(name) for name in ("gpus", "gpu_memory") if name in given}
    named = {"target": target.name, "draft": None if draft is None else draft.name}
    plan = ServerPlan(**{**named, **given})
    return advising.advise(
        AdviceRequest(
            version="1",
            plan=plan,
            traffic=Traffic(**traffic),
            target=target,
            draft=draft,
            gpus=gpus.get("gpus"),
            gpu_memory=gpus.get("gpu_memory"),
        )
    )


def test_findings_come_gravest_first_and_name_their_sources() -> None:
    advice = advise(
        sized("3B"),
        sized("2B"),
        gpus=1,
        gpu_memory=8 * GB,
        k=12,
        workload="creative",
        saturated=True,
        output_tokens=10,
    )
    ranks = [LEVELS.index(finding.level) for finding in advice.findings]
    assert ranks == sorted(ranks)
    assert not advice.sound
    cited = {
        letter
        for finding in advice.findings
        for letter in "FGLPT"
        if f"[{letter}]" in finding.source
    }
    assert set(advice.sources) == cited | {"G", "L"}
    for finding in advice.findings:
        if finding.level in ("wrong", "doubt"):
            assert finding.remedy, finding
        assert finding.source, finding


def test_advice_survives_json() -> None:
    advice = advise(
        candidate(8, name="T", config=LLAMA), sized("1B"), k=5, gpus=1, gpu_memory=80 * GB
    )
    text = msgspec.json.encode(advice)
    assert msgspec.json.decode(text, type=Advice) == advice


def test_without_a_method_nothing_is_expected() -> None:
    advice = advise(sized("70B"))
    assert advice.method is None
    assert advice.expected == ()
    assert advice.sound
    assert any("nothing will be drafted" in finding.text for finding in advice.findings)


def test_memory_needs_gpus_and_sizes() -> None:
    assert advise(sized("70B"), gpus=2).memory is None
    unknown = from_name("org/mystery")
    advice = advise(unknown, gpus=1, gpu_memory=80 * GB, method="ngram", k=3)
    assert advice.memory is None
    assert any("the size of the target is not known" in finding.text for finding in advice.findings)
    on_cpu = advise(
        sized("70B"), gpus=1, gpu_memory=80 * GB, server="llama.cpp", speculation={"on_cpu": True}
    )
    assert on_cpu.memory is None
    assert any("-ngl leaves layers to the CPU" in finding.text for finding in on_cpu.findings)


def test_the_shape_of_the_target_gives_requests() -> None:
    target = candidate(8.03, name="T", config=LLAMA)
    whole = advise(target, gpus=1, gpu_memory=80 * GB, method="ngram", k=3, context=8192).memory
    eight = advise(
        target, gpus=1, gpu_memory=80 * GB, method="ngram", k=3, context=8192, kv_dtype="fp8"
    ).memory
    assert eight.requests_with >= 1.9 * whole.requests_with
    assert whole.tokens_with == whole.tokens_without


@pytest.mark.parametrize(("temperature", "level"), [(0.6, "note"), (1.0, "doubt"), (0.2, "ok")])
def test_the_default_temperature_of_the_model_counts_if_none_is_given(
    temperature: float, level: str
) -> None:
    generation = {"temperature": temperature}
    folder = ModelFiles(name="T", where="here", config=LLAMA, generation_config=generation)
    target = from_files(folder, name="T")
    advice = [
        finding
        for finding in advise(target, method="ngram", k=3).findings
        if finding.topic == "use"
    ]
    assert [item.level for item in advice] == [level]
    assert "generation_config.json" in advice[0].source
    given = advise(target, method="ngram", k=3, temperatures=((0.0, 1.0),)).findings
    assert all("generation_config" not in item.source for item in given)


def stored(**dtypes: int) -> ModelFiles:
    """A folder with so many elements of each type."""
    width = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4}
    size = sum(count * width[name] for name, count in dtypes.items())
    floats = [name for name in dtypes if name != "I32"]
    weights = Weights(
        bytes=size,
        parameters=sum(dtypes.values()),
        float_bytes=sum(dtypes[name] * width[name] for name in floats),
        float_elements=sum(dtypes[name] for name in floats),
    )
    return ModelFiles(name="m", where="here", config=LLAMA, weights=weights)


def test_weights_have_the_size_of_the_type_they_are_served_in() -> None:
    """vLLM serves float32 as 16 bits unless told, and quantizes at load where told to."""
    assert from_files(stored(BF16=1000), name="m").weights == 2000
    assert from_files(stored(F32=1000), name="m").weights == 2000
    assert from_files(stored(F32=1000), name="m", dtype="float32").weights == 4000
    assert from_files(stored(BF16=1000), name="m", dtype="float32").weights == 4000
    eight = from_files(stored(BF16=8_030_261_248), name="m", quantized="fp8").weights
    assert 8.0e9 < eight < 9.5e9


def test_a_size_from_a_name_is_marked() -> None:
    advice = from_name("meta-llama/Llama-3.1-70B-Instruct")
    assert (advice.total, advice.weights, advice.size_source) == (70 * GB, 140 * GB, "its name")
    assert "its size is read from its name" in advice.findings[0].text
    mixture = from_name("mistralai/Mixtral-8x7B-v0.1")
    assert "at most 56B parameters" in mixture.findings[1].text


def of(advice: Advice, text: str) -> list[str]:
    """The levels of the findings that begin so."""
    return [finding.level for finding in advice.findings if finding.text.startswith(text)]


def test_a_format_of_unknown_bits_is_a_note() -> None:
    target = sized("70B", "compressed-tensors")
    assert (target.total, target.weights) == (70 * GB, None)
    assert of(advise(target), "70B: the size of its weights is not known") == ["note"]
    named = from_name("org/L-70B-quantized.w4a16", quantized="compressed-tensors")
    assert named.quantization == "w4a16"
    # As an exact count has it for Llama 3.1 70B; bits times parameters are 36.1.
    assert named.weights == pytest.approx(39.6e9, rel=0.02)
    assert of(advise(named), f"{named.name}: 39.7 GB of weights in w4a16, embeddings") == ["note"]


def test_formats_are_read_from_names_and_sizes_from_names_are_doubtful() -> None:
    gpu = {"gpus": 1, "gpu_memory": 40 * GB}
    for name in ("Qwen/Qwen2.5-32B-Instruct-AWQ", "Qwen2.5-32B-Instruct-Q4_K_M.gguf"):
        advice = advise(from_name(name), from_name("Qwen/Qwen2.5-0.5B-Instruct"), k=5, **gpu)
        assert advice.sound
        assert 16e9 < advice.memory.target_weights < 20e9
        assert of(advice, f"{name}: its files are not here, so its size is read from its name, and")
    # Its files have 65.2 GB, of 117 billion parameters.
    assert from_name("openai/gpt-oss-120b").weights == pytest.approx(67e9, rel=0.05)
    large = advise(from_name("org/L-70B-Instruct"), from_name("org/L-8B"), k=5, **gpu)
    assert of(large, "the target alone does not fit") == ["doubt"]
    assert large.sound
    sure = advise(sized("70B"), from_name("org/L-8B"), k=5, **gpu)
    assert of(sure, "the target alone does not fit") == ["wrong"]
    beside = advise(sized("70B"), from_name("org/L-27B"), k=5, gpus=1, gpu_memory=170 * GB)
    assert of(beside, "with the draft no memory") == ["doubt"]


@pytest.mark.parametrize(
    ("method", "name"),
    [(None, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), ("medusa", "org/medusa-vicuna-7b")],
)
def test_the_size_in_the_name_of_a_head_is_that_of_its_target(
    method: str | None, name: str
) -> None:
    advice = advise(sized("8B"), from_name(name), method=method, k=5, gpus=1, gpu_memory=24 * GB)
    assert advice.sound
    assert (advice.draft.parameters, advice.draft.weights) == (None, None)
    assert of(advice, f"{name}: its files are not here, the size in its name is that of its target")
    assert of(advice, "the draft's memory is not known") == ["note"]
    assert (advice.draft_cost, advice.draft_cost_assumed) == (0.05, True)


def test_a_head_keeps_the_tokenizer_that_was_found_of_it() -> None:
    more = replace(from_name("org/eagle-8B"), files=stored(BF16=1))
    more = replace(more, findings=(*more.findings, Finding(topic="model", level="note", text="x")))
    advice = more.as_head()
    assert (advice.total, advice.files) == (None, more.files)
    assert [finding.text for finding in advice.findings][1:] == ["x"]


def test_a_draft_of_unknown_size_leaves_nothing_known_beside_it() -> None:
    for target in (sized("70B"), candidate(70, config=LLAMA)):
        advice = advise(target, from_name("mystery/drafter"), k=5, gpus=4, gpu_memory=80 * GB)
        assert of(advice, "the draft's memory is not known") == ["doubt"]
        plan = advice.memory
        assert (plan.draft_weights, plan.kv_with, plan.requests_with) == (None, None, None)
        assert plan.kv_without > 0


COMMAND: dict[str, Any] = {"from_command": True, "gpu_memory": 80 * GB, "method": "ngram", "k": 3}


def test_gpus_that_a_command_does_not_use_hold_nothing() -> None:
    target = candidate(70, config=LLAMA)
    four = advise(target, gpus=4, tensor_parallel=4, **COMMAND)
    eight = advise(target, gpus=8, tensor_parallel=4, **COMMAND)
    assert four.memory == eight.memory
    assert of(eight, "4 of 8 GPUs are not used by this engine") == ["note"]
    stages = advise(target, gpus=8, tensor_parallel=4, pipeline_parallel=2, **COMMAND)
    assert stages.memory.target_weights == pytest.approx(four.memory.target_weights / 2)
    assert not of(stages, "4 of 8")
    replicas = advise(target, gpus=8, tensor_parallel=4, data_parallel=2, **COMMAND)
    assert replicas.memory == four.memory
    assert not of(replicas, "4 of 8")


def test_too_few_gpus_are_wrong_and_planned_as_if_there_were_enough() -> None:
    target = candidate(70, config=LLAMA)
    for given in ({"tensor_parallel": 4}, {"tensor_parallel": 2, "pipeline_parallel": 2}):
        advice = advise(target, gpus=2, **given, **COMMAND)
        assert of(advice, "one engine needs 4 GPUs, and there are 2") == ["wrong"]
        assert advice.memory.gpus == 4


def test_options_alone_share_layers_among_all_gpus() -> None:
    target = candidate(8, config=LLAMA)
    stages = advise(target, gpus=4, gpu_memory=80 * GB, tensor_parallel=2)
    assert of(stages, "4 GPUs are used as 2 stages of a pipeline") == ["note"]
    assert not of(advise(target, gpus=4, gpu_memory=80 * GB), "4 GPUs")


MTP = LLAMA | {"model_type": "qwen3", "architectures": ["X"], "num_nextn_predict_layers": 1}


def test_layers_for_multi_token_prediction_are_counted_once() -> None:
    """With what headers list, else computed; and their cache with the target's."""
    given: dict[str, Any] = {"gpus": 1, "gpu_memory": 80 * GB, "method": "mtp", "context": 8192}
    folder = ModelFiles(name="m", where="here", config=MTP)
    computed = advise(from_files(folder, name="m"), k=1, **given).memory
    assert 0.4e9 < (computed.draft_weights or 0) < 0.6e9
    weights = stored(BF16=8 * GB).weights
    assert weights is not None
    brings = from_files(replace(folder, weights=replace(weights, mtp=10**9)), name="m")
    advice = advise(brings, k=1, **given).memory
    assert (advice.draft_weights, advice.target_weights) == (0, 16 * GB)
    assert advice.tokens_with == pytest.approx((advice.tokens_without or 0) * 32 / 33, rel=0.001)
    assert advise(brings, **given).k == 1, "as many as there are layers"
    unknown = advise(sized("8B"), k=1, **given).memory
    assert unknown.draft_weights is None


def test_a_size_in_a_name_is_not_taken_for_that_of_experts() -> None:
    """Llama 4 Scout is called 17B, which is what a token uses of 109 billion."""
    config = LLAMA | {
        "model_type": "llama4_text",
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
    }
    folder = ModelFiles(name="m", where="here", config=config)
    assert from_files(folder, name="org/Scout-17B").total is None
    both = from_files(folder, name="org/E-30B-A3B")
    assert (both.total, both.active) == (30 * GB, 3 * GB)
    weights = stored(BF16=109_000_000_000).weights
    held = from_files(replace(folder, weights=weights), name="org/Scout-17B")
    assert (held.total, held.active) == (109 * GB, None)


def test_a_multimodal_model_is_noted_with_what_is_counted() -> None:
    config = {"model_type": "x_vl", "text_config": LLAMA}
    folder = ModelFiles(name="m", where="here", config=config)
    texts = [finding.text for finding in from_files(folder, name="m").findings]
    assert "m is multimodal, and only the language model is counted" in texts
    headed = from_files(replace(folder, weights=stored(BF16=9 * GB).weights), name="m")
    assert [finding.text for finding in headed.findings] == [
        "m is multimodal, and all of its weights are counted"
    ]


def test_a_cache_of_unknown_bits_is_assumed_to_have_16() -> None:
    target = candidate(8, config=LLAMA)
    given: dict[str, Any] = {"gpus": 1, "gpu_memory": 80 * GB, "context": 8192}
    odd = advise(target, kv_dtype="nvfp4_ds_mla", **given)
    assert of(odd, "memory: the bits of --kv-cache-dtype nvfp4_ds_mla are not known") == ["note"]
    assert odd.memory == advise(target, **given).memory

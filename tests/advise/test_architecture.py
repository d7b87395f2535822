"""The shape of a model, and its parameters, are read from its ``config.json``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.architecture import read_architecture
from specwatch.lab.advise.parameter_count import Parameters, count_parameters
from tests.advise.hostile_configurations import (
    SPECULATOR,
    advice_with_one_other_value,
    advise_with_several_other_values,
    advised,
    made,
)
from tests.advise.models import EAGLE, EAGLE3, LLAMA, MEDUSA, MODELS, shape

FULL_AND_SLIDING = {
    "Llama-3.1-8B": (32, 0, None),
    "Mistral-7B-v0.1": (0, 32, 4096),
    "Phi-3-mini-4k-instruct": (0, 32, 2047),
    "Qwen2.5-7B": (28, 0, None),
    "gemma-2-9b": (21, 21, 4096),
    "gemma-3-1b-it": (4, 22, 512),
    "gpt-oss-20b": (12, 12, 128),
}


def test_layers_keep_all_or_a_window_as_the_family_has_it() -> None:
    found = {}
    for name in FULL_AND_SLIDING:
        layers = shape(name).layers
        kinds = Counter(layer.kind for layer in layers)
        windows = {layer.window for layer in layers if layer.kind == "sliding"}
        found[name] = (kinds["full"], kinds["sliding"], next(iter(windows), None))
    assert found == FULL_AND_SLIDING


def test_every_fourth_layer_of_qwen3_next_has_attention() -> None:
    layers = shape("Qwen3-Next-80B-A3B-Instruct").layers
    full = [number for number, layer in enumerate(layers) if layer.kind == "full"]
    assert full == list(range(3, 48, 4))
    assert all(layer.state_bytes for layer in layers if layer.kind == "linear")


def test_qwen2_with_windows_has_them_in_its_last_layers() -> None:
    config = MODELS["Qwen2.5-7B"].config | {"use_sliding_window": True, "max_window_layers": 20}
    layers = read_architecture(config, "here").layers
    assert [layer.kind for layer in layers] == ["full"] * 20 + ["sliding"] * 8


def test_attention_experts_and_formats_are_read_from_a_configuration() -> None:
    deepseek = shape("DeepSeek-V3")
    assert (deepseek.layers[0].token_elements, deepseek.kv_heads) == (576, 1), "MLA"
    assert (deepseek.quantization, deepseek.mtp_layers, deepseek.context) == ("fp8", 1, 163840)
    assert (deepseek.experts.total, deepseek.experts.active) == (256, 8)
    gemma = shape("gemma-3-4b-it")
    assert (gemma.multimodal, gemma.heads, gemma.vocabulary, gemma.tied) == (True, 8, 262208, True)
    assert gemma.dtype == "bfloat16"
    assert shape("gpt-oss-20b").quantization == "mxfp4"


def test_a_speculators_checkpoint_is_the_head_that_it_describes() -> None:
    layer = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32000,
        "transformer_layer_config": layer | {"num_hidden_layers": 1},
    }
    head = read_architecture(config, "here")
    assert (head.draft_kind, len(head.layers), head.vocabulary) == ("eagle", 1, 128256)


def counted(config: dict[str, Any]) -> Parameters:
    parameters = count_parameters(read_architecture(config, "here"))
    assert parameters is not None
    return parameters


def test_parameters_are_those_of_the_model_class() -> None:
    """An independent oracle: every tensor of the class; biases and norms are left out here."""
    found = {name: counted(model.config).total for name, model in MODELS.items()}
    by_class = {name: model.by_class for name, model in MODELS.items()}
    assert found == pytest.approx(by_class, rel=0.015)


ACTIVE = {
    "Mixtral-8x7B-v0.1": 12.9,
    "Qwen3-30B-A3B": 3.3,
    "Qwen3-235B-A22B": 22,
    "Qwen1.5-MoE-A2.7B": 2.7,
    "DeepSeek-V3": 37,
    "MiniMax-M2": 10,
}
"""Billions of parameters that a token uses."""


def test_active_parameters_are_those_published() -> None:
    """Publishers round, and leave out embeddings now and then: within a seventh."""
    found = {name: counted(MODELS[name].config).active / 1e9 for name in ACTIVE}
    assert found == pytest.approx(ACTIVE, rel=1 / 7)


def test_layers_for_multi_token_prediction_come_on_top() -> None:
    """DeepSeek-V3, README_WEIGHTS.md: 671B, and 11.5B of the MTP module's own."""
    parameters = counted(MODELS["DeepSeek-V3"].config)
    assert parameters.total // 10**9 == 671
    assert parameters.mtp / 1e9 == pytest.approx(11.5, rel=0.01)
    dense = counted(LLAMA)
    assert (dense.mtp, dense.active, dense.routed) == (0, dense.total, 0)


def test_of_an_unknown_family_nothing_is_counted() -> None:
    assert count_parameters(read_architecture(LLAMA | {"model_type": "strange"}, "here")) is None


HEADS = {
    "EAGLE-3, 850 MB": (EAGLE3, "eagle", 425e6),
    "EAGLE": (EAGLE, "eagle", 2 * 4096**2 + 4096 * 6144 + 4096**2 + 3 * 4096 * 14336),
    "Medusa": (MEDUSA, "medusa", 4 * (4096**2 + 128256 * 4096)),
    "MLP speculator": (
        SPECULATOR,
        "mlp_speculator",
        4 * 2 * 128256 * 3072 + 4096 * 3072 + 3 * 3072**2,
    ),
    "MLP speculator, tied": (
        SPECULATOR | {"tie_weights": True},
        "mlp_speculator",
        2 * 128256 * 3072 + 4096 * 3072 + 3072**2,
    ),
}


@pytest.mark.parametrize(("config", "kind", "expected"), HEADS.values(), ids=HEADS)
def test_parameters_of_heads_follow_from_their_configuration(
    config: dict[str, Any], kind: str, expected: float
) -> None:
    """Without the target's embedding, which they use as it is."""
    assert read_architecture(config, "here").draft_kind == kind
    assert counted(config).total == pytest.approx(expected, rel=0.01)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "words": ({"hidden_size": "4096"}, "hidden_size is '4096': expected a whole number of at"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0: expected"),
    "half a head": ({"num_attention_heads": 32.5}, "num_attention_heads is 32.5: expected"),
    "no number": ({"vocab_size": float("nan")}, "vocab_size is nan: expected"),
    "endless": ({"intermediate_size": float("inf")}, "intermediate_size is inf"),
    "too large": ({"vocab_size": 1 << 41}, "vocab_size is 2199023255552: expected"),
    "many layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: expected"),
    "few layer types": ({"layer_types": ["x"]}, "expected a list with an item for each of the 32"),
    "a word for layers": ({"layer_types": "full"}, "layer_types is 'full': expected a list"),
    "experts": ({"num_local_experts": 8}, "num_experts_per_tok is missing"),
    "words for layers": (
        {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": "x"},
        "mlp_only_layers is 'x': expected a list",
    ),
    "a head for each layer": ({"head_dim": [64, 64]}, r"head_dim is \[64, 64\]"),
    "heads of no width": (
        {"num_attention_heads": 8192, "num_key_value_heads": 8192},
        "num_attention_heads is 8192, above hidden_size, 4096",
    ),
    "no Medusa heads": ({"medusa_num_heads": 0}, "medusa_num_heads is 0"),
    "many Medusa heads": ({"medusa_num_heads": 10**9}, "at least 1 and at most 1024"),
    "a near key": ({"hidden_size": None, "hidden_siz": 1}, r"missing \(there is hidden_siz"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_cannot_be_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^m: .*{message}"):
        made(LLAMA | changes)


def test_what_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an object"):
        read_architecture(["a list"], "here")  # type: ignore[arg-type]


def test_any_key_of_any_model_may_be_anything() -> None:
    """More of them at night."""
    outcomes = advice_with_one_other_value(80, seed=8)
    assert min(outcomes[True], outcomes[False]) > 8


def test_several_keys_at_once_and_inside_of_others() -> None:
    advise_with_several_other_values(30, seed=9)


@pytest.mark.parametrize("temperature", [10**400, float("nan"), float("inf"), -1, "hot", [1]])
def test_an_invalid_default_temperature_is_ignored(temperature: object) -> None:
    advice = advised(made(LLAMA, temperature=temperature), None, "ngram")
    assert not any("temperature" in finding.text for finding in advice.findings)

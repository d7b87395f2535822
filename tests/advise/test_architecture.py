"""The shape of a model is read from its ``config.json``, or the error says what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from specwatch.advise.architecture import read
from specwatch.errors import ConfigError
from tests.advise.published import MODELS, shape
from tests.advise.shapes import LLAMA

FULL_AND_SLIDING = {
    "Llama-3.1-8B": (32, 0, None),
    "Mistral-7B-v0.1": (0, 32, 4096),
    "Phi-3-mini-4k-instruct": (0, 32, 2047),
    "Qwen2.5-7B": (28, 0, None),
    "gemma-2-9b": (21, 21, 4096),
    "gemma-3-1b-it": (4, 22, 512),
    "gemma-3-4b-it": (5, 29, 1024),
    "gpt-oss-20b": (12, 12, 128),
}


@pytest.mark.parametrize(("name", "expected"), FULL_AND_SLIDING.items(), ids=FULL_AND_SLIDING)
def test_layers_keep_all_or_a_window_as_the_family_has_it(
    name: str, expected: tuple[int, int, int | None]
) -> None:
    layers = shape(name).layers
    kinds = Counter(each.kind for each in layers)
    windows = {each.window for each in layers if each.kind == "sliding"}
    assert (kinds["full"], kinds["sliding"], next(iter(windows), None)) == expected


def test_every_fourth_layer_of_qwen3_next_has_attention() -> None:
    layers = shape("Qwen3-Next-80B-A3B-Instruct").layers
    assert [at for at, each in enumerate(layers) if each.kind == "full"] == list(range(3, 48, 4))
    assert all(each.state is not None for each in layers if each.kind == "linear")


def test_qwen2_with_windows_has_them_in_its_last_layers() -> None:
    config = MODELS["Qwen2.5-7B"].config
    windowed = read(config | {"use_sliding_window": True, "max_window_layers": 20}, "here")
    assert [each.kind for each in windowed.layers] == ["full"] * 20 + ["sliding"] * 8


def test_mla_keeps_one_compressed_entry() -> None:
    layer = shape("DeepSeek-V3").layers[0]
    assert (layer.kind, layer.latent, layer.kv_heads) == ("full", 576, 1)


def test_the_language_model_of_a_multimodal_one_is_read_with_its_defaults() -> None:
    gemma = shape("gemma-3-4b-it")
    assert gemma.multimodal
    assert (gemma.heads, gemma.vocabulary, gemma.tied) == (8, 262208, True)
    assert gemma.dtype == "bfloat16"


def test_what_a_model_says_of_itself_is_kept() -> None:
    found = shape("DeepSeek-V3")
    assert (found.quantization, found.mtp_layers, found.context) == ("fp8", 1, 163840)
    assert found.experts is not None
    assert (found.experts.total, found.experts.active) == (256, 8)
    assert shape("gpt-oss-20b").quantization == "mxfp4"
    assert shape("Llama-3.1-8B").draft_kind is None


def test_a_speculators_checkpoint_is_the_head_that_it_describes() -> None:
    layer = {key: value for key, value in LLAMA.items() if key != "architectures"}
    found = read(
        {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "draft_vocab_size": 32000, "transformer_layer_config": layer | {"num_hidden_layers": 1},
        },
        "here",
    )  # fmt: skip
    assert (found.draft_kind, len(found.layers), found.vocabulary) == ("eagle", 1, 128256)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_key_is_named_with_its_place(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(ConfigError, match=rf"^a/config\.json: {key} is missing"):
        read(config, "a/config.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size is '4096': expected a whole number of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0: expected"),
        ({"num_attention_heads": 32.5}, "num_attention_heads is 32.5: expected"),
        ({"vocab_size": float("nan")}, "vocab_size is nan: expected"),
        ({"vocab_size": float("inf")}, "vocab_size is inf: expected"),
        ({"vocab_size": 1 << 41}, "vocab_size is 2199023255552: expected"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: expected"),
        ({"layer_types": ["full_attention"]}, "expected one word for each of the 32 layers"),
        ({"layer_types": "full"}, "layer_types is 'full': expected one word"),
        ({"num_local_experts": 8}, "num_experts_per_tok is missing"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(LLAMA | changed, "here")


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an object"):
        read(["a list"], "here")  # type: ignore[arg-type]

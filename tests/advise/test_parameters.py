"""Parameters counted from a ``config.json`` are those that the model really has."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.advise import architecture
from specwatch.advise.parameters import Parameters, count, share
from tests.advise.published import MODELS, Published, shape

STATED = [name for name, each in MODELS.items() if each.parameters is not None]


def counted(config: dict[str, Any]) -> Parameters:
    found = count(architecture.read(config, "here"))
    assert found is not None
    return found


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_count_is_that_of_the_model_class(model: Published) -> None:
    """An independent oracle: every tensor of the class, family by family."""
    assert counted(model.config).total == model.by_class


@pytest.mark.parametrize("name", STATED)
def test_the_count_is_the_one_published(name: str) -> None:
    assert counted(MODELS[name].config).total == MODELS[name].parameters


def test_at_least_ten_published_models_are_checked() -> None:
    assert len(STATED) >= 30


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Mixtral-8x7B-v0.1", 12.9),
        ("Qwen3-30B-A3B", 3.3),
        ("Qwen3-235B-A22B", 22),
        ("Qwen1.5-MoE-A2.7B", 2.7),
        ("DeepSeek-V2-Lite", 2.4),
        ("DeepSeek-V3", 37),
        ("MiniMax-M2", 10),
    ],
)
def test_active_parameters_are_those_published(name: str, billions: float) -> None:
    """Publishers round, and leave out embeddings now and then: within a seventh."""
    assert counted(MODELS[name].config).active / 1e9 == pytest.approx(billions, rel=1 / 7)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)])
def test_gpt_oss_is_as_its_model_card_counts_it(name: str, billions: float) -> None:
    """The card counts active parameters without the input embedding."""
    model = shape(name)
    active = counted(MODELS[name].config).active - model.vocabulary * model.hidden_size
    assert round(active / 1e9, 2) == billions


def test_a_dense_model_uses_all_it_has() -> None:
    found = counted(MODELS["Llama-3.1-8B"].config)
    assert found.active == found.total
    assert found.routed == 0


def test_tied_embeddings_are_counted_once() -> None:
    config = MODELS["Qwen3-0.6B"].config
    assert counted(config).total == 596_049_920
    # What the hub shows for the files, which have the output head a second time.
    assert counted(config | {"tie_word_embeddings": False}).total == 751_632_384


def test_layers_for_multi_token_prediction_come_on_top() -> None:
    """DeepSeek-V3, README_WEIGHTS.md: 671B, and 11.5B of the MTP module's own."""
    found = counted(MODELS["DeepSeek-V3"].config)
    assert found.total // 10**9 == 671
    assert found.mtp / 1e9 == pytest.approx(11.5, rel=0.01)
    one_more = counted(MODELS["DeepSeek-V3"].config | {"num_hidden_layers": 62}).total
    assert found.mtp == one_more - found.total + 2 * 7168 * 7168 + 3 * 7168
    assert counted(MODELS["Llama-3.1-8B"].config).mtp == 0


def test_what_lies_whole_on_every_gpu_is_part_of_the_share() -> None:
    """Llama 3.1 8B: only its 65 norms; at 16 GPUs each of 8 key-value heads lies on two."""
    llama = shape("Llama-3.1-8B")
    norms, kv = 65 * 4096, 32 * 2 * 4096 * 1024
    total = 8_030_261_248
    assert share(llama, 1) == 1
    assert share(llama, 8) * total == pytest.approx((total - norms) / 8 + norms)
    assert share(llama, 16) * total == pytest.approx((total - norms - kv) / 16 + kv / 8 + norms)


def test_mla_keeps_its_first_projections_on_every_gpu() -> None:
    found = counted(MODELS["DeepSeek-V3"].config)
    first = 61 * (7168 * (1536 + 512 + 64) + 1536 + 512)
    norms, routers = (2 * 61 + 1) * 7168, 58 * (256 * 7168 + 256)
    assert found.copied == first + norms + routers


def test_of_an_unknown_family_nothing_is_counted() -> None:
    strange = architecture.read(MODELS["Llama-3.1-8B"].config | {"model_type": "strange"}, "here")
    assert count(strange) is None
    assert share(strange, 4) == 1 / 4


EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 1, "vocab_size": 128256, "draft_vocab_size": 32000,
    "tie_word_embeddings": False, "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
"""yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, whose file of weights has 850 MB in float16."""


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (
            EAGLE3,
            "eagle",
            3 * 4096 * 4096 + 8192 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336
            + 4 * 4096 + 32000 * 4096,
        ),
        (
            EAGLE3 | {"architectures": ["EagleLlamaForCausalLM"], "draft_vocab_size": None},
            "eagle",
            2 * 4096 * 4096 + 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336 + 4096,
        ),
        (
            {
                "model_type": "medusa", "medusa_num_heads": 5, "medusa_num_layers": 1,
                "hidden_size": 4096, "vocab_size": 32000,
            },
            "medusa",
            5 * (4096 * 4096 + 4096 + 32000 * 4096),
        ),
        (
            {
                "model_type": "mlp_speculator", "emb_dim": 4096, "inner_dim": 3072,
                "n_predict": 4, "vocab_size": 128256, "tie_weights": False,
            },
            "mlp_speculator",
            4 * 2 * 128256 * 3072 + 4096 * 3072 + 3 * 3072 * 3072 + 4 * 2 * 3072,
        ),
        (
            {
                "model_type": "mlp_speculator", "emb_dim": 4096, "inner_dim": 3072,
                "n_predict": 4, "vocab_size": 128256, "tie_weights": True,
            },
            "mlp_speculator",
            2 * 128256 * 3072 + 4096 * 3072 + 3072 * 3072 + 2 * 3072,
        ),
    ],
    ids=["EAGLE-3", "EAGLE", "Medusa", "MLP speculator", "MLP speculator, tied"],
)  # fmt: skip
def test_heads_are_what_their_config_says(config: dict[str, Any], kind: str, expected: int) -> None:
    """Without the target's embedding, which they use as it is."""
    assert architecture.read(config, "here").draft_kind == kind
    assert counted(config).total == expected


def test_an_eagle_head_is_as_large_as_its_file() -> None:
    assert 2 * counted(EAGLE3).total / 1e6 == pytest.approx(850, rel=0.01)

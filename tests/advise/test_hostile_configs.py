"""Whatever a ``config.json`` says, there is advice, or an error that names the key."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from specwatch.advise.advise import Request, advise
from specwatch.advise.asked import Asked, Hints
from specwatch.advise.candidate import Candidate, of_folder
from specwatch.advise.methods import KNOWN
from specwatch.advise.model import Advice
from specwatch.advise.model_files import ModelFolder
from specwatch.errors import ConfigError
from tests.advise.published import MODELS
from tests.advise.test_methods import EAGLE, EAGLE3, MEDUSA

SPECULATOR = {
    "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"],
    "emb_dim": 4096, "inner_dim": 4096, "n_predict": 3, "vocab_size": 128256,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: each.config | {"num_hidden_layers": 4} for name, each in MODELS.items()},
    "eagle": EAGLE, "eagle3": EAGLE3, "medusa": MEDUSA, "mlp_speculator": SPECULATOR,
}  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 3.0, 1e300, 10**400, 1 << 40, (1 << 40) + 1, float("nan"),
    float("inf"), float("-inf"), "", "x", "\ud800x", "64", [], [0], ["x"], [None] * 200, {},
    {"x": 1}, [[]], 7, 1024, 8192,
)  # fmt: skip
KEYS = tuple(sorted(
    {key for config in CONFIGS.values() for key in config}
    | {
        "architectures", "block_size", "compression_config", "decoder_sparse_step",
        "draft_vocab_size",
        "ffn_dim", "first_k_dense_replace", "head_dim", "kv_lora_rank", "layer_types",
        "linear_num_key_heads", "llm_config", "mamba_ssm_dtype", "medusa_num_layers",
        "mlp_only_layers", "moe_layer_freq", "multi_query", "n_inner", "num_heads",
        "num_kv_shared_layers", "qk_nope_head_dim", "quantization_config", "sliding_window_pattern",
        "speculators_model_type", "target_hidden_size", "text_config", "tie_weights",
        "transformer_layer_config", "use_bias", "v_head_dim", "word_embed_proj_dim",
    }
))  # fmt: skip
PLAIN = "Llama-3.1-8B"


def folder(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelFolder:
    return ModelFolder(
        name="m", where="m", kind="folder", config=config, generation_config=generation,
        weights=None, tokenizer=None, vocabulary_size=None,
    )  # fmt: skip


def candidate(config: dict[str, Any], **generation: Any) -> Candidate:
    return of_folder(folder(config, generation), name="org/m-8B")


def advised(target: Candidate, draft: Candidate | None, method: str | None) -> Advice:
    return advise(
        Request(
            version="1",
            asked=Asked(target="m", draft=None if draft is None else "d", method=method, gpus=2),
            hints=Hints(concurrency=4),
            target=target,
            draft=draft,
            gpus=2,
            gpu_memory=80 * 10**9,
        )
    )


def survives(config: dict[str, Any], method: str | None) -> bool:
    """Whether there is advice; an error of ours is as good, and any other fails."""
    plain = candidate(CONFIGS[PLAIN])
    try:
        changed = candidate(config)
        for found in (advised(changed, plain, method), advised(plain, changed, method)):
            assert found.findings
    except ConfigError:
        return False
    return True


def test_each_key_of_each_model_may_be_anything() -> None:
    chance = random.Random(8)
    every = list(itertools.product(CONFIGS.items(), KEYS, HOSTILE))
    advice = errors = 0
    for (name, config), key, value in chance.sample(every, 400):
        method = chance.choice([None, *KNOWN])
        try:
            told = survives({**config, key: value}, method)
        except Exception as error:
            raise AssertionError(f"{name}: {key} = {value!r:.40}, {method}") from error
        advice, errors = advice + told, errors + (not told)
    assert advice > 40
    assert errors > 40


def test_several_keys_at_once_and_inside_of_others() -> None:
    chance = random.Random(9)
    for _ in range(150):
        name, config = chance.choice(list(CONFIGS.items()))
        changes = {chance.choice(KEYS): chance.choice(HOSTILE) for _ in range(3)}
        inner = {chance.choice(KEYS): chance.choice(HOSTILE)}
        part = {"text_config": config | inner}
        changes |= chance.choice([{}, part, {"quantization_config": inner}])
        try:
            survives({**config, **changes}, chance.choice([None, *KNOWN]))
        except Exception as error:
            raise AssertionError(f"{name}: {changes!r:.300}") from error


NAMED = {
    "a width that is no number": ({"intermediate_size": float("nan")}, "intermediate_size is nan"),
    "an endless width": ({"intermediate_size": float("inf")}, "intermediate_size is inf"),
    "layers of words": ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": "x"},
                        "mlp_only_layers is 'x': expected a list"),
    "a head of words": ({"head_dim": "x"}, "head_dim is 'x'"),
    "a head for each layer": ({"head_dim": [64, 64]}, r"head_dim is \[64, 64\]"),
    "an endless head": ({"head_dim": float("inf")}, "head_dim is inf"),
    "heads of no width": ({"num_attention_heads": 8192, "num_key_value_heads": 8192},
                          "num_attention_heads is 8192, above hidden_size, 4096"),
    "no Medusa heads": ({"medusa_num_heads": 0}, "medusa_num_heads is 0"),
    "endless Medusa heads": ({"medusa_num_heads": 1e300}, "medusa_num_heads is 1e"),
    "many Medusa heads": ({"medusa_num_heads": 10**9}, "at least 1 and at most 1024"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), NAMED.values(), ids=NAMED.keys())
def test_what_cannot_be_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^m: .*{said}"):
        candidate({**CONFIGS[PLAIN], **changes})


@pytest.mark.parametrize(
    "temperature",
    [10**400, float("nan"), float("inf"), -1, "hot", [1]],
    ids=["huge", "nan", "inf", "negative", "words", "a list"],
)
def test_a_temperature_that_is_none_is_passed_over(temperature: object) -> None:
    target = candidate(CONFIGS[PLAIN], temperature=temperature)
    found = advised(target, None, "ngram")
    assert not any("temperature" in each.text for each in found.findings)


def test_classes_that_are_no_list_are_none() -> None:
    head = candidate({**EAGLE, "architectures": -1})
    assert advised(candidate(CONFIGS[PLAIN]), head, "eagle").method == "eagle"

"""Configurations of models in which any value stands where another is expected."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Advice, ServerPlan, Traffic
from specwatch.lab.advise.advise import AdviceRequest, advise
from specwatch.lab.advise.candidate import Candidate, from_files
from specwatch.lab.advise.methods import KNOWN
from specwatch.lab.advise.model_files import ModelFiles
from tests.advise.models import EAGLE, EAGLE3, LLAMA, MEDUSA, MODELS

SPECULATOR = {
    "model_type": "mlp_speculator",
    "architectures": ["MLPSpeculatorPreTrainedModel"],
    "emb_dim": 4096,
    "inner_dim": 3072,
    "n_predict": 4,
    "vocab_size": 128256,
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: model.config | {"num_hidden_layers": 4} for name, model in MODELS.items()},
    "eagle": EAGLE,
    "eagle3": EAGLE3,
    "medusa": MEDUSA,
    "mlp_speculator": SPECULATOR,
}
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    3.0,
    1e300,
    10**400,
    1 << 40,
    (1 << 40) + 1,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "\ud800x",
    "64",
    [],
    [0],
    ["x"],
    [None] * 200,
    {},
    {"x": 1},
    [[]],
    7,
    1024,
    8192,
)
KEYS = tuple(
    sorted(
        {key for config in CONFIGS.values() for key in config}
        | {
            "architectures",
            "block_size",
            "compression_config",
            "decoder_sparse_step",
            "draft_vocab_size",
            "ffn_dim",
            "first_k_dense_replace",
            "head_dim",
            "kv_lora_rank",
            "layer_types",
            "linear_num_key_heads",
            "llm_config",
            "mamba_ssm_dtype",
            "medusa_num_layers",
            "mlp_only_layers",
            "moe_layer_freq",
            "multi_query",
            "n_inner",
            "num_heads",
            "num_kv_shared_layers",
            "qk_nope_head_dim",
            "quantization_config",
            "sliding_window_pattern",
            "speculators_model_type",
            "target_hidden_size",
            "text_config",
            "tie_weights",
            "transformer_layer_config",
            "v_head_dim",
            "word_embed_proj_dim",
        }
    )
)


def made(config: dict[str, Any], **generation: Any) -> Candidate:
    files = ModelFiles(name="m", where="m", config=config, generation_config=generation)
    return from_files(files, name="org/m-8B")


def advised(target: Candidate, draft: Candidate | None, method: str | None) -> Advice:
    plan = ServerPlan(target="m", draft=None if draft is None else "d", method=method, gpus=2)
    return advise(
        AdviceRequest(
            version="1",
            plan=plan,
            traffic=Traffic(concurrency=4),
            target=target,
            draft=draft,
            gpus=2,
            gpu_memory=80 * 10**9,
        )
    )


def gives_advice(config: dict[str, Any], method: str | None) -> bool:
    """Whether there is advice; a ConfigError is as good, and any other error fails the test."""
    plain = made(LLAMA)
    try:
        changed = made(config)
        for advice in (advised(changed, plain, method), advised(plain, changed, method)):
            assert advice.findings
    except ConfigError:
        return False
    except Exception as error:
        raise AssertionError(f"{config!r:.2000}, {method}") from error
    return True


def advice_with_one_other_value(count: int, seed: int) -> Counter[bool]:
    """How often there was advice, and how often a refusal."""
    chance = random.Random(seed)
    every = list(itertools.product(CONFIGS.values(), KEYS, HOSTILE))
    return Counter(
        gives_advice({**config, key: value}, chance.choice([None, *KNOWN]))
        for config, key, value in chance.sample(every, count)
    )


def advise_with_several_other_values(count: int, seed: int) -> None:
    """Three keys of the configuration, and others in parts of it."""
    chance = random.Random(seed)
    for _ in range(count):
        config = chance.choice(list(CONFIGS.values()))
        changes = {chance.choice(KEYS): chance.choice(HOSTILE) for _ in range(3)}
        inner = {chance.choice(KEYS): chance.choice(HOSTILE)}
        part = {"text_config": config | inner}
        changes |= chance.choice([{}, part, {"quantization_config": inner}])
        gives_advice({**config, **changes}, chance.choice([None, *KNOWN]))

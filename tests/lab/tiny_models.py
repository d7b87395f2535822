"""Build tiny Llama checkpoints that a CPU vLLM can serve: ``python tiny_models.py FOLDER``.

=========== ==================================================================================
target      a random model of 4 layers and 2048 tokens, bfloat16, 7 MB
draft-good  the target with noise on its output weights: acceptance is about 0.8 at temperature 0
            and falls to about 0.3 at 1.2, the shape that real pairs show
draft-bad   another random model with the same tokenizer: acceptance near 0
adapter-one, adapter-two
            random LoRA adapters of the target, which draft-good does not know
=========== ==================================================================================

Runs in the environment that serves them: needs torch, transformers, tokenizers and safetensors.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

LOGIT_SCALE = 2.5
"""How peaked the target is: sets how fast acceptance falls with temperature."""

GOOD_NOISE = 0.05
"""Noise on the good draft, in standard deviations of its weights: sets acceptance at 0."""

LORA_RANK = 8
LORA_WEIGHT = 0.05
"""Standard deviation of an adapter's weights."""

CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def corpus() -> Iterator[str]:
    """Some text that is on every machine: the sources of Python's own library."""
    for path in sorted(Path(os.__file__).parent.glob("*.py"))[:80]:
        yield path.read_text(errors="ignore")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 2048 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A random model; the same seed gives the same weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data *= LOGIT_SCALE
    return model


def blur(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model with noise on its output weights."""
    weight = model.lm_head.weight.data
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    weight += GOOD_NOISE * weight.std() * noise
    return model


def write_adapter(model: LlamaForCausalLM, folder: Path, seed: int) -> None:
    """A random LoRA adapter of the model's queries and values."""
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    names = [f"model.layers.{layer}.self_attn" for layer in range(model.config.num_hidden_layers)]
    weights = {
        f"base_model.model.{name}.{part}.{side}.weight": LORA_WEIGHT
        * torch.randn(shape, generator=generator)
        for name in names
        for part in ("q_proj", "v_proj")
        for side, shape in (("lora_A", (LORA_RANK, width)), ("lora_B", (width, LORA_RANK)))
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "r": LORA_RANK,
        "lora_alpha": 2 * LORA_RANK,
        "target_modules": ["q_proj", "v_proj"],
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main(folder: Path) -> None:
    """Write the checkpoints and the adapters into ``folder``."""
    logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    vocabulary = len(tokenizer)
    checkpoints = {
        "target": build_model(vocabulary, seed=0),
        "draft-good": blur(build_model(vocabulary, seed=0)),
        "draft-bad": build_model(vocabulary, seed=7),
    }
    for name, model in checkpoints.items():
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for seed, name in enumerate(("adapter-one", "adapter-two")):
        write_adapter(checkpoints["target"], folder / name, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The KV cache of a token and of a request, and how vLLM allots it in blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.advise import architecture
from specwatch.advise.block_pool import Part, Pool, pool_of
from specwatch.advise.kv_cache import bytes_of_request, bytes_per_token
from tests.advise.published import shape

KIB = 1024
GIB = 2**30

PER_TOKEN = {
    "MHA: 2 x 32 layers x 32 heads x 128 x 2 bytes": ("Llama-2-7b-hf", 512 * KIB),
    "GQA: 8 heads of 32": ("Llama-3.1-8B", 128 * KIB),
    "GQA: 80 layers": ("Llama-3.1-70B", 320 * KIB),
    "GQA: 2 heads of 64": ("Qwen2.5-0.5B", 12 * KIB),
    "heads that are wider than hidden size / heads": ("Qwen3-0.6B", 112 * KIB),
    "MLA: 61 layers x (512 + 64) x 2 bytes": ("DeepSeek-V3", 61 * 576 * 2),
    "MLA of 27 layers": ("DeepSeek-V2-Lite", 27 * 576 * 2),
    "half of the layers have a window": ("gpt-oss-20b", 12 * 2 * 8 * 64 * 2),
    "one of six layers has none": ("gemma-3-1b-it", 4 * 2 * 256 * 2),
    "one of four layers has attention": ("Qwen3-Next-80B-A3B-Instruct", 12 * 2 * 2 * 256 * 2),
    "all layers have a window, as long as it is not full": ("Mistral-7B-v0.1", 128 * KIB),
}


@pytest.mark.parametrize(("name", "expected"), PER_TOKEN.values(), ids=PER_TOKEN)
def test_bytes_of_a_token(name: str, expected: int) -> None:
    assert bytes_per_token(shape(name)) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "share"),
    [
        ("Llama-3.1-8B", 4, 1 / 4),
        ("Llama-3.1-8B", 8, 1 / 8),
        ("Llama-3.1-8B", 16, 1 / 8),  # 8 heads: each is on two GPUs
        ("Qwen2.5-0.5B", 4, 1 / 2),
        ("gemma-3-1b-it", 2, 1),
        ("DeepSeek-V3", 8, 1),  # one entry for all heads
    ],
)
def test_heads_are_divided_among_gpus_and_no_further(name: str, gpus: int, share: float) -> None:
    model = shape(name)
    assert bytes_per_token(model, tensor_parallel=gpus) == bytes_per_token(model) * share


def test_fp8_halves_it() -> None:
    for name in ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b"):
        model = shape(name)
        assert bytes_per_token(model, kv_bits=8) == bytes_per_token(model) / 2


def test_a_window_bounds_a_request() -> None:
    mistral = shape("Mistral-7B-v0.1")
    full = bytes_of_request(mistral, 4096)
    assert full == 4096 * 128 * KIB
    assert bytes_of_request(mistral, 32768) == full
    assert bytes_of_request(mistral, 1000) == 1000 * 128 * KIB


def test_beside_windows_other_layers_keep_all() -> None:
    layer = 2 * 8 * 64 * 2
    found = bytes_of_request(shape("gpt-oss-20b"), 10_000)
    assert found == 12 * layer * 10_000 + 12 * layer * 128


def test_linear_attention_keeps_a_state_whatever_the_length() -> None:
    """Qwen3-Next: 36 layers of 32 x 128 x 128 elements, and 8192 x 3 of the convolution."""
    model = shape("Qwen3-Next-80B-A3B-Instruct")
    state = 36 * (32 * 128 * 128 + 8192 * 3) * 2
    assert bytes_of_request(model, 0) == state
    assert bytes_of_request(model, 1000) == state + 1000 * bytes_per_token(model)
    assert bytes_of_request(model, 0, tensor_parallel=2) == state / 2


TINY = {
    "model_type": "llama", "hidden_size": 128, "vocab_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
GEMMA = TINY | {"head_dim": 32, "sliding_window": 256}
MEASURED = {
    "GQA and a draft with more heads": (
        TINY, TINY | {"num_hidden_layers": 2, "num_key_value_heads": 4}, 128, 16384,
    ),
    "windows everywhere": (
        TINY | {"model_type": "mistral", "sliding_window": 512}, None, 256, 30840,
    ),
    "13 layers, 2 of them without a window": (
        GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 13, "num_key_value_heads": 1},
        None, 1024, 17772,
    ),
    "5 layers, every second without a window": (
        GEMMA | {"model_type": "gemma2", "num_hidden_layers": 5}, None, 512, 20971,
    ),
    "13 layers with windows, and a draft of larger pages": (
        GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 13, "num_key_value_heads": 1},
        TINY | {"num_hidden_layers": 2, "num_key_value_heads": 4}, 256, 10485,
    ),
    "8 layers, 6 of them of linear attention": (
        TINY | {
            "model_type": "qwen3_next", "num_hidden_layers": 8, "head_dim": 64,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
            "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        },
        None, 256, 27594,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("target", "draft", "blocks", "tokens"), MEASURED.values(), ids=MEASURED)
def test_blocks_and_tokens_are_those_that_vllm_reports(
    target: dict[str, object], draft: dict[str, object] | None, blocks: int, tokens: int
) -> None:
    """Told by vLLM 0.32 on a CPU of such models with random weights, in float32.

    64 MiB for the cache, blocks of 128 tokens, requests and batches of 2048 tokens.
    """
    shapes = [architecture.read(each, "here") for each in (target, draft) if each is not None]
    pool = pool_of([Part(each) for each in shapes], kv_bits=32, block=128)
    assert pool.blocks(64 * 2**20) == blocks
    assert pool.capacity(64 * 2**20, 2048, in_flight=2048) == tokens


def test_blocks_of_mla_are_those_that_vllm_reports() -> None:
    """As above, in bfloat16: 3 layers of 576 elements a token."""
    config = TINY | {
        "model_type": "deepseek_v2", "num_hidden_layers": 3, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    pool = pool_of([Part(architecture.read(config, "here"))], block=128)
    assert pool.blocks(64 * 2**20) == 151
    assert pool.capacity(64 * 2**20, 2048) == 19328


def test_a_block_holds_what_all_layers_keep_of_16_tokens() -> None:
    pool = pool_of([Part(shape("Llama-3.1-8B"))])
    assert pool.block_bytes == 16 * 128 * KIB
    assert pool.blocks(10 * GIB) == 5120
    assert pool.capacity(10 * GIB, 8192) == 81920
    # One block of the pool belongs to nobody.
    assert pool.requests(10 * GIB, 8192) == 9
    assert pool.requests(10 * GIB + pool.block_bytes, 8192) == 10


def test_layers_of_a_draft_are_layers_of_the_pool() -> None:
    """Whatever their shape: they keep the same tokens as their target's."""
    target, draft = shape("Llama-3.1-70B"), shape("Llama-3.1-8B")
    both = pool_of([Part(target, 4), Part(draft, 1)])
    assert both.block_bytes == 16 * (320 * KIB // 4 + 128 * KIB)


def test_a_window_needs_a_block_more_than_it_is_long() -> None:
    pool = pool_of([Part(shape("gpt-oss-20b"))])
    # 10,000 tokens in 625 blocks; a window of 128 in 8, which may begin inside of a block.
    assert pool.blocks_of_request(10_000) == 625 + 8 + 1


def test_nearly_as_many_layers_of_one_kind_are_padded_to_the_other() -> None:
    """vLLM's example: 12 layers of gpt-oss 20B, and 13 with a draft's: two groups, not three."""
    draft = architecture.read(
        TINY | {"num_hidden_layers": 1, "num_key_value_heads": 8, "head_dim": 64}, "here"
    )
    pool = pool_of([Part(shape("gpt-oss-20b")), Part(draft)])
    assert [(each.kind, each.layers) for each in pool.groups] == [("sliding", 12), ("full", 13)]
    assert pool.block_bytes == 13 * 16 * 2 * 8 * 64 * 2


def test_smaller_pages_get_more_tokens() -> None:
    """A draft of half the width beside windows: 32 of its tokens are as large as 16 of theirs."""
    draft = architecture.read(
        TINY | {"num_hidden_layers": 12, "num_key_value_heads": 4, "head_dim": 64}, "here"
    )
    pool = pool_of([Part(shape("gpt-oss-20b")), Part(draft)])
    assert [(each.kind, each.tokens) for each in pool.groups] == [
        ("sliding", 16), ("full", 16), ("full", 32),
    ]  # fmt: skip


def test_blocks_grow_until_one_holds_the_state_of_a_linear_layer() -> None:
    pool = pool_of([Part(shape("Qwen3-Next-80B-A3B-Instruct"))])
    token, state = 2 * 2 * 256 * 2, (32 * 128 * 128 + 8192 * 3) * 2
    assert pool.groups[-1].tokens == 544
    assert (544 - 16) * token < state <= 544 * token
    # Three groups of states, a block each, and the attention layers.
    assert pool.blocks_of_request(5440) == 3 + 10


def test_what_keeps_nothing_takes_nothing() -> None:
    heads = architecture.read({"model_type": "medusa", "hidden_size": 8, "vocab_size": 8}, "here")
    assert pool_of([Part(heads)]) == Pool(0, ())
    assert Pool(0, ()).capacity(GIB, 100) == Pool(0, ()).requests(GIB, 100) == 0
    assert bytes_per_token(heads) == 0


def test_memory_that_is_not_there_has_no_blocks() -> None:
    pool = pool_of([Part(shape("Llama-3.1-8B"))])
    assert pool.blocks(-5) == pool.requests(-5, 10) == pool.requests(pool.block_bytes, 10) == 0


def test_layers_that_read_the_cache_of_others_have_none() -> None:
    """Gemma 3n."""
    config = GEMMA | {"num_hidden_layers": 10, "num_kv_shared_layers": 4, "sliding_window": None}
    shared = architecture.read(config, "here")
    own = replace(shared, layers=shared.layers[:6])
    assert bytes_per_token(shared) == bytes_per_token(own) == 6 * 2 * 2 * 32 * 2

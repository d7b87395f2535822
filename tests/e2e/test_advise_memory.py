"""The KV cache that advice reckons with is the one that a real vLLM allots, block for block."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specwatch.advise import architecture
from specwatch.advise.block_pool import Part, pool_of
from specwatch.advise.memory import Footprint, plan
from tests.lab.vllm_server import VllmServer

SPACE = 2**30
"""Bytes that ``serve_vllm.sh`` gives the KV cache; it serves in float32."""
CONTEXT = 1024
BLOCK = 128
"""Tokens in a block on CPUs."""


def footprint(models: Path, name: str) -> Footprint:
    folder = models / name
    config = json.loads((folder / "config.json").read_text())
    stored = (folder / "model.safetensors").stat().st_size
    return Footprint(architecture.read(config, str(folder)), 2 * stored)


def reported(server: VllmServer) -> dict[str, str]:
    """What vLLM itself says of its cache on its page."""
    (line,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1", server.metrics(), re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', line))


@pytest.fixture
def said(request: pytest.FixtureRequest, server: str) -> dict[str, str]:
    found: VllmServer = request.getfixturevalue(server)
    return reported(found)


@pytest.mark.parametrize(
    ("server", "draft"), [("plain_server", None), ("good_server", "draft-good")]
)
def test_blocks_and_tokens_are_those_of_the_server(
    said: dict[str, str], draft: str | None, tiny_models: Path
) -> None:
    target = footprint(tiny_models, "target")
    theirs = None if draft is None else footprint(tiny_models, draft)
    models = [each for each in (target, theirs) if each is not None]
    parts = [Part(each.architecture) for each in models]
    pool = pool_of(parts, kv_bits=32, block=BLOCK)
    assert int(said["block_size"]) == BLOCK
    assert int(said["kv_cache_memory_bytes"]) == SPACE
    assert pool.blocks(SPACE) == int(said["num_gpu_blocks"])
    assert pool.capacity(SPACE, CONTEXT) == int(said["kv_cache_size_tokens"])
    memory, _ = plan(
        target,
        theirs,
        gpus=1,
        gpu_memory=SPACE + sum(each.weights for each in models),
        context=CONTEXT,
        utilization=1.0,
        kv_bits=32,
        reserved=0,
    )
    assert memory.kv_with == SPACE
    assert memory.tokens_with == int(said["kv_cache_size_tokens"])
    # One block of the pool belongs to nobody, so one request less fits than vLLM's figure says.
    assert memory.requests_with == int(float(said["kv_cache_max_concurrency"])) - 1

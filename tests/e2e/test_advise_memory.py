"""The KV cache that advise plans is the one that a real vLLM allots."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specwatch.advise.architecture import read_architecture
from specwatch.advise.memory import Footprint, plan_memory
from tests.lab.vllm_server import VllmServer

SPACE = 2**30
"""Bytes that ``serve_vllm.sh`` gives the KV cache; it serves in float32."""
CONTEXT = 1024


def footprint(models: Path, name: str) -> Footprint:
    folder = models / name
    config = json.loads((folder / "config.json").read_text())
    stored = (folder / "model.safetensors").stat().st_size
    model = read_architecture(config, str(folder))
    return Footprint(2 * stored, model.layers, model.kv_heads)


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
def test_tokens_and_requests_are_those_of_the_server(
    said: dict[str, str], draft: str | None, tiny_models: Path
) -> None:
    target = footprint(tiny_models, "target")
    theirs = None if draft is None else footprint(tiny_models, draft)
    models = [model for model in (target, theirs) if model is not None]
    assert int(said["kv_cache_memory_bytes"]) == SPACE
    memory, _ = plan_memory(
        target,
        theirs,
        gpus=1,
        gpu_memory=SPACE + sum(model.weights or 0 for model in models),
        context=CONTEXT,
        utilization=1.0,
        kv_bits=32,
        reserved=0,
    )
    assert memory.kv_with == SPACE
    assert memory.tokens_with == pytest.approx(int(said["kv_cache_size_tokens"]), rel=0.1)
    concurrency = float(said["kv_cache_max_concurrency"])
    assert memory.requests_with == pytest.approx(concurrency, rel=0.1)

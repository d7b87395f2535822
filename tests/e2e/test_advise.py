"""The real vLLM refuses what ``specwatch advise`` calls wrong; it may refuse more.

vLLM's own parser and configuration judge the same command lines, with the lab's tiny models. The KV
cache that advise plans is the one that a real vLLM allots.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.cli.advise_models import LocalModels
from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Advice, Traffic
from specwatch.lab.advise.advise import AdviceRequest, advise
from specwatch.lab.advise.architecture import read_architecture
from specwatch.lab.advise.memory import Footprint, plan_memory
from specwatch.lab.advise.methods import KEYS
from specwatch.lab.advise.vllm_command import read_vllm_command
from specwatch.vllm_cli.flags import FLAGS, resolve
from tests.e2e.oracle import Oracle
from tests.lab.vllm_server import KV_CACHE_BYTES, VllmServer

LINES = 200
Words = list[str]


@pytest.fixture(scope="module")
def oracle(vllm_install: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    log = tmp_path_factory.mktemp("oracle") / "log"
    with Oracle(vllm_install, "configurations.py", log) as oracle:
        yield oracle


def advised(words: Words) -> Advice:
    """What advise says of ``vllm serve WORDS``, as its command does."""
    models = LocalModels({}, strict=False)
    plan = read_vllm_command(["vllm", "serve", *words])
    target = models.target(plan)
    draft = models.draft(plan, plan.method)
    return advise(
        AdviceRequest(version="", plan=plan, traffic=Traffic(), target=target, draft=draft)
    )


def structural(found: Advice) -> list[str]:
    """What is wrong by the rules of vLLM's configuration, not by what it would be worth."""
    return [
        finding.text
        for finding in found.findings
        if finding.level == "wrong" and ("vLLM 0.32" in finding.source or finding.topic == "method")
    ]


def test_valid_command_lines_mean_the_same_to_vllm(oracle: Oracle, tiny_models: Path) -> None:
    """Method and number of draft tokens are those that vLLM ends up with."""
    target, draft = str(tiny_models / "target"), str(tiny_models / "draft-good")
    for words in (
        [target, *config(model=draft, num_speculative_tokens=3)],
        [target, "-tp", "2", *config(model=draft, num_speculative_tokens="4")],
        [target, *config(method="ngram", num_speculative_tokens=5)],
        [target, *config(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4)],
        [target, *config(method="ngram_gpu", num_speculative_tokens=2), "--async-scheduling"],
        [target, *config(model="[ngram]", num_speculative_tokens=5)],
        [target, "--spec-method", "ngram", "--spec-tok", "3", "--max-model-len", "2k"],
        [
            target,
            "--speculative-config.method",
            "ngram",
            "--speculative-config.num-speculative-tokens=3",
        ],
        [target, "--specul.model", draft, "--specul.num_speculative_tokens", "2"],
        [target, *config(model=draft, num_speculative_tokens=3, use_heterogeneous_vocab=True)],
    ):
        found, taken = advised(words), oracle.ask(words)
        assert structural(found) == [], words
        assert taken == {"refused": None, "method": found.method, "k": found.k}, words


def config(**keys: Any) -> Words:
    return ["--speculative-config", json.dumps(keys)]


def test_vllm_refuses_what_advise_calls_wrong(
    oracle: Oracle, tiny_models: Path, tmp_path: Path
) -> None:
    target, draft = str(tiny_models / "target"), str(tiny_models / "draft-good")
    other = another(Path(draft), tmp_path / "other", vocab_size=2049)
    for words in (
        [target, *config(method="medusa", num_speculative_tokens=3)],
        [target, *config(method="eagle3", num_speculative_tokens=3)],
        [target, *config(num_speculative_tokens=3)],
        [target, *config(model=other, num_speculative_tokens=3)],
    ):
        found, taken = advised(words), oracle.ask(words)
        assert taken["refused"], words
        assert structural(found), (words, taken)
        assert not found.sound


def another(model: Path, folder: Path, **changes: Any) -> str:
    """The model with another configuration; its weights are not looked at."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    said = json.loads((model / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(said))
    return str(folder)


def test_the_keys_of_a_configuration_are_those_of_vllm(vllm_install: Path) -> None:
    (file,) = vllm_install.glob("lib/python3*/site-packages/vllm/config/speculative.py")
    (made,) = (
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    )
    fields = {
        node.target.id
        for node in made.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert fields == KEYS


def test_vllm_refuses_random_lines_that_advise_calls_wrong(
    oracle: Oracle, tiny_models: Path
) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(LINES):
        words = random_line(random.Random(number), tiny_models)
        taken = oracle.ask(words)["refused"]
        try:
            wrong = structural(advised(words))
        except ConfigError as error:
            wrong = [str(error)]
        assert taken or not wrong, (number, words, wrong)
        outcomes["wrong" if wrong else "left to vLLM" if taken else "taken"] += 1
    # Most of what vLLM refuses it says itself at start; advise has what concerns the pairing.
    assert outcomes["wrong"] > 0, outcomes
    assert outcomes["taken"] > LINES / 10, outcomes


VALUES: dict[str, tuple[Any, ...]] = {
    "draft_tensor_parallel_size": (1, 2, 4),
    "tensor_parallel_size": (1,),
    "max_model_len": (64, 4096, 5000),
    "prompt_lookup_max": (2, 5),
    "prompt_lookup_min": (1, 4),
    "use_heterogeneous_vocab": (True, False),
    "draft_sample_method": ("greedy", "probabilistic"),
    "disable_by_batch_size": (8,),
    "quantisation": ("fp8",),
    "enforce_eager": (True,),
    "num_speculative_tokens_per_batch_size": ([[1, 8, 3], [9, 64, 0]],),
    "revision": ("main",),
}


def random_line(chance: random.Random, models: Path) -> Words:
    keys: dict[str, Any] = {}
    method = chance.choice(
        (None, None, "ngram", "ngram", "ngram_gpu", "draft_model", "mtp", "nope")
    )
    if method is not None:
        keys["method"] = method
    if method in (None, "draft_model") and chance.random() < 0.9:
        keys["model"] = str(models / chance.choice(("draft-good", "draft-bad")))
    if chance.random() < 0.85:
        keys["num_speculative_tokens"] = chance.choice((1, 3, 5, "4", 0, 16))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        name = chance.choice(list(VALUES))
        keys[name] = chance.choice(VALUES[name])
    words = [str(models / "target")]
    if chance.random() < 0.3:
        words += ["-tp", chance.choice(("1", "2", "4", "3"))]
    if chance.random() < 0.2:
        words += [chance.choice(("--async-scheduling", "--no-async-scheduling"))]
    if chance.random() < 0.3:
        words += ["--max-model-len", chance.choice(("1k", "2048", "4K"))]
    return words + config(**keys)


def test_abbreviations_are_those_that_vllm_takes(oracle: Oracle) -> None:
    names = [
        "--tensor-parallel-size",
        "--max-model-len",
        "--max-num-seqs",
        "--quantization",
        "--gpu-memory-utilization",
        "--kv-cache-dtype",
        "--spec-model",
        "--port",
    ]
    for name, shortest in oracle.ask({"flags": names}).items():
        assert resolve(shortest) is FLAGS[name]
        shorter = None if shortest == name else resolve(shortest[:-1])
        assert shorter is not FLAGS[name]


CONTEXT = 1024


@pytest.fixture
def kv_cache(request: pytest.FixtureRequest, server: str) -> dict[str, str]:
    """What vLLM itself reports of its KV cache on its page."""
    running: VllmServer = request.getfixturevalue(server)
    (line,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1", running.metrics(), re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', line))


def footprint(models: Path, name: str) -> Footprint:
    folder = models / name
    config = json.loads((folder / "config.json").read_text())
    stored = (folder / "model.safetensors").stat().st_size
    model = read_architecture(config, str(folder))
    return Footprint(2 * stored, model.layers, model.kv_heads)


@pytest.mark.parametrize(
    ("server", "draft"), [("plain_server", None), ("good_server", "draft-good")]
)
def test_the_planned_cache_is_the_one_that_the_server_allots(
    kv_cache: dict[str, str], draft: str | None, tiny_models: Path
) -> None:
    target = footprint(tiny_models, "target")
    theirs = None if draft is None else footprint(tiny_models, draft)
    models = [model for model in (target, theirs) if model is not None]
    assert int(kv_cache["kv_cache_memory_bytes"]) == KV_CACHE_BYTES
    weights = sum(model.weights or 0 for model in models)
    memory, _ = plan_memory(
        target,
        theirs,
        gpus=1,
        gpu_memory=KV_CACHE_BYTES + weights,
        context=CONTEXT,
        utilization=1.0,
        kv_bits=32,
        reserved=0,
    )
    assert memory.kv_with == KV_CACHE_BYTES
    assert memory.tokens_with == pytest.approx(int(kv_cache["kv_cache_size_tokens"]), rel=0.1)
    concurrency = float(kv_cache["kv_cache_max_concurrency"])
    assert memory.requests_with == pytest.approx(concurrency, rel=0.1)

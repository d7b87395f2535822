"""Deep standby, on a model runner and a scheduler with what it needs of those of vLLM 0.32."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from specwatch.engines.switch import EXTENSION

RUNNER = "vllm.v1.worker.gpu_model_runner"


class EagleProposer:
    def prepare_next_token_ids_padded(
        self, sampled_token_ids: Any, requests: Any, gpu_input_batch: Any, discard_request_mask: Any
    ) -> tuple[Any, Any]:
        return ("next", sampled_token_ids), ("counts", requests, gpu_input_batch)


class GPUModelRunner:
    def __init__(self) -> None:
        self.drafter = EagleProposer()
        self.requests, self.input_batch, self.device = "requests", "batch", "cpu"
        self.discard_request_mask = Thing(gpu="mask")
        self._draft_probs: Any = "of the step before"
        self._draft_prob_req_ids: Any = "of the step before"
        self.copied: list[Any] = []

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> Any:
        return f"drafts with {slot_mappings}"

    def _copy_valid_sampled_token_count(
        self, next_token_ids: Any, valid_sampled_tokens_count: Any
    ) -> None:
        self.copied.append((next_token_ids, valid_sampled_tokens_count))


def vllm_module(runner: type = GPUModelRunner, proposer: type = EagleProposer) -> Any:
    """``gpu_model_runner`` with a runner that may be changed."""
    module: Any = ModuleType(RUNNER)
    module.GPUModelRunner = type("GPUModelRunner", (runner,), {})
    module.EagleProposer = proposer
    module.torch = Thing(empty=lambda *shape, **how: (shape, how), int64="int64")
    return module


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads the extension into a process that has such a module of vLLM."""

    def loaded(module: Any) -> Any:
        monkeypatch.setitem(sys.modules, RUNNER, module)
        monkeypatch.delitem(sys.modules, "specwatch.tap.deep", raising=False)
        return importlib.import_module("specwatch.tap.deep")

    return loaded


class Tensor:
    """Sampled tokens of two requests, where they are a tensor."""

    def __len__(self) -> int:
        return 2


def propose(runner: Any, tokens: Any, **mark: Any) -> Any:
    return runner.propose_draft_token_ids(Thing(**mark), tokens, *"abcdef", slot_mappings="slots")


def test_the_runner_drafts_unless_a_step_is_marked(load: Callable[..., Any]) -> None:
    module = vllm_module()
    load(module)
    runner = module.GPUModelRunner()
    assert propose(runner, Tensor()) == "drafts with slots"
    assert (runner.copied, runner._draft_probs) == ([], "of the step before")
    tokens = Tensor()
    skipped = propose(runner, tokens, specwatch_deep=True)
    assert skipped == ((2, 0), {"device": "cpu", "dtype": "int64"})
    assert runner.copied == [(("next", tokens), ("counts", "requests", "batch"))]
    assert (runner._draft_probs, runner._draft_prob_req_ids) == (None, None)


def test_tokens_in_a_list_are_not_prepared(load: Callable[..., Any]) -> None:
    """With ``disable_padded_drafter_batch`` vLLM takes them from there."""
    module = vllm_module()
    load(module)
    runner = module.GPUModelRunner()
    assert propose(runner, [[1], [2], []], specwatch_deep=True)[0] == (3, 0)
    assert runner.copied == []


class OlderProposer:
    def prepare_next_token_ids_padded(self, common_attn_metadata: Any) -> None: ...


class OtherRunner(GPUModelRunner):
    def propose_draft_token_ids(self, scheduler_output: Any) -> Any: ...


class Scheduler:
    """A scheduler whose prefix cache has the hashes ``cached`` by block."""

    def __init__(self) -> None:
        self.blocks = [Thing(block_id=number, block_hash=None) for number in range(4)]
        self.block_pool = Thing(blocks=self.blocks)
        self.kv_cache_manager = self
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.k = 0

    def schedule(self, *_: Any) -> Any:
        return Thing(num_spec_tokens_to_schedule=self.k)

    def evict_blocks(self, block_ids: set[int]) -> None:
        for number in block_ids:
            self.blocks[number].block_hash = None

    def run(self, *names: str) -> None:
        self.running = [Thing(request_id=name) for name in names]
        self.requests = dict.fromkeys(names)

    @property
    def cached(self) -> dict[int, Any]:
        return {b.block_id: b.block_hash for b in self.blocks if b.block_hash is not None}


def configuration(**changes: Any) -> Any:
    values = {"method": "eagle3", "use_v2_model_runner": False, "kv_transfer_config": None}
    values |= changes
    return Thing(speculative_config=Thing(method=values.pop("method")), **values)


@pytest.mark.parametrize(
    ("module", "changes", "why"),
    [
        (vllm_module(), {"use_v2_model_runner": True}, "V2 model runner"),
        (vllm_module(), {"method": "ngram"}, "with ngram no model drafts"),
        (vllm_module(), {"kv_transfer_config": object()}, "a KV connector would keep"),
        (
            vllm_module(OtherRunner), {},
            "GPUModelRunner.propose_draft_token_ids of this vLLM is not that of 0.32",
        ),
        (
            vllm_module(proposer=OlderProposer), {},
            "EagleProposer.prepare_next_token_ids_padded of this vLLM is not that of 0.32",
        ),
        (ModuleType(RUNNER), {}, "GPUModelRunner.propose_draft_token_ids of this vLLM is not"),
        (None, {}, "the model runner cannot be changed"),
    ],
)  # fmt: skip
def test_a_server_without_deep_standby_says_why(
    load: Callable[..., Any], module: Any, changes: dict[str, Any], why: str
) -> None:
    scheduler = Scheduler()
    schedule = scheduler.schedule
    with pytest.raises(ValueError, match=why):
        load(module).DeepStandby(scheduler, configuration(**changes))
    assert scheduler.schedule == schedule


def test_a_scheduler_without_a_prefix_cache_to_clear_has_none(load: Callable[..., Any]) -> None:
    scheduler = Scheduler()
    scheduler.block_pool = Thing()
    with pytest.raises(AttributeError, match="blocks"):
        load(vllm_module()).DeepStandby(scheduler, configuration())


def test_steps_without_draft_tokens_are_marked_while_it_is_ordered(
    load: Callable[..., Any],
) -> None:
    scheduler: Any = Scheduler()
    deep = load(vllm_module()).DeepStandby(scheduler, configuration())

    def marked() -> bool:
        return getattr(scheduler.schedule(False), "specwatch_deep", False)

    assert not marked()
    deep.order(True)
    assert marked()
    scheduler.k = 4  # the launch's schedule holds again, and the order is not read yet
    assert not marked()
    scheduler.k = 0
    deep.order(False)
    assert not marked()


def test_what_was_cached_meanwhile_leaves_the_prefix_cache(load: Callable[..., Any]) -> None:
    """Else the drafts of requests with the same prompt would be rejected, too."""
    scheduler: Any = Scheduler()
    deep = load(vllm_module()).DeepStandby(scheduler, configuration())
    scheduler.blocks[0].block_hash = "before"
    scheduler.blocks[1].block_hash = "before, and filled again"
    deep.order(True)
    scheduler.schedule()
    scheduler.blocks[1].block_hash = "meanwhile"
    scheduler.blocks[2].block_hash = "meanwhile, too"
    scheduler.schedule()
    deep.order(False)
    assert len(scheduler.cached) == 3  # the thread of the switch touches no block
    scheduler.schedule()
    assert scheduler.cached == {0: "before"}
    scheduler.blocks[3].block_hash = "afterwards"
    scheduler.schedule()
    assert scheduler.cached == {0: "before", 3: "afterwards"}


def test_requests_that_were_in_it_are_counted_until_they_finish(load: Callable[..., Any]) -> None:
    scheduler: Any = Scheduler()
    deep = load(vllm_module()).DeepStandby(scheduler, configuration())
    scheduler.run("a", "b")
    assert [deep.order(False), deep.order(True)] == [0, 0]
    assert [deep.order(False), deep.order(False)] == [2, 2]
    scheduler.run("b", "c")
    del scheduler.running[0]  # preempted
    assert [deep.order(False), deep.order(True), deep.order(False)] == [1, 1, 2]
    scheduler.run("d")
    assert deep.order(False) == 0


def test_the_extension_has_the_name_that_vllm_is_given(load: Callable[..., Any]) -> None:
    module, _, name = EXTENSION.rpartition(".")
    assert getattr(load(vllm_module()), name).__module__ == module

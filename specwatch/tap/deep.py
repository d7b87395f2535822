"""Deep standby: vLLM skips the drafter, ``--worker-extension-cls specwatch.tap.deep.Worker``.

At 0 draft tokens the V1 model runner still runs the drafter once a step, so that its KV cache stays
in step (``propose`` in ``vllm/v1/spec_decode/llm_base_proposer.py``). In deep standby it does not:
the scheduler marks the steps, and the runner, in its worker process, passes over the drafter.

What was computed meanwhile is missing in the drafter's KV cache. So the drafts of
requests that were in deep standby are rejected until they finish, and when it ends, blocks that
were filled meanwhile are taken out of the prefix cache.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from specwatch.engines.switch import SKIPPABLE

V2_RUNNER = "vLLM uses its V2 model runner: VLLM_USE_V2_MODEL_RUNNER=0 chooses the other one"
CONNECTOR = "a KV connector would keep what the drafter has not seen"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_PARAMETERS = {
    "GPUModelRunner.propose_draft_token_ids": (
        "self", "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states",
        "sample_hidden_states", "aux_hidden_states", "spec_decode_metadata",
        "common_attn_metadata", "slot_mappings",
    ),
    "GPUModelRunner._copy_valid_sampled_token_count": (
        "self", "next_token_ids", "valid_sampled_tokens_count",
    ),
    "EagleProposer.prepare_next_token_ids_padded": (
        "self", "sampled_token_ids", "requests", "gpu_input_batch", "discard_request_mask",
    ),
}  # fmt: skip
"""What is called of vLLM, as in 0.32; a version that differs has no deep standby."""
_MARK = "specwatch_deep"
"""The attribute of a step's ``SchedulerOutput``; it travels to the workers with it."""


class Worker:
    """An extension of vLLM's worker, which adds nothing: loading this module changes the runner."""


def hook(module: Any) -> str:
    """Let the runner of ``gpu_model_runner`` skip marked steps; returns why not, if it cannot."""
    for name, expected in _PARAMETERS.items():
        kind, _, method = name.partition(".")
        function = getattr(getattr(module, kind, None), method, None)
        parameters = () if function is None else tuple(inspect.signature(function).parameters)
        if parameters != expected:
            return f"{name} of this vLLM is not that of 0.32, for which deep standby was made"
    runner, empty, int64 = module.GPUModelRunner, module.torch.empty, module.torch.int64
    propose = runner.propose_draft_token_ids

    @functools.wraps(propose)
    def skipping(
        self: Any, scheduler_output: Any, sampled_token_ids: Any, *others: Any, **options: Any
    ) -> Any:
        if not getattr(scheduler_output, _MARK, False):
            return propose(self, scheduler_output, sampled_token_ids, *others, **options)
        self._draft_probs = self._draft_prob_req_ids = None
        if not isinstance(sampled_token_ids, list):
            # The next step takes its input tokens from here.
            self._copy_valid_sampled_token_count(
                *self.drafter.prepare_next_token_ids_padded(
                    sampled_token_ids, self.requests, self.input_batch,
                    self.discard_request_mask.gpu,
                )
            )  # fmt: skip
        return empty(len(sampled_token_ids), 0, device=self.device, dtype=int64)

    runner.propose_draft_token_ids = skipping
    return ""


def _hooked() -> str:
    try:
        return hook(importlib.import_module(_RUNNER))
    except Exception as error:  # vLLM goes on without deep standby
        return f"the model runner cannot be changed: {error}"


_HOOK_PROBLEM = _hooked()


class DeepStandby:
    """Marks the steps of one scheduler whose drafter is skipped."""

    def __init__(self, scheduler: Any, vllm_config: Any) -> None:
        """Raises ValueError that says why there is no deep standby with this configuration, and
        AttributeError where the scheduler does not have what is needed."""
        method = vllm_config.speculative_config.method
        if getattr(vllm_config, "use_v2_model_runner", False):
            raise ValueError(V2_RUNNER)
        if method not in SKIPPABLE:
            raise ValueError(f"with {method} no model drafts that could be skipped")
        if vllm_config.kv_transfer_config is not None:
            raise ValueError(CONNECTOR)
        if _HOOK_PROBLEM:
            raise ValueError(_HOOK_PROBLEM)
        self._scheduler = scheduler
        self._schedule = scheduler.schedule
        self._manager = scheduler.kv_cache_manager
        self._ordered = False
        self._cached: dict[int, Any] | None = None
        """In deep standby the hashes of the blocks that were in the prefix cache before it."""
        self._stale: set[str] = set()
        """Identifiers of requests that were in it, and may still run."""
        self._hashes()
        self._manager.evict_blocks(set())
        scheduler.schedule = self._next

    def order(self, deep: bool) -> int:
        """Skip the drafter from the next step on, or no more, by the thread of the switch.

        Returns how many running requests were in a deep standby that has ended.
        """
        if self._ordered and not deep:
            self._stale |= {request.request_id for request in list(self._scheduler.running)}
        self._ordered = deep
        self._stale = {name for name in self._stale if name in self._scheduler.requests}
        return len(self._stale)

    def _next(self, *arguments: Any, **options: Any) -> Any:
        """The scheduler's step. Requests are looked up in the prefix cache within it."""
        deep = self._ordered
        if deep and self._cached is None:
            self._cached = self._hashes()
        elif not deep and self._cached is not None:
            before, self._cached = self._cached, None
            now = self._hashes()
            self._manager.evict_blocks({key for key in now if before.get(key) != now[key]})
        output = self._schedule(*arguments, **options)
        if deep and output.num_spec_tokens_to_schedule == 0:
            setattr(output, _MARK, True)
        return output

    def _hashes(self) -> dict[int, Any]:
        """The hashes of the blocks in the prefix cache, by block."""
        return {
            block.block_id: block.block_hash
            for block in self._manager.block_pool.blocks
            if block.block_hash is not None
        }

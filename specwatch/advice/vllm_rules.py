"""What vLLM refuses to start with, or quietly changes, read from its own configuration.

Source: ``vllm/config/speculative.py``, ``vllm/config/vllm.py`` and ``vllm/engine/arg_utils.py`` of
vLLM 0.32.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from specwatch.advice.asked import Asked
from specwatch.advice.candidate import Candidate
from specwatch.advice.command import whole
from specwatch.advice.methods import LOOKUPS
from specwatch.advice.model import Finding
from specwatch.advice.sources import VLLM

KEYS = frozenset({
    "enforce_eager", "num_speculative_tokens", "model", "method", "draft_tensor_parallel_size",
    "tensor_parallel_size", "quantization", "moe_backend", "attention_backend", "kv_cache_dtype",
    "max_model_len", "revision", "code_revision", "index_share_for_mtp_iteration",
    "disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction",
    "use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting",
    "target_model_config", "target_parallel_config", "num_speculative_tokens_per_batch_size",
    "draft_model_config", "draft_parallel_config", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "draft_load_config", "rejection_sample_method",
    "synthetic_acceptance_rates", "synthetic_acceptance_length", "enable_adaptive_verification",
    "draft_sample_method", "dspark_draft_topk",
})  # fmt: skip
"""Keys of ``--speculative-config``."""
_GONE = {
    "disable_by_batch_size": "use num_speculative_tokens_per_batch_size (vLLM 0.24 and later), a"
    " list of [from, to, k]",
    "acceptance_method": "use rejection_sample_method, or leave it out",
}
_FROM_ONE = (
    "draft_tensor_parallel_size", "max_model_len", "prompt_lookup_max", "prompt_lookup_min",
)  # fmt: skip
"""Keys whose value is a whole number of at least 1, where they are given."""
_SCHEDULE = "vLLM 0.32, vllm/v1/spec_decode/dynamic/utils.py"
_HAVE_K = frozenset({"suffix", "mtp", "mlp_speculator", "dspark"})
"""Methods that have a k of their own."""
_WITHOUT_HEADS = frozenset({"medusa", "mlp_speculator", "mtp"})
_IN_STEP = frozenset({"suffix", "medusa", "mlp_speculator", "ngram", "custom_class"})
"""Methods with which vLLM cannot schedule the next step while one runs."""


def findings(
    method: str, target: Candidate, draft: Candidate | None, asked: Asked
) -> Iterator[Finding]:
    """Yield what vLLM 0.32 makes of a configuration; ``draft`` is None where it has no files."""
    yield from _keys(asked)
    yield from _k(method, asked)
    yield from _below_one(asked)
    if method in ("ngram", "ngram_gpu"):
        yield from _lookup(asked)
    yield from _scheduling(method, asked)
    yield from _heads(method, target, draft, asked)
    if method not in LOOKUPS:
        yield from _parallel(method, asked)
        yield from _lengths(target, draft, asked)
    yield from _sampling(method, asked)
    yield from _schedule(asked)
    yield from _many(asked)


def _wrong(text: str, remedy: str, reason: str = "", source: str = VLLM) -> Finding:
    said = f"{text}: vLLM does not start"
    return Finding(
        topic="method", level="wrong", text=said, reason=reason, source=source, remedy=remedy
    )


def _keys(asked: Asked) -> Iterator[Finding]:
    for key in asked.speculation:
        if key in _GONE:
            yield _wrong(f"{key} is gone", _GONE[key], "it was one of older versions")
        elif key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            remedy = f"did you mean {near[0]}?" if near else "leave it out"
            yield _wrong(f"--speculative-config has no key {key}", remedy)
    if asked.speculation.get("tensor_parallel_size") is not None:
        yield _wrong(
            "tensor_parallel_size is no key of a draft", "write draft_tensor_parallel_size"
        )


def _k(method: str, asked: Asked) -> Iterator[Finding]:
    given = asked.speculation.get("num_speculative_tokens", asked.k)
    if given is None and asked.written and method not in _HAVE_K:
        yield _wrong(
            "the number of draft tokens is missing",
            "give --k, or num_speculative_tokens; 5 is the common start",
        )
    elif given is not None and (whole(given) is None or (whole(given) or 0) <= 0):
        yield _wrong(
            f"num_speculative_tokens {given!r:.60} is not a whole number above 0",
            "give one from 3 to 7",
        )


def _below_one(asked: Asked) -> Iterator[Finding]:
    for key in _FROM_ONE:
        given = asked.speculation.get(key)
        if given is not None and (whole(given) or 0) < 1:
            yield _wrong(f"{key} {given!r:.60} is not a whole number of at least 1", "leave it out")


def _lookup(asked: Asked) -> Iterator[Finding]:
    given = asked.speculation.get("prompt_lookup_min"), asked.speculation.get("prompt_lookup_max")
    least, most = map(whole, given)
    if given == (None, None):
        yield Finding(
            topic="k",
            level="note",
            text="matches of exactly 5 tokens are looked for, as vLLM does unless told",
            reason="vLLM's own source calls that default arbitrary; shorter matches draft more"
            " often, and are kept less often",
            source=VLLM,
            remedy='try "prompt_lookup_min": 2, "prompt_lookup_max": 4, and compare',
        )
    if least is not None and most is not None and least > most:
        yield _wrong(
            f"prompt_lookup_min {least} is above prompt_lookup_max {most}", "exchange them"
        )


def _scheduling(method: str, asked: Asked) -> Iterator[Finding]:
    if method not in _IN_STEP:
        return
    if asked.async_scheduling:
        yield _wrong(
            f"--async-scheduling does not go with {method}",
            "leave the flag out" + (", or use ngram_gpu" if method == "ngram" else ""),
            source="vLLM 0.32, vllm/config/vllm.py",
        )
    elif asked.async_scheduling is None:
        yield Finding(
            topic="method",
            level="note",
            text=f"with {method} vLLM turns asynchronous scheduling off",
            reason="a plain step gets a little slower by that, which a comparison should have in"
            " both of its halves",
            source="vLLM 0.32, vllm/config/vllm.py",
            remedy="the method ngram_gpu keeps it on" if method == "ngram" else "",
        )


def _parallel(method: str, asked: Asked) -> Iterator[Finding]:
    target_parallel = asked.parallel()
    given = whole(asked.speculation.get("draft_tensor_parallel_size"))
    if given is not None and given > 1 and given != target_parallel:
        yield _wrong(
            f"draft_tensor_parallel_size {given} is neither 1 nor the target's {target_parallel}",
            f"write {target_parallel}, or leave it out",
        )
    elif given == 1 and target_parallel > 1 and method == "draft_model":
        yield Finding(
            topic="method",
            level="doubt",
            text=f"draft_tensor_parallel_size 1 beside a target on {target_parallel} GPUs",
            reason="drafts usually ran so; of vLLM 0.32 the V1 model runner refuses it, as its"
            " ranks collide, and the V2 model runner was not tried here",
            source="reported [F]; vLLM 0.32, vllm/v1/spec_decode/draft_model.py",
            remedy="leave it out where vLLM refuses it: the draft is then split like the target",
        )


def _heads(
    method: str, target: Candidate, draft: Candidate | None, asked: Asked
) -> Iterator[Finding]:
    parallel = asked.parallel()
    given = whole(asked.speculation.get("draft_tensor_parallel_size"))
    sides = [("target", target, parallel)]
    if (
        draft is not None
        and method not in _WITHOUT_HEADS | LOOKUPS
        and given in (None, 1, parallel)
    ):
        sides.append(("draft", draft, asked.draft_parallel()))
    for name, model, among in sides:
        heads = 0 if model.architecture is None else model.architecture.heads
        if heads and heads % among:
            yield _wrong(
                f"the {name}'s {heads} attention heads cannot be shared out among {among} GPUs",
                f"use a number of GPUs that divides {heads}",
                source="vLLM 0.32, ModelConfig.verify_with_parallel_config",
            )


def _lengths(target: Candidate, draft: Candidate | None, asked: Asked) -> Iterator[Finding]:
    given = whole(asked.speculation.get("max_model_len"))
    if given is None:
        return
    for name, model in (("draft", draft), ("target", target)):
        shape = None if model is None else model.architecture
        longest = None if shape is None else shape.context
        if name == "target" and asked.context is not None:
            longest = asked.context
        if longest is not None and given > longest:
            yield _wrong(
                f"max_model_len {given} of the draft is above the {name}'s {longest}",
                "leave it out",
            )
            return


def _sampling(method: str, asked: Asked) -> Iterator[Finding]:
    spec = asked.speculation
    if spec.get("rejection_sample_method") == "synthetic":
        yield Finding(
            topic="method",
            level="wrong",
            text="rejection_sample_method synthetic accepts drafts by lot: its answers are garbage",
            reason="it is for benchmarks",
            source=VLLM,
            remedy="leave it out",
        )
    if spec.get("use_heterogeneous_vocab") and method != "draft_model":
        yield _wrong(f"use_heterogeneous_vocab does not go with {method}", "leave it out")
    elif (
        spec.get("use_heterogeneous_vocab")
        and spec.get("draft_sample_method", "greedy") != "greedy"
    ):
        yield _wrong(
            "use_heterogeneous_vocab goes with draft_sample_method greedy only",
            "leave draft_sample_method out",
        )
    yield Finding(
        topic="method",
        level="note",
        text="requests with min_p or logit_bias are refused while speculation is on",
        source="vLLM 0.32, SamplingParams._validate_spec_decode",
    )


def _schedule(asked: Asked) -> Iterator[Finding]:
    given = asked.speculation.get("num_speculative_tokens_per_batch_size")
    if given is None:
        return
    key = "num_speculative_tokens_per_batch_size"
    remedy = "write it like [[1, 8, 5], [9, 32, 2], [33, 512, 0]]: [from, to, k], from 1 on"
    rows = [tuple(map(whole, row)) for row in given] if _is_rows(given) else []
    if not rows or any(value is None for row in rows for value in row):
        yield _wrong(f"{key} is no list of [from, to, k]", remedy, source=_SCHEDULE)
        return
    last = 0
    for first, end, k in sorted((row[0] or 0, row[1] or 0, row[2] or 0) for row in rows):
        if first <= last or end < first or k < 0 or (not last and first != 1):
            yield _wrong(f"{key}: [{first}, {end}, {k}] does not follow", remedy, source=_SCHEDULE)
            return
        last = end


def _is_rows(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(row, list) and len(row) == 3 for row in given)


def _many(asked: Asked) -> Iterator[Finding]:
    k = asked.k
    if asked.lora and k is not None and asked.batched_tokens and asked.slots:
        needed = asked.slots * (k + 1)
        if asked.batched_tokens < needed:
            yield _wrong(
                f"--max-num-batched-tokens {asked.batched_tokens} is below {asked.slots} requests"
                f" times k + 1, {needed}, which LoRA needs",
                "raise it, or lower --max-num-seqs or k",
                source="vLLM 0.32, EngineArgs.create_engine_config",
            )
    if asked.data_parallel > 1 and asked.speculation.get("num_speculative_tokens_per_batch_size"):
        yield Finding(
            topic="k",
            level="doubt",
            text="num_speculative_tokens_per_batch_size is ignored under data parallelism",
            reason="ranks could choose different k, and wait for each other for ever",
            source="vLLM 0.32, vllm/config/vllm.py",
            remedy="k stays the same at any load: choose it for the highest",
        )

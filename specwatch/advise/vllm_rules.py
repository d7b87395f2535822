"""What arithmetic says of a configuration of vLLM, and what vLLM 0.32 is known to make of it.

The rest vLLM checks at its start: its rules differ from version to version, so that a copy of them
would be wrong for most.
"""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.advise.asked import Asked
from specwatch.advise.candidate import Candidate
from specwatch.advise.command import whole
from specwatch.advise.methods import LOOKUPS, SCHEDULED
from specwatch.advise.model import Finding
from specwatch.advise.sources import VLLM

_WITHOUT_HEADS = frozenset({"medusa", "mlp_speculator", "mtp"})
_IN_STEP = frozenset({"suffix", "medusa", "mlp_speculator", "ngram", "custom_class"})
"""Methods with which vLLM 0.32 cannot schedule the next step while one runs."""


def findings(
    method: str, target: Candidate, draft: Candidate | None, asked: Asked
) -> Iterator[Finding]:
    """Yield what is known of a configuration; ``draft`` is None where it has no files."""
    yield from _k(asked)
    if method in ("ngram", "ngram_gpu"):
        yield from _lookup(asked)
    if method in _IN_STEP:
        yield _in_step(method)
    yield from _heads(method, target, draft, asked)
    given = whole(asked.speculation.get("draft_tensor_parallel_size"))
    if method == "draft_model" and given == 1 and asked.parallel() > 1:
        yield _alone(asked.parallel())
    yield from _sampling(asked)
    if asked.speculation.get("num_speculative_tokens_per_batch_size"):
        yield from _schedule(method, asked)
    if asked.written:
        yield Finding(
            topic="method",
            level="note",
            text="vLLM checks the rest of the configuration at its start",
            reason="what it takes differs from version to version: it is not judged here",
        )


def _wrong(text: str, remedy: str, source: str = "arithmetic") -> Finding:
    return Finding(topic="method", level="wrong", text=text, source=source, remedy=remedy)


def _k(asked: Asked) -> Iterator[Finding]:
    given = asked.speculation.get("num_speculative_tokens", asked.k)
    if given is not None and (whole(given) or 0) <= 0:
        yield _wrong(
            f"num_speculative_tokens {given!r:.60} is not a whole number above 0",
            "give one from 3 to 7",
        )


def _lookup(asked: Asked) -> Iterator[Finding]:
    given = asked.speculation.get("prompt_lookup_min"), asked.speculation.get("prompt_lookup_max")
    least, most = map(whole, given)
    if given == (None, None):
        yield Finding(
            topic="k",
            level="note",
            text="matches of exactly 5 tokens are looked for, as vLLM 0.32 does unless told",
            reason="vLLM's own source calls that default arbitrary; shorter matches draft more"
            " often, and are kept less often",
            source=VLLM,
            remedy='try "prompt_lookup_min": 2, "prompt_lookup_max": 4, and compare',
        )
    if least is not None and most is not None and least > most:
        yield _wrong(
            f"prompt_lookup_min {least} is above prompt_lookup_max {most}", "exchange them"
        )


def _in_step(method: str) -> Finding:
    return Finding(
        topic="method",
        level="note",
        text=f"with {method} vLLM 0.32 turns asynchronous scheduling off",
        reason="a plain step gets a little slower by that, which a comparison should have in"
        " both of its halves",
        source="vLLM 0.32, vllm/config/vllm.py",
        remedy="the method ngram_gpu keeps it on" if method == "ngram" else "",
    )


def _alone(parallel: int) -> Finding:
    return Finding(
        topic="method",
        level="doubt",
        text=f"draft_tensor_parallel_size 1 beside a target on {parallel} GPUs",
        reason="drafts usually ran so; of vLLM 0.32 the V1 model runner refuses it, as its"
        " ranks collide, and the V2 model runner was not tried here",
        source="reported [F]; vLLM 0.32, vllm/v1/spec_decode/draft_model.py",
        remedy="leave it out where vLLM refuses it: the draft is then split like the target",
    )


def _heads(
    method: str, target: Candidate, draft: Candidate | None, asked: Asked
) -> Iterator[Finding]:
    sides = [("target", target, asked.parallel())]
    given = whole(asked.speculation.get("draft_tensor_parallel_size"))
    alike = given in (None, 1, asked.parallel())
    if draft is not None and alike and method not in _WITHOUT_HEADS | LOOKUPS:
        sides.append(("draft", draft, asked.draft_parallel()))
    for name, model, among in sides:
        heads = 0 if model.architecture is None else model.architecture.heads
        if heads and heads % among:
            yield _wrong(
                f"the {name}'s {heads} attention heads cannot be shared out among {among} GPUs",
                f"use a number of GPUs that divides {heads}",
                "arithmetic; known of vLLM 0.32, ModelConfig.verify_with_parallel_config",
            )


def _schedule(method: str, asked: Asked) -> Iterator[Finding]:
    def doubt(text: str, reason: str, source: str, remedy: str) -> Finding:
        return Finding(
            topic="k", level="doubt", text=f"num_speculative_tokens_per_batch_size {text}",
            reason=reason, source=source, remedy=remedy,
        )  # fmt: skip

    if asked.data_parallel > 1:
        yield doubt(
            "is ignored by vLLM 0.32 under data parallelism",
            "ranks could choose different k, and wait for each other for ever",
            "vLLM 0.32, vllm/config/vllm.py",
            "k stays the same at any load: choose it for the highest",
        )
    elif method not in SCHEDULED:
        reports = (
            "; crashes at graph capture (issue 48494) and large losses past the threshold (49548)"
            " are reported"
            if method == "mtp"
            else ""
        )
        yield doubt(
            f"is not known to work with {method}",
            f"tested were Eagle, Eagle-3 and DFlash{reports}",
            "vLLM's documentation, dynamic_speculative_decoding.md",
            "measure it first: specwatch bench compare; or keep a server of its own without"
            " speculation for the highest load",
        )
    else:
        yield Finding(
            topic="k",
            level="note",
            text="a schedule with k = 0 is not off: with k = 0 the drafter still runs",
            reason="one pass for each step keeps its KV cache",
            source="vLLM 0.32, vllm/v1/spec_decode/llm_base_proposer.py",
            remedy="measure it first: specwatch bench compare",
        )


def _sampling(asked: Asked) -> Iterator[Finding]:
    if asked.speculation.get("rejection_sample_method") == "synthetic":
        yield _wrong(
            "rejection_sample_method synthetic accepts drafts by lot: its answers are garbage",
            "leave it out: it is for benchmarks",
            VLLM,
        )
    yield Finding(
        topic="method",
        level="note",
        text="requests with min_p or logit_bias are refused by vLLM 0.32 while speculation is on",
        source="vLLM 0.32, SamplingParams._validate_spec_decode",
    )

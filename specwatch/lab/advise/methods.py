"""The method of drafting, its needs, and known problems with it in vLLM 0.32.

vLLM checks everything else when it starts, as its rules differ from version to version.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import VLLM, Finding, Level, ServerPlan, reported
from specwatch.lab.advise.architecture import class_names, is_eagle3
from specwatch.lab.advise.candidate import Candidate
from specwatch.wording import figures

KNOWN = (
    "draft_model",
    "ngram",
    "ngram_gpu",
    "eagle",
    "eagle3",
    "medusa",
    "mtp",
    "suffix",
    "mlp_speculator",
    "dflash",
    "dspark",
    "custom_class",
    "extract_hidden_states",
)
"""Methods of vLLM 0.32, without the old names of ``mtp``; later versions may have others."""
LOOKUPS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft from the text so far, at almost no cost."""
HEADS = frozenset({"eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"})
"""Methods whose draft was trained for one target."""
SCHEDULED = frozenset({"eagle", "eagle3", "dflash"})
"""Methods for which vLLM's documentation says that a schedule of k by batch size was tested."""
_SYNCHRONOUS = frozenset({"suffix", "medusa", "mlp_speculator", "ngram", "custom_class"})
"""Methods with which vLLM 0.32 cannot schedule the next step while one runs."""
KEYS = frozenset(
    {
        "enforce_eager",
        "num_speculative_tokens",
        "model",
        "method",
        "draft_tensor_parallel_size",
        "tensor_parallel_size",
        "quantization",
        "moe_backend",
        "attention_backend",
        "kv_cache_dtype",
        "max_model_len",
        "revision",
        "code_revision",
        "index_share_for_mtp_iteration",
        "disable_padded_drafter_batch",
        "disable_eagle_block_drop",
        "use_local_argmax_reduction",
        "use_heterogeneous_vocab",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "parallel_drafting",
        "target_model_config",
        "target_parallel_config",
        "num_speculative_tokens_per_batch_size",
        "draft_model_config",
        "draft_parallel_config",
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
        "draft_load_config",
        "rejection_sample_method",
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
        "enable_adaptive_verification",
        "draft_sample_method",
        "dspark_draft_topk",
    }
)
"""Keys of ``--speculative-config`` in vLLM 0.32 (the fields of ``SpeculativeConfig``)."""
_LATER_KEYS = frozenset({"disable_lookahead_block_hashes", "skip_drafts"})
"""Keys that vLLM 0.33 has added."""
_OF_FLAGS = {
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "disable_by_batch_size": "num_speculative_tokens_per_batch_size",
}
"""Keys of earlier versions, and what came in their place."""
_GONE = frozenset({"medusa", "mlp_speculator"})
"""Methods that vLLM 0.33 has no more."""
_MOST_LAYERS = 3
"""Most layers of a draft that may be a head, though its configuration does not say so."""
_LOOKUP = (
    "nothing: it looks the last tokens up in the prompt and the answer so far",
    "output that repeats its input: summaries, retrieval, code edits, JSON",
    reported("TPF"),
)
_HEAD = ("a head trained for this very target", "any prompt", reported("TPF"))
_OWN_DRAFT = ("a draft trained for this very target", "any prompt", VLLM)
_NEEDS = {
    "draft_model": (
        "a smaller model with the same tokens, and memory for its weights and KV cache",
        "any prompt",
        reported("TPF"),
    ),
    "ngram": _LOOKUP,
    "ngram_gpu": _LOOKUP,
    "suffix": (
        "the package arctic-inference beside vLLM: without it vLLM does not start",
        "output that repeats its input, or earlier answers",
        VLLM,
    ),
    "eagle": _HEAD,
    "eagle3": _HEAD,
    "medusa": _HEAD,
    "mtp": (
        "a target whose checkpoint has layers for multi-token prediction",
        "any prompt",
        VLLM,
    ),
    "mlp_speculator": ("a speculator trained for this very target", "any prompt", VLLM),
    "dflash": _OWN_DRAFT,
    "dspark": _OWN_DRAFT,
}
"""What each method needs, what it is good for, and the source."""


def method_of(plan: ServerPlan, draft: Candidate | None) -> str | None:
    """The method of drafting; None without one.

    As in ``SpeculativeConfig.__post_init__`` of vLLM 0.32: from the method, else the name of the
    draft and its configuration. Raises ConfigError for an unknown method, except in a command,
    which may be for a later version.
    """
    method, name = plan.method, plan.draft
    if method is None and name is None:
        return "draft_model" if plan.speculation and plan.server == "vllm" else None
    if method is None and name in ("ngram", "[ngram]"):
        return "ngram"
    if method is not None and method.endswith("_mtp"):
        method = "mtp"
    if method is not None and method not in KNOWN and not plan.from_command:
        near = difflib.get_close_matches(method, KNOWN, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(KNOWN)}"
        raise ConfigError(f"method {method!r} is not known; {hint}")
    if name is None or method not in (None, "draft_model"):
        return method
    for part, detected in (
        ("eagle-", "eagle"),
        ("eagle3", "eagle3"),
        ("dflash", "dflash"),
        ("dspark", "dspark"),
    ):
        if part in name.lower():
            return detected
    kind = None if draft is None or draft.architecture is None else draft.architecture.draft_kind
    return kind if kind in ("medusa", "mlp_speculator", "mtp") else "draft_model"


def method_findings(
    method: str | None, target: Candidate, draft: Candidate | None, plan: ServerPlan
) -> Iterator[Finding]:
    """Findings on what the method needs, and whether target, draft and server have it."""
    if method is None:
        yield Finding(
            "method",
            "note",
            "no method and no draft: nothing will be drafted",
            remedy="name a draft, or try --method ngram, which needs none",
        )
        return
    if method not in KNOWN:
        yield Finding(
            "method",
            "doubt",
            f"the method {method[:60]} is not known here: its needs and costs are assumed",
            "a later vLLM than 0.32 may have it",
            VLLM,
            "check its spelling; specwatch calibrate measures its cost",
        )
    if method in _NEEDS:
        need, use, source = _NEEDS[method]
        level: Level = "doubt" if method == "suffix" else "note"
        yield Finding("method", level, f"{method} needs {need}", f"good for {use}", source)
    kind = draft.architecture.draft_kind if draft and draft.architecture else None
    if method == "mtp":
        yield from _mtp(target, draft, plan)
    elif method == "mlp_speculator" and plan.server == "vllm":
        yield Finding(
            "method",
            "wrong",
            "vLLM 0.32 accepts mlp_speculator as a method, and then does not start",
            "only its former V0 engine could use one",
            "vLLM 0.32, vllm/v1/worker/gpu_model_runner.py",
            "use an EAGLE head or a draft model",
        )
    if method in HEADS and draft is not None:
        yield from _head(method, target, draft, plan.k)
    elif method == "draft_model" and draft is not None and kind is not None:
        yield Finding(
            "method",
            "wrong",
            f"{draft.name} is a head ({kind}), not a model by itself",
            "",
            "its config.json",
            f'set "method": "{kind}"',
        )
    elif draft is None and method in (*HEADS, "draft_model") and method != "dspark":
        yield Finding(
            "method",
            "wrong",
            f"{method} has no draft: the server does not start",
            "",
            VLLM,
            'name one: --draft, or "model" in --speculative-config',
        )
    if plan.server == "vllm":
        yield from _vllm(method, plan)


def _mtp(target: Candidate, draft: Candidate | None, plan: ServerPlan) -> Iterator[Finding]:
    shape, k = (draft or target).architecture or target.architecture, plan.k
    if target.architecture is None or shape is None or plan.draft or plan.server != "vllm":
        return
    layers = shape.mtp_layers
    if not layers:
        yield Finding(
            "method",
            "doubt",
            "the target's config.json names no layers for multi-token prediction",
            "num_nextn_predict_layers (or its family's name for it) is missing or 0",
            VLLM,
            "check whether this checkpoint has them, as quantized ones often have not; without"
            " them use a draft model, an EAGLE head or n-gram lookup",
        )
    elif k is not None and k > layers:
        brought = figures.counted(layers, "prediction layer")
        yield Finding(
            "method",
            "note",
            f"k = {k} runs the target's {brought} more than once in each step",
            "later positions are accepted less often, as vLLM warns",
            VLLM,
            f"compare with k = {layers}",
        )
    elif k is not None:
        text = f"k = {k}: the target has {figures.counted(layers, 'prediction layer')}"
        yield Finding("method", "ok", text, source="the target's config.json")


def _head(method: str, target: Candidate, draft: Candidate, k: int | None) -> Iterator[Finding]:
    shape = draft.architecture
    if target.architecture is None or shape is None:
        return
    config: Mapping[str, Any] = {} if draft.files is None else draft.files.config
    width, target_width = shape.hidden_size, target.architecture.hidden_size
    if method in ("eagle3", "dflash", "dspark"):
        declared = config.get("target_hidden_size")
        width = declared if isinstance(declared, int) else width
    if width != target_width:
        yield Finding(
            "method",
            "wrong",
            f"the head was made for a target of hidden size {width}, and this target's is"
            f" {target_width}",
            "it reads the target's hidden states, so it cannot be loaded beside another",
            "their config.json",
            "take the head that was trained for this very target",
        )
    else:
        text = f"the head fits the target's hidden size, {target_width}"
        yield Finding("method", "ok", text, source="their config.json")
    if method == "eagle" and is_eagle3(config):
        yield Finding(
            "method",
            "wrong",
            "the head is of EAGLE-3, and the method is eagle",
            "their layers differ, so its weights cannot be loaded",
            "the draft's config.json",
            'set "method": "eagle3"',
        )
    elif method == "eagle3" and class_names(config) and not is_eagle3(config):
        yield Finding(
            "method",
            "doubt",
            "nothing in the head's config.json says that it is of EAGLE-3",
            "",
            "the draft's config.json",
            'if it is an older one set "method": "eagle"',
        )
    if shape.draft_kind is None and len(shape.layers) > _MOST_LAYERS:
        yield Finding(
            "method",
            "doubt",
            f"{draft.name} has {len(shape.layers)} layers, and may not be a head",
            "a head has one layer, or a few",
            "the draft's config.json",
            'if it is a model by itself set "method": "draft_model"',
        )
    if method == "medusa" and shape.positions is not None and (k or 0) > shape.positions:
        yield Finding(
            "method",
            "wrong",
            f"k = {k}, and there are {shape.positions} Medusa heads, one for each position",
            "",
            "the draft's config.json",
            f"take k = {shape.positions} or less",
        )


def _vllm(method: str, plan: ServerPlan) -> Iterator[Finding]:
    """Findings on known behaviour of vLLM 0.32."""
    yield from _keys(method, plan)
    if method in _GONE:
        yield Finding(
            "method",
            "doubt",
            f"vLLM 0.33 has no method {method} any more",
            "",
            VLLM,
            "plan for another one before the next upgrade: an EAGLE head, or a draft model",
        )
    lookups = plan.speculation.keys() & {"prompt_lookup_min", "prompt_lookup_max"}
    if method in ("ngram", "ngram_gpu") and not lookups:
        yield Finding(
            "k",
            "note",
            "matches of exactly 5 tokens are looked for, the default of vLLM 0.32",
            "shorter matches draft more often, and are accepted less often; the comment on this"
            " default in vLLM's source says that it is arbitrary",
            VLLM,
            'try "prompt_lookup_min": 2, "prompt_lookup_max": 4, and compare',
        )
    if method in _SYNCHRONOUS:
        yield Finding(
            "method",
            "note",
            f"with {method} vLLM 0.32 turns asynchronous scheduling off",
            "plain steps get a little slower, so compare with a server that also has asynchronous"
            " scheduling off",
            "vLLM 0.32, vllm/config/vllm.py",
            "the method ngram_gpu keeps it on" if method == "ngram" else "",
        )
    if method == "draft_model" and plan.draft_parallel == 1 and plan.parallel() > 1:
        yield Finding(
            "method",
            "doubt",
            f"draft_tensor_parallel_size 1 beside a target on {plan.parallel()} GPUs",
            "this was usual; in vLLM 0.32 the V1 model runner refuses it, as its ranks"
            " collide, and the V2 model runner was not tested",
            "reported [F]; vLLM 0.32, vllm/v1/spec_decode/draft_model.py",
            "leave it out if vLLM refuses it: the draft is then split like the target",
        )
    if plan.speculation.get("rejection_sample_method") == "fly":
        yield Finding(
            "method",
            "doubt",
            "rejection_sample_method fly is lossy: the output may differ from that without"
            " speculation, and acceptance is inflated",
            "drafts are accepted that the target would not have sampled",
            "vLLM 0.33",
            "compare the quality of answers, not only their speed",
        )
    if plan.speculation.get("rejection_sample_method") == "synthetic":
        yield Finding(
            "method",
            "wrong",
            "rejection_sample_method synthetic accepts drafts at random: its answers are garbage",
            "",
            VLLM,
            "leave it out: it is for benchmarks",
        )
    yield Finding(
        "method",
        "note",
        "requests with min_p or logit_bias are refused by vLLM 0.32 while speculation is on",
        source="vLLM 0.32, SamplingParams._validate_spec_decode",
    )
    if plan.speculation.get("num_speculative_tokens_per_batch_size"):
        yield _schedule(method, plan)
    if plan.from_command:
        yield Finding(
            "method",
            "note",
            "vLLM checks the rest of the configuration at its start",
            "its rules differ from version to version",
        )


def _keys(method: str, plan: ServerPlan) -> Iterator[Finding]:
    """Findings on keys with which vLLM does not start."""
    for key in sorted(plan.speculation.keys() - KEYS - _LATER_KEYS):
        after = _OF_FLAGS.get(key)
        near = [after] if after else difflib.get_close_matches(key, KEYS, n=1)
        yield Finding(
            "method",
            "wrong" if after else "doubt",
            f"vLLM 0.32 has no key {key[:60]} in --speculative-config, and does not start with it",
            "" if after else "a later version may have it",
            VLLM,
            f"write {near[0]}" if near else "leave it out",
        )
    parallel, own = plan.parallel(), plan.draft_parallel
    if method not in LOOKUPS and own is not None and own not in (1, parallel):
        yield Finding(
            "method",
            "wrong",
            f"draft_tensor_parallel_size {own} beside a target on {parallel} GPUs: vLLM does not"
            " start",
            "it may be 1, or that of the target",
            "vLLM 0.32, SpeculativeConfig._verify_and_get_draft_tp",
            f"take 1 or {parallel}",
        )


def _schedule(method: str, plan: ServerPlan) -> Finding:
    """The finding on a schedule of k by batch size."""
    key = "num_speculative_tokens_per_batch_size"
    if plan.data_parallel > 1:
        return Finding(
            "k",
            "doubt",
            f"{key} is ignored by vLLM 0.32 under data parallelism",
            "ranks could choose different k, and wait for each other forever",
            "vLLM 0.32, vllm/config/vllm.py",
            "k is the same at all loads: choose it for the highest",
        )
    if method not in SCHEDULED:
        reports = (
            "; crashes at graph capture (issue 48494) and large losses past the threshold (49548)"
            " are reported"
        )
        return Finding(
            "k",
            "doubt",
            f"{key} is not known to work with {method}",
            f"tested were Eagle, Eagle-3 and DFlash{reports if method == 'mtp' else ''}",
            "vLLM's documentation, dynamic_speculative_decoding.md",
            "measure it first: specwatch bench compare; or use a separate server without"
            " speculation for the highest load",
        )
    return Finding(
        "k",
        "note",
        "k = 0 in a schedule is not off: with k = 0 the drafter still runs",
        "one pass in each step keeps its KV cache up to date",
        "vLLM 0.32, vllm/v1/spec_decode/llm_base_proposer.py",
        "measure it first: specwatch bench compare",
    )

"""Which method will draft, what it needs, and whether target and draft have it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specwatch.advise.architecture import classes
from specwatch.advise.asked import Asked
from specwatch.advise.candidate import Candidate
from specwatch.advise.model import Finding
from specwatch.advise.sources import VLLM, reported
from specwatch.errors import ConfigError
from specwatch.wording import figures

KNOWN = (
    "draft_model", "ngram", "ngram_gpu", "eagle", "eagle3", "medusa", "mtp", "suffix",
    "mlp_speculator", "dflash", "dspark", "custom_class", "extract_hidden_states",
)  # fmt: skip
"""Methods known of vLLM 0.32, but for the old names of ``mtp``; a later one may have others."""
LOOKUPS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft from the text so far, at next to no cost."""
HEADS = frozenset({"eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"})
"""Methods whose draft was trained for one target."""
SCHEDULED = frozenset({"eagle", "eagle3", "dflash"})
"""Methods with which vLLM's documentation says that a schedule of k by batch size was tested."""
_MOST_LAYERS = 3
"""Of a head whose configuration does not say that it is one."""


@dataclass(frozen=True, slots=True)
class _Need:
    what: str
    good_for: str
    source: str


_NEEDS = {
    "draft_model": _Need(
        "a smaller model with the same tokens, and memory for its weights and KV cache",
        "any prompt",
        reported("TPF"),
    ),
    "ngram": _Need(
        "nothing: it looks the last tokens up in the prompt and in what was said so far",
        "output that repeats its input: summaries, retrieval, code edits, JSON",
        reported("TPF"),
    ),
    "suffix": _Need(
        "the package arctic-inference beside vLLM, which does not start without it",
        "output that repeats its input, or earlier answers",
        VLLM,
    ),
    "eagle": _Need("a head trained for this very target", "any prompt", reported("TPF")),
    "eagle3": _Need("a head trained for this very target", "any prompt", reported("TPF")),
    "medusa": _Need("heads trained for this very target", "any prompt", reported("TPF")),
    "mtp": _Need(
        "a target that was trained with layers for multi-token prediction, and brings them",
        "any prompt",
        VLLM,
    ),
    "mlp_speculator": _Need("a speculator trained for this very target", "any prompt", VLLM),
    "dflash": _Need("a draft trained for this very target", "any prompt", VLLM),
    "dspark": _Need("a draft trained for this very target", "any prompt", VLLM),
}
_NEEDS["ngram_gpu"] = _NEEDS["ngram"]


def method_of(asked: Asked, draft: Candidate | None) -> str | None:
    """Tell which method will draft; None where nothing asks for any.

    As ``SpeculativeConfig.__post_init__`` of vLLM 0.32 finds it: from the method, else the name of
    the draft and its configuration. A command may name a method that is not known here; as an
    option of ours that is taken for a mistake: raises ConfigError.
    """
    said, name = asked.method, asked.draft
    if said is None and name is None:
        return "draft_model" if asked.speculation and asked.server == "vllm" else None
    if said is None and name in ("ngram", "[ngram]"):
        return "ngram"
    if said is not None and said.endswith("_mtp"):
        said = "mtp"
    if said is not None and said not in KNOWN and not asked.written:
        near = difflib.get_close_matches(said, KNOWN, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(KNOWN)}"
        raise ConfigError(f"method {said!r} is not known; {hint}")
    if name is None or said in (None, "draft_model"):
        return _detected(name, draft) or said or "draft_model"
    return said


def _detected(name: str | None, draft: Candidate | None) -> str | None:
    """What vLLM takes a draft for that it is told no method of, or ``draft_model``."""
    if name is None:
        return None
    lowered = name.lower()
    for part, method in (
        ("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"),
    ):  # fmt: skip
        if part in lowered:
            return method
    if draft is None or draft.architecture is None:
        return None
    kind = draft.architecture.draft_kind
    if kind in ("medusa", "mlp_speculator", "mtp"):
        return kind
    return None


def findings(
    method: str | None, target: Candidate, draft: Candidate | None, asked: Asked
) -> Iterator[Finding]:
    """Yield what the method needs, and whether target and draft have it."""
    if method is None:
        yield Finding(
            topic="method",
            level="note",
            text="no method and no draft: nothing will be drafted",
            remedy="name a draft, or try --method ngram, which needs none",
        )
        return
    need = _NEEDS.get(method)
    if method not in KNOWN:
        yield Finding(
            topic="method",
            level="doubt",
            text=f"the method {method[:60]} is not known here: what it needs and costs is assumed",
            reason="a later vLLM than 0.32 may have it",
            source=VLLM,
            remedy="see that it is spelled right; specwatch calibrate measures what it costs",
        )
    if need is not None:
        yield Finding(
            topic="method",
            level="doubt" if method == "suffix" else "note",
            text=f"{method} needs {need.what}",
            reason=f"good for {need.good_for}",
            source=need.source,
        )
    if method == "mtp":
        yield from _mtp(target, draft, asked)
    elif method == "mlp_speculator" and asked.server == "vllm":
        yield _no_speculator()
    if method in HEADS and draft is not None:
        yield from _head(method, target, draft, asked.k)
    elif method == "draft_model" and draft is not None:
        yield from _no_model_of_its_own(draft)
    elif method in (*HEADS, "draft_model") and method != "dspark":
        yield _nothing_to_draft_with(method)


def _nothing_to_draft_with(method: str) -> Finding:
    return Finding(
        topic="method",
        level="wrong",
        text=f"{method} has no draft: the server does not start",
        source=VLLM,
        remedy='name one: --draft, or "model" in --speculative-config',
    )


def _no_model_of_its_own(draft: Candidate) -> Iterator[Finding]:
    kind = None if draft.architecture is None else draft.architecture.draft_kind
    if kind is not None:
        yield Finding(
            topic="method",
            level="wrong",
            text=f"{draft.name} is no model by itself but a head ({kind}) for its target",
            source="its config.json",
            remedy=f'say "method": "{kind}"',
        )


def _no_speculator() -> Finding:
    return Finding(
        topic="method",
        level="doubt",
        text="vLLM 0.32 takes mlp_speculator as a method, and then does not start",
        reason="its V1 engine has nothing that drafts with one: it was the V0 engine's",
        source="vLLM 0.32, vllm/v1/worker/gpu_model_runner.py",
        remedy="use an EAGLE head or a draft model",
    )


def _mtp(target: Candidate, draft: Candidate | None, asked: Asked) -> Iterator[Finding]:
    shape = target.architecture
    if shape is None or asked.draft is not None or asked.server != "vllm":
        return
    layers = ((draft or target).architecture or shape).mtp_layers
    if not layers:
        yield Finding(
            topic="method",
            level="doubt",
            text="the target's config.json names no layers for multi-token prediction",
            reason="num_nextn_predict_layers (or its family's name for it) is missing or 0",
            source=VLLM,
            remedy="see whether this checkpoint has them: they are often left out when quantised;"
            " without them use a draft model, an EAGLE head or n-gram lookup",
        )
        return
    if asked.k is not None and asked.k > layers and asked.k % layers:
        yield Finding(
            topic="method",
            level="doubt",
            text=f"k = {asked.k} is no multiple of the target's {layers} layers for multi-token"
            " prediction: vLLM 0.32 does not start",
            source=VLLM,
            remedy=f"take {layers} or a multiple of it",
        )
    elif asked.k is not None:
        yield _prediction(asked.k, layers)


def _prediction(k: int, layers: int) -> Finding:
    brought = figures.counted(layers, "prediction layer")
    if k > layers:
        return Finding(
            topic="method",
            level="note",
            text=f"k = {k} runs the target's {brought} more than once for each step",
            reason="later positions are accepted less often, as vLLM itself warns",
            source=VLLM,
            remedy=f"compare with k = {layers}",
        )
    return Finding(
        topic="method",
        level="ok",
        text=f"k = {k}: the target brings {brought}",
        source="the target's config.json",
    )


def _head(method: str, target: Candidate, draft: Candidate, k: int | None) -> Iterator[Finding]:
    ours, theirs = target.architecture, draft.architecture
    if ours is None or theirs is None:
        return
    config: Mapping[str, Any] = {} if draft.folder is None else draft.folder.config
    width = _width(method, config, theirs.hidden_size)
    if width is not None and width != ours.hidden_size:
        yield Finding(
            topic="method",
            level="wrong",
            text=f"the head was made for a target of hidden size {width}, and this target's is"
            f" {ours.hidden_size}",
            reason="it reads the target's hidden states, so it cannot be loaded beside another",
            source="their config.json",
            remedy="take the head that was trained for this very target",
        )
    else:
        yield Finding(
            topic="method",
            level="ok",
            text=f"the head fits the target's hidden size, {ours.hidden_size}",
            source="their config.json",
        )
    yield from _eagle_kind(method, config)
    if theirs.draft_kind is None and len(theirs.layers) > _MOST_LAYERS:
        yield Finding(
            topic="method",
            level="doubt",
            text=f"{draft.name} has {len(theirs.layers)} layers: nothing says that it is a head",
            reason="a head has one layer, or a few",
            source="the draft's config.json",
            remedy='if it is a model of its own say "method": "draft_model"',
        )
    heads = theirs.positions if method == "medusa" else None
    if heads is not None and k is not None and k > heads:
        yield Finding(
            topic="method",
            level="wrong",
            text=f"k = {k}, and there are {heads} Medusa heads, one for each position",
            source="the draft's config.json",
            remedy=f"take k = {heads} or less",
        )


def _width(method: str, config: Mapping[str, Any], own: int) -> int | None:
    """The hidden size of the target that a head was made for."""
    if method in ("eagle3", "dflash", "dspark"):
        found = config.get("target_hidden_size")
        return int(found) if isinstance(found, int) else own
    return own


def _eagle_kind(method: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    names = classes(config)
    third = any("eagle3" in each.lower() for each in names) or "draft_vocab_size" in config
    if method == "eagle" and third:
        yield Finding(
            topic="method",
            level="wrong",
            text="the head is one of EAGLE-3, and the method is eagle",
            reason="their layers differ, so its weights cannot be loaded",
            source="the draft's config.json",
            remedy='say "method": "eagle3"',
        )
    elif method == "eagle3" and names and not third:
        yield Finding(
            topic="method",
            level="doubt",
            text="nothing in the head's config.json says that it is one of EAGLE-3",
            source="the draft's config.json",
            remedy='if it is an older one say "method": "eagle"',
        )

"""What two tokenizers mean for a pairing: the first token that differs, named with both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from specwatch.advise.model import Finding, Level
from specwatch.advise.token_settings import setting_findings
from specwatch.advise.tokenizer_model import Pair, Tokenizer, quoted

Server = Literal["vllm", "llama.cpp"]

_VLLM = "vLLM 0.32, vllm/config/speculative.py"
_LLAMA = "llama.cpp, common/speculative.cpp"
_LLAMA_FIRST_ID = 5
_LLAMA_SIZES_APART = 128
"""From which id on llama.cpp compares tokens, and by how many their numbers may differ."""
_LEAST_SHARED = 100
"""Below it vLLM itself warns of a very small intersection."""
_MOSTLY_OTHERS = 0.01
"""With a larger share of other tokens, the rest of two tokenizers is not worth a look."""
_SILENT = (
    "an id that the draft proposes is another token to the target: acceptance collapses, and no"
    " message says why"
)
_ONLY_THESE = (
    "all of them are added tokens, such as reserved ones: only where text has one of these ids does"
    " the draft read or propose another token"
)
_HETEROGENEOUS = '"use_heterogeneous_vocab": true in --speculative-config'


def compare(
    target: Tokenizer | None,
    draft: Tokenizer | None,
    *,
    target_size: int | None = None,
    draft_size: int | None = None,
    server: Server = "vllm",
    head: bool = False,
    heterogeneous: bool = False,
) -> list[Finding]:
    """What a pairing's tokenizers mean for ``server``, gravest first; ``ok`` only where compared.

    The sizes are the rows of the embeddings (``vocab_size``). ``head`` says that the draft is made
    for its target (EAGLE, Medusa, MTP): without files of its own it uses the target's tokens, and
    there may be nothing to find. ``heterogeneous`` is vLLM's ``use_heterogeneous_vocab``.
    """
    heterogeneous = heterogeneous and server == "vllm" and not head
    found: list[Finding] = []
    alike = False
    if target is not None and draft is not None:
        pair = Pair(target, draft)
        found = list(_compared(pair, server, heterogeneous))
        alike = not any(finding.level in ("wrong", "doubt") for finding in found)
        if alike:
            found.append(_same(pair))
    elif not (head and draft is None):
        found.append(_missing(target, draft))
    if server == "llama.cpp":
        target_size, draft_size = _rows_of(target, target_size), _rows_of(draft, draft_size)
    found += _sizes(target_size, draft_size, server, head, heterogeneous, alike)
    found += _rows("target", target, target_size)
    found += _rows("draft", draft, draft_size)
    ranks: tuple[Level, ...] = ("wrong", "doubt", "ok", "note")
    return sorted(found, key=lambda finding: ranks.index(finding.level))


def _missing(target: Tokenizer | None, draft: Tokenizer | None) -> Finding:
    sides = [side for side, it in (("target", target), ("draft", draft)) if it is None]
    whose = " and ".join(sides)
    known = next((it.where for it in (target, draft) if it is not None), "")
    return Finding(
        topic="tokenizer",
        level="doubt",
        text="it cannot be told whether target and draft have the same tokenizer:"
        f" {whose} {'has' if len(sides) == 1 else 'have'} no tokenizer files",
        reason=_SILENT.replace("is another token", "may be another token"),
        source=known,
        remedy=f"put tokenizer.json of the {' and of the '.join(sides)} beside config.json",
    )


def _compared(pair: Pair, server: Server, heterogeneous: bool) -> Iterator[Finding]:
    differing = pair.differing
    most = max(len(pair.target.tokens), len(pair.draft.tokens), 1)
    if differing:
        yield _shared(pair) if heterogeneous else _different(pair, differing, most, server)
    for side in (pair.target, pair.draft):
        for part in side.untold:
            yield Finding(
                topic="tokenizer",
                level="doubt",
                text=f"the {part} cannot be told from {side.where}: they are written in code",
                reason="the other tokens were compared",
                source=side.where,
                remedy="put a tokenizer.json of the same model beside it",
            )
    if server == "llama.cpp":
        yield from _put_around(pair)
    if len(differing) <= _MOSTLY_OTHERS * most:
        yield from setting_findings(pair)


def _different(pair: Pair, differing: list[int], most: int, server: Server) -> Finding:
    first = differing[0]
    target, draft = pair.at(first)
    verb = "differs" if len(differing) == 1 else "differ, the first"
    remedy = "choose a draft with the target's tokenizer: mostly one of its own family"
    if server == "vllm":
        remedy += f"; or give {_HETEROGENEOUS}, which drafts only tokens that both have"
    level: Level = "wrong"
    meaning = _meaning(pair, differing)
    if server == "vllm" and _all_added(pair, differing):
        level, meaning = "doubt", _ONLY_THESE
        remedy = "see that prompts and answers do not have these tokens, or measure acceptance"
    return Finding(
        topic="tokenizer",
        level=level,
        text=f"{len(differing):,} of {most:,} tokens {verb} at id {first}:"
        f" target {quoted(target)}, draft {quoted(draft)}",
        reason=f"{meaning}; {_noticed(pair, differing, server)}",
        source=f"{pair.source}; {_VLLM if server == 'vllm' else _LLAMA}",
        remedy=remedy,
    )


def _all_added(pair: Pair, differing: list[int]) -> bool:
    """Whether only added tokens differ, and none that begins or ends a text."""
    for side in (pair.target, pair.draft):
        ends = {side.special.get("bos"), side.special.get("eos")}
        tokens = [side.tokens[number] for number in differing if number in side.tokens]
        if any(token in ends or token not in (side.added or ()) for token in tokens):
            return False
    return True


def _meaning(pair: Pair, differing: list[int]) -> str:
    target, draft = pair.target.tokens, pair.draft.tokens
    if not any(number in draft for number in differing):
        return (
            "the draft never proposes what it does not have, and where the text has it the draft"
            " reads a row that it was not trained on, or none at all"
        )
    if not any(number in target for number in differing):
        return "what the draft proposes there is no token of the target, and is never accepted"
    if set(target.values()) == set(draft.values()):
        return f"the same tokens have other ids; {_SILENT}"
    return _SILENT


def _noticed(pair: Pair, differing: list[int], server: Server) -> str:
    if server == "vllm":
        return "vLLM compares the sizes of the vocabularies, never their tokens"
    end = min(pair.target.size, pair.draft.size)
    apart = abs(pair.target.size - pair.draft.size) > _LLAMA_SIZES_APART
    if apart or any(_LLAMA_FIRST_ID <= number < end for number in differing):
        return "llama-server logs an error and serves on without speculation"
    return f"llama-server compares ids {_LLAMA_FIRST_ID} to {end - 1:,} only, and does not see it"


def _shared(pair: Pair) -> Finding:
    """As vLLM's VocabMapping counts: by text, with either way of writing a leading space."""
    target, draft = ({_spaced(token) for token in ids.values()} for ids in pair.tokens)
    both = len(target & draft)
    return Finding(
        topic="tokenizer",
        level="doubt" if both >= _LEAST_SHARED else "wrong",
        text=f"target and draft share {both:,} tokens: {both / max(len(draft), 1):.0%} of the"
        f" draft's, {both / max(len(target), 1):.0%} of the target's",
        reason="with use_heterogeneous_vocab the draft proposes these only, reads the others as"
        " unknown, and drafts greedily",
        source=f"{pair.source}; vLLM 0.32, vllm/v1/spec_decode/vocab_mapping.py",
        remedy="measure its acceptance, or choose a draft with the target's tokenizer",
    )


def _spaced(token: str) -> str:
    return " " + token[1:] if token[:1] in ("Ġ", "▁") else token


def _put_around(pair: Pair) -> Iterator[Finding]:
    """llama.cpp wants the same tokens around a prompt."""
    for role in ("bos", "eos"):
        sides = [side.adds.get(role) for side in (pair.target, pair.draft)]
        tokens = [side.special.get(role) for side in (pair.target, pair.draft)]
        if None in sides or (sides[0] == sides[1] and (not sides[0] or tokens[0] == tokens[1])):
            continue
        said = [
            quoted(token) if adds else "none" for adds, token in zip(sides, tokens, strict=True)
        ]
        yield Finding(
            topic="tokenizer",
            level="wrong",
            text=f"the {role} token put around a prompt differs: target {said[0]}, draft {said[1]}",
            reason="llama-server logs an error and serves on without speculation",
            source=f"{pair.source}; {_LLAMA}",
            remedy="convert both models anew, or choose another draft",
        )


def _same(pair: Pair) -> Finding:
    target = pair.target
    parts = [f"{len(target.tokens):,} tokens with the same ids"]
    if target.merges is not None and pair.draft.merges is not None:
        parts.append(f"{len(target.merges):,} merges in the same order")
    if target.added is not None and pair.alike:
        parts.append(f"{len(target.added):,} added tokens")
    return Finding(
        topic="tokenizer",
        level="ok",
        text=f"target and draft have the same tokens: {', '.join(parts)}",
        source=pair.source,
    )


def _sizes(
    target: int | None,
    draft: int | None,
    server: Server,
    head: bool,
    heterogeneous: bool,
    alike: bool,
) -> Iterator[Finding]:
    if target is None or draft is None or target == draft:
        return
    level, reason, remedy = _size_verdict(target, draft, server, head, heterogeneous)
    if alike:
        reason += "; the tokens are the same, one of the two has more padding"
    yield Finding(
        topic="tokenizer",
        level=level,
        text=f"the sizes of the vocabularies differ: target {target:,}, draft {draft:,}",
        reason=reason,
        source=f"vocab_size of both; {_VLLM if server == 'vllm' else _LLAMA}",
        remedy=remedy,
    )


def _size_verdict(
    target: int, draft: int, server: Server, head: bool, heterogeneous: bool
) -> tuple[Level, str, str]:
    if head:
        reason = "a head has the vocab_size of the target that it was trained for"
        return "doubt", reason, "see in the head's model card which target it is for"
    if server == "llama.cpp":
        if abs(target - draft) <= _LLAMA_SIZES_APART:
            return "note", f"llama.cpp takes a difference of up to {_LLAMA_SIZES_APART}", ""
        reason = (
            f"by more than {_LLAMA_SIZES_APART} llama-server logs an error and serves on without"
            " speculation"
        )
        return "wrong", reason, "choose a draft with the target's vocabulary"
    if heterogeneous:
        return "note", "use_heterogeneous_vocab takes that", ""
    reason = (
        "vLLM does not start with that (Target and draft model should have the same vocabulary"
        " size)"
    )
    remedy = f"choose a draft with the target's vocab_size, or give {_HETEROGENEOUS}"
    return "wrong", reason, remedy


def _rows_of(tokenizer: Tokenizer | None, size: int | None) -> int | None:
    """A .gguf file has a token for each row, padding too: that is what llama.cpp counts."""
    return tokenizer.size if tokenizer is not None and tokenizer.format == "gguf" else size


def _rows(side: str, tokenizer: Tokenizer | None, size: int | None) -> Iterator[Finding]:
    if tokenizer is None or size is None or tokenizer.size <= size:
        return
    tokens: Mapping[int, str] = tokenizer.tokens
    first = min((number for number in tokens if number >= size), default=size)
    yield Finding(
        topic="tokenizer",
        level="doubt",
        text=f"the {side}'s tokenizer has ids up to {tokenizer.size - 1:,}, its embedding"
        f" {size:,} rows: id {first} is {quoted(tokens.get(first))}",
        reason="such a token in a prompt is an error, or reads another row",
        source=f"{tokenizer.where}; vocab_size in config.json",
        remedy="see that weights and tokenizer are of the same version",
    )

"""Comparing the tokenizers of a target and a draft.

A draft whose ids are other tokens than its target's has a low acceptance, and no message says why.
Compared are ids, added and special tokens, and how the same texts are encoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.lab.advise.advice import Finding, Level, ServerKind
from specwatch.lab.advise.vocabulary import Vocabulary
from specwatch.wording.text import shown

TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's 12:30, isn't it?",
    "  two  spaces,\ttabs\n\n\nand lines \n with trailing space ",
    "def accept(draft, target):\n    return [x for x in draft if x in target]  # 100%\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3.14159}}',
    "1234567890 3.14 1e-9 0xFF 2024-12-31 +49 30 1234567",
    "Größe naïve café cafe\u0301 ﬁne Ⅷ ½ ＡＢＣ İstanbul",
    "東京都に住んでいます。你好，世界！ 안녕하세요 привет мир مرحبا שלום",
    "🙂👍🏽 👩‍👩‍👧 €£¥ — “quotes” … \u00a0\u200b",
    "HELLO Hello hello hELLO https://example.com/a?b=c&d=%20 user@example.com",
    "<html><body class='x'>&amp;</body></html> $x^2 + \\frac{1}{2}$",
)
"""Texts that different normalizers, pre-tokenizers and merges encode differently."""
SAMPLED_TOKENS = 2000
"""Tokens of the target, evenly spread, that are encoded too."""
_LONGEST_TOKEN = 40
_LLAMA_FIRST_ID = 5
"""The first id that llama.cpp compares."""
_LLAMA_SIZES_APART = 128
"""Difference of the sizes of two vocabularies that llama.cpp allows."""
_LEAST_SHARED = 100
"""Shared tokens below which vLLM warns of a very small intersection."""
_MOSTLY_DIFFERENT = 0.01
"""Share of different tokens above which nothing else is compared."""
_VLLM = "vLLM 0.32, vllm/config/speculative.py"
_LLAMA = "llama.cpp, common/speculative.cpp"
_SILENT = (
    "an id that the draft proposes is another token for the target: acceptance collapses, and no"
    " message says why"
)
_HETEROGENEOUS = '"use_heterogeneous_vocab": true in --speculative-config'
_SERVES_ON = "llama-server logs an error and continues without speculation"
_OTHER_SEQUENCES = "the draft was trained on other sequences of tokens than the target's"
_MEASURE = "choose a draft with the target's tokenizer, or measure its acceptance"
_ROLES: dict[str, tuple[Level, str]] = {
    "bos": ("doubt", "the draft was trained on texts that begin with another token"),
    "eos": ("doubt", "the draft was trained to end with another token: is one a base model?"),
    "unk": ("doubt", _OTHER_SEQUENCES),
    "pad": ("note", "servers do not use it"),
}


def compare_vocabularies(
    target: Vocabulary | None,
    draft: Vocabulary | None,
    *,
    target_size: int | None = None,
    draft_size: int | None = None,
    server: ServerKind = "vllm",
    head: bool = False,
    heterogeneous: bool = False,
) -> list[Finding]:
    """Findings on the tokenizers of a pairing for ``server``; ``ok`` only if both were compared.

    The sizes are the rows of the embeddings (``vocab_size``). ``head`` means that the draft is made
    for its target (EAGLE, Medusa, MTP): without tokenizer files it uses the target's tokens.
    ``heterogeneous`` is vLLM's ``use_heterogeneous_vocab``.
    """
    heterogeneous = heterogeneous and server == "vllm" and not head
    findings: list[Finding] = []
    same = False
    if target is not None and draft is not None:
        findings += _compare(target, draft, server, heterogeneous)
        same = any(finding.level == "ok" for finding in findings)
    elif not (head and draft is None):
        findings.append(_missing(target, draft))
    if server == "llama.cpp":
        # llama.cpp counts the tokens of a .gguf file, which has one for each row, with padding.
        target_size = target.size if target is not None and target.format == "gguf" else target_size
        draft_size = draft.size if draft is not None and draft.format == "gguf" else draft_size
    if target_size is not None and draft_size is not None and target_size != draft_size:
        level, reason, remedy = _size_verdict(target_size, draft_size, server, head, heterogeneous)
        if same:
            reason += "; the tokens are the same, one of the two has more padding"
        findings.append(
            Finding(
                "tokenizer",
                level,
                f"the sizes of the vocabularies differ: target {target_size:,}, draft"
                f" {draft_size:,}",
                reason,
                f"vocab_size of both; {_VLLM if server == 'vllm' else _LLAMA}",
                remedy,
            )
        )
    for side, vocabulary, rows in (("target", target, target_size), ("draft", draft, draft_size)):
        if vocabulary is not None and rows is not None and vocabulary.size > rows:
            first = min((number for number in vocabulary.tokens if number >= rows), default=rows)
            findings.append(
                Finding(
                    "tokenizer",
                    "doubt",
                    f"the {side}'s tokenizer has ids up to {vocabulary.size - 1:,}, its embedding"
                    f" {rows:,} rows: id {first} is {quoted(vocabulary.tokens.get(first))}",
                    "such a token in a prompt is an error, or reads another row",
                    f"{vocabulary.where}; vocab_size in config.json",
                    "check that weights and tokenizer are of the same version",
                )
            )
    return findings


def quoted(token: str | None) -> str:
    """A token as text for messages; ``absent`` for None."""
    return "absent" if token is None else f'"{shown(token, _LONGEST_TOKEN)}"'


def _missing(target: Vocabulary | None, draft: Vocabulary | None) -> Finding:
    sides = [side for side, it in (("target", target), ("draft", draft)) if it is None]
    return Finding(
        "tokenizer",
        "doubt",
        "it is not known whether target and draft have the same tokenizer:"
        f" {' and '.join(sides)} {'has' if len(sides) == 1 else 'have'} no tokenizer files",
        _SILENT.replace("is another token", "may be another token"),
        next((it.where for it in (target, draft) if it is not None), ""),
        f"put tokenizer.json of the {' and of the '.join(sides)} beside config.json",
    )


def _compare(
    target: Vocabulary, draft: Vocabulary, server: ServerKind, heterogeneous: bool
) -> list[Finding]:
    source = f"{target.where} and {draft.where}"
    ours, theirs = dict(target.tokens), dict(draft.tokens)
    if (target.format == "gguf") != (draft.format == "gguf"):
        # llama.cpp's converter may write added tokens with spaces.
        ours = {number: token.replace("▁", " ") for number, token in ours.items()}
        theirs = {number: token.replace("▁", " ") for number, token in theirs.items()}
    differing = {number for number, token in ours.items() if theirs.get(number) != token}
    differing |= theirs.keys() - ours.keys()
    most = max(len(ours), len(theirs), 1)
    findings = []
    for vocabulary in (target, draft):
        if vocabulary.added is None:
            differing &= vocabulary.tokens.keys()
            findings.append(
                Finding(
                    "tokenizer",
                    "doubt",
                    f"the special tokens are not known from {vocabulary.where}",
                    "they are defined in code; the other tokens were compared",
                    vocabulary.where,
                    "put a tokenizer.json of the same model beside it",
                )
            )
    if differing and heterogeneous:
        findings.append(_shared_tokens(ours, theirs, source))
    elif differing:
        findings.append(_different_tokens(target, draft, sorted(differing), most, server))
    if server == "llama.cpp":
        findings += _prompt_ends(target, draft, source)
    if len(differing) > _MOSTLY_DIFFERENT * most:
        return findings
    findings += _special_tokens(target, draft, source)
    encodings, texts = _encodings(target, draft, source)
    if encodings is not None:
        findings.append(encodings)
    if not any(finding.level in ("wrong", "doubt") for finding in findings):
        parts = [f"{len(ours):,} tokens with the same ids"]
        if target.added is not None:
            parts.append(f"{len(target.added):,} added tokens")
        if texts:
            parts.append(f"{texts:,} texts encoded alike")
        text = f"target and draft have the same tokens: {', '.join(parts)}"
        findings.insert(0, Finding("tokenizer", "ok", text, source=source))
    if not texts:
        text = "how text is split into tokens was not compared"
        reason = "that takes two files tokenizer.json, or two SentencePiece models"
        findings.append(Finding("tokenizer", "note", text, reason, source))
    if None not in (target.chat_template, draft.chat_template) and (
        target.chat_template != draft.chat_template
    ):
        reason = "a server uses only the target's"
        findings.append(Finding("tokenizer", "note", "the chat templates differ", reason, source))
    return findings


def _different_tokens(
    target: Vocabulary, draft: Vocabulary, differing: list[int], most: int, server: ServerKind
) -> Finding:
    first = differing[0]
    verb = "differs" if len(differing) == 1 else "differ, the first"
    level: Level = "wrong"
    remedy = "choose a draft with the target's tokenizer: usually one of its family"
    meaning = _SILENT
    if server == "vllm":
        remedy += f"; or give {_HETEROGENEOUS}, which drafts only tokens that both have"
        noticed = "vLLM compares the sizes of the vocabularies, never their tokens"
    else:
        end = min(target.size, draft.size)
        noticed = f"llama-server compares only ids {_LLAMA_FIRST_ID} to {end - 1:,}, and not these"
        apart = abs(target.size - draft.size) > _LLAMA_SIZES_APART
        if apart or any(_LLAMA_FIRST_ID <= number < end for number in differing):
            noticed = _SERVES_ON
    if server == "vllm" and _only_added_differ(target, draft, differing):
        level = "doubt"
        meaning = (
            "all of them are added tokens, such as reserved ones: the draft reads or proposes"
            " another token only if text has one of these ids"
        )
        remedy = "check that prompts and answers do not have these tokens, or measure acceptance"
    elif not any(number in draft.tokens for number in differing):
        meaning = (
            "the draft never proposes tokens that it does not have, and if the text has one, the"
            " draft reads a row that it was not trained on, or fails"
        )
    elif not any(number in target.tokens for number in differing):
        meaning = "the target does not have these tokens, so they are never accepted"
    elif set(target.tokens.values()) == set(draft.tokens.values()):
        meaning = f"the same tokens have other ids; {_SILENT}"
    return Finding(
        "tokenizer",
        level,
        f"{len(differing):,} of {most:,} tokens {verb} at id {first}: target"
        f" {quoted(target.tokens.get(first))}, draft {quoted(draft.tokens.get(first))}",
        f"{meaning}; {noticed}",
        f"{target.where} and {draft.where}; {_VLLM if server == 'vllm' else _LLAMA}",
        remedy,
    )


def _only_added_differ(target: Vocabulary, draft: Vocabulary, differing: list[int]) -> bool:
    """Whether only added tokens differ, and neither ``bos`` nor ``eos``."""
    for side in (target, draft):
        ends = {side.special.get("bos"), side.special.get("eos")}
        tokens = [side.tokens[number] for number in differing if number in side.tokens]
        if any(token in ends or token not in (side.added or ()) for token in tokens):
            return False
    return True


def _shared_tokens(ours: dict[int, str], theirs: dict[int, str], source: str) -> Finding:
    """Shared tokens as in vLLM's VocabMapping: by text, with either form of a leading space."""
    target, draft = (
        {" " + token[1:] if token[:1] in ("Ġ", "▁") else token for token in tokens.values()}
        for tokens in (ours, theirs)
    )
    both = len(target & draft)
    return Finding(
        "tokenizer",
        "doubt" if both >= _LEAST_SHARED else "wrong",
        f"target and draft share {both:,} tokens: {both / max(len(draft), 1):.0%} of the draft's,"
        f" {both / max(len(target), 1):.0%} of the target's",
        "with use_heterogeneous_vocab the draft proposes only these, reads the others as unknown,"
        " and drafts greedily",
        f"{source}; vLLM 0.32, vllm/v1/spec_decode/vocab_mapping.py",
        "measure its acceptance, or choose a draft with the target's tokenizer",
    )


def _prompt_ends(target: Vocabulary, draft: Vocabulary, source: str) -> Iterator[Finding]:
    """Findings on tokens around a prompt, which must be the same for llama.cpp."""
    for role in ("bos", "eos"):
        adds = target.adds.get(role), draft.adds.get(role)
        tokens = target.special.get(role), draft.special.get(role)
        if None in adds or (adds[0] == adds[1] and (not adds[0] or tokens[0] == tokens[1])):
            continue
        put = [
            quoted(token) if added else "none" for added, token in zip(adds, tokens, strict=True)
        ]
        yield Finding(
            "tokenizer",
            "wrong",
            f"the {role} token put around a prompt differs: target {put[0]}, draft {put[1]}",
            _SERVES_ON,
            f"{source}; {_LLAMA}",
            "convert both models again, or choose another draft",
        )


def _special_tokens(target: Vocabulary, draft: Vocabulary, source: str) -> Iterator[Finding]:
    for role, (level, reason) in _ROLES.items():
        ours, theirs = target.special.get(role), draft.special.get(role)
        if ours == theirs:
            continue
        if (ours is None or theirs is None) and not (target.special and draft.special):
            level, reason = "note", "one of the two has no special tokens in its files"
        text = (
            f"the {role} token differs: target {_with_id(target, ours)},"
            f" draft {_with_id(draft, theirs)}"
        )
        yield Finding("tokenizer", level, text, reason, source)
    both = set(target.tokens.values()) & set(draft.tokens.values())
    one_sided = sorted(((target.added or set()) ^ (draft.added or set())) & both)
    if one_sided and target.format == draft.format and None not in (target.added, draft.added):
        token = one_sided[0]
        side = "target" if token in (target.added or ()) else "draft"
        more = f", and {len(one_sided) - 1:,} more" if len(one_sided) > 1 else ""
        text = f"{_with_id(target, token)} is an added token of the {side} only{more}"
        yield Finding("tokenizer", "doubt", text, _OTHER_SEQUENCES, source, _MEASURE)


def _with_id(vocabulary: Vocabulary, token: str | None) -> str:
    if token is None:
        return "none"
    number = min((key for key, text in vocabulary.tokens.items() if text == token), default=None)
    return quoted(token) if number is None else f"{quoted(token)} (id {number})"


def _encodings(target: Vocabulary, draft: Vocabulary, source: str) -> tuple[Finding | None, int]:
    """A finding if texts are encoded differently, and the number of texts compared."""
    if target.format != draft.format or not (target.encode and draft.encode and target.decode):
        return None, 0
    ids = sorted(target.tokens)
    step = max(1, len(ids) // SAMPLED_TOKENS)
    texts = [*TEXTS, *filter(None, (target.decode([number]) for number in ids[::step]))]
    differing = [text for text in texts if target.encode(text) != draft.encode(text)]
    if not differing:
        return None, len(texts)
    text = (
        f"{len(differing):,} of {len(texts):,} texts are encoded differently, the first is"
        f" {quoted(differing[0])}"
    )
    return Finding("tokenizer", "doubt", text, _OTHER_SEQUENCES, source, _MEASURE), len(texts)


def _size_verdict(
    target: int, draft: int, server: ServerKind, head: bool, heterogeneous: bool
) -> tuple[Level, str, str]:
    """Level, reason and remedy of vocabularies of different sizes."""
    if head:
        reason = "a head has the vocab_size of the target that it was trained for"
        return "doubt", reason, "check in the head's model card which target it is for"
    if server == "llama.cpp":
        if abs(target - draft) <= _LLAMA_SIZES_APART:
            return "note", f"llama.cpp allows a difference of up to {_LLAMA_SIZES_APART}", ""
        reason = f"with more than {_LLAMA_SIZES_APART}, {_SERVES_ON}"
        return "wrong", reason, "choose a draft with the target's vocabulary"
    if heterogeneous:
        return "note", "use_heterogeneous_vocab allows that", ""
    return (
        "wrong",
        "vLLM does not start with that (Target and draft model should have the same vocabulary"
        " size)",
        f"choose a draft with the target's vocab_size, or give {_HETEROGENEOUS}",
    )

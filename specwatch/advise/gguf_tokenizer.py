"""The ``tokenizer.`` keys of a .gguf file as :class:`Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwatch.advise.model_files import TokenizerFiles
from specwatch.advise.tokenizer_formats import MOST_TOKENS, hashed, unreadable
from specwatch.advise.tokenizer_model import Tokenizer

_MODELS = {"gpt2": "BPE", "llama": "BPE", "t5": "Unigram", "bert": "WordPiece"}
"""llama.cpp's ``llama`` is SentencePiece's BPE, which merges by score."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_ROLE_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}


def gguf(files: TokenizerFiles) -> Tokenizer:
    """Read the tokenizer of a .gguf file; rows that only pad the embedding are no tokens."""
    keys = files.gguf or {}
    rows = _array(keys, "tokens", str, files.where)
    kinds = _array(keys, "token_type", int, files.where)
    if rows is None:
        raise unreadable(files.where, "no tokenizer.ggml.tokens", "the tokens of the model")
    if len(rows) > MOST_TOKENS or (kinds is not None and len(kinds) != len(rows)):
        found = f"{len(rows):,} tokens and {len(kinds or ()):,} token types"
        raise unreadable(files.where, found, f"one type a token, at most {MOST_TOKENS:,}")
    tokens = {
        number: text
        for number, text in enumerate(rows)
        if not (kinds is not None and kinds[number] == _UNUSED and text == f"[PAD{number}]")
    }
    scores = _array(keys, "scores", float, files.where)
    kind = keys.get("tokenizer.ggml.model")
    template = keys.get("tokenizer.chat_template")
    return Tokenizer(
        where=files.where,
        format="gguf",
        model=_MODELS.get(kind) if isinstance(kind, str) else None,
        tokens=tokens,
        size=len(rows),
        merges=_array(keys, "merges", str, files.where),
        scores=scores if kind in ("llama", "t5") else None,
        settings={
            name: keys.get(f"tokenizer.ggml.{name}")
            for name in ("model", "pre", "add_space_prefix", "remove_extra_whitespaces")
        },
        added=_added(rows, kinds),
        special={
            role: tokens[number]
            for role, key in _ROLE_KEYS.items()
            if isinstance(number := keys.get(f"tokenizer.ggml.{key}"), int) and number in tokens
        },
        adds={
            role: value
            for role in ("bos", "eos")
            if isinstance(value := keys.get(f"tokenizer.ggml.add_{role}_token"), bool)
        },
        chat_template=(
            hashed(template.encode("utf-8", "surrogateescape"))
            if isinstance(template, str)
            else None
        ),
    )


def _added(rows: list[str], kinds: list[int] | None) -> dict[str, str] | None:
    if kinds is None:
        return None
    return {
        text: "" if kind == _USER_DEFINED else "special"
        for text, kind in zip(rows, kinds, strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }


def _array(keys: Mapping[str, Any], name: str, kind: type, where: str) -> list[Any] | None:
    values = keys.get(f"tokenizer.ggml.{name}")
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise unreadable(
            where, f"tokenizer.ggml.{name} of another type", f"a list of {kind.__name__}"
        )
    return values

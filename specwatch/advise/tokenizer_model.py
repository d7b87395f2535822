"""What is known of one tokenizer, whatever format its files have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from specwatch.wording.text import shown

Format = Literal["tokenizer.json", "sentencepiece", "tekken", "tiktoken", "vocab", "gguf"]

_LONGEST_TOKEN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What a tokenizer's files say; None is what its format does not say."""

    where: str
    """The file that has the tokens."""
    format: Format
    model: str | None
    """``BPE``, ``Unigram``, ``WordPiece``, ``WordLevel``."""
    tokens: Mapping[int, str]
    """By id, added tokens included. Bytes are spelt as byte-level BPE does (a space is ``Ġ``)."""
    size: int
    """One more than the highest id; of a .gguf file all its rows, padded ones too."""
    merges: Sequence[str] | None = None
    """In their order, such as ``Ġ t``."""
    scores: Sequence[float] | None = None
    """By id."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the model and of what cuts text; the keys are the format's own."""
    added: Mapping[str, str] | None = None
    """Tokens that are cut out before the model sees text, with their flags."""
    special: Mapping[str, str] = field(default_factory=dict)
    """``bos``, ``eos``, ``pad`` and ``unk``, where they are known."""
    adds: Mapping[str, bool] = field(default_factory=dict)
    """Whether ``bos`` and ``eos`` are put around a prompt, where the files say so."""
    chat_template: str | None = None
    """Its SHA-256."""
    untold: tuple[str, ...] = ()
    """What only code could tell."""

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token; of two equal ones the lower."""
        ids: dict[str, int] = {}
        for number in sorted(self.tokens):
            ids.setdefault(self.tokens[number], number)
        return ids

    def id_of(self, token: str) -> int | None:
        """The lowest id of a token."""
        return min((number for number, text in self.tokens.items() if text == token), default=None)


def quoted(token: str | None) -> str:
    """A token fit to print; ``absent`` is none."""
    return "absent" if token is None else f'"{shown(token, _LONGEST_TOKEN)}"'


def _byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte (GPT-2's ``bytes_to_unicode``)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


_BYTE_LETTERS = _byte_letters()


def byte_level(token: bytes) -> str:
    """Bytes as byte-level BPE spells them."""
    return token.decode("latin-1").translate(_BYTE_LETTERS)


class Pair:
    """A target's tokenizer and a draft's."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target = target
        self.draft = draft
        self.alike = target.format == draft.format
        """Whether settings can be compared."""
        self.tokens = (target.tokens, draft.tokens)
        if not self.alike and "gguf" in (target.format, draft.format):
            self.tokens = (_as_converted(target), _as_converted(draft))

    @property
    def source(self) -> str:
        """The files that were compared."""
        return f"{self.target.where} and {self.draft.where}"

    @cached_property
    def differing(self) -> list[int]:
        """The ids whose tokens differ, lowest first; what only code can tell is left out."""
        target, draft = self.tokens
        if target == draft:
            return []
        ids = {number for number, token in target.items() if draft.get(number) != token}
        ids |= draft.keys() - target.keys()
        for side, tokens in ((self.target, target), (self.draft, draft)):
            if side.untold:
                ids &= tokens.keys()
        return sorted(ids)

    def at(self, number: int) -> tuple[str | None, str | None]:
        """The token of an id on both sides."""
        return self.target.tokens.get(number), self.draft.tokens.get(number)


def _as_converted(tokenizer: Tokenizer) -> dict[int, str]:
    """Tokens as llama.cpp's converter may write them: with spaces in added ones."""
    return {number: token.replace("▁", " ") for number, token in tokenizer.tokens.items()}

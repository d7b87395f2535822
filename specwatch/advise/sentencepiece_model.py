"""SentencePiece's ``tokenizer.model``: the few fields of its protobuf that tell tokens apart.

Field numbers are those of ``sentencepiece_model.proto``. Only pieces and the settings of trainer
and normalizer are looked at, and nothing is allocated by a length that the file claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from specwatch.advise.model_files import TokenizerFiles
from specwatch.advise.tokenizer_formats import hashed, unreadable, with_extras
from specwatch.advise.tokenizer_model import Tokenizer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_MODELS = {1: "Unigram", 2: "BPE", 3: "Word", 4: "Char"}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ROLES = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}
"""Fields of the trainer's settings, and the ids that are meant where they are left out."""
_NORMALIZING = {
    "normalizer": 1,
    "add_dummy_prefix": 3,
    "remove_extra_whitespaces": 4,
    "escape_whitespaces": 5,
}

Value = int | bytes


class _Broken(Exception):
    """No protobuf, or not all of one."""


def sentencepiece(files: TokenizerFiles, file: str) -> Tokenizer:
    """Read ``tokenizer.model``; raises ConfigError where it is no SentencePiece model."""
    name = f"{files.where}/{file}"
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    try:
        for field, value in _fields(files.files[file]):
            if not isinstance(value, bytes):
                continue
            if field == _PIECES:
                pieces.append(_piece(value))
            elif field == _TRAINER:
                trainer = dict(_fields(value))
            elif field == _NORMALIZER:
                normalizer = dict(_fields(value))
    except (_Broken, UnicodeDecodeError) as error:
        found = f"what cannot be read after {len(pieces):,} pieces ({error})"
        raise unreadable(name, found, "a SentencePiece model") from None
    if not pieces:
        raise unreadable(name, "no pieces", "a SentencePiece model")
    tokens = {number: text for number, (text, _score, _kind) in enumerate(pieces)}
    plain = Tokenizer(
        where=name,
        format="sentencepiece",
        model=_MODELS.get(_number(trainer, _MODEL_TYPE, 1)),
        tokens=tokens,
        size=len(tokens),
        scores=[score for _text, score, _kind in pieces],
        settings=_settings(trainer, normalizer),
        added={
            text: "" if kind == _USER_DEFINED else "special"
            for text, _score, kind in pieces
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        },
    )
    full = with_extras(files, plain)
    own = {role: tokens.get(_number(trainer, *place)) for role, place in _ROLES.items()}
    # The smaller files come last: a server goes by what they say.
    named = {role: token for role, token in own.items() if token is not None}
    return replace(full, special={**named, **full.special})


def _piece(message: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, 1
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            text = value.decode()
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    return text, score, kind


def _settings(trainer: dict[int, Value], normalizer: dict[int, Value]) -> dict[str, object]:
    settings: dict[str, object] = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else bool(value)
        for name, field in _NORMALIZING.items()
        if (value := normalizer.get(field)) is not None
    }
    rules = normalizer.get(2)
    if isinstance(rules, bytes) and rules:
        settings["precompiled_charsmap"] = hashed(rules)
    settings["byte_fallback"] = bool(trainer.get(_BYTE_FALLBACK, 0))
    return settings


def _number(message: dict[int, Value], field: int, default: int) -> int:
    value = message.get(field, default)
    return value if isinstance(value, int) else default


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field; fixed ones are bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise _Broken(f"wire type {kind} at byte {at:,}")
        if length > end - at:
            raise _Broken(f"a field of {length:,} bytes where {end - at:,} are left")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        if at >= len(message):
            raise _Broken("it ends in the middle of a number")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise _Broken(f"a number of more than 10 bytes before byte {at:,}")

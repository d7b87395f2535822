"""Tokenizer files of Hugging Face and Mistral, and plain vocabularies, as :class:`Tokenizer`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from specwatch.advise.model_files import TokenizerFiles
from specwatch.advise.tokenizer_model import Tokenizer, byte_level
from specwatch.errors import ConfigError
from specwatch.wording.text import shown

ROLES = ("bos", "eos", "pad", "unk")
MOST_TOKENS = 4_000_000
"""Ids beyond it are an error in the file: the largest vocabularies have some 260,000."""

_MOST_VALUES = 4_000_000
"""A merge is two: the largest vocabularies have some 1,500,000."""
_REMEDY = "download it again"
_MERGE_SETTINGS = (
    "byte_fallback",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "ignore_merges",
    "unk_token",
)
_TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Of files before version 11, which do not list them; the names are mistral-common's."""

T = TypeVar("T")


class _Added(Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    single_word: bool = False


class _Model(Struct):
    type: str | None = None
    vocab: dict[str, int] | list[tuple[str, float]] = {}
    merges: list[str | tuple[str, str]] | None = None
    unk_id: int | None = None
    unk_token: str | None = None
    byte_fallback: bool | None = None
    fuse_unk: bool | None = None
    ignore_merges: bool | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _TokenizerFile(Struct):
    model: _Model
    added_tokens: list[_Added] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


class _TekkenConfig(Struct):
    default_vocab_size: int
    default_num_special_tokens: int
    pattern: str | None = None


class _TekkenToken(Struct):
    rank: int
    token_bytes: str


class _TekkenSpecial(Struct):
    rank: int
    token_str: str


class _TekkenFile(Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def unreadable(file: str, found: str, expected: str) -> ConfigError:
    """Return the error of a tokenizer's file that is not what its name says."""
    return ConfigError(f"{file}: {found}; expected {expected}: {_REMEDY}")


def decoded(data: bytes, kind: type[T], file: str, expected: str) -> T:
    """JSON as ``kind``; raises ConfigError naming the file and the place."""
    # As objects, short values take twenty times their bytes.
    if (values := data.count(b",")) > _MOST_VALUES:
        raise unreadable(file, f"{values:,} values", f"at most {_MOST_VALUES:,}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(file, shown(str(error), 200), expected) from None


def loose(data: bytes | None, file: str) -> dict[str, Any]:
    """A JSON object as Python's json reads it, with NaN and numbers of any length."""
    if data is None:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        found = f"no JSON that can be read ({shown(str(error), 200)})"
        raise unreadable(file, found, "a JSON object") from None
    if not isinstance(value, dict):
        raise unreadable(file, f"a JSON {type(value).__name__}", "a JSON object")
    return value


def hugging_face(files: TokenizerFiles) -> Tokenizer:
    """``tokenizer.json``, with what ``tokenizer_config.json`` adds to it."""
    name = f"{files.where}/tokenizer.json"
    read = decoded(
        files.files["tokenizer.json"], _TokenizerFile, name, "the JSON of a fast tokenizer"
    )
    model = read.model
    scores = None
    if isinstance(model.vocab, dict):
        tokens = _by_id(model.vocab, name)
        if len(tokens) < len(model.vocab):
            tokens_twice = len(model.vocab) - len(tokens)
            raise unreadable(name, f"{tokens_twice} tokens share an id", "one id for each token")
    else:
        tokens = {number: piece for number, (piece, _score) in enumerate(model.vocab)}
        scores = [score for _piece, score in model.vocab]
    added = {}
    for token in read.added_tokens or ():
        tokens[_checked(token.id, name)] = token.content
        added[token.content] = _flags(msgspec.structs.asdict(token))
    return with_extras(
        files,
        Tokenizer(
            where=name,
            format="tokenizer.json",
            model=model.type or _kind_of(model),
            tokens=tokens,
            size=0,
            merges=None if model.merges is None else _joined(model.merges),
            scores=scores,
            settings={
                **{key: getattr(model, key) or None for key in _MERGE_SETTINGS},
                "normalizer": read.normalizer,
                "pre_tokenizer": read.pre_tokenizer,
                "decoder": read.decoder,
            },
            added=added,
        ),
    )


def plain_vocabulary(files: TokenizerFiles) -> Tokenizer:
    """``vocab.json`` with ``merges.txt`` (BPE), or ``vocab.txt`` (WordPiece)."""
    merges: list[str] | None = None
    if "vocab.json" in files.files:
        name, model = f"{files.where}/vocab.json", "BPE"
        read = decoded(files.files["vocab.json"], dict[str, int], name, "the id of each token")
        tokens = _by_id(read, name)
        if "merges.txt" in files.files:
            lines = _lines(files.files["merges.txt"], f"{files.where}/merges.txt")
            merges = [line for line in lines if line and not line.startswith("#version")]
    else:
        name, model = f"{files.where}/vocab.txt", "WordPiece"
        tokens = dict(enumerate(_lines(files.files["vocab.txt"], name)))
    plain = Tokenizer(
        where=name, format="vocab", model=model, tokens=tokens, size=0, merges=merges, added={}
    )
    return with_extras(files, plain)


def tekken(files: TokenizerFiles) -> Tokenizer:
    """Mistral's ``tekken.json``: special tokens first, then byte sequences in order of merging."""
    name = f"{files.where}/tekken.json"
    read = decoded(files.files["tekken.json"], _TekkenFile, name, "a tekken vocabulary")
    first = _checked(read.config.default_num_special_tokens, name)
    kept = _checked(read.config.default_vocab_size, name) - first
    special = {number: f"<SPECIAL_{number}>" for number in range(first)}
    if read.special_tokens is None:
        special |= dict(enumerate(_TEKKEN_SPECIAL[:first]))
    else:
        special |= {_checked(token.rank, name): token.token_str for token in read.special_tokens}
    ranked = {
        first + _checked(token.rank, name): byte_level(_unpacked(token.token_bytes, name))
        for token in read.vocab[: max(kept, 0)]
    }
    known = set(special.values())
    roles = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    return Tokenizer(
        where=name,
        format="tekken",
        model="BPE",
        tokens=special | ranked,
        size=max(special | ranked, default=-1) + 1,
        settings={"pattern": read.config.pattern},
        added=dict.fromkeys(special.values(), ""),
        special={role: token for role, token in roles.items() if token in known},
        chat_template=_template(files, {}),
    )


def tiktoken(files: TokenizerFiles, file: str) -> Tokenizer:
    """Lines of base64 and rank; which special tokens follow is written in code, not in files."""
    name = f"{files.where}/{file}"
    tokens: dict[int, str] = {}
    for line in _lines(files.files[file], name):
        if not line:
            continue
        packed, _, rank = line.partition(" ")
        if not rank.isascii() or not rank.isdigit() or len(rank) > 9:
            raise unreadable(name, f"the line {shown(line)!r}", "a token in base64, and its rank")
        tokens[_checked(int(rank), name)] = byte_level(_unpacked(packed, name))
    plain = Tokenizer(where=name, format="tiktoken", model="BPE", tokens=tokens, size=0)
    full = with_extras(files, plain)
    return full if full.added else replace(full, untold=("special tokens",))


def with_extras(files: TokenizerFiles, plain: Tokenizer) -> Tokenizer:
    """The same, with the tokens and roles that the smaller files beside it give."""
    config = _object(files, "tokenizer_config.json")
    tokens = dict(plain.tokens)
    added = dict(plain.added or {})
    for number, content, flags in _extra_tokens(files, config):
        if tokens.get(number) != content:
            if content in added or content in tokens.values():
                continue
            tokens[number] = content
        added.setdefault(content, flags)
    return replace(
        plain,
        tokens=tokens,
        size=max(plain.size, max(tokens, default=-1) + 1),
        added=added if added or plain.added is not None else None,
        special=_roles(_object(files, "special_tokens_map.json")) | _roles(config),
        adds={
            role: bool(config[f"add_{role}_token"])
            for role in ("bos", "eos")
            if isinstance(config.get(f"add_{role}_token"), bool)
        },
        chat_template=_template(files, config),
    )


def _extra_tokens(
    files: TokenizerFiles, config: Mapping[str, Any]
) -> Iterable[tuple[int, str, str]]:
    """Yield id, text and flags of tokens that files beside the vocabulary name."""
    name = f"{files.where}/tokenizer_config.json"
    decoder = config.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise unreadable(name, f"added token {shown(key)}", "an object with its content")
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise unreadable(name, f"the id {shown(key)!r}", "a whole number")
        yield _checked(int(key), name), token["content"], _flags(token)
    name = f"{files.where}/added_tokens.json"
    for content, number in _object(files, "added_tokens.json").items():
        if not isinstance(number, int):
            raise unreadable(name, f"the id {shown(repr(number))}", "a whole number")
        yield _checked(number, name), content, ""


def _object(files: TokenizerFiles, file: str) -> dict[str, Any]:
    return loose(files.files.get(file), f"{files.where}/{file}")


def _roles(values: Mapping[str, Any]) -> dict[str, str]:
    roles = {}
    for role in ROLES:
        token = values.get(f"{role}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            roles[role] = token
    return roles


def _template(files: TokenizerFiles, config: Mapping[str, Any]) -> str | None:
    template: object = files.files.get("chat_template.jinja") or config.get("chat_template")
    if template is None:
        template = _object(files, "chat_template.json").get("chat_template")
    if template is None:
        return None
    if isinstance(template, bytes):
        return hashed(template)
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashed(text.encode("utf-8", "surrogatepass"))


def hashed(text: bytes) -> str:
    """SHA-256 of a template, whose last line feeds do not count."""
    return hashlib.sha256(text.rstrip(b"\n")).hexdigest()


def _flags(token: Mapping[str, Any]) -> str:
    names = ("special", "lstrip", "rstrip", "normalized", "single_word")
    return " ".join(name for name in names if token.get(name) is True)


def _by_id(vocabulary: Mapping[str, int], name: str) -> dict[int, str]:
    tokens = {number: token for token, number in vocabulary.items()}
    if tokens:
        _checked(min(tokens), name)
        _checked(max(tokens), name)
    return tokens


def _checked(number: int, name: str) -> int:
    if not 0 <= number < MOST_TOKENS:
        raise unreadable(name, f"the id {number}", f"one from 0 to {MOST_TOKENS - 1:,}")
    return number


def _kind_of(model: _Model) -> str:
    """Files from before 2020 do not name it."""
    if isinstance(model.vocab, list):
        return "Unigram"
    return "WordPiece" if model.merges is None else "BPE"


def _joined(merges: list[str | tuple[str, str]]) -> list[str]:
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _lines(data: bytes, name: str) -> list[str]:
    try:
        return data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise unreadable(name, f"byte {error.start:,} is no UTF-8", "text in UTF-8") from None


def _unpacked(packed: str, name: str) -> bytes:
    try:
        return base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError):
        raise unreadable(name, f"the token {shown(packed)!r}", "base64") from None

"""Reading tokenizers, with the libraries of their formats.

*tokenizers* reads ``tokenizer.json``, *sentencepiece* ``tokenizer.model``; tekken and tiktoken
files and plain vocabularies are lists of tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specwatch.errors import ConfigError
from specwatch.lab.advise.files import json_object, library, unreadable
from specwatch.lab.advise.model_files import TokenizerFiles
from specwatch.wording.text import shown

MOST_TOKENS = 4_000_000
"""Higher ids are an error in the file: the largest vocabularies have about 260,000."""
Format = Literal["tokenizer.json", "sentencepiece", "gguf", "list"]
_ROLES = ("bos", "eos", "unk", "pad")
_TEKKEN_SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
"""Special tokens of files before version 11, which do not list them; names of mistral-common."""
_GGUF_ROLES = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTE_LETTERS = {
    byte: 256 + number for number, byte in enumerate(sorted(set(range(256)) - _PRINTABLE))
}
"""Letters of byte-level BPE for bytes that cannot be printed (GPT-2's ``bytes_to_unicode``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer by its files; None means not known."""

    where: str
    """The file that has the tokens."""
    tokens: Mapping[int, str]
    """By id, added tokens included. Bytes are written as in byte-level BPE (a space is ``Ġ``)."""
    size: int
    """One more than the highest id; of a .gguf file the number of rows, padding included."""
    added: frozenset[str] | None = None
    """Added tokens, which are matched before text is split."""
    special: Mapping[str, str] = field(default_factory=dict)
    """``bos``, ``eos``, ``unk`` and ``pad``, if known."""
    adds: Mapping[str, bool] = field(default_factory=dict)
    """Whether ``bos`` and ``eos`` are put around a prompt, if known."""
    chat_template: str | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    """The ids of a text, without tokens around it; None if the format has only a vocabulary."""
    decode: Callable[[list[int]], str] | None = None
    format: Format = "list"
    """Tokenizers of different formats encode and add tokens by different rules."""


def read_vocabulary(files: TokenizerFiles) -> Vocabulary:
    """Read a tokenizer; of several formats, the one that a server prefers.

    Raises ConfigError with the file that cannot be read.
    """
    if files.gguf is not None:
        return _gguf(files.gguf, files.where)
    names = sorted(files.files)
    if "tokenizer.json" in names:
        return _tokenizer_json(files)
    if "tekken.json" in names:
        return _tekken(files)
    for name in names:
        # Llama 3 has a tiktoken file tokenizer.model; a protobuf begins with the tag of its first
        # piece.
        if name.startswith("tokenizer.model") and files.files[name][:1] == b"\n":
            return _sentencepiece(files, name)
        if name.startswith("tokenizer.model") or name.endswith((".tiktoken", "tiktoken.model")):
            return _tiktoken(files, name)
    if "vocab.json" in names:
        ids = json_object(files.files["vocab.json"], f"{files.where}/vocab.json")
        tokens = {number: text for text, number in ids.items()}
        return _with_settings(files, "vocab.json", tokens, set())
    if "vocab.txt" in names:
        tokens = dict(enumerate(_lines(files, "vocab.txt")))
        return _with_settings(files, "vocab.txt", tokens, set())
    raise ConfigError(
        f"{files.where}: no vocabulary; expected tokenizer.json, tekken.json, tokenizer.model,"
        " *.tiktoken, vocab.json or vocab.txt: download it from where the model came from"
    )


def _tokenizer_json(files: TokenizerFiles) -> Vocabulary:
    where = f"{files.where}/tokenizer.json"
    tokenizers = library("tokenizers", where)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(files.files["tokenizer.json"])
    except Exception as error:
        raise unreadable(where, error, "the JSON of a fast tokenizer") from None
    tokenizer.no_truncation()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokens = {number: text for text, number in tokenizer.get_vocab().items()}
    return _with_settings(
        files,
        "tokenizer.json",
        tokens,
        added,
        form="tokenizer.json",
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )


def _sentencepiece(files: TokenizerFiles, name: str) -> Vocabulary:
    where = f"{files.where}/{name}"
    processor = library("sentencepiece", where).SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(files.files[name])
    except (RuntimeError, OSError) as error:
        raise unreadable(where, error, "a SentencePiece model") from None
    ids = range(processor.vocab_size())
    special = {
        role: processor.id_to_piece(number)
        for role in _ROLES
        if 0 <= (number := getattr(processor, f"{role}_id")()) < len(ids)
    }
    added = {
        processor.id_to_piece(number)
        for number in ids
        if processor.is_control(number) or processor.is_unknown(number)
    }
    return _with_settings(
        files,
        name,
        {number: processor.id_to_piece(number) for number in ids},
        added,
        special,
        form="sentencepiece",
        encode=processor.encode,
        decode=processor.decode,
    )


def _tekken(files: TokenizerFiles) -> Vocabulary:
    """Mistral's ``tekken.json``: special tokens first, then byte sequences in order of merging."""
    where = f"{files.where}/tekken.json"
    document = json_object(files.files["tekken.json"], where)
    try:
        first = int(document["config"]["default_num_special_tokens"])
        kept = int(document["config"]["default_vocab_size"]) - first
        special = {number: f"<SPECIAL_{number}>" for number in range(min(first, MOST_TOKENS))}
        special |= dict(enumerate(_TEKKEN_SPECIAL[:first]))
        if document.get("special_tokens") is not None:
            special |= {
                int(token["rank"]): token["token_str"] for token in document["special_tokens"]
            }
        tokens = special | {
            first + int(token["rank"]): _byte_level(token["token_bytes"])
            for token in document["vocab"][: max(kept, 0)]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(where, f"{type(error).__name__} {error}", "a tekken vocabulary") from None
    roles = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    special_tokens = set(special.values())
    roles = {role: token for role, token in roles.items() if token in special_tokens}
    return _with_settings(files, "tekken.json", tokens, special_tokens, roles)


def _tiktoken(files: TokenizerFiles, name: str) -> Vocabulary:
    """Lines of base64 and rank; special tokens are defined in code, not in files."""
    tokens = {}
    for line in _lines(files, name):
        packed, _, rank = line.partition(" ")
        try:
            tokens[int(rank)] = _byte_level(packed)
        except ValueError:
            raise unreadable(
                f"{files.where}/{name}", f"the line {shown(line)!r}", "a token in base64, its rank"
            ) from None
    return _with_settings(files, name, tokens, None)


def _gguf(keys: Mapping[str, Any], where: str) -> Vocabulary:
    rows, kinds = keys["tokenizer.ggml.tokens"], keys.get("tokenizer.ggml.token_type")
    if not isinstance(rows, list) or (kinds is not None and len(kinds) != len(rows)):
        raise unreadable(where, "tokens without a type", "one type for each token")
    token_type = library("gguf", where).TokenType
    cut_out = (token_type.UNKNOWN, token_type.CONTROL, token_type.USER_DEFINED)
    tokens = {
        number: text
        for number, text in enumerate(rows)
        if kinds is None or kinds[number] != token_type.UNUSED or text != f"[PAD{number}]"
    }
    template = keys.get("tokenizer.chat_template")
    return Vocabulary(
        where=where,
        tokens=tokens,
        size=len(rows),
        added=None
        if kinds is None
        else frozenset(text for text, kind in zip(rows, kinds, strict=True) if kind in cut_out),
        special={
            role: tokens[number]
            for role, key in _GGUF_ROLES.items()
            if (number := keys.get(f"tokenizer.ggml.{key}")) in tokens
        },
        adds={
            role: value
            for role in ("bos", "eos")
            if isinstance(value := keys.get(f"tokenizer.ggml.add_{role}_token"), bool)
        },
        chat_template=template.rstrip("\n") if isinstance(template, str) else None,
        format="gguf",
    )


def _with_settings(
    files: TokenizerFiles,
    name: str,
    tokens: dict[int, str],
    added: set[str] | None,
    special: Mapping[str, str] | None = None,
    *,
    form: Format = "list",
    encode: Callable[[str], Sequence[int]] | None = None,
    decode: Callable[[list[int]], str] | None = None,
) -> Vocabulary:
    """A vocabulary with the tokens and roles from the smaller files beside it."""
    config = _settings(files, "tokenizer_config.json")
    present, more = set(tokens.values()), set()
    for number, text in _added_tokens(files, config):
        more.add(text)
        if text not in present:
            tokens[number] = text
    for number in tokens:
        if not isinstance(number, int) or not 0 <= number < MOST_TOKENS:
            raise unreadable(
                f"{files.where}/{name}", f"the id {number!r:.40}", f"one below {MOST_TOKENS:,}"
            )
    special = {
        **(special or {}),
        **_roles(_settings(files, "special_tokens_map.json")),
        **_roles(config),
    }
    template: object = files.files.get("chat_template.jinja") or config.get("chat_template")
    template = template or _settings(files, "chat_template.json").get("chat_template")
    if isinstance(template, bytes):
        template = template.decode("utf-8", "replace")
    elif template is not None and not isinstance(template, str):
        template = json.dumps(template, sort_keys=True)
    return Vocabulary(
        where=f"{files.where}/{name}",
        tokens=tokens,
        size=max(tokens, default=-1) + 1,
        added=frozenset(more | (added or set())) if more or added is not None else None,
        special=special,
        adds={
            role: config[f"add_{role}_token"]
            for role in ("bos", "eos")
            if isinstance(config.get(f"add_{role}_token"), bool)
        },
        chat_template=template.rstrip("\n") if isinstance(template, str) else None,
        encode=encode,
        decode=decode,
        format=form,
    )


def _settings(files: TokenizerFiles, name: str) -> dict[str, Any]:
    return json_object(files.files.get(name), f"{files.where}/{name}")


def _added_tokens(files: TokenizerFiles, config: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            path = f"{files.where}/tokenizer_config.json"
            raise unreadable(path, f"the added token {shown(number)}", "an object with its content")
        yield int(number) if number.isdecimal() else -1, token["content"]
    yield from ((number, text) for text, number in _settings(files, "added_tokens.json").items())


def _roles(values: Mapping[str, Any]) -> dict[str, str]:
    tokens = {role: values.get(f"{role}_token") for role in _ROLES}
    texts = {
        role: token.get("content") if isinstance(token, dict) else token
        for role, token in tokens.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _lines(files: TokenizerFiles, name: str) -> list[str]:
    try:
        return files.files[name].decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise unreadable(f"{files.where}/{name}", error, "text in UTF-8") from None


def _byte_level(packed: str) -> str:
    return base64.b64decode(packed, validate=True).decode("latin-1").translate(_BYTE_LETTERS)

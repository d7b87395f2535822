"""Prompts from files of common formats, and of random words.

Read are a JSON array or JSON lines of conversations as ShareGPT has them (``conversations`` with
``from`` and ``value``), of ``messages`` as chat endpoints take them, of ``prompt`` (a text) as
``vllm bench`` and AIPerf read it (``text`` and ``text_input`` too), and of ``turns`` as MT-Bench
and Spec-Bench have them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from specwatch.errors import ConfigError
from specwatch.lab.loadtest.prompts import PROMPTS
from specwatch.lab.loadtest.requests import Prompt

MOST_PROMPTS = 1000
"""Prompts taken from a data set, selected with the seed."""
LONGEST_PROMPT = 1 << 20
"""Characters; longer prompts are skipped."""
RANDOM = "random:"
"""Prefix of the name of a data set of random words."""
_MOST_TOKENS = 1 << 20
_TEXTS = ("prompt", "text_input", "text")
_EXPECTED = (
    'expected JSON lines or a JSON array of objects with "prompt", "messages", "conversations"'
    ' (ShareGPT) or "turns"'
)
_WORDS = sorted(
    {word for prompt in PROMPTS for word in prompt.split() if word.isalpha() and len(word) < 9}
)


def read(data: bytes, where: str, *, seed: int, chat: bool) -> tuple[Prompt, ...]:
    """The prompts in a file, at most :data:`MOST_PROMPTS` of them, selected with the seed.

    Without ``chat`` only the first message of a user is used. Entries without a prompt of text are
    skipped. Raises ConfigError, beginning with ``where``, for another format and for a file without
    prompts.
    """
    entries = _entries(data.removeprefix(b"\xef\xbb\xbf").strip(), where)
    if len(entries) > MOST_PROMPTS:
        entries = random.Random(seed).sample(entries, len(entries))
    prompts: list[Prompt] = []
    other: Any = None
    for number, entry in enumerate(entries, start=1):
        try:
            value = msgspec.json.decode(entry)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{where}, entry {number}: not JSON ({error}); {_EXPECTED}") from None
        prompt = _prompt(value, chat=chat)
        if prompt is not None:
            prompts.append(prompt)
        elif other is None:
            other = value
        if len(prompts) == MOST_PROMPTS:
            break
    if not prompts:
        raise ConfigError(
            f"{where} has no prompt in {len(entries)} entries, found {_kind_of(other)}; {_EXPECTED}"
        )
    return tuple(prompts)


def random_lengths(name: str) -> tuple[int, int]:
    """Input and output tokens from a name such as ``random:256,128``.

    Raises ConfigError.
    """
    parts = name.removeprefix(RANDOM).split(",")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts):
        lengths = (int(parts[0]), int(parts[1]))
        if all(1 <= length <= _MOST_TOKENS for length in lengths):
            return lengths
    raise ConfigError(
        f"--dataset {name}: expected random:IN,OUT, two numbers of tokens, such as random:256,128"
    )


def random_words(count: int, number: int, *, seed: int) -> tuple[Prompt, ...]:
    """``number`` prompts of ``count`` short English words, each of about one token."""
    generator = random.Random(seed)
    return tuple(Prompt(" ".join(generator.choices(_WORDS, k=count))) for _ in range(number))


def words_for(tokens: int, few: tuple[int, int], many: tuple[int, int]) -> int:
    """The number of words for a number of tokens, from two counts ``(words, tokens)`` of a server.

    At least 1, as the chat template alone may have more tokens.
    """
    (few_words, few_tokens), (many_words, many_tokens) = few, many
    per_word = (many_tokens - few_tokens) / (many_words - few_words)
    if per_word <= 0:
        return tokens
    return max(1, round(few_words + (tokens - few_tokens) / per_word))


def _entries(data: bytes, where: str) -> Sequence[msgspec.Raw]:
    """The entries, not yet parsed, as few of a large file are used."""
    if not data:
        raise ConfigError(f"{where} is empty; {_EXPECTED}")
    try:
        if data.startswith(b"["):
            return msgspec.json.decode(data, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is not JSON ({error}); {_EXPECTED}") from None
    if not data.startswith(b"{"):
        raise ConfigError(f"{where} is not JSON; {_EXPECTED} (lines of text: --prompts FILE)")
    lines = [line for line in data.split(b"\n") if line.strip()]
    if lines[0].strip() == b"{":
        raise ConfigError(f"{where} is one JSON object of many lines; {_EXPECTED}")
    return list(map(msgspec.Raw, lines))


def _prompt(value: Any, *, chat: bool) -> Prompt | None:
    if not isinstance(value, Mapping):
        return None
    for name in _TEXTS:
        if isinstance(value.get(name), str):
            return _whole([{"role": "user", "content": value[name]}], chat=chat)
    if isinstance(value.get("messages"), list):
        return _whole(list(_messages(value["messages"], "role", "content")), chat=chat)
    if isinstance(value.get("conversations"), list):
        messages = list(_messages(value["conversations"], "from", "value"))
        return _whole([message for message in messages if message["role"] == "user"][:1], chat=chat)
    turns = value.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return _whole([{"role": "user", "content": turns[0]}], chat=chat)
    return None


def _messages(entries: list[Any], role: str, text: str) -> Iterator[dict[str, str]]:
    """Yield messages up to the first without text."""
    names = {"human": "user", "user": "user", "system": "system", "gpt": "assistant"}
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get(text), str):
            return
        speaker = str(entry.get(role))
        yield {"role": names.get(speaker, speaker), "content": entry[text]}


def _whole(messages: list[dict[str, str]], *, chat: bool) -> Prompt | None:
    """A prompt of the messages up to the last of a user; None if there is no text, or too much."""
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    text = next((message["content"] for message in messages if message["role"] == "user"), "")
    size = sum(len(message["content"]) for message in messages)
    if not text.strip() or size > LONGEST_PROMPT:
        return None
    return Prompt(text, tuple(messages) if chat and len(messages) > 1 else ())


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"objects with {', '.join(sorted(map(str, value))[:6])[:80] or 'nothing'}"
    return type(value).__name__

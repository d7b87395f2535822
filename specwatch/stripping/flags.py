"""Flags of vLLM that ask for speculation, in all versions and spellings.

Source: ``FlexibleArgumentParser`` and ``EngineArgs.add_cli_args`` of vLLM 0.6 to 0.32. A word is
read as that parser does: underscores equal dashes up to the first dot, a flag may be abbreviated,
a key after a dot takes the next word whatever it looks like.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specwatch.errors import CannotStrip
from specwatch.stripping.word import UNKNOWN, Loose, spelt


class _Takes(enum.Enum):
    NOTHING = 0
    ONE = 1
    TRUTH = 2
    """``true``, ``false`` or nothing."""


_CONFIG = "--speculative-config"
_CONFIG_SHORT = "-sc"
_METHOD = "--spec-method"
_RECORD = "--per-request-spec-decode-metrics"
_NOW = dict.fromkeys(
    (_CONFIG, _CONFIG_SHORT, _METHOD, "--spec-model", "--spec-tokens", _RECORD), _Takes.ONE
)
"""Since 0.8.2."""
_BEFORE = {
    "--speculative-model": _Takes.ONE,
    "--speculative-model-quantization": _Takes.ONE,
    "--num-speculative-tokens": _Takes.ONE,
    "--speculative-draft-tensor-parallel-size": _Takes.ONE,
    "-spec-draft-tp": _Takes.ONE,
    "--speculative-max-model-len": _Takes.ONE,
    "--speculative-disable-by-batch-size": _Takes.ONE,
    "--speculative-disable-mqa-scorer": _Takes.NOTHING,
    "--ngram-prompt-lookup-max": _Takes.ONE,
    "--ngram-prompt-lookup-min": _Takes.ONE,
    "--spec-decoding-acceptance-method": _Takes.ONE,
    "--typical-acceptance-sampler-posterior-threshold": _Takes.ONE,
    "--typical-acceptance-sampler-posterior-alpha": _Takes.ONE,
    "--disable-logprobs-during-spec-decoding": _Takes.TRUTH,
}
"""Up to 0.8.2."""
_SHORTEST = re.compile(r"-s|--(sp|num-sp|ng|ty|disable-logp|per-)")
"""How abbreviations begin that stand for no other flag, in any version that knows them."""

_UNSET = {"", "None"}
_NOT_ACCELERATION = "extract_hidden_states"
_NEGATIVE = re.compile(r"-\d+")
_VARIABLE = re.compile(r"\$(\w+|\(.*\))", re.DOTALL)
_FOR_A_SHELL = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "2>&1", "&>"})

_SEVERAL_VALUES = frozenset({
    "--allowed-media-domains", "--api-key", "--collect-detailed-traces", "--cpu-offload-params",
    "--cuda-graph-sizes", "--cudagraph-capture-sizes", "--ignore-patterns",
    "--kv-cache-dtype-skip-layers", "--logits-processors", "--lora-modules",
    "--lora-target-modules", "--numa-bind-cpus", "--numa-bind-nodes", "--offload-params",
    "--pooling-returned-token-ids", "--prompt-adapters", "--served-model-name",
    "--sleep-preserve-parameter-names",
})  # fmt: skip
_SWITCH = re.compile(r"--(no|enable|disable|use|trust|enforce|skip|headless)\b")
"""How most flags begin that take no value."""
_OPTIONAL_VALUE = frozenset({
    "--hf-token", "--enable-chunked-prefill", "--multi-step-stream-outputs",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """A flag about speculation at the places from ``start`` up to, not including, ``stop``.

    ``key`` is what follows the dot; ``value`` is None where it has none.
    """

    start: int
    stop: int
    name: str
    key: str
    value: str | None

    @property
    def flag(self) -> str:
        """The flag in full: ``--speculative-config`` for ``-sc`` and ``--specul``."""
        if _is_config(self.name):
            return _CONFIG
        if self.name in _NOW or self.name in _BEFORE:
            return self.name
        known = (flag for family in (_NOW, _BEFORE) for flag in family)
        return next(flag for flag in known if flag.startswith(self.name))

    @property
    def is_old(self) -> bool:
        """Whether only vLLM up to 0.8.2 knows it."""
        return self.flag in _BEFORE

    @property
    def is_set(self) -> bool:
        """Whether it says anything else than the default."""
        if self.key or self.value is None:
            return True
        if self.name == _RECORD:
            return self.value != "none"
        return self.value not in _UNSET and not (
            _is_config(self.name) and self.value.strip() == "null"
        )


def refuse_unclear(words: Sequence[str]) -> None:
    """Raise CannotStrip when a word of vLLM could be, or hide, others."""
    for word in words:
        if isinstance(word, Loose) or _VARIABLE.fullmatch(word):
            raise CannotStrip(
                f"{spelt(word)} may stand for several words, among them flags of speculation:"
                ' write them out in its place; if it is one word, put it in "double quotes"'
            )
        if word in _FOR_A_SHELL:
            raise CannotStrip(
                f"{word!r} is for a shell, not for vLLM: put the whole in sh -c '...', or leave it"
                " out"
            )
        if word.startswith("-") and UNKNOWN in re.split("[.=]", word, maxsplit=1)[0]:
            raise CannotStrip(f"{spelt(word)} is a flag whose name is not known: write it out")


def find(words: Sequence[str]) -> list[Found]:
    """The flags about speculation among the words of vLLM.

    Raises CannotStrip where a value is missing, or an abbreviation may stand for several.
    """
    return list(_find(words))


def _find(words: Sequence[str]) -> Iterator[Found]:
    at = 0
    while at < len(words) and words[at] != "--":
        head, equals, value = words[at].partition("=")
        name, dot, key = _named(head)
        takes = _takes(name) if head.startswith("-") else None
        start, at = at, at + 1
        if head.startswith("-") and dot and not head.startswith("-O"):
            if not equals:
                at += 1
            if takes is not None:
                if at > len(words):
                    raise _no_value(words, start)
                yield Found(start, at, name, key, value if equals else words[start + 1])
        elif takes is not None:
            if equals and name.startswith("-s") and name not in _NOW | _BEFORE:
                raise CannotStrip(
                    f"{spelt(words[start])} is read by some versions of Python only: write"
                    f" {_CONFIG_SHORT}={value}"
                )
            if not equals and _has_value(words, start, takes):
                value, at = words[at], at + 1
            yield Found(start, at, name, "", value if equals or at - start == 2 else None)


def _named(head: str) -> tuple[str, str, str]:
    name, dot, key = head.partition(".")
    return name.replace("_", "-") if name.startswith("--") else name, dot, key


def _takes(name: str) -> _Takes | None:
    if name in _BEFORE:
        return _BEFORE[name]
    if not _SHORTEST.match(name):
        return None
    for family in (_NOW, _BEFORE):
        found = {takes for flag, takes in family.items() if flag.startswith(name)}
        if len(found) > 1:
            raise CannotStrip(
                f"{name} is short for several flags: write the one that you mean in full"
            )
        if found:
            return found.pop()
    return None


def _has_value(words: Sequence[str], at: int, takes: _Takes) -> bool:
    following = words[at + 1] if at + 1 < len(words) else None
    if takes is _Takes.TRUTH:
        return following is not None and following.lower() in ("true", "false")
    if takes is _Takes.ONE and (following is None or not _is_value(following)):
        raise _no_value(words, at)
    return takes is _Takes.ONE


def _no_value(words: Sequence[str], at: int) -> CannotStrip:
    after = f" {spelt(words[at + 1])} comes after it:" if at + 1 < len(words) else ""
    return CannotStrip(f"{spelt(words[at])} has no value:{after} give it one, or remove it")


def _is_value(word: str) -> bool:
    """Whether argparse takes a word that follows a flag as its value."""
    if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
        return True
    return word.startswith("--") and " " in word.partition("=")[0]


def _is_config(name: str) -> bool:
    return _CONFIG.startswith(name) or _CONFIG_SHORT.startswith(name)


def speculates(found: Sequence[Found]) -> bool:
    """Whether these flags together ask for speculation, or for what only goes with it.

    ``extract_hidden_states`` goes by the same flags and is no acceleration.
    """
    return any(flag.is_set for flag in found) and _method(found) != _NOT_ACCELERATION


def _method(found: Sequence[Found]) -> Any:
    """The method that vLLM would use, if the flags name it.

    Keys after a dot replace a configuration that is given as a whole.
    """
    whole: Any = None
    keys: dict[str, dict[str, Any]] = {}
    method = None
    for flag in found:
        if flag.key and _is_config(flag.name):
            keys.setdefault(flag.name, {})[flag.key] = _parsed(flag.value, flag.value)
        elif _is_config(flag.name):
            whole = _parsed(flag.value, None)
        elif _METHOD.startswith(flag.name):
            method = flag.value
    for merged in keys.values():
        whole = merged
    return whole.get("method", method) if isinstance(whole, dict) else method


def _parsed(value: str | None, otherwise: Any) -> Any:
    try:
        return json.loads(value or "")
    except ValueError:
        return otherwise


def refuse_captured(words: Sequence[str], gone: frozenset[int]) -> None:
    """Raise CannotStrip when a word would become the value of another flag without those gone."""
    for at in range(1, len(words)):
        if at in gone or at - 1 not in gone or words[at].startswith("-"):
            continue
        kept = [words[place] for place in range(at) if place not in gone]
        values = 0
        while kept and not kept[-1].startswith("-"):
            values += 1
            del kept[-1]
        if kept and _takes_more(kept[-1], values):
            raise CannotStrip(
                f"{spelt(words[at])} would become a value of {spelt(kept[-1])} without the flags"
                " between them: put it directly after `vllm serve`"
            )


def loose_value(words: Sequence[str]) -> str | None:
    """The first word that may be no value of the flag before it, but the model."""
    flag, values, at = "--", 0, 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_value(word):
            flag, values = word, 0
            at += "." in word and "=" not in word
            continue
        values += 1
        full = values > 1 or "=" in flag or "." in flag or flag == "--" or _SWITCH.match(flag)
        if full and not ("=" not in flag and _takes_more(flag, values)):
            return word
    return None


def _takes_more(flag: str, values: int) -> bool:
    name, dot, _ = _named(flag)
    if dot or "=" in flag or len(name) < 3:
        return False
    several = any(known.startswith(name) for known in _SEVERAL_VALUES)
    return several or (not values and any(known.startswith(name) for known in _OPTIONAL_VALUE))

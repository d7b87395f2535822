"""Reads the command line of ``vllm serve``: any that starts vLLM starts the simulated one.

Own flags start with ``--simulated-``. Flags of vLLM that make no difference here are accepted,
reported as ignored, and cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import yaml

from specwatch.errors import ConfigError

_log = structlog.get_logger(__name__)

ONE, NONE, MANY = "one", "none", "many"

KNOWN: dict[str, str] = {
    "model": ONE, "served-model-name": MANY, "host": ONE, "port": ONE, "max-num-seqs": ONE,
    "max-num-batched-tokens": ONE, "max-model-len": ONE, "max-logprobs": ONE, "block-size": ONE,
    "num-gpu-blocks-override": ONE, "data-parallel-size": ONE, "api-server-count": ONE,
    "speculative-config": ONE, "spec-method": ONE, "spec-model": ONE, "spec-tokens": ONE,
    "speculative-model": ONE, "num-speculative-tokens": ONE,
    "per-request-spec-decode-metrics": ONE, "enable-per-request-metrics": NONE,
    "enable-force-include-usage": NONE,
    "middleware": MANY, "api-key": MANY, "override-generation-config": ONE, "seed": ONE,
    "config": ONE,
    "simulated-seed": ONE, "simulated-rate": ONE, "simulated-rate-profile": ONE,
    "simulated-concurrency": ONE, "simulated-temperatures": ONE,
    "simulated-prompt-tokens": ONE, "simulated-output-tokens": ONE,
    "simulated-acceptance-scale": ONE, "simulated-drift": ONE, "simulated-step-time": ONE,
    "simulated-draft-cost": ONE, "simulated-free-tokens": ONE, "simulated-kv-cache-tokens": ONE,
    "simulated-time-scale": ONE, "simulated-startup": ONE, "simulated-engine-version": ONE,
    "simulated-multiprocess": NONE,
}  # fmt: skip
"""Flags that make a difference, without dashes, and how many words follow them."""

_SHORT = {"-sc": "speculative-config", "-dp": "data-parallel-size", "-asc": "api-server-count"}

_REFUSED_ABBREVIATIONS = ("specialize-active-lora", "sparse-indexer-topk-backend")
"""Flags of vLLM that share a beginning with ours, so that shorter spellings stay ambiguous."""

_EXACT_ONLY = frozenset({"speculative-model", "num-speculative-tokens"})
"""Flags of vLLM before 0.8.3, which today's abbreviations do not collide with."""

_NO_VALUE_BEGINNINGS = ("enable-", "disable-", "no-", "skip-", "use-", "return-", "trust-")
_NO_VALUE = frozenset(
    {
        "aggregate-engine-logging", "allow-credentials", "allow-deprecated-quantization",
        "async-scheduling", "calculate-kv-scales", "cudagraph-metrics", "enforce-eager",
        "data-parallel-external-lb", "data-parallel-hybrid-lb", "fail-on-environ-validation",
        "data-parallel-multi-port-external-lb", "dcp-q-replicate", "fully-sharded-loras",
        "h11-simple", "headless", "interleave-mm-strings", "kv-cache-metrics",
        "kv-sharing-fast-prefill", "language-model-only", "log-config", "mm-encoder-only",
        "numa-bind", "ray-workers-use-nsight", "scheduler-reserve-full-isl",
        "specialize-active-lora", "swa-bounded-replay",
    }
)  # fmt: skip
_NO_VALUE_SHORT = frozenset({"-dph", "-dpe", "-dpm", "-ep"})


@dataclass(slots=True)
class SimulatedFlags:
    """The words of a command line, sorted: values by flag, ``speculative-config`` keys apart."""

    values: dict[str, list[str]] = field(default_factory=dict)
    dotted: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def last(self, name: str) -> str | None:
        """The value that counts of a flag with one value; None when it was not given."""
        values = self.values.get(name)
        return values[-1] if values else None

    def given(self, name: str) -> bool:
        """Whether the flag was given at all."""
        return name in self.values


def read_flags(arguments: Sequence[str]) -> SimulatedFlags:
    """Sort the words after ``vllm serve``; ConfigError says what cannot be understood."""
    words = list(arguments)
    flags = SimulatedFlags()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-") or word == "-":
            if flags.given("model"):
                raise ConfigError(f"unexpected argument {word!r}: the model is given already")
            flags.values["model"] = [word]
            continue
        position += _read_one(flags, word, words[position:])
    for word in flags.ignored:
        _log.warning("simulated_flag_ignored", flag=word)
    return _with_config_file(flags)


def _read_one(flags: SimulatedFlags, word: str, rest: list[str]) -> int:
    """Take in one flag; returns how many of the words after it belong to it."""
    spelling, equals, value = word.partition("=")
    name, dot, key = _name_of(spelling)
    kind = KNOWN.get(name)
    if dot and name == "speculative-config":
        if not equals:
            value = _next_value(word, rest)
        _set_dotted(flags.dotted, key.removesuffix("+"), value, as_list=key.endswith("+"))
        return 0 if equals else 1
    if kind is None or dot:
        flags.ignored.append(spelling)
        return 0 if equals else _words_of_ignored(spelling, name, flags, rest)
    if equals:
        found, taken = [value], 0
    elif kind == NONE:
        found, taken = ["true"], 0
    elif kind == ONE:
        found, taken = [_next_value(word, rest)], 1
    else:
        taken = _values_ahead(rest)
        if not taken:
            raise ConfigError(f"{word}: expected at least one value after it")
        found = rest[:taken]
    if name == "middleware":
        found = flags.values.get(name, []) + found
    flags.values[name] = found
    return taken


def _name_of(spelling: str) -> tuple[str, str, str]:
    """Flag name, dot and dotted key of a spelling; the name resolved from abbreviations."""
    if not spelling.startswith("--"):
        short, dot, key = spelling.partition(".")
        return _SHORT.get(short, spelling), dot, key
    head, dot, key = spelling[2:].partition(".")
    name = head.replace("_", "-")
    if name in KNOWN or not name:
        return name, dot, key
    matches = [
        known
        for known in (*KNOWN, *_REFUSED_ABBREVIATIONS)
        if known.startswith(name) and known not in _EXACT_ONLY
    ]
    if len(matches) == 1 and matches[0] in KNOWN:
        return matches[0], dot, key
    if len(matches) > 1 and name.startswith("sp"):
        raise ConfigError(
            f"--{name} is ambiguous: it could be "
            + ", ".join(f"--{match}" for match in matches)
            + "; write it out"
        )
    return name, dot, key


def _next_value(word: str, rest: list[str]) -> str:
    if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
        raise ConfigError(f"{word}: expected a value after it, found {rest[0] if rest else 'none'}")
    return rest[0]


def _values_ahead(rest: list[str]) -> int:
    for count, word in enumerate(rest):
        if word.startswith("-"):
            return count
    return len(rest)


def _words_of_ignored(spelling: str, name: str, flags: SimulatedFlags, rest: list[str]) -> int:
    if name in _NO_VALUE or name.startswith(_NO_VALUE_BEGINNINGS) or spelling in _NO_VALUE_SHORT:
        return 0
    if spelling.startswith("-O") and len(spelling) > 2:
        return 0
    ahead = _values_ahead(rest)
    # Before the model is known, a second word may be the model itself.
    return ahead if flags.given("model") else min(1, ahead)


def _set_dotted(target: dict[str, Any], path: str, text: str, as_list: bool) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
    if as_list:
        target.setdefault(leaf, []).extend(_scalar(part) for part in text.split(","))
    else:
        target[leaf] = _scalar(text)


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_config_file(flags: SimulatedFlags) -> SimulatedFlags:
    """Fill in what ``--config FILE`` says and the command line does not."""
    path = flags.last("config")
    if path is None:
        return flags
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: expected a mapping of flags to values")
    for key, value in content.items():
        name, dot, inner = _name_of(f"--{key}")
        if dot and name == "speculative-config":
            flags.dotted.setdefault(inner, value)
        elif name not in KNOWN:
            _log.warning("simulated_flag_ignored", flag=f"--{key}", file=path)
        elif name not in flags.values and value is not False:
            flags.values[name] = [_word(each) for each in _listed(value)]
    return flags


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)

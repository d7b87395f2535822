"""A command that starts llama.cpp's llama-server.

Sources: ``common/arg.cpp`` of llama.cpp and the help in ``tools/server/README.md``, of builds with
the current names (``--spec-draft-n-max``) and of older ones (``--draft-max``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import LLAMA, Finding, ServerPlan, whole_number
from specwatch.vllm_cli.llama import first_word
from specwatch.vllm_cli.wrappers import (
    SHELLS,
    VARIABLE_MARK,
    program_of,
    shell_text_place,
    text_words,
)

_FLAGS = {
    "model": ("-m", "--model"),
    "repository": ("-hf", "-hfr", "--hf-repo"),
    "draft": ("-md", "--model-draft", "--spec-draft-model"),
    "draft_repository": ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
    "context": ("-c", "--ctx-size"),
    "slots": ("-np", "--parallel"),
    "layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
    "draft_layers": ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
    "most": ("--spec-draft-n-max",),
    "old_most": ("--draft", "--draft-n", "--draft-max"),
    "least": ("--spec-draft-n-min",),
    "old_least": ("--draft-min", "--draft-n-min"),
    "probability": ("--spec-draft-p-min", "--draft-p-min"),
    "type": ("--spec-type",),
    "cache_type": ("-ctk", "--cache-type-k"),
    "cache_type_v": ("-ctv", "--cache-type-v"),
    "synthetic": ("--spec-synth-len", "--spec-synth-rates"),
}
_NAMES = {flag: name for name, flags in _FLAGS.items() for flag in flags}
_METHODS = {
    "none": None,
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-mtp-adaptive": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
_SUCCESSORS = {"old_most": "--spec-draft-n-max", "old_least": "--spec-draft-n-min"}
_ALL_LAYERS = 99


def starts_llama(command: Sequence[str]) -> bool:
    """Whether a command is one of llama.cpp, so that :func:`read_llama_command` can read it."""
    return _server_words(command) is not None


def read_llama_command(command: Sequence[str]) -> ServerPlan:
    """Read a command that starts llama-server. Raises ConfigError."""
    words = _server_words(command)
    if words is None:
        raise ConfigError("the command does not start llama-server: give the one that does")
    given = _option_values(words)
    methods = _methods(given)
    slots = _positive(given, "slots") or 1
    context = _positive(given, "context")
    layers = whole_number(given.get("layers"))
    speculation: dict[str, Any] = {
        name: given[name] for name in ("least", "old_least", "probability", "type") if name in given
    }
    speculation["on_cpu"] = layers is not None and 0 <= layers < _ALL_LAYERS
    return ServerPlan(
        server="llama.cpp",
        from_command=True,
        target=given.get("model", given.get("repository")),
        draft=given.get("draft", given.get("draft_repository")),
        method=methods[0] if methods else None,
        k=_positive(given, "most") or _positive(given, "old_most"),
        speculation=speculation,
        # The slots share the context.
        context=None if context is None else context // slots,
        slots=slots,
        kv_dtype=given.get("cache_type"),
        findings=tuple(_findings(given, methods)),
    )


def _server_words(command: Sequence[str]) -> list[str] | None:
    """The words after llama-server; None if it is not started."""
    words = list(command)
    for index, word in enumerate(words):
        if program_of(word) in SHELLS and len(words) > index + 2 and words[index + 1].endswith("c"):
            return _server_words(text_words(words[shell_text_place(words, index)]))
    first = first_word(words)
    return None if first is None else words[first:]


def _option_values(words: Sequence[str]) -> dict[str, str]:
    """The values of the known flags, by the names of :data:`_FLAGS`."""
    values: dict[str, str] = {}
    for index, word in enumerate(words):
        flag = word.replace("_", "-") if word.startswith("--") else word
        head, equals, _ = flag.partition("=")
        if equals and head in _NAMES:
            raise ConfigError(
                f"{quoted(word)}: llama-server takes {head} and its value as two words"
            )
        if flag not in _NAMES:
            continue
        if index + 1 == len(words):
            raise ConfigError(f"{word} has no value: give it one, or remove it")
        if VARIABLE_MARK not in words[index + 1]:
            values[_NAMES[flag]] = words[index + 1]
    return values


def _methods(given: Mapping[str, str]) -> list[str]:
    """The methods under vLLM's names; ``ngram`` is any lookup in the text so far."""
    types = [name.strip() for name in given.get("type", "").split(",") if name.strip()]
    for name in types:
        if name not in _METHODS and not name.startswith("ngram-"):
            names = ", ".join([*_METHODS, "ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod"])
            raise ConfigError(f"--spec-type {quoted(name)} is not known; there are: {names}")
    if not types and ("draft" in given or "draft_repository" in given):
        return ["draft_model"]
    methods = [_METHODS.get(name, "ngram") for name in types]
    return [method for method in methods if method is not None]


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    count = whole_number(value)
    if count is None:
        raise ConfigError(f"{_FLAGS[name][0]} {quoted(value)} is not a whole number")
    # 0 and -1 mean the server's default.
    return count if count > 0 else None


def _findings(given: Mapping[str, str], methods: Sequence[str]) -> Iterator[Finding]:
    for old, successor in _SUCCESSORS.items():
        if old in given:
            yield Finding(
                "k",
                "note",
                f"{_FLAGS[old][-1]} is the name in older builds; now it is {successor}",
                "new builds refuse the old name",
                LLAMA,
                f"with a new build write {successor} {given[old]}",
            )
    if "draft_model" in methods and "most" not in given and "old_most" not in given:
        yield Finding(
            "k",
            "note",
            "the number of draft tokens is not given",
            "the default is 16 at most in older builds, 3 in new ones",
            LLAMA,
            "give --spec-draft-n-max (--draft-max in older builds)",
        )
    if "draft_model" in methods and "type" not in given:
        yield Finding(
            "method",
            "note",
            "new builds of llama-server need --spec-type draft-simple too",
            "without it they do not speculate; older builds need only the draft",
            LLAMA,
            "look for the draft in the log after the start",
        )
    if "synthetic" in given:
        yield Finding(
            "method",
            "wrong",
            "--spec-synth-len and --spec-synth-rates are for benchmarks only",
            "drafts are accepted at random",
            LLAMA,
            "leave them out",
        )
    if len(methods) > 1:
        yield Finding(
            "method",
            "note",
            f"several methods: {', '.join(methods)}; this advice is for the first",
            source=LLAMA,
        )

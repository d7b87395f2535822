"""What a command that starts llama.cpp's llama-server asks for.

Sources: ``common/arg.cpp`` of llama.cpp and the help in ``tools/server/README.md``, of builds with
the names of today (``--spec-draft-n-max``) and of those before (``--draft-max``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwatch.advice.asked import Asked
from specwatch.advice.command import whole
from specwatch.advice.model import Finding
from specwatch.advice.sources import LLAMA
from specwatch.errors import ConfigError
from specwatch.scalars import quoted
from specwatch.vllm_cli.wrappers import (
    SHELLS,
    VARIABLE_MARK,
    program_of,
    shell_text_place,
    text_words,
)

_PROGRAMS = frozenset({"llama-server", "llama-server.exe", "llama-cli", "llama-speculative-simple"})
_IMAGE = "llama.cpp:"
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
    "none": None, "draft-simple": "draft_model", "draft-eagle3": "eagle3", "draft-mtp": "mtp",
    "draft-mtp-adaptive": "mtp", "draft-dflash": "dflash", "draft-dspark": "dspark",
}  # fmt: skip
_SUCCESSORS = {"old_most": "--spec-draft-n-max", "old_least": "--spec-draft-n-min"}
_ALL_LAYERS = 99


def starts_llama(command: Sequence[str]) -> bool:
    """Whether a command is one of llama.cpp, so that :func:`asked` can read it.

    Raises CannotStrip for a shell's text that is more than one plain command.
    """
    return _own_words(command) is not None


def asked(command: Sequence[str]) -> Asked:
    """Read a command that starts llama-server. Raises ConfigError."""
    words = _own_words(command)
    if words is None:
        raise ConfigError("there is no llama-server in the command: give the one that starts it")
    given = _values(words)
    methods = _methods(given)
    slots = _positive(given, "slots") or 1
    context = _positive(given, "context")
    most = _positive(given, "most") or _positive(given, "old_most")
    speculation: dict[str, Any] = {
        name: given[name] for name in ("least", "old_least", "probability", "type") if name in given
    }
    speculation["on_cpu"] = _partly(given.get("layers"))
    return Asked(
        server="llama.cpp",
        written=True,
        target=given.get("model", given.get("repository")),
        draft=given.get("draft", given.get("draft_repository")),
        method=methods[0] if methods else None,
        k=most,
        speculation=speculation,
        # The context is shared out among the slots.
        context=None if context is None else context // slots,
        slots=slots,
        kv_dtype=given.get("cache_type"),
        findings=tuple(_findings(given, methods)),
    )


def _own_words(command: Sequence[str]) -> list[str] | None:
    """The words after llama-server; None where it is not started."""
    words = list(command)
    for at, word in enumerate(words):
        if "vllm" in program_of(word):
            return None
        if program_of(word) in SHELLS and len(words) > at + 2 and words[at + 1].endswith("c"):
            return _own_words(text_words(words[shell_text_place(words, at)]))
        if program_of(word) in _PROGRAMS or _IMAGE in program_of(word):
            return words[at + 1 :]
    return None


def _values(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        spelt = word.replace("_", "-") if word.startswith("--") else word
        head, equals, _ = spelt.partition("=")
        if equals and head in _NAMES:
            raise ConfigError(
                f"{quoted(word)}: llama-server takes {head} and its value as two words"
            )
        name = _NAMES.get(spelt)
        if name is None:
            continue
        if at + 1 == len(words):
            raise ConfigError(f"{word} has no value: give it one, or remove it")
        if VARIABLE_MARK not in words[at + 1]:
            found[name] = words[at + 1]
    return found


def _methods(given: Mapping[str, str]) -> list[str]:
    """The methods asked for, in the words of vLLM; ``ngram`` is any lookup in the text so far."""
    types = [each.strip() for each in given.get("type", "").split(",") if each.strip()]
    unknown = [each for each in types if each not in _METHODS and not each.startswith("ngram-")]
    if unknown:
        known = ", ".join([*_METHODS, "ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod"])
        raise ConfigError(f"--spec-type {quoted(unknown[0])} is not known; there are: {known}")
    found = [_METHODS.get(each, "ngram") for each in types]
    methods = [each for each in found if each is not None]
    if not types and ("draft" in given or "draft_repository" in given):
        return ["draft_model"]
    return methods


def _partly(layers: str | None) -> bool:
    """Whether ``-ngl`` leaves layers of the target to the CPU."""
    count = whole(layers)
    return count is not None and 0 <= count < _ALL_LAYERS


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    count = whole(value)
    if count is None:
        raise ConfigError(f"{_FLAGS[name][0]} {quoted(value)} is not a whole number")
    # 0 and -1 leave it to the server.
    return count if count > 0 else None


def _findings(given: Mapping[str, str], methods: Sequence[str]) -> Iterator[Finding]:
    for old, successor in _SUCCESSORS.items():
        if old in given:
            yield _renamed(_FLAGS[old][-1], successor, given[old])
    if "draft_model" in methods:
        yield from _left_to_the_build(given)
    if "synthetic" in given:
        yield Finding(
            topic="method",
            level="wrong",
            text="--spec-synth-len and --spec-synth-rates are for benchmarks only",
            reason="drafts are accepted by lot, whatever the model says",
            source=LLAMA,
            remedy="leave them out",
        )
    if len(methods) > 1:
        yield Finding(
            topic="method",
            level="note",
            text=f"several kinds of drafts: {', '.join(methods)}; what follows is for the first",
            source=LLAMA,
        )


def _renamed(flag: str, successor: str, value: str) -> Finding:
    return Finding(
        topic="k",
        level="note",
        text=f"{flag} is the name of older builds; today's is {successor}",
        reason="a new llama-server says that the argument has been removed",
        source=LLAMA,
        remedy=f"with a new build write {successor} {value}",
    )


def _left_to_the_build(given: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what builds do differently with a draft model of which not all is said."""
    if "most" not in given and "old_most" not in given:
        yield Finding(
            topic="k",
            level="note",
            text="how many tokens to draft is left to llama-server",
            reason="builds differ: 16 at most in older ones, 3 in new ones",
            source=LLAMA,
            remedy="give --spec-draft-n-max (--draft-max in older builds)",
        )
    if "type" not in given:
        yield Finding(
            topic="method",
            level="note",
            text="a new build of llama-server wants --spec-type draft-simple as well",
            reason="its --spec-type is none by default; older builds need no more than the draft",
            source=LLAMA,
            remedy="look for the draft in its log after the start",
        )

"""A command that starts vLLM, read as vLLM reads it: its model, its options and their places.

Source: ``FlexibleArgumentParser`` of vLLM 0.32, which is argparse except for keys after a dot: such
a key takes the next word, whatever it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specwatch.domain.units import quoted
from specwatch.errors import CannotStrip, ConfigError
from specwatch.vllm_cli import config_file
from specwatch.vllm_cli.config_file import ConfigFile, ReadFile
from specwatch.vllm_cli.flags import (
    FLAGS,
    MODEL,
    RECORD,
    SPECULATIVE_CONFIG,
    Flag,
    is_switch,
    resolve,
    with_dashes,
)
from specwatch.vllm_cli.wrappers import VARIABLE_MARK, Location, locate, spelt

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\d+")
_VARIABLE = re.compile(r"\$(\w+|\(.*\))", re.DOTALL)
_FOR_A_SHELL = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "2>&1", "&>"})
SHORTHANDS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
"""Flags that each set a key of ``--speculative-config``."""
_OLD_KEYS = {
    "--speculative-model": "model",
    "--speculative-model-quantization": "quantization",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "--speculative-max-model-len": "max_model_len",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
}
"""Flags up to 0.8.2, and the keys of the configuration that replaced them."""


@dataclass(frozen=True, slots=True)
class Option:
    """A flag with its values, at the places from ``start`` up to, not including, ``stop``.

    ``spelling`` is the name as it was written, with dashes; ``key`` is what follows a dot.
    ``flag`` is None for one that is not in the table.
    """

    flag: Flag | None
    spelling: str
    key: str
    values: tuple[str, ...]
    start: int
    stop: int
    joined: bool
    """Whether flag and value are one word: ``--flag=value``."""

    @property
    def value(self) -> str | None:
        """The last of its values."""
        return self.values[-1] if self.values else None

    def is_of(self, name: str) -> bool:
        """Whether it is the flag of that full name."""
        return self.flag is not None and self.flag.name == name

    @property
    def about_speculation(self) -> bool:
        """Whether it asks for speculation, or needs it."""
        return self.flag is not None and self.flag.speculation

    @property
    def is_configuration(self) -> bool:
        """Whether it sets the configuration of speculation, or a key of it."""
        return self.flag is not None and self.flag.name in (SPECULATIVE_CONFIG, *SHORTHANDS)

    @property
    def is_set(self) -> bool:
        """Whether an option about speculation differs from the default."""
        if self.key or self.value is None or self.flag is None:
            return True
        if self.flag.name == RECORD:
            return self.value != "none"
        return self.value.strip() not in ("", "None") and not (
            self.flag.name == SPECULATIVE_CONFIG and self.value.strip() == "null"
        )


@dataclass(frozen=True, slots=True)
class Arguments:
    """The words of vLLM, with those of its ``--config`` file if that was read.

    ``places`` are those of the words on the command line, None for a word of the file;
    ``positionals`` are places among ``words``.
    """

    words: tuple[str, ...]
    options: tuple[Option, ...]
    positionals: tuple[int, ...]
    model: str | None
    places: tuple[int | None, ...]
    file: ConfigFile | None = None

    def given(self, name: str) -> list[Option]:
        """The options of a flag, by its full name."""
        return [option for option in self.options if option.is_of(name)]

    def value(self, name: str) -> str | None:
        """The value of a flag that counts: the last one."""
        options = self.given(name)
        return options[-1].value if options else None

    @property
    def speculation(self) -> list[Option]:
        """The options about speculation."""
        return [option for option in self.options if option.about_speculation]


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A command that starts vLLM. ``assignments`` (``A=b vllm serve``) are not in its location."""

    assignments: tuple[str, ...]
    location: Location
    arguments: Arguments

    @property
    def words(self) -> tuple[str, ...]:
        """The words after the assignments."""
        return self.location.command

    @property
    def environment(self) -> dict[str, str]:
        """The assignments before it."""
        return dict(word.split("=", 1) for word in self.assignments)

    def with_file(self, read_file: ReadFile | None) -> Arguments:
        """The arguments together with those of the ``--config`` file that they name.

        Raises CannotStrip when there is one that cannot be read.
        """
        own = self.arguments
        file = config_file.find(own.words, self.reader(read_file))
        if file is None:
            return own
        words, places = file.merged(own.words)
        merged = read_arguments(words, serve=self.location.serve)
        return Arguments(
            merged.words,
            merged.options,
            merged.positionals,
            own.model or merged.model,
            tuple(places),
            file,
        )

    def reader(self, read_file: ReadFile | None) -> ReadFile | None:
        """The same reader, limited to files where vLLM finds them too."""
        if read_file is None or self.location.elsewhere is not None:
            return None

        def read(path: str) -> str:
            if not (path.startswith("/") or self.location.relative_paths):
                raise FileNotFoundError(0, "its folder is not known here; give its full path", path)
            return read_file(path)

        return read


def read_command(command: Sequence[str]) -> ServeCommand:
    """Read a command that starts vLLM. Raises CannotStrip if they are ambiguous."""
    words = list(command)
    count = next((n for n, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), len(words))
    location = locate(words[count:])
    refuse_unclear(location.words)
    arguments = read_arguments(location.words, serve=location.serve)
    for option in arguments.speculation:
        if not option.values and option.flag is not None and (option.flag.nargs == "1"):
            following = arguments.words[option.stop : option.stop + 1]
            after = f" {spelt(following[0])} comes after it:" if following else ""
            raise CannotStrip(f"{option.spelling} has no value:{after} give it one, or remove it")
    return ServeCommand(tuple(words[:count]), location, arguments)


def read_arguments(
    words: Sequence[str], *, serve: bool = True, flags: Mapping[str, Flag] = FLAGS
) -> Arguments:
    """Read the words after ``vllm serve``, or those of the server's module.

    Raises CannotStrip for an ambiguous abbreviation of a flag about speculation.
    """
    options: list[Option] = []
    positionals: list[int] = []
    index = 0
    while index < len(words):
        if words[index] == "--":
            positionals += range(index + 1, len(words))
            break
        if _is_value(words[index]):
            positionals.append(index)
            index += 1
            continue
        has_model = bool(positionals) or any(o.spelling == MODEL for o in options)
        options.append(_option(words, index, flags, has_model=has_model))
        index = options[-1].stop
    named = [option.value for option in options if option.is_of(MODEL) and option.values]
    model = named[0 if serve else -1] if named else None
    if positionals:
        model = words[positionals[0]]
    places = tuple(range(len(words)))
    return Arguments(tuple(words), tuple(options), tuple(positionals), model, places)


def _option(
    words: Sequence[str], index: int, flags: Mapping[str, Flag], *, has_model: bool
) -> Option:
    head, equals, value = words[index].partition("=")
    name, dot, key = head.partition(".")
    spelling = with_dashes(name)
    flag = resolve(spelling, flags)
    following = words[index + 1 :]
    if equals:
        values = [value]
    elif dot and not head.startswith("-O"):
        values = list(following[:1])
    else:
        ahead = next((n for n, word in enumerate(following) if not _is_value(word)), len(following))
        values = list(following[: _count(spelling, flag, following[:ahead], has_model=has_model)])
    stop = index + 1 if equals else index + 1 + len(values)
    return Option(flag, spelling, key if dot else "", tuple(values), index, stop, bool(equals))


def _count(spelling: str, flag: Flag | None, ahead: Sequence[str], *, has_model: bool) -> int:
    """How many of the values ahead belong to a flag."""
    if flag is None and not is_switch(spelling):
        # One may be its value, or the model; a second one is the model unless there is one.
        return len(ahead) if has_model else len(ahead[:1])
    if flag is None or flag.nargs == "0":
        # Older versions let some switches be followed by true or false.
        return len([word for word in ahead[:1] if word.lower() in ("true", "false")])
    return len(ahead) if flag.nargs == "+" else len(ahead[:1])


def _is_value(word: str) -> bool:
    """Whether argparse takes a word for a value, not for a flag."""
    if not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.fullmatch(word):
        return True
    return word.startswith("--") and " " in word.partition("=")[0]


def refuse_unclear(words: Sequence[str]) -> None:
    """Raise CannotStrip if a word of the server may expand to others."""
    for word in words:
        if _VARIABLE.fullmatch(word):
            raise CannotStrip(
                f"{word!r} may expand to several words, among them flags of speculation: write them"
                " out in its place"
            )
        if word in _FOR_A_SHELL:
            raise CannotStrip(
                f"{word!r} is for a shell, not for the server: give the plain command without it"
            )
        if word.startswith("-") and VARIABLE_MARK in re.split("[.=]", word, maxsplit=1)[0]:
            raise CannotStrip(
                f"{spelt(word)} is a flag whose name only the shell knows: write it out"
            )


@dataclass(slots=True)
class Speculation:
    """The speculation that options ask for, by the keys of ``--speculative-config``.

    Keys after a dot replace a configuration that is given as a ``whole``. ``shorthands`` are
    ``--spec-method`` and its like, ``old`` the flags up to 0.8.2.
    """

    whole: dict[str, Any] = field(default_factory=dict)
    dotted: dict[str, Any] = field(default_factory=dict)
    shorthands: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The keys as vLLM puts them together."""
        config = {
            key.replace("-", "_"): value for key, value in (self.dotted or self.whole).items()
        }
        return {**self.old, **config, **self.shorthands}


def speculation_of(options: Sequence[Option]) -> Speculation:
    """The speculation that options ask for together.

    Raises ConfigError for a value that vLLM would refuse, or that only a shell knows.
    """
    result = Speculation()
    dotted: dict[str, dict[str, Any]] = {}
    for option in options:
        if option.flag is None or not option.flag.speculation:
            continue
        name, value = option.flag.name, option.value or ""
        if VARIABLE_MARK in value:
            raise ConfigError(f"{name}: a shell sets its value: write it out")
        if name == SPECULATIVE_CONFIG and option.key:
            _nest(dotted.setdefault(option.spelling, {}), option.key, value)
        elif name == SPECULATIVE_CONFIG:
            result.whole = _object(value) if option.is_set else {}
        elif name in SHORTHANDS and option.is_set:
            result.shorthands[SHORTHANDS[name]] = value
        elif name in _OLD_KEYS and option.is_set:
            result.old |= {"method": "ngram"} if value == "[ngram]" else {}
            result.old[_OLD_KEYS[name]] = value
    # One configuration for each spelling; of several the last counts.
    result.dotted = next(reversed(dotted.values()), {})
    return result


def _nest(into: dict[str, Any], key: str, value: str) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        into = into.setdefault(parent, {})
        if not isinstance(into, dict):
            raise ConfigError(f"{SPECULATIVE_CONFIG}.{key}: {parent} has a value already")
    if last.endswith("+"):
        into.setdefault(last[:-1], []).extend(map(_parsed, value.split(",")))
    else:
        into[last] = _parsed(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError(
            f"{SPECULATIVE_CONFIG} {quoted(text)} is not a JSON object: write it like"
            ' \'{"method": "ngram", "num_speculative_tokens": 5}\''
        )
    return parsed

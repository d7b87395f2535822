"""A command line of ``vllm serve``: what it says that the tap must know, and room for more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MIDDLEWARE = "--middleware"
RECORD = "--per-request-spec-decode-metrics"
TIMINGS = "--enable-per-request-metrics"

_SHORTEST = {MIDDLEWARE: "--mi", RECORD: "--per-", TIMINGS: "--enable-pe"}
"""The shortest spelling of each that vLLM 0.32 still understands."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "busybox"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "kubectl", "apptainer", "singularity"})
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_COMMAND_MODULES = ("vllm.entrypoints.cli.main", "vllm")
_SHELL_SYNTAX = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "2>&1", "&>"})
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\}|\(.*\))", re.DOTALL)
_NOTHING = frozenset({"", "null", "none", "{}"})
_INSTEAD = "; add the flags by hand"


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """The words of a command that starts vLLM.

    ``environment`` are the assignments before it (``A=b vllm serve``), which are not among its
    ``words``. ``record`` is the level of acceptance records that it asks for; ``config_file`` is
    the file of flags that it names.
    """

    environment: Mapping[str, str]
    words: tuple[str, ...]
    speculates: bool
    middleware: tuple[str, ...]
    record: str | None
    timings: bool
    config_file: str | None
    _at: int
    """Where a middleware that is to be innermost goes."""
    _end: int
    """Where other flags go."""

    @property
    def argv(self) -> list[str]:
        """All words, the assignments first."""
        return [*(f"{name}={value}" for name, value in self.environment.items()), *self.words]

    def with_middleware(self, path: str) -> ServeCommand:
        """Also loads ``path``, inside of all others that the command line names."""
        return self._with(self._at, (MIDDLEWARE, path))

    def with_flag(self, flag: str, value: str | None) -> ServeCommand:
        """Also has ``flag``; the last of several counts."""
        return self._with(self._end, (flag,) if value is None else (flag, value))

    def with_environment(self, environment: Mapping[str, str]) -> ServeCommand:
        """Starts with these variables too."""
        return replace(self, environment={**self.environment, **environment})

    def _with(self, at: int, added: tuple[str, ...]) -> ServeCommand:
        at += len(self.environment)
        return read([*self.argv[:at], *added, *self.argv[at:]])


def read(command: Sequence[str]) -> ServeCommand:
    """The command in these words, as a program gets them.

    Raises ValueError that says why flags cannot be added to it.
    """
    environment: dict[str, str] = {}
    words = list(command)
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        environment[assignment[1]] = assignment[2]
        del words[0]
    _refuse_shell_syntax(words)
    start = _start_of_flags(words)
    end = words.index("--", start) if "--" in words[start:] else len(words)
    flags = list(_flags_in(words, start, end))
    middleware = [(at, value) for at, name, value in flags if _means(name, MIDDLEWARE)]
    return ServeCommand(
        environment=environment,
        words=tuple(words),
        speculates=any(_speculates(name, value) for _, name, value in flags),
        middleware=tuple(value for _, value in middleware),
        record=next((v for _, name, v in reversed(flags) if _means(name, RECORD)), None),
        timings=any(_means(name, TIMINGS) for _, name, _ in flags),
        # vLLM accepts --config=FILE and does not read it.
        config_file=next((v for at, _, v in flags if words[at] == "--config"), None),
        _at=middleware[0][0] if middleware else end,
        _end=end,
    )


def read_config(config: Mapping[str, Any]) -> ServeCommand:
    """What the content of a ``--config`` file says, as if it stood on the command line."""
    words = ["vllm", "serve"]
    for key, value in config.items():
        if value is True:
            words.append(f"--{key}")
        elif value is not False:
            values = value if isinstance(value, list) else [value]
            words += [f"--{key}={'' if each is None else each}" for each in values]
    return read(words)


def _refuse_shell_syntax(words: Sequence[str]) -> None:
    for word in words:
        if word in _SHELL_SYNTAX:
            raise ValueError(f"{word!r} is for a shell, not for vLLM{_INSTEAD}")
        if _VARIABLE.fullmatch(word):
            raise ValueError(
                f"{word} stands for flags that cannot be seen here; write them out in its place"
            )


def _start_of_flags(words: Sequence[str]) -> int:
    for at, word in enumerate(words):
        program = word.rpartition("/")[2]
        following = words[at + 1 : at + 3]
        if program in _SHELLS:
            raise ValueError(
                f"{program} starts vLLM here, from a script or text of its own: add the flags there"
            )
        if program in _CONTAINERS:
            raise ValueError(
                f"{program} starts vLLM in a container: install specwatch in its image, and add"
                " the flags at the end of what the container runs"
            )
        if program == "vllm" and following[:1] == ["serve"]:
            return at + 2
        if word == "-m" and following[:1] == [_SERVER_MODULE]:
            return at + 2
        if word == "-m" and following[:1] and following[0] in _COMMAND_MODULES:
            if following[1:] == ["serve"]:
                return at + 3
        elif "vllm" in word and re.search(r"\bserve\b", word):
            raise ValueError(
                f"{word!r} is one word: write the command without quotes around the whole"
            )
    raise ValueError("there is no `vllm serve` in the command")


def _flags_in(words: Sequence[str], start: int, end: int) -> list[tuple[int, str, str]]:
    """Place, name and value of each flag; the value is empty when it has none."""
    found = []
    for at in range(start, end):
        word = words[at]
        if not word.startswith("--") and not re.match(r"-sc([=.]|$)", word):
            continue
        spelling, equals, value = word.partition("=")
        if not equals and at + 1 < end and not words[at + 1].startswith("--"):
            value = words[at + 1]
        found.append((at, _named(spelling), value))
    return found


def _named(spelling: str) -> str:
    """A flag as vLLM writes it: dashes up to the first dot."""
    head, dot, rest = spelling.partition(".")
    return head.replace("_", "-") + dot + rest


def _means(name: str, flag: str) -> bool:
    return flag.startswith(name) and name.startswith(_SHORTEST[flag])


def _speculates(name: str, value: str) -> bool:
    head, dot, _ = name.partition(".")
    if head == "-sc" or (head.startswith("--specu") and "--speculative-config".startswith(head)):
        return bool(dot) or value.strip().lower() not in _NOTHING
    if head in ("--speculative-model", "--num-speculative-tokens"):
        return True
    if not head.startswith("--spec-"):
        return False
    return head[7:8] in ("m", "t") and value.strip().lower() not in _NOTHING

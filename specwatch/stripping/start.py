"""Where vLLM's own words begin in a command line, whatever starts it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specwatch.errors import CannotStrip
from specwatch.stripping import containers, programs
from specwatch.stripping.options import Grammar, Sight, after_options
from specwatch.stripping.word import UNKNOWN, program_of, spelt

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_VLLM = re.compile(r"vllm(@.*)?")
_SERVER_MODULES = frozenset(
    {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry"}
)
_COMMAND_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main"})
_SHOWN = 5


class Kind(enum.Enum):
    """What the words at a start are."""

    SERVE = "serve"
    """Arguments of ``vllm serve``."""
    MODULE = "module"
    """Arguments of the module that is the server."""
    TEXT = "text"
    """One word: a text for a shell."""


@dataclass(frozen=True, slots=True)
class Start:
    """From which word on a command is vLLM's, or which of its words a shell reads."""

    at: int
    kind: Kind
    sight: Sight = Sight.ALL

    def after(self, words: int, sight: Sight = Sight.ALL) -> Start:
        """The same, after so many other words."""
        return replace(self, at=self.at + words, sight=min(self.sight, sight))


def find(words: Sequence[str]) -> Start:
    """Where vLLM begins. Raises CannotStrip where that is not sure, naming the word."""
    at = 0
    while at < len(words) and _ASSIGNMENT.fullmatch(words[at]):
        at += 1
    if at == len(words):
        raise CannotStrip("there is no `vllm serve` in the command: give the one that starts vLLM")
    rest = words[at + 1 :]
    program = program_of(words[at])
    if program in programs.ELSEWHERE:
        raise CannotStrip(f"{program} runs it in {programs.ELSEWHERE[program]}")
    return _starter(words[at], rest)(program, rest).after(at + 1)


def _starter(word: str, rest: Sequence[str]) -> Callable[[str, Sequence[str]], Start]:
    program = program_of(word)
    if found := _SPECIAL.get(program):
        return found
    if program in programs.WRAPPERS:
        return _wrapper
    if program in programs.SHELLS:
        return _shell
    if program in containers.ENGINES:
        return _engine
    if _VLLM.fullmatch(program):
        return _vllm
    # "$PYTHON" -m vllm...
    if _PYTHON.fullmatch(program) or (UNKNOWN in word and _names_module(rest)):
        return _python
    raise CannotStrip(
        f"how {spelt(word)} starts vLLM is not known here: give the command that it runs, or make"
        " that vllm serve itself"
    )


def _names_module(words: Sequence[str]) -> bool:
    return words[:1] == ["-m"] and words[1:2] != [] and words[1].startswith("vllm")


def _vllm(program: str, words: Sequence[str]) -> Start:
    if list(words[:1]) != ["serve"]:
        raise CannotStrip(
            f"{program} {spelt(words[0]) if words else ''} does not serve: give the command with"
            " `vllm serve`"
        )
    return Start(1, Kind.SERVE)


def _python(program: str, words: Sequence[str]) -> Start:
    at, given = after_options(program, words, programs.PYTHON)
    module = given.get("-m")
    if module is None:
        if "-c" not in given and at < len(words) and program_of(words[at]) == "vllm":
            return _vllm("vllm", words[at + 1 :]).after(at + 1)
        raise CannotStrip(
            f"what {' '.join([program, *words[:_SHOWN]])!r} runs is not seen here: start vLLM by"
            " `vllm serve`"
        )
    return _module(module, words[at:]).after(at)


def _module(module: str, words: Sequence[str]) -> Start:
    if module in _SERVER_MODULES:
        return Start(0, Kind.MODULE)
    if module in _COMMAND_MODULES:
        return _vllm(module, words)
    raise CannotStrip(f"the module {spelt(module)} is not known here: use `vllm serve`")


def _shell(program: str, words: Sequence[str]) -> Start:
    at, given = after_options(program, words, programs.SHELL)
    if "-c" not in given:
        raise CannotStrip(
            f"{program} starts vLLM from a script of its own: change the script, or give the"
            " command in it"
        )
    if at == len(words):
        raise CannotStrip(f"{program} -c has no text: give it one")
    if UNKNOWN in words[at]:
        raise CannotStrip(
            f"the text {spelt(words[at])} for {program} is put together by another shell: write it"
            " in 'single quotes'"
        )
    return Start(at, Kind.TEXT)


def _wrapper(program: str, words: Sequence[str]) -> Start:
    grammar = programs.WRAPPERS[program]
    at, given = after_options(program, words, grammar)
    if program in programs.TAKES_ASSIGNMENTS:
        while at < len(words) and _ASSIGNMENT.fullmatch(words[at]):
            at += 1
    return _next(program, words, at + grammar.operands, grammar.sight(given))


def _next(program: str, words: Sequence[str], at: int, sight: Sight = Sight.ALL) -> Start:
    if at >= len(words):
        raise CannotStrip(f"{program} starts nothing here: there is no `vllm serve` after it")
    return find(words[at:]).after(at, sight)


def _subcommand(name: str, program: str, words: Sequence[str], grammar: Grammar) -> int:
    at, _ = after_options(program, words, grammar)
    if list(words[at : at + 1]) != [name]:
        raise CannotStrip(
            f"{program} {spelt(words[at]) if at < len(words) else ''} does not start vLLM here:"
            f" give a command of `{program} {name}`"
        )
    return at + 1


def _uv(program: str, words: Sequence[str]) -> Start:
    at, given = after_options(program, words, programs.UV)
    sight = programs.UV.sight(given)
    if list(words[at : at + 2]) == ["tool", "run"]:
        return _uvx("uv tool run", words[at + 2 :]).after(at + 2, sight)
    at = _subcommand("run", program, words, programs.UV)
    return _uv_run("uv run", words[at:]).after(at, sight)


def _uv_run(program: str, words: Sequence[str]) -> Start:
    at, given = after_options(program, words, programs.UV_RUN)
    sight = programs.UV_RUN.sight(given)
    if {"-m", "--module"}.intersection(given) and at < len(words):
        return _module(words[at], words[at + 1 :]).after(at + 1, sight)
    return _next(program, words, at, sight)


def _uvx(program: str, words: Sequence[str]) -> Start:
    at, given = after_options(program, words, programs.UVX)
    return _next(program, words, at, programs.UVX.sight(given))


def _conda(program: str, words: Sequence[str]) -> Start:
    at = _subcommand("run", program, words, Grammar())
    width, given = after_options(f"{program} run", words[at:], programs.CONDA_RUN)
    return _next(f"{program} run", words, at + width, programs.CONDA_RUN.sight(given))


def _runner(program: str, words: Sequence[str]) -> Start:
    at = _subcommand("run", program, words, Grammar())
    return _next(f"{program} run", words, at)


def _engine(program: str, words: Sequence[str]) -> Start:
    at, _ = after_options(program, words, containers.ENGINE)
    if list(words[at : at + 1]) == ["container"]:
        at += 1
    if list(words[at : at + 1]) == ["compose"]:
        raise CannotStrip(f"{program} compose runs it in {programs.ELSEWHERE['docker-compose']}")
    at += _subcommand("run", program, words[at:], Grammar())
    width, given = after_options(f"{program} run", words[at:], containers.RUN)
    image = at + width
    if image == len(words):
        raise CannotStrip(f"{program} run names no image")
    return _in_container(words[image:], given.get("--entrypoint")).after(image, Sight.NONE)


def _in_container(words: Sequence[str], entrypoint: str | None) -> Start:
    """Where vLLM begins in an image and its arguments."""
    image, *arguments = words
    if entrypoint:
        return find([entrypoint, *arguments])
    first = arguments[0] if arguments else ""
    is_vllm = "vllm" in program_of(image) or "/vllm" in image
    if entrypoint is None and (first.startswith("-") or (is_vllm and not arguments)):
        return Start(1, Kind.SERVE)
    if entrypoint is None and first == "serve":
        return Start(2, Kind.SERVE)
    try:
        return find(arguments).after(1)
    except CannotStrip:
        if entrypoint is None and is_vllm and _is_model(first):
            return Start(1, Kind.SERVE)
        raise


def _is_model(word: str) -> bool:
    """Whether the first argument of an image of vLLM is a model, and no program."""
    name = program_of(word)
    known = (programs.WRAPPERS, programs.SHELLS, programs.ELSEWHERE, containers.ENGINES, _SPECIAL)
    return not (
        any(name in names for names in known) or _VLLM.fullmatch(name) or _PYTHON.fullmatch(name)
    )


_SPECIAL: dict[str, Callable[[str, Sequence[str]], Start]] = {
    "uv": _uv,
    "uvx": _uvx,
    "conda": _conda,
    "mamba": _conda,
    "micromamba": _conda,
    "poetry": _runner,
    "pdm": _runner,
    "pixi": _runner,
}

"""What a command line asks of vLLM: its own words, the model, and the flags about speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specwatch.errors import CannotStrip
from specwatch.stripping import config_file, flags, serving, shell, start
from specwatch.stripping.config_file import ReadFile
from specwatch.stripping.flags import Found
from specwatch.stripping.options import Sight
from specwatch.stripping.start import Kind
from specwatch.stripping.strip import seeing, starts_vllm


@dataclass(frozen=True, slots=True)
class Arguments:
    """``words`` are those of vLLM as it reads them, with those of its ``--config`` file."""

    words: tuple[str, ...]
    model: str | None
    speculation: tuple[Found, ...]
    """Flags about speculation, among ``words``."""


def arguments(command: Sequence[str], *, read_file: ReadFile | None = None) -> Arguments:
    """Read the words of a command that starts vLLM; ``read_file`` gives its ``--config`` file.

    Raises CannotStrip with the reason and the remedy where they cannot be told for sure.
    """
    return _read(command, Sight.ALL, read_file)


def _read(words: Sequence[str], sight: Sight, read_file: ReadFile | None) -> Arguments:
    place = start.find(words)
    sight = min(sight, place.sight)
    if place.kind is Kind.TEXT:
        return _read_text(words[place.at], sight, read_file)
    own = list(words[place.at :])
    flags.refuse_unclear(own)
    file = config_file.find(own, seeing(sight, read_file))
    merged = own if file is None else file.merged(own)[0]
    model = serving.model_of(merged, place.kind is Kind.SERVE)
    return Arguments(tuple(merged), model, tuple(flags.find(merged)))


def _read_text(text: str, sight: Sight, read_file: ReadFile | None) -> Arguments:
    commands = [[word.value for word in command] for command in shell.commands(text)]
    starting = [command for command in commands if starts_vllm(command)]
    if len(starting) != 1:
        raise CannotStrip(
            f"the text {text!r} starts vLLM {len(starting)} times: give one `vllm serve` command"
        )
    return _read(starting[0], sight, read_file)

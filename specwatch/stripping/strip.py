"""The same command without speculation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specwatch.errors import CannotStrip
from specwatch.stripping import containers, serving, shell, start
from specwatch.stripping.config_file import ReadFile
from specwatch.stripping.edit import Edit
from specwatch.stripping.options import Sight
from specwatch.stripping.start import Kind
from specwatch.stripping.word import program_of

_ASIDE = frozenset({
    ".", ":", "[", "cat", "cd", "chmod", "chown", "echo", "export", "ln", "logger",
    "ls", "mkdir", "pip", "pip3", "printf", "pushd", "rm", "set", "sleep", "source", "tee",
    "test", "touch", "trap", "type", "ulimit", "umask", "unset", "wait", "which",
})  # fmt: skip
"""Commands that may name vLLM beside the one that starts it."""


_SERVES = re.compile(r"vllm\S*\s+serve\b|-m\s+vllm")
"""What a text has that is for another shell, and starts vLLM."""
_OF_VLLM = re.compile(r"vllm|^--(model|spec)")


@dataclass(frozen=True, slots=True)
class Stripped:
    """A command without speculation; one that had none is as it was, and ``removed`` is empty.

    ``removed`` are the words that asked for speculation, on the line or in its ``--config`` file;
    ``notes`` are sentences about what else changed. ``inlined``: words of that file stand on the
    line now.
    """

    command: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    inlined: bool = False


def strip(command: Sequence[str], *, read_file: ReadFile | None = None) -> Stripped:
    """Remove speculation from the words of a command that starts vLLM; all others stay.

    ``read_file`` gives the text of the file that ``--config`` names, and of the model's
    ``config.json``; without it no file can be seen. Raises CannotStrip with the reason and the
    remedy where the result would not be sure.
    """
    found = _edit(command, Sight.ALL, read_file)
    return Stripped(found.applied(command), found.removed, found.notes, found.inlined)


def _edit(words: Sequence[str], sight: Sight, read_file: ReadFile | None) -> Edit:
    place = start.find(words)
    sight = min(sight, place.sight)
    if place.kind is Kind.TEXT:
        return _edit_text(words[place.at], sight, read_file).shifted(place.at)
    return serving.without_speculation(
        words[place.at :],
        serve=place.kind is Kind.SERVE,
        read_file=seeing(sight, read_file),
    ).shifted(place.at)


def seeing(sight: Sight, read_file: ReadFile | None) -> ReadFile | None:
    """A reader of files that stand where vLLM will find them."""
    if read_file is None or sight is Sight.NONE:
        return None
    if sight is Sight.ALL:
        return read_file

    def read_absolute(path: str) -> str:
        if not path.startswith("/"):
            raise FileNotFoundError(0, "its folder is not known here; give its full path", path)
        return read_file(path)

    return read_absolute


def _edit_text(text: str, sight: Sight, read_file: ReadFile | None) -> Edit:
    """What to change in the one word that is a text for a shell."""
    edits: list[tuple[Sequence[shell.ShellWord], Edit]] = []
    for command in shell.commands(text):
        words = [word.value for word in command]
        if program_of(words[0]) in ("cd", "pushd"):
            sight = min(sight, Sight.ABSOLUTE)
        if starts_vllm(words):
            edits.append((command, _edit(words, sight, read_file)))
    if not edits:
        raise CannotStrip(
            f"there is no `vllm serve` in the text {text!r}: give the command that starts vLLM"
        )
    removed = tuple(word for _, found in edits for word in found.removed)
    notes = tuple(note for _, found in edits for note in found.notes)
    if not removed:
        return Edit(notes=notes)
    changed = shell.changed(text, edits)
    inlined = any(found.inlined for _, found in edits)
    return Edit(frozenset({0}), {0: (changed,)}, removed, notes, inlined)


def starts_vllm(words: Sequence[str]) -> bool:
    """Whether one of the commands of a text must be the one, so that it has to be understood."""
    if program_of(words[0]) in _ASIDE:
        return False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if program_of(word).partition("@")[0] == "vllm" and following == "serve":
            return True
        if word.startswith("vllm.entrypoints.") or (word == "-m" and following == "vllm"):
            return True
        if _SERVES.search(word):
            return True
    in_container = "run" in words and containers.ENGINES.intersection(map(program_of, words))
    return bool(in_container) and any(_OF_VLLM.search(word) for word in words)

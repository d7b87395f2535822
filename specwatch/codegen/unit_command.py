"""The command of a unit, rewritten word by word: what need not change keeps its spelling."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from specwatch.codegen.systemd import quoted
from specwatch.codegen.systemd_variables import Environment, Expanded, expanded, unknown_in
from specwatch.errors import CannotStrip
from specwatch.stripping import Stripped

_PREFIXES = {
    "ignore-failure": "-", "no-env-expand": ":", "privileged": "+", "no-setuid": "!",
    "ambient": "!!", "via-shell": "|",
}  # fmt: skip
"""How ``ExecStart=`` spells what D-Bus calls flags: systemd.service(5), "Command lines"."""


@dataclass(frozen=True, slots=True)
class UnitCommand:
    """One ``ExecStart=`` as systemd has read it; ``words`` begins with argv[0].

    Variables are as the unit spells them; specifiers and quotes are gone.
    """

    path: str
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def expands(self) -> bool:
        """Whether systemd replaces variables in it."""
        return "no-env-expand" not in self.flags

    def line(self) -> str:
        """The value of ``ExecStart=`` that systemd reads as this command."""
        unknown = set(self.flags) - set(_PREFIXES)
        if unknown or not self.words:
            found = ", ".join(sorted(unknown)) or "no words"
            raise CannotStrip(f"its command has {found}, which this version cannot write")
        named = self.words[0] != self.path
        prefix = "".join(_PREFIXES[flag] for flag in self.flags) + ("@" if named else "")
        words = self.words if named else self.words[1:]
        return " ".join([quoted(prefix + self.path), *map(quoted, words)])


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A command without speculation, as a unit spells it."""

    command: UnitCommand
    removed: tuple[str, ...]
    notes: tuple[str, ...]


def words_of(command: UnitCommand, environment: Environment) -> list[Expanded]:
    """Each word of a command with what the program gets for it."""
    if not command.expands:
        return [Expanded(word, (word,)) for word in command.words]
    return [expanded(word, environment) for word in command.words]


def rewritten(
    command: UnitCommand,
    environment: Environment,
    strip: Callable[[Sequence[str]], Stripped],
) -> Rewritten:
    """The same command without speculation; with nothing removed, the command itself.

    Raises CannotStrip.
    """
    spelt = words_of(command, environment)
    given = [word for item in spelt for word in item.words]
    if len(spelt[0].words) != 1:
        raise CannotStrip(f"it starts with {command.words[0]}, which stands for several words")
    name, given[0] = given[0], command.path
    stripped = strip(given)
    if not stripped.removed:
        return Rewritten(command, (), stripped.notes)
    if stripped.command[:1] != (command.path,):
        raise CannotStrip(f"without speculation it would not start with {command.path}")
    wanted = [name, *stripped.command[1:]]
    given[0] = name
    kept = list(_spelt(spelt, given, wanted, expands=command.expands))
    changed = UnitCommand(command.path, tuple(kept), command.flags)
    if [word for item in words_of(changed, environment) for word in item.words] != wanted:
        raise CannotStrip("what is left of it cannot be spelt so that systemd reads just that")
    new = set(wanted).difference(given)
    return Rewritten(changed, stripped.removed, (*stripped.notes, *_told(spelt, kept, new)))


def _spelt(
    spelt: Sequence[Expanded], given: Sequence[str], wanted: Sequence[str], *, expands: bool
) -> Iterator[str]:
    """``wanted`` with the unit's own spelling wherever all words of a spelling were kept."""
    place = _kept(given, wanted)
    start, done = 0, 0
    for item in spelt:
        places = [place.get(start + offset) for offset in range(len(item.words))]
        start += len(places)
        first = next((found for found in places if found is not None), done)
        yield from (_literal(word, expands=expands) for word in wanted[done:first])
        done = max(done, first)
        if places == list(range(first, first + len(places))):
            yield item.spelt
            done = first + len(places)
    yield from (_literal(word, expands=expands) for word in wanted[done:])


def _kept(given: Sequence[str], wanted: Sequence[str]) -> dict[int, int]:
    """Where words of ``given`` are found in ``wanted``, in the same order."""
    matcher = difflib.SequenceMatcher(None, given, wanted, autojunk=False)
    return {
        block.a + offset: block.b + offset
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _literal(word: str, *, expands: bool) -> str:
    if not expands:
        return word
    if name := unknown_in(word):
        raise CannotStrip(
            f"a word with ${name} would have to be changed, and its value is only known once the"
            " unit starts"
        )
    return word.replace("$", "$$")


def _told(spelt: Sequence[Expanded], kept: Sequence[str], new: Collection[str]) -> Iterator[str]:
    if new:
        yield "what stands in the unit instead is told to everybody who asks systemd"
    left = list(kept)
    for item in spelt:
        if item.spelt in left:
            left.remove(item.spelt)
        elif item.names and item.words:
            yield (
                f"{item.spelt} is replaced by words of its value, which everybody on this machine"
                " can then read in the unit"
            )

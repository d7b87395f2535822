"""The command of a unit, rewritten word by word; unchanged words keep their spelling."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from specwatch.actuators.systemd.environment import (
    Environment,
    Expanded,
    environment_file,
    expanded,
    unknown_in,
)
from specwatch.actuators.systemd.loaded_unit import EXPANDS_NOT, UnitCommand
from specwatch.errors import CannotStrip
from specwatch.vllm_cli import Stripped

_VARIABLE = "SPECWATCH_WORD_{}"
_NO_SECRET = re.compile(r"--?[A-Za-z][A-Za-z_-]*")
"""The name of a flag."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A command without speculation, as a unit spells it.

    ``words`` are what the program gets. ``variables`` are values that the command refers to and
    that only its drop-in's own file of variables has.
    """

    command: UnitCommand
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def words_of(command: UnitCommand, environment: Environment) -> list[Expanded]:
    """Each word of a command with what the program gets for it."""
    if not command.expands:
        return [Expanded(word, (word,)) for word in command.words]
    return [expanded(word, environment) for word in command.words]


def given_words(spelt: Iterable[Expanded]) -> tuple[str, ...]:
    """The arguments that the program gets."""
    return tuple(word for item in spelt for word in item.words)


def rewritten(
    command: UnitCommand, environment: Environment, strip: Callable[[Sequence[str]], Stripped]
) -> Rewritten:
    """The same command without speculation; with nothing removed, the command itself.

    Everybody may ask systemd for the command. So what the unit does not spell, because it comes
    from variables or a file, is referred to, but for names of flags. Raises CannotStrip.
    """
    spelt = words_of(command, environment)
    given = list(given_words(spelt))
    if len(spelt[0].words) != 1:
        raise CannotStrip(f"it starts with {command.words[0]}, whose value is several words")
    name, given[0] = given[0], command.path
    stripped = strip(given)
    if not stripped.removed:
        return Rewritten(command, (), stripped.notes, (name, *given[1:]))
    if stripped.command[:1] != (command.path,):
        raise CannotStrip(f"without speculation it would not start with {command.path}")
    wanted = [name, *stripped.command[1:]]
    given[0] = name
    refers = stripped.inlined or any(item.names for item in spelt)
    if refers and not command.expands:
        flags = tuple(flag for flag in command.flags if flag != EXPANDS_NOT)
        command = msgspec.structs.replace(command, flags=flags)
        spelt = [replace(item, spelt=item.spelt.replace("$", "$$")) for item in spelt]
    own = {word for item in spelt if not item.names for word in item.words}
    variables: dict[str, str] = {}

    def spell(word: str) -> str:
        if hidden := unknown_in(word):
            raise CannotStrip(
                f"a word with ${hidden} would have to be changed, and its value is only known once"
                " the unit starts"
            )
        if not refers or word in own or _NO_SECRET.fullmatch(word):
            return word.replace("$", "$$") if command.expands else word
        variable = _VARIABLE.format(len(variables) + 1)
        variables[variable] = word
        return f"${{{variable}}}"

    kept = list(_spelt(spelt, given, wanted, spell))
    try:
        environment_file(variables)
    except ValueError as error:
        raise CannotStrip(
            f"what is left of it cannot be kept apart from the unit: {error}"
        ) from None
    changed = UnitCommand(command.path, tuple(kept), command.flags)
    known = {**environment, **variables}
    if list(given_words(words_of(changed, known))) != wanted:
        raise CannotStrip("what is left of it cannot be spelt so that systemd reads just that")
    notes = (*stripped.notes, *_replaced(spelt, kept))
    return Rewritten(changed, stripped.removed, notes, tuple(wanted), variables)


def _spelt(
    spelt: Sequence[Expanded],
    given: Sequence[str],
    wanted: Sequence[str],
    spell: Callable[[str], str],
) -> Iterator[str]:
    """``wanted`` in the unit's spelling wherever all words of a spelling were kept."""
    place = _kept(given, wanted)
    start, done = 0, 0
    for item in spelt:
        places = [place.get(start + offset) for offset in range(len(item.words))]
        start += len(places)
        first = next((place for place in places if place is not None), done)
        yield from map(spell, wanted[done:first])
        done = max(done, first)
        if places == list(range(first, first + len(places))):
            yield item.spelt
            done = first + len(places)
    yield from map(spell, wanted[done:])


def _kept(given: Sequence[str], wanted: Sequence[str]) -> dict[int, int]:
    """Where words of ``given`` are found in ``wanted``, in the same order."""
    matcher = difflib.SequenceMatcher(None, given, wanted, autojunk=False)
    return {
        block.a + offset: block.b + offset
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _replaced(spelt: Sequence[Expanded], kept: Sequence[str]) -> Iterator[str]:
    left = list(kept)
    for item in spelt:
        if item.spelt in left:
            left.remove(item.spelt)
        elif item.names and item.words:
            yield (
                f"{item.spelt} is replaced by words of its value: what its variables are set to"
                " later is not seen"
            )

"""Where the options of a program end that starts another one."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from specwatch.errors import CannotStrip
from specwatch.stripping.word import Loose, spelt


class Sight(enum.IntEnum):
    """Which of the files that vLLM will read can be read from here, under the same names."""

    NONE = 0
    ABSOLUTE = 1
    ALL = 2


Given = dict[str, str]
"""The options that were given, with their values; the last of several counts."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The options of a program.

    ``valued`` take a value and ``plain`` none; after one that is ``last``, and its value, no
    option follows. With one of ``folder`` what is started runs in another folder, with one of
    ``root`` on another machine or file system; both take a value too. ``operands`` are the words
    that come before the program that is started.
    """

    valued: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    folder: frozenset[str] = frozenset()
    root: frozenset[str] = frozenset()
    operands: int = 0

    @classmethod
    def of(
        cls,
        valued: str = "",
        plain: str = "",
        *,
        last: str = "",
        folder: str = "",
        root: str = "",
        operands: int = 0,
    ) -> Grammar:
        """Options from texts that hold them between blanks."""
        return cls(
            frozenset(f"{valued} {last} {folder} {root}".split()),
            frozenset(plain.split()),
            frozenset(last.split()),
            frozenset(folder.split()),
            frozenset(root.split()),
            operands,
        )

    def sight(self, given: Given) -> Sight:
        """What can be seen of the files of a program that is started with these options."""
        if self.root.intersection(given):
            return Sight.NONE
        return Sight.ABSOLUTE if self.folder.intersection(given) else Sight.ALL


def after_options(program: str, words: Sequence[str], grammar: Grammar) -> tuple[int, Given]:
    """How many of the words after ``program`` are its options, and which they are.

    Raises CannotStrip for an option that is not known here.
    """
    given: Given = {}
    at = 0
    while at < len(words):
        word = words[at]
        if isinstance(word, Loose):
            raise CannotStrip(
                f"{word!r} after {program} may stand for several words: write them out, or put it"
                ' in "double quotes" if it is one word'
            )
        if word == "--":
            return at + 1, given
        if not word.startswith(("-", "+")) or (word in ("-", "+") and word not in grammar.plain):
            break
        read, takes_next = _read(program, word, grammar)
        at += 1
        if takes_next:
            if at == len(words):
                raise CannotStrip(f"{word} of {program} has no value: give it one")
            read[takes_next] = words[at]
            at += 1
        given |= read
        if grammar.last.intersection(read):
            break
    return at, given


def _read(program: str, word: str, grammar: Grammar) -> tuple[Given, str | None]:
    """The options in one word, and that among them whose value is the next word."""
    name, equals, value = word.partition("=")
    if word in grammar.plain:
        return {word: ""}, None
    if name in grammar.valued:
        return ({name: value}, None) if equals else ({}, name)
    if name.startswith("--"):
        if name not in grammar.plain:
            raise _unknown(program, name)
        return {name: value}, None
    given: Given = {}
    for place, letter in enumerate(word[1:], 2):
        option = word[0] + letter
        if option in grammar.valued:
            if place == len(word):
                return given, option
            return given | {option: word[place:]}, None
        if option not in grammar.plain:
            raise _unknown(program, word)
        given[option] = ""
    return given, None


def _unknown(program: str, option: str) -> CannotStrip:
    return CannotStrip(
        f"what {spelt(option)} does to {program} is not known here: start vLLM without it, or by a"
        " program that does not need it"
    )

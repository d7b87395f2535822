"""Words of a command line of which a part may not be known."""

from __future__ import annotations

UNKNOWN = "\0"
"""Stands in a word for what a shell puts there; no word of a program can hold it."""


class Loose(str):
    """A word of a shell that may become none or several, such as ``$ARGS`` without quotes."""

    __slots__ = ()


def spelt(word: str) -> str:
    """A word for a message."""
    return repr(word.replace(UNKNOWN, "$..."))


def program_of(word: str) -> str:
    """The name of a program without its folder."""
    return word.rpartition("/")[2]

"""The text of a POSIX shell: its simple commands, and the text with words changed.

Only so much of the language is read as it takes to tell words apart. Source: "Shell Command
Language" of POSIX.1-2017, sections 2.2 to 2.10, and bash(1) for brace expansion.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from specwatch.errors import CannotStrip
from specwatch.stripping.edit import Edit
from specwatch.stripping.word import UNKNOWN, Loose

_META = frozenset(" \t\n;&|<>()")
_REDIRECTION = re.compile(r"&?(?:<>|<&|>>|>&|>\||[<>])")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ALL_ARGUMENTS = re.compile(r"@|\{[!#]?(?:@|\w+\[@\])")
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{"})


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word as a program gets it, and where it is in the text.

    ``after`` is the end of what comes before it: only blanks lie between that and the word.
    """

    after: int
    end: int
    value: str


def commands(text: str) -> list[list[ShellWord]]:
    """The simple commands of a text, without redirections.

    Raises CannotStrip for what is not understood here.
    """
    return _Reader(text).commands()


def changed(text: str, edits: Sequence[tuple[Sequence[ShellWord], Edit]]) -> str:
    """The text with edits of the words of some of its commands; all else byte for byte."""
    pieces: list[tuple[int, int, str]] = []
    for words, edit in edits:
        for place in edit.dropped:
            pieces.append((words[place].after, words[place].end, ""))
        for place, added in edit.inserted.items():
            at = words[place - 1].end
            pieces.append((at, at, f" {shlex.join(added)}" if added else ""))
    for start, end, new in sorted(pieces, reverse=True):
        text = text[:start] + new + text[end:]
    return text


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._after = 0

    def commands(self) -> list[list[ShellWord]]:
        found: list[list[ShellWord]] = [[]]
        while self._at < len(self._text):
            here = self._text[self._at]
            if here in " \t":
                self._at += 1
                continue
            if self._text.startswith("\\\n", self._at):
                self._at += 2
                continue
            if here == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif redirection := _REDIRECTION.match(self._text, self._at):
                self._skip_redirection(redirection.end())
            elif here in _META:
                self._at += 1
                found.append([])
            else:
                self._add_word(found[-1])
            self._after = self._at
        return [words for words in found if words]

    def _add_word(self, words: list[ShellWord]) -> None:
        word = self._word()
        is_descriptor = word.value.isdigit() and self._text[self._at : self._at + 1] in ("<", ">")
        if not is_descriptor and (words or word.value not in _KEYWORDS):
            words.append(word)

    def _skip_redirection(self, end: int) -> None:
        if self._text[self._at : self._at + 2] == "<<" or self._text[end : end + 1] == "(":
            raise CannotStrip(
                f"{self._text[self._at : end + 1]!r} in the text of a shell is not understood:"
                " put `vllm serve` into a command of its own"
            )
        self._at = end
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        self._word()

    def _word(self) -> ShellWord:
        start = self._at
        value: list[str] = []
        loose = False
        plain: list[str] = []
        while self._at < len(self._text) and (here := self._text[self._at]) not in _META:
            if here == "'":
                value.append(self._single_quoted())
            elif here == '"':
                said, several = self._double_quoted()
                value.append(said)
                loose |= several
            elif here == "\\":
                value.append(self._text[self._at + 1 : self._at + 2].replace("\n", ""))
                self._at += 2
            elif self._text.startswith(("$'", '$"'), self._at):
                raise CannotStrip(f"{self._rest(self._at)} is not understood: use plain quotes")
            elif here in "$`" and self._expansion() is not None:
                value.append(UNKNOWN)
                loose = True
            else:
                value.append(here)
                plain.append(here)
                self._at += 1
        loose |= re.search(r"\{.*(,|\.\.).*\}", "".join(plain)) is not None
        said = "".join(value)
        if loose:
            said = Loose(self._text[start : self._at])
        return ShellWord(self._after, self._at, said)

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._unclosed("'")
        said = self._text[self._at + 1 : end]
        self._at = end + 1
        return said

    def _double_quoted(self) -> tuple[str, bool]:
        start = self._at
        value: list[str] = []
        several = False
        self._at += 1
        while self._text[self._at : self._at + 1] != '"':
            here = self._text[self._at : self._at + 1]
            following = self._text[self._at + 1 : self._at + 2]
            if not here:
                self._at = start
                raise self._unclosed('"')
            if here == "\\" and following and following in '$`"\\\n':
                value.append(following.replace("\n", ""))
                self._at += 2
            elif here in "$`" and (expanded := self._expansion()) is not None:
                value.append(UNKNOWN)
                several |= _ALL_ARGUMENTS.match(expanded, 1) is not None
            else:
                value.append(here)
                self._at += 1
        self._at += 1
        return "".join(value), several

    def _expansion(self) -> str | None:
        """The expansion that begins here, which is left behind; None for a mere dollar sign."""
        start = self._at
        opening = self._text[start : start + 2]
        if opening[0] == "`":
            self._at = self._closing(start + 1, "`")
        elif opening == "$(":
            self._at = self._closing(start + 2, ")")
        elif opening == "${":
            self._at = self._closing(start + 2, "}")
        elif name := _NAME.match(self._text, start + 1):
            self._at = name.end()
        else:
            return None
        return self._text[start : self._at]

    def _closing(self, at: int, closing: str) -> int:
        """The place after what closes an expansion whose content begins at ``at``."""
        while at < len(self._text):
            here = self._text[at]
            if here == closing:
                return at + 1
            if here == "\\":
                at += 2
            elif here == "'" and closing == ")":
                at = self._text.find("'", at + 1) + 1 or len(self._text)
            elif here == '"' and closing != '"':
                at = self._closing(at + 1, '"')
            elif here == "(" and closing == ")":
                at = self._closing(at + 1, ")")
            elif self._text.startswith(("$(", "${"), at):
                at = self._closing(at + 2, ")" if self._text[at + 1] == "(" else "}")
            else:
                at += 1
        raise self._unclosed(closing)

    def _unclosed(self, what: str) -> CannotStrip:
        return CannotStrip(f"{self._rest(self._at)} in the text of a shell has no closing {what}")

    def _rest(self, at: int) -> str:
        return repr(self._text[at : at + 20])

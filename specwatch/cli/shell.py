"""Command lines as people and programs take them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def for_a_shell(words: Sequence[str]) -> str:
    """The words quoted; assignments before the program still are ones."""
    first = 0
    while first < len(words) and _ASSIGNMENT.match(words[first]):
        first += 1
    assignments = (word.partition("=") for word in words[:first])
    quoted = (f"{name}={shlex.quote(value)}" for name, _, value in assignments)
    return " ".join([*quoted, shlex.join(words[first:])])


def for_json(word: str) -> str:
    """A text that JSON can hold, whatever bytes it came as."""
    return os.fsencode(word).decode("utf-8", "replace")

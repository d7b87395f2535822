"""What an engine is to specwatch. Adding one is adding a module with an :class:`Engine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_LONGEST_TEXT = 200


class Family(NamedTuple):
    """One exposed family: its name without suffixes, its type, and what we call it."""

    exposed: str
    kind: str
    quantity: str
    label: str = ""
    """The label whose value tells siblings apart, where one matters."""
    help: str = ""
    """What the page says of it, where the page is ours."""
    by_temperature: bool = False


class Identity(NamedTuple):
    """What a server says of itself; None where it does not."""

    version: str | None = None
    drafting: bool | None = None
    """Whether it can draft, of an engine whose page does not tell."""


Ask = Callable[[str], Any]
"""Gets the JSON document at a path of the server; None for one that cannot be had."""


@dataclass(frozen=True)
class Engine:
    """``name`` is the prefix of its families and the owner of its models (``/v1/models``)."""

    name: str
    title: str
    families: tuple[Family, ...]
    identify: Callable[[Ask], Identity]
    """Reads the pages on which a server of this engine says who it is; all None of another's."""
    shows_speculation: bool
    """Whether its page has the families of speculation exactly where it speculates."""
    superseded: Mapping[str, str] = field(default_factory=dict)
    """Quantities that count only where their successor is absent: some releases have both."""


def text_of(document: Any, key: str) -> str | None:
    """A text of a JSON document, no longer than what is stored; None where there is none."""
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        return None
    # JSON can spell halves of characters, which no UTF-8 can.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")

"""The interface of an engine. To add one, add a module with an :class:`Engine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Mode, Series
from specwatch_tap.families import Family

_LONGEST_TEXT = 200


class Identity(NamedTuple):
    """What a server says about itself; None if it does not."""

    version: str | None = None
    drafting: bool | None = None
    """Whether it can draft, for an engine whose page does not show it."""
    draft_lengths: DraftLengths | None = None
    """Why its drafts vary in length, for an engine whose page does not show it."""
    prefills: bool = False
    """Whether it only prefills, for other servers that decode (disaggregated serving)."""


Ask = Callable[[str], Any]
"""Gets the JSON document at a path of the server; None if it cannot be read."""


@dataclass(frozen=True)
class Engine:
    """``name`` is the owner of its models (``/v1/models``)."""

    name: str
    title: str
    families: tuple[Family, ...]
    identify: Callable[[Ask], Identity]
    """Reads the identity of a server of this engine; all None for another engine."""
    speculates: Callable[[Mapping[Series, float]], bool | None]
    """Whether a server with these samples of one model speculates; None if they do not show it."""
    speculation: str
    """What a server that speculates is started with."""
    meaningful: Callable[[Mapping[Series, float]], Mapping[Series, float]] = lambda samples: samples
    """The samples of a page in our vocabulary, without those that mean nothing."""
    superseded: Mapping[str, str] = field(default_factory=dict)
    """Quantities that count only if their successor is absent: some releases have both."""
    metrics_path: str = "/metrics"
    closes_streams: bool = False
    """Whether the server closes the connection after a stream, without a header that says so."""
    stops_permanently: bool = False
    """Whether the engine may end speculation until its next start by itself, of which its page only
    shows that drafts count no further."""
    mode: Callable[[Mapping[Series, float]], Mode | None] = lambda samples: None
    """The mode that samples of one model show whatever the server drafts; None for most."""
    record_fields: Mapping[str, bool] = field(default_factory=dict)
    """What a request must have for its response to carry a record of its acceptance."""


def drafted(samples: Mapping[Series, float], quantity: str) -> bool:
    """Whether anything of this quantity was counted."""
    return any(value > 0 for series, value in samples.items() if series.quantity == quantity)


def text_of(document: Any, key: str) -> str | None:
    """A text of a JSON document, cut to what is stored; None without one."""
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        return None
    # JSON can contain halves of surrogate pairs, which UTF-8 cannot.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")

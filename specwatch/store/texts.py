"""Texts and numbers as every database stores them."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from typing import Annotated, NamedTuple

import msgspec

_DIGEST_BITS = 47
_LONGEST_NAME = 600
"""Bytes of a name: Postgres cannot index rows of more than 2704."""
LARGEST_REMEMBERED = 1 << 16
"""Characters of the series of a cursor up to which their layout is cached."""

Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither NaN nor infinite: pages with such values are refused."""


class Layout(NamedTuple):
    """The counters of a page that many cursors share, as JSON, and an id that is a digest of it."""

    id: int
    content: str


def layout(content: object) -> Layout:
    """The layout with this content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Layout(digest_of(text), text)


def digest_of(text: str) -> int:
    """A number by which a text is found, the same in every process."""
    # 47 bits: of a thousand texts two are alike with a probability of 4e-9.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _DIGEST_BITS)


def shared_size(layout: Layout) -> int:
    """The bytes that a layout adds to a cursor: 0 for a usual one, which many cursors share."""
    size = len(layout.content)
    return size if size > LARGEST_REMEMBERED else 0


def storable(text: str) -> str:
    """The text as every database can store and index it; only hostile texts are changed."""
    if len(text) <= _LONGEST_NAME // 4 and text.isascii() and "\0" not in text:
        return text
    encoded = re.sub("[\0\ud800-\udfff]", "\ufffd", text).encode()
    if len(encoded) > _LONGEST_NAME:
        digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
        encoded = encoded[: _LONGEST_NAME - len(digest)] + digest.encode()
    return encoded.decode(errors="replace")

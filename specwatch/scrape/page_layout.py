"""Reading a page at a glance, where it differs from the one before in its numbers only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter, le
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from specwatch.domain.model import Series
from specwatch.engines.sample_names import GAUGES, SAMPLES, engine_of
from specwatch.scrape import tally
from specwatch.scrape.counters import LARGEST

_JSON = msgspec.json.Decoder(tuple[float, ...])
_NUMERIC = b"0123456789.+-"
_NAMES = frozenset(name.encode().translate(None, _NUMERIC) for name in SAMPLES)
_NAME_OF_LINE = re.compile(rb"^[a-zA-Z_:]*", re.MULTILINE)
_BEGINNINGS = frozenset(b"#abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:")
_READ_EACH_TIME = frozenset(
    {"running", "waiting", "kv_cache_usage", "kv_cache_usage_old", "lifetime_acceptance_rate"}
)
"""Gauges that are read from each page; others stay the same as long as a process runs."""


_LAYOUTS: WeakValueDictionary[tuple[Any, ...], PageLayout] = WeakValueDictionary()
"""Those that are in use."""


class Glance(NamedTuple):
    """The values of a page, in the order of the series of its layout."""

    layout: PageLayout
    values: tuple[float, ...]

    def samples(self) -> dict[Series, float]:
        """The value of each series."""
        return dict(zip(self.layout.series, self.values, strict=True))

    def gauges(self) -> dict[str, dict[Series, float]]:
        """The gauges that are read from each page, by model."""
        return {
            model: {series: self.values[place] for series, place in gauges}
            for model, gauges in self.layout.gauges.items()
        }

    def continues(self, before: Glance) -> bool:
        """Whether certainly the same process has only counted on since a page with known counts."""
        layout = self.layout
        counts = layout.counters(self.values)
        return (
            layout is before.layout
            and layout.steady(self.values) == layout.steady(before.values)
            and all(map(le, layout.counters(before.values), counts))
            and max(counts, default=0.0) < LARGEST
        )


class PageLayout:
    """A page without its numbers."""

    def __init__(self, lines: Sequence[bytes], known: Mapping[bytes, Series]) -> None:
        """``known`` has the series of our samples by the text before the value."""
        heads = [line.rpartition(b" ")[0] for line in lines]
        places = [place for place, head in enumerate(heads) if head in known]
        self._heads = tuple(heads[place] for place in places)
        self._pick = _picker(places)
        self._text = _text_of(b"\n".join(lines))
        self._identity = self._text, self._heads, tuple(places)
        self.series = tuple(known[head] for head in self._heads)
        quantities = [series.quantity for series in self.series]
        self.counters = _picker(
            [place for place, one in enumerate(quantities) if one not in GAUGES]
        )
        self.steady = _picker(
            [place for place, one in enumerate(quantities) if one in GAUGES - _READ_EACH_TIME]
        )
        self.gauges: dict[str, list[tuple[Series, int]]] = {}
        """By model those that are read from each page, with the place of their values."""
        models = tally.parts_of(dict.fromkeys(self.series, 0.0)).models
        self.stops_permanently = any(
            engine_of(samples).stops_permanently for samples in models.values()
        )
        """Whether each page has to be looked at, as only counters show that drafts ended."""
        for model, samples in models.items():
            self.gauges[model] = [
                (series, self.series.index(series))
                for series in samples
                if series.quantity in _READ_EACH_TIME
            ]

    @classmethod
    def of(cls, page: bytes, known: Mapping[bytes, Series]) -> PageLayout | None:
        """The layout of a page that was read; None where a glance at others would not be certain:
        without the start of the process, or with lines in an unusual notation."""
        layout = cls(page.split(b"\n"), known)
        bare = page.translate(None, _NUMERIC)
        ours = sum(name in _NAMES for name in _NAME_OF_LINE.findall(bare))
        usual = all(not line or line[0] in _BEGINNINGS for line in bare.split(b"\n"))
        distinct = len(set(layout.series)) == len(layout.series) == ours
        if not (usual and distinct and layout.series):
            return None
        # Servers of one model have one layout, which takes 30 KB.
        return _LAYOUTS.setdefault(layout._identity, layout)

    def read(self, page: bytes) -> Glance | None:
        """The values of a page with this layout; None for another page."""
        if _text_of(page) != self._text:
            return None
        try:
            lines = self._pick(page.split(b"\n"))
            # Where a head differs, the whole line is left, which is not a number.
            return Glance(self, _numbers(list(map(bytes.removeprefix, lines, self._heads))))
        except ValueError:
            return None


def _numbers(texts: Sequence[bytes]) -> tuple[float, ...]:
    """The numbers, read as one list of JSON: that takes a fifth of the time.

    Raises ValueError for text that is not a number.
    """
    try:
        return _JSON.decode(b"[%b]" % b",".join(texts))
    except msgspec.DecodeError:  # such as NaN
        return tuple(map(float, texts))


def _text_of(page: bytes) -> int:
    """A page without its numbers; other letters, such as those of NaN, are text."""
    return hash(page.translate(None, _NUMERIC))


def _picker(places: Sequence[int]) -> Any:
    """Picks what is at those places of a sequence, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)

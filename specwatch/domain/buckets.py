"""A tap's counts by model and segment, and windows made of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from specwatch.domain import merge
from specwatch.domain.model import ALL, TEMPERATURE, Segment, Series, Source, Tally, Window
from specwatch_tap.segment_kinds import NONE, OTHER, UNKNOWN

MOST_VALUES = 32
"""Segments of one dimension of one model, at most, more than a tap can be configured to have
temperature buckets: what is beyond counts as ``other``."""
_MOST_DIMENSIONS = 5
_LAST = (NONE, OTHER, UNKNOWN)

_NUMBER = re.compile(r"(>?)(?:[(\[][^,]*,)?([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_MOST_NAMED = 3


class Bucket(NamedTuple):
    """A segment of a model, as the tap names it."""

    model_name: str
    segment: Segment


def by_bucket(
    samples: Mapping[Series, float], problems: list[str]
) -> dict[Bucket, dict[Series, float]]:
    """A tap's samples by model and segment; samples of all requests are left out.

    ``problems`` gets a sentence about models with too many dimensions.
    """
    buckets: dict[Bucket, dict[Series, float]] = {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    refused: set[str] = set()
    for series, value in samples.items():
        if series.segment == ALL:
            continue
        bucket = Bucket(series.model_name, series.segment)
        if bucket not in buckets:
            dimension = bucket.segment.dimension
            values = counts[bucket.model_name]
            if values[dimension] >= MOST_VALUES:
                bucket = bucket._replace(segment=Segment(dimension, OTHER))
            elif dimension not in values and len(values) == _MOST_DIMENSIONS:
                refused.add(bucket.model_name)
                continue
            values[dimension] += 1
        buckets.setdefault(bucket, {})[series] = value
    for model in sorted(refused)[:_MOST_NAMED]:
        problems.append(f"the tap counts {model[:60]!r} by more than {_MOST_DIMENSIONS} dimensions")
    return buckets


def matching(name: str, models: Collection[str], unnamed: str) -> str | None:
    """The engine's model with the name that a tap uses; None if the engine has no such model.

    ``unnamed`` is what a model is called that the engine does not name. If either side gives no
    name, the result is the engine's only model.
    """
    if name in models:
        return name
    if len(models) == 1:
        (only,) = models
        return only if not (name and only) else None
    return "" if name == unnamed and "" in models else None


def order_of(segment: Segment) -> tuple[bool, bool, str, int, float, str, str]:
    """A sort key of segments: all requests, temperatures, then the other dimensions; in each those
    with numbers ascending, then words, then what has no value."""
    value = segment.value
    place = segment != ALL, segment.dimension != TEMPERATURE, segment.dimension
    found = _NUMBER.match(value)
    if found is not None:
        return *place, 0, float(found[2]), found[1], value
    return *place, _LAST.index(value) + 2 if value in _LAST else 1, 0.0, "", value


def by_model(
    tallies: Mapping[Bucket, Tally], known: Collection[str], unnamed: str, problems: list[str]
) -> dict[str, dict[Segment, Tally]]:
    """A tap's counts by the engine's name of the model, and segment.

    ``problems`` gets a sentence about models that the engine does not have.
    """
    models: dict[str, dict[Segment, Tally]] = {}
    strangers: set[str] = set()
    for (name, segment), part in tallies.items():
        model = matching(name, known, unnamed)
        if model is None:
            strangers.add(name)
            continue
        parts = models.setdefault(model, {})
        parts[segment] = merge.merge_tallies(parts.get(segment, Tally()), part)
    if strangers:
        problems.append(unknown_models(strangers))
    return models


def windows_of(
    tallies: Mapping[Bucket, Tally],
    of_all: Mapping[str, Window],
    *,
    doubts: Callable[[str], bool],
    unnamed: str,
    source: Source,
    restarts: int,
    problems: list[str],
) -> list[Window]:
    """Windows by segment from a tap's counts; ``of_all`` are of all, by model.

    Models for which ``doubts`` is true get no windows: their counts cannot be true. ``restarts``
    are those of the tap alone. ``problems`` gets a sentence about models that the engine does not
    have.
    """
    windows = []
    for model, parts in sorted(by_model(tallies, of_all, unnamed, problems).items()):
        if doubts(model):
            continue
        whole = of_all[model]
        if any(part.records.get("timings") for part in parts.values()):
            parts = {one: _with_drafts(part, whole.tally) for one, part in parts.items()}
        seen: Counter[str] = Counter()
        for one, part in parts.items():
            seen[one.dimension] += part.drafts or 0
        windows += [
            replace(
                whole,
                series=replace(whole.series, segment=one),
                tally=parts[one],
                source=source,
                server_drafts=whole.tally.drafts,
                source_drafts=seen[one.dimension],
                restarts=whole.restarts + restarts,
            )
            for one in sorted(parts, key=order_of)
        ]
    return windows


def _with_drafts(part: Tally, of_all: Tally) -> Tally:
    """A part with its share of the server's drafts, by their tokens: llama.cpp's timings do not
    tell steps without a draft from others, and those of n-grams mostly have none."""
    if not of_all.drafts or not of_all.draft_tokens or not part.drafts or part.draft_tokens is None:
        return part
    share = part.draft_tokens / of_all.draft_tokens
    return replace(part, drafts=min(part.drafts, round(share * of_all.drafts)))


def unknown_models(names: Collection[str]) -> str:
    """A sentence about a tap's models that the engine does not have."""
    named = ", ".join(repr(name[:60]) for name in sorted(names)[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"the tap counts for {named}{more}, which the server's page does not have"

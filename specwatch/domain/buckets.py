"""A tap's counts by model and temperature bucket or segment, and windows made of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from specwatch.domain import merge, segments
from specwatch.domain.model import (
    ALL_TEMPERATURES,
    UNKNOWN_TEMPERATURE,
    Series,
    Source,
    Tally,
    Window,
)
from specwatch_tap.segment_kinds import OTHER

MOST_TEMPERATURES = 32
"""Temperature buckets of one model, at most: more than a tap can be configured to have."""

MOST_VALUES = 32
"""Segments of one kind of one model, at most: what is beyond counts as ``other``."""
_MOST_KINDS = 4

_LABEL = re.compile(r"(>)?([0-9.e+-]+)|[(\[]([0-9.e+-]+),([0-9.e+-]+)\]")
_MOST_NAMED = 3


class Bucket(NamedTuple):
    """A temperature bucket, or a segment, of a model, as the tap names it."""

    model_name: str
    temperature: str


def by_bucket(
    samples: Mapping[Series, float], problems: list[str]
) -> dict[Bucket, dict[Series, float]]:
    """A tap's samples by model and temperature or segment; samples with neither are left out.

    ``problems`` gets a sentence about models with too many temperatures or kinds of segments, or
    an invalid temperature.
    """
    buckets: dict[Bucket, dict[Series, float]] = {}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    refused: set[str] = set()
    for series, value in samples.items():
        if not series.temperature:
            continue
        bucket = Bucket(series.model_name, series.temperature)
        if bucket not in buckets:
            kind, by_kind = segments.kind_of(bucket.temperature), counts[bucket.model_name]
            if kind and by_kind[kind] >= MOST_VALUES:
                bucket = bucket._replace(temperature=segments.label_of(kind, OTHER))
            elif (
                by_kind[kind] == MOST_TEMPERATURES
                or bucket.temperature == ALL_TEMPERATURES
                or (kind and kind not in by_kind and len(by_kind) > _MOST_KINDS)
            ):
                refused.add(bucket.model_name)
                continue
            by_kind[kind] += 1
        buckets.setdefault(bucket, {})[series] = value
    for model in sorted(refused)[:_MOST_NAMED]:
        problems.append(
            f"the tap's temperatures of {model[:60]!r} beyond {MOST_TEMPERATURES}, or called"
            f" {ALL_TEMPERATURES!r}, or more than {_MOST_KINDS} kinds of segments"
        )
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


def order_of(temperature: str) -> tuple[int, float, str]:
    """A sort key of temperature buckets: ascending, then labels of no bucket, then the unknown."""
    if temperature == UNKNOWN_TEMPERATURE:
        return 2, 0.0, ""
    match = _LABEL.fullmatch(temperature)
    try:
        end = float(match[2] or match[4]) if match else None
    except ValueError:
        end = None
    if match is None or end is None:
        return 1, 0.0, temperature
    return 0, end, match[1] or ""


def by_model(
    tallies: Mapping[Bucket, Tally], known: Collection[str], unnamed: str, problems: list[str]
) -> dict[str, dict[str, Tally]]:
    """A tap's counts by the engine's name of the model, and temperature or segment.

    ``problems`` gets a sentence about models that the engine does not have.
    """
    models: dict[str, dict[str, Tally]] = {}
    strangers: set[str] = set()
    for (name, temperature), part in tallies.items():
        model = matching(name, known, unnamed)
        if model is None:
            strangers.add(name)
            continue
        parts = models.setdefault(model, {})
        parts[temperature] = merge.merge_tallies(parts.get(temperature, Tally()), part)
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
    """Windows by temperature and segment from a tap's counts; ``of_all`` are of all, by model.

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
            parts = {label: _with_drafts(part, whole.tally) for label, part in parts.items()}
        seen: Counter[str] = Counter()
        for label, part in parts.items():
            seen[segments.kind_of(label)] += part.drafts or 0
        windows += [
            replace(
                whole,
                series=replace(whole.series, temperature=temperature),
                tally=parts[temperature],
                source=source,
                server_drafts=whole.tally.drafts,
                source_drafts=seen[segments.kind_of(temperature)],
                restarts=whole.restarts + restarts,
            )
            for temperature in sorted(parts, key=order_of)
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

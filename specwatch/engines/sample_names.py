"""The sample names of all engines, and of the tap, in our vocabulary.

Engines expose the same quantities under different names; all other rooms use our vocabulary. A
sample name that is not in :data:`SAMPLES` is ignored, so that ``*_created`` gauges and names
like ``..._per_pos_total`` are not counted as totals.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from specwatch.domain.model import UNKNOWN_TEMPERATURE, Mode, Series
from specwatch.engines.base import Engine, Family
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.engines.tap import SWITCH, TAP
from specwatch.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (VLLM, LLAMACPP)
"""All engines, in the order in which the identity of a server is read."""
ENGINE_TITLES = " or ".join(engine.title for engine in ENGINES)

_PROCESS = Family("process_start_time_seconds", "gauge", "process_start")
FAMILIES: tuple[Family, ...] = (
    *(family for engine in ENGINES for family in engine.families), _PROCESS, *TAP, *SWITCH,
)  # fmt: skip
SUPERSEDED: Mapping[str, str] = {
    old: new for engine in ENGINES for old, new in engine.superseded.items()
}
"""As in :class:`Engine`, for all engines."""

GAUGES = frozenset(f.quantity for f in FAMILIES if f.kind == "gauge")
TAKE_MAXIMUM = frozenset(
    {"kv_cache_usage", "kv_cache_usage_old", "cache_config", "process_start",
     "lifetime_acceptance_rate", "switch_draft_tokens", "switch_ordered",
      "switch_deep", "switch_schedule"}
)  # fmt: skip
"""Quantities whose samples over several engines combine to their maximum, not their sum."""


def combined(quantity: str, first: float, second: float) -> float:
    """The value of two samples of one series, or of two engines."""
    return max(first, second) if quantity in TAKE_MAXIMUM else first + second


class SampleName(NamedTuple):
    """What one exposed sample name means."""

    quantity: str
    part: str
    label: str
    by_temperature: bool


_PARTS = {
    "counter": [("_total", "")],
    "gauge": [("", "")],
    "histogram": [("_bucket", "bucket"), ("_sum", "sum"), ("_count", "count")],
}
"""By the type of a family: the ends of its sample names, and which part each is."""

SAMPLES: Mapping[str, SampleName] = {
    family.exposed + end: SampleName(
        family.quantity, part, "le" if part == "bucket" else family.label, family.by_temperature
    )
    for family in FAMILIES
    for end, part in _PARTS[family.kind]
}
"""Every sample name that we read, exactly as on a page."""

_NOT_CONFIGURATION = frozenset(
    {"engine", "model_name", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens",
     "kv_cache_max_concurrency"}
)  # fmt: skip
"""Labels that are not configuration: the size of the cache is measured at each start."""


def series_of(sample: str, labels: Mapping[str, str]) -> Series | None:
    """The series of a sample of an engine's page; None for a sample that we do not read."""
    meaning = SAMPLES.get(sample)
    if meaning is None:
        return None
    if meaning.label == "*":
        key = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in _NOT_CONFIGURATION)
    else:
        key = labels.get(meaning.label, "") if meaning.label else ""
    temperature = ""
    if meaning.by_temperature:
        temperature = labels.get("temperature") or UNKNOWN_TEMPERATURE
    return Series(
        meaning.quantity,
        meaning.part,
        labels.get("model_name", ""),
        labels.get("engine", ""),
        key,
        temperature,
    )


def meaningful(samples: Mapping[Series, float]) -> Mapping[Series, float]:
    """The samples of an engine's page without those that mean nothing in its release."""
    for engine in ENGINES:
        samples = engine.meaningful(samples)
    return samples


def mode_of(
    samples: Mapping[Series, float], drafting: bool | None = None, *, on: Mode = Mode.ON
) -> Mode:
    """Whether speculation is on for the model with these samples.

    Where an engine's page does not show it, a draft proves that it is on. Without a draft
    ``drafting`` decides, which is what the server reports. ``on`` is what its switch makes
    of that.
    """
    named = all(series.model_name for series in itertools.islice(samples, 1))
    shown = next(engine.shows_speculation for engine in ENGINES if engine.names_models == named)
    for series, value in samples.items():
        if series.quantity in ("draft_tokens", "lifetime_acceptance_rate") and (shown or value > 0):
            return on
    if shown:
        return Mode.OFF
    if drafting is None:
        return Mode.UNKNOWN
    return on if drafting else Mode.OFF

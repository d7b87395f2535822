"""The sample names of all engines, and of the tap, in our vocabulary.

Engines expose the same quantities under different names; all other rooms use our vocabulary. A
sample name that is not in :data:`SAMPLES` is ignored, so that ``*_created`` gauges and names
like ``..._per_pos_total`` are not counted as totals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from specwatch.domain.model import ALL, TEMPERATURE, Mode, Segment, Series
from specwatch.engines.base import Engine
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.engines.lmdeploy import LMDEPLOY
from specwatch.engines.sglang import SGLANG
from specwatch.engines.tensorrtllm import TENSORRT_LLM
from specwatch.engines.tokenspeed import TOKENSPEED
from specwatch.engines.vllm import VLLM
from specwatch_tap.families import SEGMENTS, SWITCH, TAP, Family
from specwatch_tap.segment_kinds import UNKNOWN

ENGINES: tuple[Engine, ...] = (VLLM, LLAMACPP, SGLANG, LMDEPLOY, TENSORRT_LLM, TOKENSPEED)
"""All engines, in the order in which the identity of a server is read."""
ENGINE_TITLES = f"{', '.join(engine.title for engine in ENGINES[:-1])} or {ENGINES[-1].title}"
METRICS_PATHS: Mapping[str, str] = {engine.name: engine.metrics_path for engine in ENGINES}
"""Where each engine has its metrics, by its name."""
_BY_NAME = {engine.name: engine for engine in ENGINES}
_MARKS = {
    family.exposed: f"{engine.name}:"
    for engine in ENGINES
    if engine is not VLLM
    for family in engine.families
}
"""What ``Series.engine`` begins with, by family; nothing for those of vLLM."""

_PROCESS = Family("process_start_time_seconds", "gauge", "process_start")
FAMILIES: tuple[Family, ...] = (
    *(family for engine in ENGINES for family in engine.families),
    _PROCESS,
    *TAP,
    *SEGMENTS,
    *SWITCH,
)
SUPERSEDED: Mapping[str, str] = {
    old: new for engine in ENGINES for old, new in engine.superseded.items()
}
"""As in :class:`Engine`, for all engines."""

GAUGES = frozenset(f.quantity for f in FAMILIES if f.kind == "gauge")
TAKE_MAXIMUM = frozenset(
    {
        "kv_cache_usage",
        "kv_cache_usage_old",
        "cache_config",
        "process_start",
        "lifetime_acceptance_rate",
        "switch_draft_tokens",
        "switch_ordered",
        "switch_schedule",
    }
)
"""Quantities whose samples over several engines combine to their maximum, not their sum."""


def combined(quantity: str, first: float, second: float) -> float:
    """The value of two engines."""
    return max(first, second) if quantity in TAKE_MAXIMUM else first + second


def repeated(series: Series, first: float, second: float) -> float:
    """The value of two samples that differ only in labels that specwatch does not use.

    Processes of vLLM are added up. The gauges of the marked engines are of ranks that all have the
    same requests, or of all requests beside those of one priority.
    """
    if series.quantity in GAUGES and ":" in series.engine:
        return max(first, second)
    return combined(series.quantity, first, second)


class SampleName(NamedTuple):
    """What one exposed sample name means; ``mark`` is what ``Series.engine`` begins with."""

    mark: str
    quantity: str
    part: str
    label: str
    segment_labels: tuple[str, ...]


_PARTS = {
    "counter": [("_total", "")],
    "gauge": [("", "")],
    "histogram": [("_bucket", "bucket"), ("_sum", "sum"), ("_count", "count")],
}
"""By the type of a family: the ends of its sample names, and which part each is."""


def spellings(exposed: str) -> Iterator[str]:
    """The names of a family on pages: an engine's own, and that with an underscore for the colon,
    as OpenTelemetry, gateways and Ray write it; each with Ray's prefix, too.

    Ray exports no counter before it has counted. Its gauges of the names of counters are not read.
    """
    for name in dict.fromkeys((exposed, exposed.replace(":", "_"))):
        yield name
        if name != exposed or ":" in name:
            yield f"ray_{name}"


SAMPLES: Mapping[str, SampleName] = {
    name + end: SampleName(
        _MARKS.get(family.exposed, ""),
        family.quantity,
        part,
        "le" if part == "bucket" else family.label,
        family.segment_labels,
    )
    for family in FAMILIES
    for name in spellings(family.exposed)
    for end, part in _PARTS[family.kind]
}
"""Every sample name that we read, exactly as on a page."""

_NOT_CONFIGURATION = frozenset(
    {
        "engine",
        "model_name",
        "num_gpu_blocks",
        "num_cpu_blocks",
        "kv_cache_size_tokens",
        "kv_cache_max_concurrency",
        "pid",
    }
)
"""Labels that are not configuration: the size of the cache is measured at each start.

Nor are those of Ray, such as ``WorkerId``: no others begin with a capital letter.
"""

_APART = ("engine", "WorkerId", "dp_rank", "is_streaming")
"""Labels of what is counted apart: data-parallel engines, and SGLang's streamed requests."""


def series_of(sample: str, labels: Mapping[str, str]) -> Series | None:
    """The series of a sample of an engine's page; None for a sample that we do not read."""
    meaning = SAMPLES.get(sample)
    if meaning is None:
        return None
    if meaning.label == "*":
        key = ",".join(
            f"{k}={v}"
            for k, v in sorted(labels.items())
            if k not in _NOT_CONFIGURATION and not k[0].isupper()
        )
    else:
        key = labels.get(meaning.label, "") if meaning.label else ""
        if meaning.quantity == "requests" and not meaning.label:
            key = "other"  # not said why they ended
    model_name = labels.get("model_name", "")
    return Series(
        meaning.quantity,
        meaning.part,
        "" if model_name == "undefined" else model_name,  # TensorRT-LLM 1.3.0rc5
        meaning.mark + "".join(labels.get(label, "") for label in _APART),
        key,
        _segment(meaning.segment_labels, labels),
    )


def _segment(names: tuple[str, ...], labels: Mapping[str, str]) -> Segment:
    """The segment of a sample of a tap; of an engine's, all requests."""
    if not names:
        return ALL
    values = [labels.get(name) or UNKNOWN for name in names]
    if len(values) == 1:
        return Segment(TEMPERATURE, values[0])
    # No tap calls a kind of segments like the dimensions that have no label.
    kind = UNKNOWN if values[0] in (TEMPERATURE, ALL.dimension) else values[0]
    return Segment(kind, values[1])


_ONE_SERVER = frozenset(
    {"pid", "tp_rank", "pp_rank", "moe_ep_rank", "priority", "engine_type", "routing_key"}
)
"""Labels in which samples of one server may differ that are one quantity to specwatch: processes,
ranks with the same requests, parts of all requests. Those that Ray adds begin with a capital."""


def is_of_router(labels: Mapping[str, str]) -> bool:
    """Whether a sample with these labels is a router's about one of its servers."""
    return "server" in labels and "model_name" not in labels


def several_servers(labels: Mapping[str, str], first: Mapping[str, str]) -> str:
    """Why a sample cannot be added to an earlier one of the same series, by their labels; empty if
    it can."""
    if is_of_router(labels):
        return (
            "this is a router's page, with the label server: make each server behind it a target"
            " of its own, by its own URL"
        )
    for label in sorted({*labels, *first} - _ONE_SERVER - _NOT_CONFIGURATION):
        values = [one.get(label, "") for one in (first, labels)]
        if values[0] != values[1] and not label[0].isupper():
            return (
                f"the page merges several servers: the label {label} is {values[0]!r} and"
                f" {values[1]!r}; make each of them a target of its own, by its own URL"
            )
    return ""


def meaningful(samples: Mapping[Series, float]) -> Mapping[Series, float]:
    """The samples of an engine's page without those that mean nothing in its release."""
    for engine in ENGINES:
        samples = engine.meaningful(samples)
    return samples


def engine_of(samples: Mapping[Series, float]) -> Engine:
    """The engine of the samples of one model."""
    first = next(iter(samples), None)
    if first is None:
        return VLLM
    return _BY_NAME.get(first.engine.partition(":")[0], VLLM)


def mode_of(
    samples: Mapping[Series, float],
    drafting: bool | None = None,
    *,
    on: Mode = Mode.ON,
    prefills: bool = False,
) -> Mode:
    """Whether speculation is on for the model with these samples.

    Where an engine's page does not show it, ``drafting`` decides, which is what the server
    reports. ``on`` is what its switch makes of that. With ``prefills``, the server only does that.
    """
    if prefills:
        return Mode.PREFILL
    engine = engine_of(samples)
    if (mode := engine.mode(samples)) is not None:
        return mode
    shown = engine.speculates(samples)
    speculates = drafting if shown is None else shown
    if speculates is None:
        return Mode.UNKNOWN
    return on if speculates else Mode.OFF

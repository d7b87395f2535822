"""Tallies and gauges from samples, or from increments of samples."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specwatch.domain import histogram
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import (
    ALL,
    COUNTERS,
    HISTOGRAMS,
    MAPPINGS,
    WEIGHTS,
    Histogram,
    RankCounts,
    Series,
    Tally,
)
from specwatch.engines.sample_names import ENGINE_TITLES, GAUGES, SUPERSEDED, combined, meaningful
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape import counters, switch
from specwatch_tap.families import OF_THE_PROCESS
from specwatch_tap.launch import KV_PRODUCER

_OF_THE_PROCESS = frozenset(
    {"process_start", "cache_config", "weight_updates", *OF_THE_PROCESS, *switch.QUANTITIES}
)
_SHOW_CONFIGURATION = frozenset(
    {
        "cache_config",
        "accepted_per_position",
        "launched_speculation",
        "lifetime_acceptance_rate",
        "drafts",
        "weight_updates",
    }
)
_CHANGE_WEIGHTS = ("update", "finish")
"""Operations that do; others prepare it."""
_POSITION_DIGITS = 3
"""No drafter proposes a thousand tokens; larger positions would exhaust the memory."""

_MOST_BUCKETS = 256
"""Buckets of a histogram of one engine: more than any server has; each is stored."""
MOST_MODELS = 64
"""Models of one target in a minute: a page with more is refused, as each takes memory."""
MOST_RANKS = 128
"""Data-parallel ranks of one server that are compared; of a server with more, none is."""
MOST_KEYS = 32
"""Finish reasons, methods or reasons of no coverage in one window: more than exist."""
_LONGEST_KEY = 64
_MOST_WIDTHS = 8
"""Different numbers of draft positions in a fingerprint."""
OTHER = "other"
_LEAST_PREFILLED, _MOST_TOKENS = 100, 1.01
"""Requests that show that a server only prefills, and their tokens each at most."""


class Sampled(NamedTuple):
    """The gauges of one model at one moment; None if the page does not have them."""

    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    lifetime_acceptance_rate: float | None


class Parts(NamedTuple):
    """The samples of a page, split by their source."""

    models: dict[str, dict[Series, float]]
    """Samples of the engine, by model."""
    tap: dict[Series, float]
    """Samples of a tap, its failures included; empty without a tap."""


def parts_of(samples: Mapping[Series, float]) -> Parts:
    """Split the engine's samples from a tap's; those of the whole process are left out."""
    models: dict[str, dict[Series, float]] = {}
    tap: dict[Series, float] = {}
    model: dict[Series, float] = {}
    name = None
    for series, value in samples.items():
        if series.quantity in _OF_THE_PROCESS:
            if series.quantity == "tap_failures":
                tap[series] = value
        elif series.segment != ALL:
            tap[series] = value
        else:
            if series.model_name != name:
                name = series.model_name
                model = models.setdefault(name, {})
            model[series] = value
    return Parts(models, tap)


def no_engine(page: Parts) -> PageError:
    """Why a page is not accepted as an engine's."""
    if page.tap:
        message = (
            "a page of a `specwatch tap proxy` alone; give its URL as the target's proxy, and the"
            " server's as its url"
        )
    else:
        message = (
            f"a metrics page, but not of {ENGINE_TITLES}; a vLLM that was started with"
            " --disable-log-stats shows no metrics of its own"
        )
    return PageError(ScrapeReason.NO_ENGINE, message)


def engine_parts(samples: Mapping[Series, float], earlier: Iterable[str]) -> Parts:
    """The parts of an engine's page; ``earlier`` are the models of this minute's other pages.

    Raises PageError for a page without an engine's samples, and for too many models.
    """
    parts = parts_of(samples)
    if not parts.models:
        raise no_engine(parts)
    count = len({*earlier, *parts.models})
    if count > MOST_MODELS:
        raise PageError(
            ScrapeReason.TOO_LARGE,
            f"the pages of this minute name {count} models: expected at most {MOST_MODELS} on one"
            " server",
        )
    return parts


def tally_of(samples: Mapping[Series, float], problems: list[str]) -> Tally:
    """Structure the counters of one model (totals or increments), added over its engines.

    A histogram whose buckets do not add up is left out, and so are positions that are not numbers;
    ``problems`` gets a sentence about each. Raises PageError(``not_a_number``) for totals that are
    not numbers.
    """
    samples = meaningful(samples)
    plain: dict[str, float] = defaultdict(float)
    positions: dict[str, float] = defaultdict(float)
    mappings: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    parts: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    counters.check((s, v) for s, v in samples.items() if s.quantity not in GAUGES)
    for series, value in samples.items():
        if series.part:
            key = series.key if series.part == "bucket" else series.part
            parts[series.quantity][series.engine][key] = value
        elif series.quantity == "accepted_per_position":
            positions[series.key] += value
        elif series.quantity in MAPPINGS:
            mappings[series.quantity][series.key[:_LONGEST_KEY]] += value
        elif series.quantity not in GAUGES:
            plain[series.quantity] += value
    by_token = parts.get("token_latency")
    _prefer_successors(plain)
    _prefer_successors(parts)
    fields: dict[str, object] = {q: int(plain[q]) for q in COUNTERS if q in plain}
    for quantity in HISTOGRAMS:
        fields[quantity] = _histogram(quantity, parts.get(quantity, {}), problems)
    if "generation_seconds" in plain:
        tokens = int(plain["generation_tokens"])
        fields["tpot"] = Histogram((), (tokens,), plain["generation_seconds"])
    elif "tpot" not in parts:
        fields["tpot"] = _mean_tpot(parts) if by_token is None else _mean_of_tokens(by_token)
        if "decode_tokens" in plain:  # of a segment
            fields["tpot"] = Histogram((), (int(plain["decode_tokens"]),), plain["decode_seconds"])
    fields["accepted_per_position"] = _per_position(positions, problems)
    for quantity, counts in mappings.items():
        fields[quantity] = most_frequent({key: int(counts[key]) for key in sorted(counts)})
    return Tally(**fields)  # type: ignore[arg-type]


def most_frequent(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Counts of at most :data:`MOST_KEYS` keys: the rarer ones are added up as "other"."""
    if len(counts) <= MOST_KEYS:
        return counts
    ordered = sorted(counts.items(), key=lambda entry: (entry[0] == OTHER, -entry[1], entry[0]))
    others = sum(count for _, count in ordered[MOST_KEYS - 1 :])
    return dict(sorted([*ordered[: MOST_KEYS - 1], (OTHER, others)]))


def sampled(samples: Mapping[Series, float]) -> Sampled:
    """The gauges of one model: the sum of requests over engines, the highest usage.

    A gauge that is NaN, negative or impossibly large counts as missing.
    """
    values: dict[str, float] = {}
    for series, value in samples.items():
        quantity = series.quantity
        if quantity not in GAUGES or not 0.0 <= value < counters.LARGEST:
            continue
        before = values.get(quantity)
        values[quantity] = value if before is None else combined(quantity, before, value)
    _prefer_successors(values)
    return Sampled(
        values.get("running"),
        values.get("waiting"),
        values.get("kv_cache_usage"),
        values.get("lifetime_acceptance_rate"),
    )


def draft_lengths_of(samples: Mapping[Series, float]) -> DraftLengths | None:
    """Why drafts vary in length, if a page shows it: by its tap, or as its switch orders it."""
    setting = switch.setting_of(samples)
    if setting is not None and setting.ordered:
        return DraftLengths.SCHEDULE if setting.schedule else None
    launched = {series.key for series in samples if series.quantity == "launch"}
    return next((cause for cause in DraftLengths if cause in launched), None)


def prefills(page: Mapping[Series, float], samples: Mapping[Series, float]) -> bool:
    """Whether a server only prefills, by its tap on the page, or as all requests of the model with
    these samples have but one token; false with few requests."""
    if any(s.quantity == "launch" and s.key == KV_PRODUCER for s in page):
        return True
    requests = tokens = 0.0
    for series, value in samples.items():
        if series.quantity == "ttft" and series.part == "count":
            requests += value
        elif series.quantity == "generation_tokens":
            tokens += value
    return requests >= _LEAST_PREFILLED and 0 < tokens <= _MOST_TOKENS * requests


def fingerprint_of(
    samples: Mapping[Series, float], draft_lengths: DraftLengths | None = None
) -> str:
    """The configuration that a page shows, as ``CONFIGURATION-K``.

    The first part is a digest of the cache configuration, without what vLLM measures at each start:
    it is the same with speculation and without. The second is the number of draft positions (of
    each model, if they differ), what the server says it was launched with, or what the switch
    orders in its place (``schedule`` and a number that identifies it): 0 without speculation and,
    for engines that show it only then, before the first draft; ``?`` for an engine or a version
    that does not report them. Two draft models with the same number have the same fingerprint.
    ``draft_lengths``, which the server says elsewhere than on its page, or what the page shows of
    them, and how often weights were changed since the start follow the number: drafts of other
    weights fare otherwise, while a step without speculation takes as long.
    """
    shown: list[str] = []
    positions: Counter[tuple[str, str]] = Counter()
    unknown, launched, weights = False, "", 0
    for series in sorted(series for series in samples if series.quantity in _SHOW_CONFIGURATION):
        if series.quantity == "cache_config":
            shown.append(f"{series.model_name}|{series.key}")
        elif series.quantity == "accepted_per_position" and series.segment == ALL:
            positions[series.model_name, series.engine] += 1
        elif series.quantity == "launched_speculation":
            launched = series.key
        elif series.quantity == "weight_updates" and series.key in _CHANGE_WEIGHTS:
            weights += _whole(samples[series])
        elif series.segment == ALL and series.quantity in ("lifetime_acceptance_rate", "drafts"):
            unknown = unknown or series.quantity != "drafts" or samples[series] > 0
    digest = hashlib.blake2b("\n".join(shown).encode(), digest_size=6).hexdigest()
    setting = switch.setting_of(samples)
    if setting is not None and setting.ordered and positions:
        number = f"schedule {setting.schedule:x}" if setting.schedule else str(setting.draft_tokens)
        varying = None
    else:
        counts = sorted(set(positions.values()))
        number = launched or "+".join(map(str, counts[:_MOST_WIDTHS])) or ("?" if unknown else "0")
        varying = draft_lengths_of(samples) or draft_lengths
    updated = f"{WEIGHTS}{weights}" if weights else None
    words = [number, *filter(None, (varying, updated))] if number != "0" else [number]
    return f"{digest}-{' '.join(words)}"


def _whole(value: float) -> int:
    """A count that a page shows as a gauge; 0 for what no count can be."""
    return int(value) if 0 <= value < counters.LARGEST else 0


def ranks_of(
    increments: Mapping[Series, float], known: Iterable[Series]
) -> dict[str, dict[str, RankCounts]]:
    """What the data-parallel ranks of each model counted, of those that have several; ``known`` are
    the series of the process, also those that did not move."""
    counts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for series in known:
        if series.quantity in RankCounts._fields and series.segment == ALL:
            of_rank = counts[series.model_name][series.engine]
            counted = of_rank.get(series.quantity, 0) + int(increments.get(series, 0.0))
            of_rank[series.quantity] = counted
    complete = set(RankCounts._fields)
    ranks = {
        model: {
            engine: RankCounts(**count)
            for engine, count in engines.items()
            if complete == count.keys() and engine.isalnum() and len(engine) <= _LONGEST_KEY
        }
        for model, engines in counts.items()
    }
    return {model: by_rank for model, by_rank in ranks.items() if 1 < len(by_rank) <= MOST_RANKS}


def _prefer_successors(values: dict[str, float] | dict[str, dict[str, dict[str, float]]]) -> None:
    for old, new in SUPERSEDED.items():
        if old in values:
            value = values.pop(old)
            values.setdefault(new, value)  # type: ignore[arg-type]


def _histogram(
    quantity: str, engines: Mapping[str, Mapping[str, float]], problems: list[str]
) -> Histogram | None:
    histograms = []
    for engine, parts in engines.items():
        by_bound = {le: count for le, count in parts.items() if le not in ("sum", "count")}
        if not by_bound:
            continue
        if len(by_bound) > _MOST_BUCKETS:
            problems.append(
                f"{quantity} of engine {engine[:60]!r} has {len(by_bound)} buckets: expected at"
                f" most {_MOST_BUCKETS}"
            )
            continue
        try:
            buckets = {float(le): count for le, count in by_bound.items()}
        except ValueError:
            problems.append(f"a bucket of {quantity} of engine {engine[:60]!r} has no bound")
            continue
        histogram_of_engine = histogram.from_cumulative(buckets, parts.get("sum", math.nan))
        if histogram_of_engine is None or math.isnan(histogram_of_engine.sum):
            problems.append(f"the buckets of {quantity} of engine {engine[:60]!r} do not add up")
        else:
            histograms.append(histogram_of_engine)
    return histogram.merge_all(histograms)


def _per_position(counts: Mapping[str, float], problems: list[str]) -> tuple[int, ...] | None:
    totals: dict[int, int] = {}
    for position, count in counts.items():
        if not (position.isascii() and position.isdigit()) or len(position) > _POSITION_DIGITS:
            problems.append(f"{position[:20]!r} is not a position of a draft token")
            return None
        totals[int(position)] = int(count)
    return tuple(totals.get(place, 0) for place in range(max(totals) + 1)) if totals else None


def _mean_tpot(parts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Histogram | None:
    """Time per output token before vLLM 0.11: decode time over tokens after the first.

    Only the mean is known: a histogram without bounds that counts tokens instead of requests.
    """
    decode = parts.get("decode_time")
    lengths = parts.get("output_length")
    if not decode or not lengths:
        return None
    tokens = sum(e.get("sum", 0.0) - e.get("count", 0.0) for e in lengths.values())
    seconds = sum(e.get("sum", 0.0) for e in decode.values())
    return Histogram((), (max(0, round(tokens)),), seconds)


def _mean_of_tokens(engines: Mapping[str, Mapping[str, float]]) -> Histogram:
    """The mean of SGLang's latencies of single tokens, as :func:`_mean_tpot` gives it."""
    tokens = sum(parts.get("count", 0.0) for parts in engines.values())
    return Histogram((), (round(tokens),), sum(parts.get("sum", 0.0) for parts in engines.values()))

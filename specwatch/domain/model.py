"""The vocabulary of specwatch as plain values.

Everything here is immutable, knows no clock and does no I/O. The words are those of the
project's glossary: a *draft* is one speculation step of one request, a *window* is one minute (or,
rolled up, one hour) of one target, model and segment.
"""

from __future__ import annotations

import bisect
import enum
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Self

from msgspec import Struct

from specwatch.domain.facts import Fact, Kind, facts_of
from specwatch_tap.segment_kinds import UNKNOWN

MINUTE = 60
HOUR = 3600
UNJUDGED = 30 * MINUTE
"""Seconds for which most of the traffic could not be compared, after which a model is unjudged."""

TEMPERATURE = "temperature"
"""The dimension that every tap counts by."""


class Segment(Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """A part of the traffic: what requests are grouped by, and the value, such as ``temperature``
    and ``(0,0.3]``. The segments of one dimension are all requests, so that they add up."""

    dimension: str
    value: str


ALL = Segment("all", "all")
"""All requests."""
UNKNOWN_TEMPERATURE = Segment(TEMPERATURE, UNKNOWN)

LOAD_BINS: tuple[tuple[int, int | None], ...] = (
    (1, 1),
    (2, 2),
    (3, 4),
    (5, 8),
    (9, 16),
    (17, 32),
    (33, 64),
    (65, None),
)
"""Concurrent running requests, first and last of each bin; the last bin is open."""
_LASTS = [last for _, last in LOAD_BINS if last is not None]
_LONGEST = 1.5
"""A window whose counts cover more than this multiple of its length made up for a gap."""


class ModeFacts(NamedTuple):
    """What is known of a mode; the attributes of :class:`Mode` have the same names."""

    speculates: bool | None
    """Whether the engine serves with speculation; None if that is not known, and where it serves
    nobody who waits for tokens."""
    label: str
    """In a sentence like "speculation is ... for 2 models"."""
    time: str
    """What a report calls the time in it."""
    unjudged: str = ""
    """Why speculation is never judged in it; empty for others."""


class Mode(enum.StrEnum):
    """Whether speculation ran. Only ``on`` is judged, and only ``off`` is a baseline.

    Of servers in different modes, together they are in the first of theirs. A mode is added here,
    and in the engine whose page shows it.
    """

    speculates: bool | None
    label: str
    time: str
    unjudged: str

    ON = "on", ModeFacts(True, "on", "Time with speculation on")
    MIXED = "mixed", ModeFacts(True, "mixed", "Time in which it changed")
    """It changed inside the window."""
    UNKNOWN = (
        "unknown",
        ModeFacts(None, "unknown", "Time in which it is not known whether the server speculates"),
    )
    """Neither drafts nor the server show it."""
    STANDBY = "standby", ModeFacts(False, "on standby", "Time in standby")
    """The switch is at 0 draft tokens, with which the drafter still runs."""
    PREFILL = (
        "prefill",
        ModeFacts(
            None,
            "not judged (prefill)",
            "Time in which it only prefilled",
            "the server only prefills, for others that decode",
        ),
    )
    SLEEPING = (
        "sleeping",
        ModeFacts(
            None,
            "not judged (the server sleeps)",
            "Time in which it slept",
            "the server sleeps until it is woken",
        ),
    )
    STOPPED = (
        "stopped",
        ModeFacts(
            False, "switched off by the engine", "Time in which the engine had switched it off"
        ),
    )
    """The engine itself ended speculation until its next start."""
    OFF = "off", ModeFacts(False, "off", "Time with speculation off")

    def __new__(cls, value: str, facts: ModeFacts) -> Self:
        """A member with the facts as attributes."""
        mode = str.__new__(cls, value)
        mode._value_ = value
        for name, fact in facts._asdict().items():
            setattr(mode, name, fact)
        return mode

    @property
    def without_speculation(self) -> bool:
        """Whether it is certain that nobody is served with speculation."""
        return self.speculates is False or bool(self.unjudged)


class Objective(enum.StrEnum):
    """What has to become faster: ``e2e`` is a whole request, at the traffic's mix of lengths."""

    E2E = "e2e"
    TPOT = "tpot"
    TTFT = "ttft"


class Source(enum.StrEnum):
    """Where a window's numbers come from."""

    SERVER = "server"
    TAP = "tap"
    PROXY = "proxy"
    PROBE = "probe"


class Series(NamedTuple):
    """One time series of an engine's page, in our vocabulary.

    ``part`` is empty for counters and gauges and one of ``bucket``, ``sum``, ``count`` for
    histograms; ``key`` is the value of the label that tells siblings apart (``le``, ``position``,
    ``reason``), or empty. ``segment`` is what a tap counted it for; the engine itself counts all
    requests.
    """

    quantity: str
    part: str
    model_name: str
    engine: str
    key: str
    segment: Segment = ALL


class PageLimits(NamedTuple):
    """Limits of a metrics page, for the families that are read; 0 means any number.

    Names and meaning are those of Prometheus's scrape configuration
    (https://prometheus.io/docs/prometheus/latest/configuration/configuration/#scrape_config).
    Lengths are in bytes. Beyond any real page: a vLLM of 128 engines has 12,000 samples, its cache
    configuration some 40 labels.
    """

    sample_limit: int = 20_000
    label_limit: int = 128
    label_name_length_limit: int = 256
    label_value_length_limit: int = 2048


class Histogram(Struct, frozen=True, gc=False):
    """Counts of observations between bounds.

    ``bounds`` are the finite upper bounds in ascending order, in the unit of what is observed;
    ``counts`` has one entry more, the last being the open-ended bucket. Counts are per bucket, not
    cumulative. ``coarsened`` says that histograms with unlike bounds were merged into the bounds
    that they share.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    coarsened: bool = False

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(
                f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts,"
                f" got {len(self.counts)}"
            )

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class Tally(Struct, frozen=True, gc=False):
    """Counts over any span; all fields can be added up.

    ``None`` means that the server does not say (an old version, or speculation off), which is not
    the same as zero.
    """

    drafts: Annotated[int | None, Fact("Drafts: speculation steps of one request.")] = None
    draft_tokens: Annotated[int | None, Fact("Tokens that drafts proposed.")] = None
    accepted_tokens: Annotated[int | None, Fact("Tokens of drafts that the target kept.")] = None
    accepted_per_position: Annotated[
        tuple[int, ...] | None,
        Fact("Drafts whose token at that position was kept.", Kind.POSITIONS),
    ] = None
    prompt_tokens: Annotated[int | None, Fact("Tokens of prompts.")] = None
    generation_tokens: Annotated[int | None, Fact("Tokens that were generated.")] = None
    preemptions: Annotated[
        int | None,
        Fact("Times that a request lost its KV cache to others.", event="preemption"),
    ] = None
    prefix_cache_queries: Annotated[
        int | None, Fact("Prompt tokens that were looked for in the prefix cache.")
    ] = None
    prefix_cache_hits: Annotated[
        int | None, Fact("Prompt tokens that were found in the prefix cache.")
    ] = None
    requests: Annotated[
        Mapping[str, int],
        Fact("Finished requests by finish reason.", Kind.KEYS, column="finish_reasons"),
    ] = {}
    ttft: Annotated[Histogram | None, Fact("Time to first token.", Kind.HISTOGRAM, "s")] = None
    tpot: Annotated[
        Histogram | None,
        Fact("Time per output token after the first, of a request.", Kind.HISTOGRAM, "s"),
    ] = None
    inter_token: Annotated[
        Histogram | None, Fact("Time between two tokens.", Kind.HISTOGRAM, "s")
    ] = None
    e2e: Annotated[Histogram | None, Fact("Time of a whole request.", Kind.HISTOGRAM, "s")] = None
    output_length: Annotated[
        Histogram | None, Fact("Tokens generated for a request.", Kind.HISTOGRAM, "tokens")
    ] = None
    request_acceptance: Annotated[
        Histogram | None, Fact("Acceptance rate of a request.", Kind.HISTOGRAM, "ratio")
    ] = None
    records: Annotated[
        Mapping[str, int],
        Fact("Requests of which a tap knows the acceptance, by how it knows.", Kind.KEYS),
    ] = {}
    """Keys are ``tap_keys.METHODS``."""
    uncovered: Annotated[
        Mapping[str, int],
        Fact("Requests of which a tap does not know the acceptance, by reason.", Kind.KEYS),
    ] = {}
    """Keys are ``tap_keys.UNCOVERED``."""
    endings: Annotated[
        Mapping[str, int],
        Fact("Requests of which a tap has the exact acceptance, by how they ended.", Kind.KEYS),
    ] = {}
    """Keys are ``tap_keys.ENDINGS``."""


def events_of(tally: Tally) -> dict[str, int | None]:
    """The counts of events, by the name of the fact."""
    return {fact.name: getattr(tally, fact.name) for fact in EVENTS}


class Gauges(Struct, frozen=True, gc=False):
    """Sampled (not counted) quantities of a window; integrals, so that means stay exact when
    windows are added up."""

    sampled_seconds: Annotated[
        float, Fact("Time over which the running requests were known.", Kind.INTEGRAL, "s")
    ] = 0.0
    busy_seconds: Annotated[
        float, Fact("Part of it with at least one running request.", Kind.INTEGRAL, "s")
    ] = 0.0
    running_seconds: Annotated[
        float, Fact("Integral of the running requests over time.", Kind.INTEGRAL, "s")
    ] = 0.0
    waiting_seconds: Annotated[
        float, Fact("Integral of the waiting requests over time.", Kind.INTEGRAL, "s")
    ] = 0.0
    running_max: Annotated[int, Fact("Most running requests.", Kind.LARGEST)] = 0
    waiting_max: Annotated[int, Fact("Most waiting requests.", Kind.LARGEST)] = 0
    kv_cache_usage_max: Annotated[
        float | None, Fact("Largest part of the KV cache in use.", Kind.LARGEST, "ratio")
    ] = None
    gpu_memory_used_max: Annotated[
        int | None, Fact("Most GPU memory in use.", Kind.LARGEST, "bytes")
    ] = None
    gpu_memory_total: int | None = None
    """GPU memory that there is, in bytes."""

    @property
    def running_mean(self) -> float | None:
        """Time-weighted mean of running requests; None when never sampled."""
        return self.running_seconds / self.sampled_seconds if self.sampled_seconds else None

    @property
    def waiting_mean(self) -> float | None:
        """Time-weighted mean of waiting requests; None when never sampled."""
        return self.waiting_seconds / self.sampled_seconds if self.sampled_seconds else None

    @property
    def concurrency(self) -> float | None:
        """Mean of running requests while any ran: the batch size that latency belongs to."""
        return self.running_seconds / self.busy_seconds if self.busy_seconds else None


WEIGHTS = "weights-"
"""Begins the word of a fingerprint that says how often weights were changed since the start."""


class Environment(Struct, frozen=True, gc=False):
    """The software of a window: numbers of different environments are not comparable."""

    engine_version: str | None = None
    fingerprint: str | None = None
    """``CONFIGURATION-K``: a digest of what the server shows of its configuration, and the number
    of draft positions, with the word of :class:`~specwatch.domain.draft_lengths.DraftLengths` and,
    where weights were changed without a restart, ``weights-N``."""

    @property
    def configuration(self) -> str | None:
        """The part of the fingerprint that does not depend on speculation."""
        return None if self.fingerprint is None else self.fingerprint.partition("-")[0]

    @property
    def drafting(self) -> str:
        """The other part: ``4``, ``4 schedule``, ``0``; empty if it is unknown."""
        return (self.fingerprint or "").partition("-")[2]

    def agrees(self, other: Environment) -> bool:
        """Whether no field that both have differs."""
        same_fingerprint = _agree(self.fingerprint, other.fingerprint)
        return same_fingerprint and _agree(self.engine_version, other.engine_version)

    def resembles(self, other: Environment) -> bool:
        """Whether they agree apart from speculation."""
        same_configuration = _agree(self.configuration, other.configuration)
        return same_configuration and _agree(self.engine_version, other.engine_version)


def _agree(first: str | None, second: str | None) -> bool:
    return first is None or second is None or first == second


class SeriesId(Struct, frozen=True, gc=False):
    """The series of a window."""

    daemon: str
    target: str
    model_name: str
    segment: Segment = ALL


class Window(Struct, frozen=True, gc=False):
    """One minute or hour of one series.

    ``start`` is a Unix time, a multiple of ``length`` (both in seconds). ``observed_seconds`` is
    the time between scrapes that the counts cover, on the monotonic clock: longer than ``length``
    when specwatch was away, and its first scrape after that brought what had happened meanwhile.
    ``down_seconds`` is the time in which scrapes were tried and the engine did not answer, up to
    the next good one; the counts of the window in which an outage ends may be of all of it.
    """

    series: SeriesId
    start: int
    length: int
    mode: Mode
    tally: Tally
    gauges: Gauges = Gauges()
    environment: Environment = Environment()
    source: Source = Source.SERVER
    server_drafts: Annotated[
        int | None, Fact("Drafts that the server itself counted in the same time, for coverage.")
    ] = None
    source_drafts: Annotated[
        int | None, Fact("Drafts that the source saw in the same time, of the whole dimension.")
    ] = None
    observed_seconds: Annotated[
        float, Fact("Time between scrapes that the counts cover.", Kind.INTEGRAL, "s")
    ] = 0.0
    scrapes_ok: Annotated[int, Fact("Scrapes that succeeded.")] = 0
    scrapes_failed: Annotated[int, Fact("Scrapes that failed.")] = 0
    restarts: Annotated[int, Fact("Restarts of the server.")] = 0
    down_seconds: Annotated[
        float, Fact("Time in which the server did not answer scrapes.", Kind.INTEGRAL, "s")
    ] = 0.0

    @property
    def coverage(self) -> float | None:
        """Share of the server's drafts that the source saw; None without drafts."""
        if not self.server_drafts or self.source_drafts is None:
            return None
        return self.source_drafts / self.server_drafts

    @property
    def sound(self) -> bool:
        """Whether its latencies count: no restart, outage, gap or change of mode falls into it."""
        return (
            self.mode is not Mode.MIXED
            and not self.restarts
            and not self.down_seconds
            and self.scrapes_ok > 0
            and 0 < self.observed_seconds <= _LONGEST * self.length
        )

    @property
    def load_bin(self) -> int | None:
        """Index into :data:`LOAD_BINS`, None while idle or unknown."""
        return load_bin(self.gauges.concurrency)


FACTS = (*facts_of(Tally, "tally"), *facts_of(Gauges, "gauges"), *facts_of(Window, ""))
"""All facts, in the order of their columns in the database."""
_OF_TALLY = [fact for fact in FACTS if fact.of == "tally"]
EVENTS = tuple(fact for fact in _OF_TALLY if fact.event)
"""Those that are counts of events."""
COUNTERS = tuple(fact.name for fact in _OF_TALLY if fact.kind is Kind.COUNT)
"""Fields of :class:`Tally` that are single counts."""
HISTOGRAMS = tuple(fact.name for fact in _OF_TALLY if fact.kind is Kind.HISTOGRAM)
"""Fields of :class:`Tally` that are histograms."""
MAPPINGS = tuple(fact.name for fact in _OF_TALLY if fact.kind is Kind.KEYS)
"""Fields of :class:`Tally` that are counts by a key."""


def load_bin(concurrency: float | None) -> int | None:
    """Index into :data:`LOAD_BINS` of a mean number of running requests; None for none."""
    if concurrency is None or concurrency <= 0:
        return None
    return bisect.bisect_left(_LASTS, round(concurrency))


def load_bin_label(index: int) -> str:
    """``1``, ``3-4``, ``65+``."""
    return _range_label(*LOAD_BINS[index])


@functools.cache
def _range_label(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


class Counters(NamedTuple):
    """The counters of one process as they were last seen.

    ``process_start`` is its ``process_start_time_seconds``, where it says.
    """

    samples: Mapping[Series, float]
    process_start: float | None


class PodInstance(NamedTuple):
    """Which pod of Kubernetes serves a target, and since when its container runs, in Unix time."""

    uid: str
    started: float


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where reading a target's counters stopped, so that a later daemon can continue."""

    target: str
    samples: Mapping[Series, float]
    process_start: float | None
    """``process_start_time_seconds`` of the engine, where it says."""
    wall: float
    """Unix time of the scrape that the samples come from."""
    proxy: Counters | None = None
    """The same of the target's proxy, a separate process."""
    after: float | None = None
    """Unix time since when its windows count: ``wall`` of the cursor before; None for the first."""


class RankCounts(NamedTuple):
    """What one data-parallel rank of a server counted in a minute."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    generation_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Closed windows of one target, and the cursor that belongs to exactly them.

    ``ranks`` are by model and rank, of servers that have several; they are not stored.
    """

    windows: tuple[Window, ...]
    cursor: Cursor | None
    ranks: Mapping[str, Mapping[str, RankCounts]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Window]:
        return iter(self.windows)


class Moment(NamedTuple):
    """A point in time on both clocks, in seconds: Unix time, and a clock that never steps."""

    wall: float
    monotonic: float

    @property
    def offset(self) -> float:
        """What Unix time is ahead; it changes when the clock is set."""
        return self.wall - self.monotonic

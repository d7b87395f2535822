"""The vocabulary of specwatch as plain values.

Everything here is immutable, knows no clock and does no I/O. The words are those of the
project's glossary: a *draft* is one speculation step of one request, a *window* is one minute (or,
rolled up, one hour) of one target, model and temperature bucket.
"""

from __future__ import annotations

import bisect
import enum
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from msgspec import Struct

MINUTE = 60
HOUR = 3600
UNJUDGED = 30 * MINUTE
"""Seconds for which most of the traffic could not be compared, after which a model is unjudged."""

ALL_TEMPERATURES = "all"
UNKNOWN_TEMPERATURE = "unknown"

LOAD_BINS: tuple[tuple[int, int | None], ...] = (
    (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, None),
)  # fmt: skip
"""Concurrent running requests, first and last of each bin; the last bin is open."""
PROMPT_LENGTHS: tuple[tuple[int, int | None], ...] = (
    (1, 256), (257, 2048), (2049, 8192), (8193, 16_384), (16_385, None),
)  # fmt: skip
"""Tokens of a prompt, first and last of each class; the last class is open. What was stored before
8192 was an edge has the class ``2049-16384``."""
UNKNOWN_PROMPT_LENGTH = "unknown"
_LASTS = [last for _, last in LOAD_BINS if last is not None]
_LONGEST_PROMPTS = [last for _, last in PROMPT_LENGTHS if last is not None]
_LONGEST = 1.5
"""A window whose counts cover more than this multiple of its length made up for a gap."""


class ModeFacts(NamedTuple):
    """What is known of a mode; the attributes of :class:`Mode` have the same names."""

    code: int
    """Its number in the database: never given to another mode."""
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

    code: int
    speculates: bool | None
    label: str
    time: str
    unjudged: str

    ON = "on", ModeFacts(0, True, "on", "Time with speculation on")
    MIXED = "mixed", ModeFacts(2, True, "mixed", "Time in which it changed")
    """It changed inside the window."""
    UNKNOWN = "unknown", ModeFacts(
        3, None, "unknown", "Time in which it is not known whether the server speculates"
    )  # fmt: skip
    """Neither drafts nor the server show it."""
    STANDBY = "standby", ModeFacts(4, False, "on standby", "Time in standby")
    """The switch is at 0 draft tokens, with which the drafter still runs."""
    PREFILL = "prefill", ModeFacts(
        5, None, "not judged (prefill)", "Time in which it only prefilled",
        "the server only prefills, for others that decode",
    )  # fmt: skip
    SLEEPING = "sleeping", ModeFacts(
        7, None, "not judged (the server sleeps)", "Time in which it slept",
        "the server sleeps until it is woken",
    )  # fmt: skip
    STOPPED = "stopped", ModeFacts(
        6, False, "switched off by the engine", "Time in which the engine had switched it off"
    )  # fmt: skip
    """The engine itself ended speculation until its next start."""
    OFF = "off", ModeFacts(1, False, "off", "Time with speculation off")

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
    ``reason``), or empty. ``temperature`` is the bucket that a tap counted for; empty for what the
    engine itself counts.
    """

    quantity: str
    part: str
    model_name: str
    engine: str
    key: str
    temperature: str = ""


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
    the same as zero. Histograms of latencies are in seconds, ``output_length`` is in tokens,
    ``request_acceptance`` in acceptance rate per request.
    """

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    requests: Mapping[str, int] = {}
    """Finished requests by finish reason."""
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    inter_token: Histogram | None = None
    e2e: Histogram | None = None
    output_length: Histogram | None = None
    request_acceptance: Histogram | None = None
    records: Mapping[str, int] = {}
    """Requests of which a tap knows the acceptance, by how it knows: ``tap_keys.METHODS``."""
    uncovered: Mapping[str, int] = {}
    """Requests of which a tap does not know the acceptance, by reason: ``tap_keys.UNCOVERED``."""
    endings: Mapping[str, int] = {}
    """Requests of which a tap has the exact acceptance, by how they ended: ``tap_keys.ENDINGS``."""


HISTOGRAMS = ("ttft", "tpot", "inter_token", "e2e", "output_length", "request_acceptance")
"""Fields of :class:`Tally` that are histograms, in storage order."""

COUNTERS = (
    "drafts", "draft_tokens", "accepted_tokens", "prompt_tokens", "generation_tokens",
    "preemptions", "prefix_cache_queries", "prefix_cache_hits",
)  # fmt: skip
"""Fields of :class:`Tally` that are single counts, in storage order."""

MAPPINGS = ("requests", "records", "uncovered", "endings")
"""Fields of :class:`Tally` that are counts by a key, in storage order."""


class Gauges(Struct, frozen=True, gc=False):
    """Sampled (not counted) quantities of a window.

    ``sampled_seconds`` is the time over which ``running`` was known, ``busy_seconds`` the part of
    it with at least one running request; ``running_seconds`` and ``waiting_seconds`` are the time
    integrals of the number of requests, so that means stay exact when windows merge.
    """

    sampled_seconds: float = 0.0
    busy_seconds: float = 0.0
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    running_max: int = 0
    waiting_max: int = 0
    kv_cache_usage_max: float | None = None
    gpu_memory_used_max: int | None = None
    gpu_memory_total: int | None = None

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
    """The series of a window. ``temperature`` is a bucket label, ``all`` or ``unknown``."""

    daemon: str
    target: str
    model_name: str
    temperature: str = ALL_TEMPERATURES


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
    server_drafts: int | None = None
    """Drafts that the server itself counted in the same span, for coverage."""
    source_drafts: int | None = None
    """Drafts that the source saw in the same span, over all temperature buckets."""
    observed_seconds: float = 0.0
    scrapes_ok: int = 0
    scrapes_failed: int = 0
    restarts: int = 0
    down_seconds: float = 0.0

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


def load_bin(concurrency: float | None) -> int | None:
    """Index into :data:`LOAD_BINS` of a mean number of running requests; None for none."""
    if concurrency is None or concurrency <= 0:
        return None
    return bisect.bisect_left(_LASTS, round(concurrency))


def load_bin_label(index: int) -> str:
    """``1``, ``3-4``, ``65+``."""
    return _range_label(*LOAD_BINS[index])


def prompt_length_label(tokens: int | None) -> str:
    """``1-256``, ``16385+``; ``unknown`` for None."""
    if tokens is None:
        return UNKNOWN_PROMPT_LENGTH
    return _range_label(*PROMPT_LENGTHS[bisect.bisect_left(_LONGEST_PROMPTS, tokens)])


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
    """Unix time since when its windows count: ``wall`` of the cursor before, or the first page."""


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

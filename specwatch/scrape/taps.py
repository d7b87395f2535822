"""Whether the counts of a target's taps can be trusted.

A tap runs inside the engine's process and is on its page, or it is a proxy with its own page. It
cannot have seen more drafts, or more accepted tokens, than the engine counted. If it has, requests
are counted twice, or the acceptance derived from streamed steps is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwatch.domain.buckets import matching, order_of, unknown_models
from specwatch.domain.model import ALL, TEMPERATURE, UNKNOWN_TEMPERATURE, Segment, Series, Source
from specwatch.scrape.tally import Parts
from specwatch_tap.temperature import bucket_labels

BUCKETS_VARIABLE = "SPECWATCH_TAP_TEMPERATURE_BUCKETS"
"""The environment variable with the temperature buckets of a tap."""

COUNTS_TWICE = "counts_twice"
"""Kind of trouble: a tap counted more drafts, or draft tokens, than the engine."""
ACCEPTS_TOO_MUCH = "accepts_too_much"
"""Kind of trouble: a tap counted more accepted tokens than the engine."""
LEAVES_OUT = frozenset({COUNTS_TWICE, ACCEPTS_TOO_MUCH})
"""Kinds of trouble with which a model has no windows by temperature."""

KEEP_RECORDS = "start vLLM (0.29 or later) with --per-request-spec-decode-metrics summary"
"""The remedy if responses carry no acceptance, or it cannot be derived."""

_COMPARED = {
    "drafts": "drafts",
    "draft_tokens": "draft tokens",
    "accepted_tokens": "accepted tokens",
}
"""Quantities that both sides count, with their names. The first that is too large is reported."""
_DAY = 86_400.0
"""Seconds after which a removed tap is no longer reported."""
_INSIDE_SLACK = 64
"""Drafts of requests that ended in a step that the engine has not counted yet."""
_SEVERAL_PROCESSES_SLACK = 1024
_SEVERAL_PROCESSES_SHARE = 0.01
"""The counts of several processes are read one after the other while they change."""
_PROXY_SLACK = 1000
_PROXY_SHARE = 0.05
_PROXY_DRAFTS_UNDER_WAY = 2000
"""Drafts of a request from before both were watched: a request is counted at its end."""
_UNDER_WAY = 256
"""Requests assumed to be running if the engine does not report them."""
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the numbers of a tap are missing or cannot be trusted.

    ``kind`` is stable, ``text`` is a sentence with the remedy; ``model_name`` is empty if it
    concerns the whole target.
    """

    kind: str
    text: str
    model_name: str = ""


class _Count(NamedTuple):
    """One count of one of the engine's models: ``quantity`` is a key of _COMPARED.

    A tap counts the same by each dimension.
    """

    model: str
    quantity: str
    dimension: str = ALL.dimension

    @property
    def of_all(self) -> _Count:
        """What the server counts."""
        return self._replace(dimension=ALL.dimension)


class _Excess(NamedTuple):
    """Counts of a tap and of the server that contradict each other."""

    quantity: str
    tap: int
    server: int


@dataclass(slots=True)
class _Ledger:
    """Counts of server and proxy since both are watched without a restart."""

    server: Counter[_Count] = field(default_factory=Counter)
    tap: Counter[_Count] = field(default_factory=Counter)
    under_way: Mapping[str, float | None] = field(default_factory=dict)


class _Seen(NamedTuple):
    """Names on a tap's page, and whether it derived the acceptance of any request."""

    models: frozenset[str] = frozenset()
    temperatures: frozenset[Segment] = frozenset()
    failures: int = 0
    derives: bool = False


_NOTHING = _Seen()


class Taps:
    """The state of a target's taps from scrape to scrape."""

    def __init__(self, *, was_inside: bool = False) -> None:
        """``was_inside`` is whether the engine had a tap when it was last seen."""
        self._inside = was_inside
        self._gone_at: float | None = None
        self._proxied = False
        self._proxy_empty = False
        self._seen = _NOTHING
        self._strangers: frozenset[str] = frozenset()
        self._doubted: dict[str, _Excess] = {}
        self._proxy_doubted: dict[str, _Excess] = {}
        self._widths: dict[str, int] = {}
        self._ledger = _Ledger()
        self._begin_ledger = True

    @property
    def source(self) -> Source | None:
        """Which tap counts: the engine's own tap takes precedence over a proxy."""
        if self._inside:
            return Source.TAP
        return Source.PROXY if self._proxied else None

    @property
    def failures(self) -> int:
        """Failures of the tap itself since its process began."""
        return self._seen.failures

    @property
    def gone(self) -> bool:
        """Whether the engine had a tap before it was restarted, and has none now.

        False again after the next restart without a tap, or after a day: then it is intended.
        """
        return self._gone_at is not None

    def doubts(self, model: str) -> bool:
        """Whether what the tap counted for the engine's ``model`` cannot be true."""
        return model in (self._doubted if self._inside else self._proxy_doubted)

    def see(
        self,
        page: Parts,
        increments: Mapping[Series, float],
        now: float,
        *,
        restarted: bool,
        several_processes: bool,
        unnamed: str,
    ) -> None:
        """Process the engine's page, and its increments since the page before.

        ``now`` is in seconds of the monotonic clock.
        """
        if not (page.tap or self._inside or self._proxied or self.gone):
            return
        self._note_gone(now, has_tap=bool(page.tap), restarted=restarted)
        self._inside = bool(page.tap)
        self._widths = _widths(page.models)
        self._doubted = {}
        if page.tap:
            self._seen = _seen(page.tap)
            server: Counter[_Count] = Counter()
            for samples in page.models.values():
                server.update(_of_engine(samples))
            share = _SEVERAL_PROCESSES_SHARE if several_processes else 0.0
            slack = _SEVERAL_PROCESSES_SLACK if several_processes else _INSIDE_SLACK
            self._doubted = _excesses(
                _of_tap(page.tap, page.models, unnamed),
                server,
                lambda count: (1 + share) * server[count.of_all] + slack * self._width(count),
            )
            self._strangers = _strangers(self._seen, page.models, unnamed)
        elif not self._proxied:
            self._seen, self._strangers = _NOTHING, frozenset()
        if self._proxied:
            self._ledger.server.update(_of_engine(increments))
            self._begin_ledger = self._begin_ledger or restarted

    def _note_gone(self, now: float, *, has_tap: bool, restarted: bool) -> None:
        if has_tap:
            self._gone_at = None
        elif self._inside:
            self._gone_at = now
        elif self._gone_at is not None and (restarted or now - self._gone_at >= _DAY):
            self._gone_at = None

    def _width(self, count: _Count) -> int:
        """The largest count for each draft."""
        return 1 if count.quantity == "drafts" else self._widths.get(count.model, 1)

    def see_proxy(
        self,
        page: Parts,
        increments: Mapping[Series, float],
        *,
        restarted: bool,
        models: Mapping[str, float | None],
        unnamed: str,
    ) -> None:
        """Process a proxy's page, right after that of the engine.

        ``models`` are the engine's models with their running requests. The engine counts a request
        while it drafts and a proxy at its end, so that the proxy may be ahead in a window: only a
        lasting surplus is an excess.
        """
        self._proxied = bool(page.tap)
        self._proxy_empty = not page.tap
        if not self._inside:
            self._seen = _seen(page.tap)
            self._strangers = _strangers(self._seen, models, unnamed)
        self._ledger.tap.update(_of_tap(increments, models, unnamed))
        if self._begin_ledger or restarted:
            self._ledger = _Ledger(under_way=models)
            self._begin_ledger = False
        # By timings, each step counts as a draft: those of n-grams mostly have none.
        counted = self._ledger.tap
        if _has_records(page.tap, "timings"):
            counted = Counter({one: n for one, n in counted.items() if one.quantity != "drafts"})
        self._proxy_doubted = _excesses(counted, self._ledger.server, self._most_through_proxy)

    def _most_through_proxy(self, count: _Count) -> float:
        running = self._ledger.under_way.get(count.model)
        begun = _UNDER_WAY if running is None else running
        slack = (_PROXY_SLACK + _PROXY_DRAFTS_UNDER_WAY * begun) * self._width(count)
        return (1 + _PROXY_SHARE) * self._ledger.server[count.of_all] + slack

    def forget_proxy(self) -> None:
        """Forget the proxy, as there is another one or none."""
        self._proxied = self._proxy_empty = False
        self._proxy_doubted = {}
        self._ledger, self._begin_ledger = _Ledger(), True

    def trouble(self, edges: Sequence[float]) -> tuple[Trouble, ...]:
        """The current problems; ``edges`` are those of the configured temperature buckets."""
        troubles = []
        if self.gone:
            troubles.append(Trouble("gone", _GONE))
        if self._inside and self._proxied:
            troubles.append(Trouble("two_taps", _TWO_TAPS))
        if self._proxy_empty:
            troubles.append(Trouble("proxy_without_tap", _PROXY_WITHOUT_TAP))
        doubted = self._doubted if self._inside else self._proxy_doubted
        troubles += [
            _too_many(model, excess, derives=self._seen.derives)
            for model, excess in sorted(doubted.items())
        ]
        if self._strangers:
            troubles.append(Trouble("unknown_model", unknown_models(self._strangers)))
        others = other_buckets(self._seen.temperatures, edges)
        if others is not None:
            troubles.append(Trouble("other_buckets", others))
        if self._seen.failures:
            troubles.append(Trouble("tap_failed", _failed(self._seen.failures)))
        return tuple(troubles)


_GONE = (
    "the server was restarted without its tap; `specwatch tap flags` shows what to add to its"
    " command line. If this is intended, the warning ends with the next restart, or after a day"
)
_TWO_TAPS = (
    "the server's own page and the proxy's page both have a tap and count the same requests: the"
    " counts of the server's page are used; remove the other tap"
)
_PROXY_WITHOUT_TAP = "the proxy's page has no specwatch_* family; is it a `specwatch tap proxy`?"


def _too_many(model: str, excess: _Excess, *, derives: bool) -> Trouble:
    message = (
        f"the tap counted {excess.tap:,} {_COMPARED[excess.quantity]} where the server counted"
        f" {excess.server:,}"
    )
    kind = ACCEPTS_TOO_MUCH if excess.quantity == "accepted_tokens" else COUNTS_TWICE
    if not derives:
        why = _COUNTS_TWICE
    else:
        why = _JOINS_STEPS if kind == ACCEPTS_TOO_MUCH else _DERIVES_TOO_MANY
    return Trouble(kind, message + why, model)


_COUNTS_TWICE = (
    ": it counts twice, or for another server too. Its numbers are left out until this is fixed:"
    " load it once, and watch one server through one proxy"
)
_DERIVES_TOO_MANY = (
    ", and is left out: it counts twice, or for another server too, or not every streamed step has"
    f" a whole draft, so that acceptance cannot be derived: {KEEP_RECORDS}"
)
_JOINS_STEPS = (
    ", and is left out: this server joins steps (for slow clients, or --stream-interval), so that"
    f" acceptance cannot be derived from what it streams: {KEEP_RECORDS}"
)


def other_buckets(temperatures: Collection[Segment], edges: Sequence[float]) -> str | None:
    """A sentence about buckets of a tap that ``edges`` do not have, if any."""
    expected = {Segment(TEMPERATURE, label) for label in bucket_labels(edges)}
    others = set(temperatures) - expected - {UNKNOWN_TEMPERATURE}
    if not others:
        return None
    ordered = sorted(others, key=order_of)
    named = ", ".join(bucket.value[:40] for bucket in ordered[:_MOST_SHOWN])
    more = ", ..." if len(ordered) > _MOST_SHOWN else ""
    return (
        f"the tap has temperature buckets that temperature_buckets does not: {named}{more};"
        f" start it with {BUCKETS_VARIABLE}={','.join(f'{edge:g}' for edge in edges)}"
    )


def _failed(count: int) -> str:
    times = "once" if count == 1 else f"{count:,} times"
    return f"the tap itself failed {times}; see the log of its process"


def _seen(tap: Mapping[Series, float]) -> _Seen:
    named = {(series.model_name, series.segment) for series in tap if series.segment != ALL}
    failures = sum(value for series, value in tap.items() if series.quantity == "tap_failures")
    return _Seen(
        frozenset(model for model, _ in named),
        frozenset(one for _, one in named if one.dimension == TEMPERATURE),
        int(failures),
        _has_records(tap, "derived"),
    )


def _has_records(tap: Mapping[Series, float], method: str) -> bool:
    return any(
        count for one, count in tap.items() if (one.quantity, one.key) == ("records", method)
    )


def _strangers(seen: _Seen, models: Collection[str], unnamed: str) -> frozenset[str]:
    return frozenset(name for name in seen.models if matching(name, models, unnamed) is None)


def _counts(
    samples: Mapping[Series, float], model_of: Callable[[Series], str | None]
) -> Counter[_Count]:
    """Compared counts by model, where ``model_of`` gives one; no families, no counts."""
    counts: Counter[_Count] = Counter()
    for series, value in samples.items():
        if series.quantity in _COMPARED and (model := model_of(series)) is not None:
            counts[_Count(model, series.quantity, series.segment.dimension)] += int(value)
    return counts


def _of_engine(samples: Mapping[Series, float]) -> Counter[_Count]:
    return _counts(samples, lambda series: series.model_name if series.segment == ALL else None)


def _of_tap(
    samples: Mapping[Series, float], models: Collection[str], unnamed: str
) -> Counter[_Count]:
    """By the engine's model."""
    return _counts(
        samples,
        lambda series: (
            None if series.segment == ALL else matching(series.model_name, models, unnamed)
        ),
    )


def _widths(models: Mapping[str, Mapping[Series, float]]) -> dict[str, int]:
    """The number of draft positions of each model, at least 1."""
    return {
        model: max(1, len({s.key for s in samples if s.quantity == "accepted_per_position"}))
        for model, samples in models.items()
    }


def _excesses(
    tap: Mapping[_Count, int], server: Mapping[_Count, int], most: Callable[[_Count], float]
) -> dict[str, _Excess]:
    """For each model the first quantity of which a tap counted more than ``most`` allows.

    Models without drafts on the engine's page are left out: their draft positions are unknown
    (before vLLM 0.8.5), or their counts of tokens are meaningless (V0).
    """
    excesses: dict[str, _Excess] = {}
    for quantity in _COMPARED:
        for count, seen in tap.items():
            counted = server.get(count.of_all)
            comparable = counted is not None and _Count(count.model, "drafts") in server
            if count.quantity == quantity and comparable and seen > most(count):
                excesses.setdefault(count.model, _Excess(quantity, seen, counted or 0))
    return excesses

"""What a daemon knows now, as plain values handed to its surfaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from specwatch.domain.merge import merge_windows, present_since
from specwatch.domain.model import ALL_TEMPERATURES, MINUTE, Mode, SeriesId, Source, Window
from specwatch.errors import ScrapeError
from specwatch.guard.status import GuardStatus
from specwatch.rules.decisions import TargetDecision
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.taps import Trouble

_Shown = TypeVar("_Shown")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a target cannot be read, and since when (Unix time)."""

    reason: str
    detail: str
    since: float


def failure_of(before: Failure | None, error: ScrapeError | None, now: float) -> Failure | None:
    """The failure that an error is, since when the one ``before`` it was; None of none."""
    if error is None:
        return None
    return Failure(error.reason, str(error), before.since if before else now)


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """The proxy of a target now. ``failures`` are failed scrapes by reason."""

    url: str
    failure: Failure | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class TapStatus:
    """The tap of a target now. ``source`` is None where there is none."""

    source: Source | None = None
    trouble: tuple[Trouble, ...] = ()
    failures: int = 0
    """Failures of the tap itself since its process began."""
    models: Mapping[str, Coverage] = field(default_factory=dict)
    """What it saw of each model over the last minutes."""
    proxy: ProxyStatus | None = None


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target now. Times are Unix seconds, durations seconds."""

    name: str
    url: str
    interval: float
    models: Mapping[str, Mode] = field(default_factory=dict)
    engine_version: str | None = None
    last_scrape: float | None = None
    last_success: float | None = None
    scrape_seconds: float | None = None
    scrapes: int = 0
    skipped: int = 0
    """Scrapes that were due while the one before was still under way."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed scrapes by reason."""
    failure: Failure | None = None
    restarts: int = 0
    recent: tuple[Window, ...] = ()
    """The last minutes of the present process in its present mode, summed to one window for each
    series."""
    last_window: int | None = None
    """End of the newest minute that is closed."""
    current: tuple[Window, ...] = ()
    """The minute that is being filled, where it was asked for."""
    tap: TapStatus = TapStatus()
    load: float | None = None
    """The most requests that ran or waited at the last two pages, where both say. One page is not
    enough: vLLM's gauges are of the last step that ended; they miss a request in its first."""
    decision: TargetDecision = field(default_factory=TargetDecision)
    guard: GuardStatus | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The store now. ``behind_since`` is None while writing works.

    ``damaged`` stored rows could not be decoded since this process began, ``last_damaged`` among
    them: where it was, and why.
    """

    where: str
    written: int = 0
    queued: int = 0
    dropped: int = 0
    failures: int = 0
    error: str | None = None
    behind_since: float | None = None
    last_write: float | None = None
    damaged: int = 0
    last_damaged: str | None = None


@dataclass(frozen=True, slots=True)
class JudgingStatus:
    """How judging goes. ``queued`` changes of verdicts wait for the database, ``dropped`` were
    given up; ``defects`` counts the failures of specwatch itself."""

    defects: int = 0
    queued: int = 0
    dropped: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PagerStatus:
    """How telling one Alertmanager goes; times are Unix seconds.

    ``firing`` alerts fire; ``behind`` says that it has a change still to be sent; ``failures``
    are attempts by reason.
    """

    url: str
    firing: int = 0
    behind: bool = False
    last_success: float | None = None
    failing_since: float | None = None
    error: str | None = None
    sent: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """How it stands with sending the last report by one channel.

    ``undelivered``: somebody does not have it; ``last_delivery`` is the Unix time at which a report
    was delivered last.
    """

    channel: str
    undelivered: bool
    last_delivery: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """A daemon now."""

    daemon: str
    version: str
    started: float
    now: float
    targets: tuple[TargetStatus, ...]
    store: StoreStatus
    stuck: tuple[str, ...] = ()
    """Targets whose loop has not turned within three intervals."""
    ready: bool = False
    judging: JudgingStatus = JudgingStatus()
    pagers: tuple[PagerStatus, ...] = ()
    deliveries: tuple[DeliveryStatus, ...] = ()
    not_shown: Callable[[str, Exception], None] = lambda _, __: None
    """Told of a target of which something cannot be shown for a defect of ours."""

    def attempt(self, target: str, make: Callable[[], _Shown], instead: _Shown) -> _Shown:
        """What is to be shown of a target, or what is shown instead where that fails: one target,
        or model, must not take down what shows all of them."""
        try:
            return make()
        except Exception as error:
            self.not_shown(target, error)
            return instead


class Recent:
    """The last few minutes of each series of one target, of one process in one mode of speculation.

    One thread may add while others read.
    """

    def __init__(self, minutes: int = 5) -> None:
        self._minutes = minutes
        # Both are replaced as a whole, never changed, so that readers need no lock.
        self._windows: Mapping[SeriesId, tuple[Window, ...]] = {}
        self._sums: tuple[Mapping[SeriesId, tuple[Window, ...]], tuple[Window, ...]] = ({}, ())
        self.end: int | None = None
        """Of the newest minute that came."""

    def add(self, windows: Iterable[Window]) -> None:
        """Take in closed windows; forget what became too old, or is from before a restart or a
        change of mode."""
        held = {series: list(kept) for series, kept in self._windows.items()}
        for window in windows:
            held.setdefault(window.series, []).append(window)
        newest = max((window.start for kept in held.values() for window in kept), default=0)
        if newest:
            self.end = newest + MINUTE
        oldest = newest - (self._minutes - 1) * MINUTE
        since = {
            series.model_name: max(present_since(kept), oldest)
            for series, kept in held.items()
            if series.temperature == ALL_TEMPERATURES
        }
        young = {
            series: tuple(
                window for window in kept if window.start >= since.get(series.model_name, oldest)
            )
            for series, kept in held.items()
        }
        self._windows = {series: kept for series, kept in young.items() if kept}

    def forget(self, models: Collection[str]) -> None:
        """What these models serve from now on is not to be added to what was before."""
        if models:
            self._windows = {
                series: kept
                for series, kept in self._windows.items()
                if series.model_name not in models
            }

    def merged(self) -> tuple[Window, ...]:
        """One window for each series, from the first to the last minute held of it."""
        held = self._windows
        summed, sums = self._sums
        if summed is not held:
            # Those of all temperatures first: where not all can be shown, they are.
            ordered = sorted(held, key=lambda series: series.temperature != ALL_TEMPERATURES)
            sums = tuple(_sum(held[series]) for series in ordered)
            self._sums = held, sums
        return sums


def _sum(windows: tuple[Window, ...]) -> Window:
    start = min(window.start for window in windows)
    end = max(window.start + window.length for window in windows)
    return merge_windows(windows, start=start, length=end - start)

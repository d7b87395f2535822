"""Finds targets in the configured sources, and keeps the last known ones while a source fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import structlog

from specwatch.config.discovery import DiscoverySource
from specwatch.config.loading import Config
from specwatch.config.target import Target
from specwatch.discovery.sources import reader
from specwatch.discovery.target_groups import Group, TargetMaker, merged
from specwatch.domain.model import Cursor, Moment
from specwatch.errors import DiscoveryError, DiscoveryReason, SpecwatchError
from specwatch.status import Failure, SourceStatus

_log = structlog.get_logger("specwatch.daemon.discovery_service")
_MOST_SHOWN = 10


class WatchedSource:
    """A source, and the targets that it had last."""

    def __init__(
        self,
        source: DiscoverySource,
        now: Callable[[], Moment],
        refreshed: Callable[[bool], None],
        predecessor: WatchedSource | None = None,
    ) -> None:
        """``refreshed`` is called after each refresh, with whether its targets are others than
        before. ``predecessor`` read the same with other settings: what it had is ours until we have
        read it."""
        self.source = source
        self._now = now
        self._refreshed = refreshed
        self._read = reader(source)
        self._maker = TargetMaker(source)
        self._refreshing = threading.Lock()
        self._groups: Mapping[str, Sequence[Group]] = {}
        self._failures: Counter[str] = Counter()
        self._failing: Mapping[str, str] = {}
        self._refused: Sequence[str] = ()
        self.targets: Sequence[Target] = []
        self.status = SourceStatus(str(source))
        self.tried = False
        """Whether a refresh has ended."""
        self.listed = 0.0
        """When the last refresh without a failure began, in Unix time."""
        self._listed_since: float | None = None
        """When it was read without a failure at first, in Unix time."""
        self._at_first: frozenset[str] = frozenset()
        """Names of the targets that it had then."""
        if predecessor is not None:
            self._groups = predecessor._groups
            self._listed_since = predecessor._listed_since
            self._at_first = predecessor._at_first
            self._make()

    def refresh(self) -> None:
        """Read the source, unless this is done already. What cannot be read keeps the targets that
        it had."""
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._refreshing.release()

    def _refresh(self) -> None:
        before = self._groups
        errors = {}
        begun = self._now().wall
        try:
            outcomes = self._read()
        except SpecwatchError as error:
            errors[""] = error
        else:
            errors = {k: one for k, one in outcomes.items() if isinstance(one, SpecwatchError)}
            groups = {
                part: before.get(part, ()) if isinstance(outcome, SpecwatchError) else outcome
                for part, outcome in outcomes.items()
            }
            found = sum(len(group.targets) for group in chain.from_iterable(groups.values()))
            if 0 < self.source.target_limit < found:
                errors[""] = self._too_many(found)
            else:
                self._groups = groups
        had = self.targets
        if self._groups != before:
            self._make()
        if self._listed_since is None and not errors:
            self._listed_since = self._now().wall
            self._at_first = frozenset(target.name for target in self.targets)
        self._note(errors)
        self.tried = True
        self.listed = self.listed if errors else begun
        self._refreshed(self.targets != had)

    def watched_since(self, seen_until: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """Yield its targets, each with the Unix time since when this source is read: those that it
        had at first since an earlier daemon read it, which ``seen_until`` says by namespace of
        their pods."""
        for target in self.targets:
            since = self._listed_since
            if target.name in self._at_first:
                since = seen_until.get(_namespace_of(target.name)) if target.pod else None
            if since is not None:
                yield target.name, since

    def _too_many(self, found: int) -> DiscoveryError:
        return DiscoveryError(
            DiscoveryReason.TARGET_LIMIT,
            f"{self.source} lists {found} targets: expected at most {self.source.target_limit}; if"
            " it should list as many, raise target_limit",
        )

    def _make(self) -> None:
        self.targets, refused = self._maker.targets(chain.from_iterable(self._groups.values()))
        for sentence in set(refused[:_MOST_SHOWN]).difference(self._refused):
            _log.warning("target_refused", source=self.status.source, detail=sentence)
        self._refused = refused

    def _note(self, errors: Mapping[str, SpecwatchError]) -> None:
        now, before, source = self._now().wall, self.status, self.status.source
        failing = {
            part: str(getattr(error, "reason", "configuration")) for part, error in errors.items()
        }
        self._failures.update(failing.values())
        for part, reason in failing.items():
            if self._failing.get(part) != reason:
                _log.warning(
                    "discovery_failed",
                    source=source,
                    reason=reason,
                    detail=str(errors[part]),
                    targets_kept=len(self.targets),
                )
        if self._failing and not failing:
            _log.info("discovery_recovered", source=source)
        self._failing = failing
        failure = None
        if errors:
            since = before.failure.since if before.failure else now
            failure = Failure(
                next(iter(failing.values())), "; ".join(map(str, errors.values())), since
            )
        self.status = SourceStatus(
            source,
            targets=len(self.targets),
            last_success=before.last_success if errors else now,
            failures=dict(self._failures),
            failure=failure,
            refused=tuple(self._refused[:_MOST_SHOWN]),
        )


class DiscoveryService:
    """The sources of a configuration; iterates over those that are in use."""

    def __init__(self, config: Config, now: Callable[[], Moment]) -> None:
        self._now = now
        self._change = threading.Event()
        self._left_out: frozenset[str] = frozenset()
        self.refused: str | None = None
        """Why what was found cannot be watched."""
        self._begun = False
        self._seen_until: dict[str, float] = {}
        """By namespace, when an earlier daemon saw a pod of it last, in Unix time."""
        self._sources: Sequence[WatchedSource] = ()
        self.use(self.sources_of(config))

    def __iter__(self) -> Iterator[WatchedSource]:
        return iter(self._sources)

    @property
    def begun(self) -> bool:
        """Whether there was a time at which each source had been tried."""
        self._begun = self._begun or all(source.tried for source in self)
        return self._begun

    @property
    def listed(self) -> float:
        """When the oldest of the present lists began to be read, in Unix time."""
        return min((source.listed for source in self), default=0.0)

    def sources_of(self, config: Config) -> Sequence[WatchedSource]:
        """The sources of a configuration; known ones keep their targets."""
        known = {str(one.source): one for one in self}
        sources = []
        for source in config.discovery:
            one = known.get(str(source))
            if one is None or one.source != source:
                one = WatchedSource(source, self._now, self._refreshed, one)
            sources.append(one)
        return sources

    def use(self, sources: Sequence[WatchedSource]) -> None:
        """Have these sources from now on."""
        self._sources = sources

    def resume(self, cursors: Mapping[str, Cursor]) -> None:
        """Note where an earlier daemon stopped reading, by target."""
        for name, cursor in cursors.items():
            namespace = _namespace_of(name)
            self._seen_until[namespace] = max(self._seen_until.get(namespace, 0.0), cursor.wall)

    def watched_since(self, sources: Iterable[WatchedSource]) -> dict[str, float]:
        """Since when the source of each target is read, where that is known (Unix time)."""
        return dict(chain.from_iterable(one.watched_since(self._seen_until) for one in sources))

    def take_change(self) -> bool:
        """Whether any source has other targets than at the call before, or was read again after
        what had been found was ``refused``."""
        changed = self._change.is_set()
        self._change.clear()
        return changed

    def _refreshed(self, changed: bool) -> None:
        if changed or self.refused is not None:
            self._change.set()

    def all_targets(self, config: Config, sources: Iterable[WatchedSource]) -> tuple[Target, ...]:
        """All targets to watch: those of a configuration, then those that the sources reported."""
        lists = [(str(one.source), one.targets) for one in sources]
        targets, left_out = merged(config.targets, lists)
        for sentence in sorted(set(left_out) - self._left_out)[:_MOST_SHOWN]:
            _log.warning("target_left_out", detail=sentence)
        self._left_out = frozenset(left_out)
        return targets


def _namespace_of(pod: str) -> str:
    """That of a pod by its target's name, ``NAMESPACE/POD``; empty for other names."""
    return pod.rpartition("/")[0]

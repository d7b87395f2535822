"""Workloads of Kubernetes: each is judged and guarded as one server, by the sum of its pods."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import is_

from msgspec.structs import replace

from specwatch.config.loading import Config
from specwatch.config.service import KubernetesService
from specwatch.config.target import Target
from specwatch.daemon.watched_targets import WatchedTargets
from specwatch.domain.merge import merge_windows
from specwatch.domain.model import Batch, Mode, SeriesId, Window
from specwatch.status import Failure, TargetStatus

_MODES = [*Mode]
_Shown = tuple[Sequence[tuple[Window, ...]], tuple[Window, ...]]
"""The windows of the pods, and their sum."""
_NO_POD = Failure("no_pod", "no pod of it is ready", 0.0)


def with_workloads(config: Config, workloads: Sequence[Target], *, pods: bool = True) -> Config:
    """A configuration with workloads as targets, with or without their ``pods``."""
    targets = [one for one in config.targets if pods or one.workload is None]
    return config.model_copy(update={"targets": (*targets, *workloads)})


def part_of(config: Config) -> Config:
    """A configuration with the targets of its shard only; those of one group, and the pods of one
    workload, are in the same shard."""
    shard = config.shard
    if shard is None:
        return config
    targets = [
        target
        for target in config.targets
        if shard.owns(target.group or (target.workload or target).name)
    ]
    return config.model_copy(update={"targets": tuple(targets)})


class Workloads:
    """The workloads whose pods this daemon watches; safe to use from several threads."""

    def __init__(
        self,
        targets: WatchedTargets,
        put: Callable[[str, Batch], None],
        keep: Callable[[Batch], None],
    ) -> None:
        """``put`` takes the minutes of a workload by its name, ``keep`` those that are not over, in
        whose place the whole ones come; they have no cursor."""
        self._targets = targets
        self._put = put
        self._keep = keep
        self.listed = 0.0
        """When the sources of discovery began to read what was last configured, in Unix time."""
        self._by_name: Mapping[str, Target] = {}
        self._workload_of: Mapping[str, str] = {}
        """The workload of each pod that is watched here, by the names of both."""
        self._sums: dict[str, _Sums] = {}
        self._shown: dict[str, _Shown] = {}
        """What was shown last of each workload."""
        self._lock = threading.Lock()

    def configure(
        self,
        watched: Sequence[Target],
        known: Iterable[Target],
        *,
        acting: Collection[str],
    ) -> tuple[Target, ...]:
        """Have the workloads of the targets that are ``watched`` here, and return them.

        ``known`` are the targets of all shards. One on which the guard acts stays while it has no
        pod at all.
        One that is the ``service`` of a configured target is guarded as that, and not twice.
        """
        known = tuple(known)
        configured = {
            f"{target.service.namespace}/{target.service.workload}"
            for target in known
            if isinstance(target.service, KubernetesService)
        }
        owners = {pod.name: pod.workload for pod in watched if pod.workload is not None}
        everywhere = {pod.workload.name for pod in known if pod.workload is not None}
        by_name = {one.name: one for one in owners.values() if one.name not in configured}
        kept = self._by_name.keys() - everywhere
        by_name |= {name: self._by_name[name] for name in kept.intersection(acting)}
        with self._lock:
            left = {name: sums for name, sums in self._sums.items() if name not in by_name}
            self._sums = {name: self._sums.get(name) or _Sums(name) for name in by_name}
            self._by_name = by_name
            self._shown = {}
            self._workload_of = {pod: workload.name for pod, workload in owners.items()}
        self._hand_over(left)
        return tuple(by_name.values())

    def guarded_as(self, target: str) -> str:
        """The workload of a pod, or else the target itself."""
        return self._workload_of.get(target, target)

    def shown(self, name: str) -> TargetStatus:
        """What the last pages of a workload's pods show together, or that of another target."""
        workload = self._by_name.get(name)
        if workload is None:
            return self._targets.shown(name)
        pods = [self._targets.shown(pod) for pod in self._pods(name)]
        read = [pod for pod in pods if pod.failure is None and pod.last_success is not None]
        modes: dict[str, set[Mode]] = defaultdict(set)
        for pod in read:
            for model, mode in pod.models.items():
                modes[model].add(mode)
        loads = [pod.load for pod in read]
        # That it has no pod is known; what a pod that was not read yet says is not.
        unread = None if pods else 0.0
        pages = [pod.last_success or 0.0 for pod in pods if pod.failure is None]
        return TargetStatus(
            name,
            workload.url,
            workload.interval,
            configured_group=workload.group,
            models={model: min(seen, key=_MODES.index) for model, seen in modes.items()},
            last_scrape=max((p.last_scrape for p in pods if p.last_scrape), default=unread),
            last_success=max((p.last_success for p in read if p.last_success), default=None),
            as_of=min([self.listed, *pages]),
            from_files=any(pod.from_files for pod in read),
            failure=None if read else next((p.failure for p in pods if p.failure), _NO_POD),
            load=sum(filter(None, loads)) if loads and None not in loads else None,
        )

    def statuses(self, watched: Mapping[str, TargetStatus]) -> Iterator[TargetStatus]:
        """Yield the workloads with a pod that is watched here, from the statuses of targets."""
        for name in self._by_name:
            pods = [pod for pod in self._pods(name) if pod in watched]
            known = [watched[pod] for pod in pods]
            versions = {pod.engine_version for pod in known}
            if pods:
                yield replace(
                    self.shown(name),
                    url="",
                    pods=tuple(pods),
                    engine_version=versions.pop() if len(versions) == 1 else None,
                    recent=self._sum(name, [pod.recent for pod in known]),
                )

    def _sum(self, name: str, pods: Sequence[tuple[Window, ...]]) -> tuple[Window, ...]:
        """As :func:`_summed`, anew only when a pod has closed a minute."""
        before = self._shown.get(name)
        if before is None or len(before[0]) != len(pods) or not all(map(is_, before[0], pods)):
            before = self._shown[name] = (pods, _summed(name, pods))
        return before[1]

    def is_healthy(self, name: str) -> bool:
        """Whether the health checks of all pods of a workload succeed, or that of a target."""
        if name not in self._by_name:
            return self._targets.is_healthy(name)
        pods = self._pods(name)
        return bool(pods) and all(map(self._targets.is_healthy, pods))

    def take(self, pod: str, batch: Batch) -> None:
        """Add the minute that a pod has closed to that of its workload, if it has one."""
        name = self._workload_of.get(pod, "")
        with self._lock:
            sums = self._sums.get(name)
            complete = [] if sums is None else list(sums.add(pod, batch.windows, self._pods(name)))
        for minute in complete:
            self._put(name, minute)

    def keep(self, pod: str, batch: Batch) -> None:
        """Have the open minute of a pod stored as a part of its workload's, if it has one: we may
        be killed before it ends."""
        with self._lock:  # kept before the whole minute is put
            sums = self._sums.get(self._workload_of.get(pod, ""))
            minute = None if sums is None else sums.so_far(pod, batch.windows)
            if minute is not None:
                self._keep(minute)

    def close(self) -> None:
        """Hand over the minutes that are not complete, too."""
        self._hand_over(self._sums)

    def _hand_over(self, ended: Mapping[str, _Sums]) -> None:
        with self._lock:
            minutes = [(name, minute) for name, sums in ended.items() for minute in sums.take()]
        for name, minute in minutes:
            self._put(name, minute)

    def _pods(self, name: str) -> list[str]:
        return [pod for pod, workload in self._workload_of.items() if workload == name]


class _Sums:
    """The minutes of one workload that are not complete.

    A minute is complete when all pods have closed it, or one has closed a later one; what comes
    after that is in the pod's own minutes only.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[int, list[tuple[Window, ...]]] = {}
        self._so_far: dict[str, tuple[int, tuple[Window, ...]]] = {}
        """Start and windows of the open minute of each pod, as it was last kept."""
        self._newest: dict[str, int] = {}
        """Start of the newest minute of each pod."""
        self._last = -1
        """Start of the newest complete one."""

    def add(self, pod: str, windows: tuple[Window, ...], pods: Collection[str]) -> Iterator[Batch]:
        """Add the windows of a minute; yields the minutes that are complete now."""
        start = max((window.start for window in windows), default=-1)
        self._so_far.pop(pod, None)
        if start <= self._last:
            return
        self._open.setdefault(start, []).append(windows)
        self._newest[pod] = start
        self._newest = {name: newest for name, newest in self._newest.items() if name in pods}
        self._so_far = {name: kept for name, kept in self._so_far.items() if name in pods}
        latest = max(self._newest.values(), default=start)
        if all(self._newest.get(name) == latest for name in pods):
            latest += 1
        yield from self.take(latest)

    def so_far(self, pod: str, windows: tuple[Window, ...]) -> Batch | None:
        """The newest open minute with that of a pod as it is now. Others are as they were kept
        last; each pod keeps its own as often, so one of them is enough to make the sum."""
        start = max((window.start for window in windows), default=-1)
        if start <= self._last:
            return None
        self._so_far[pod] = start, windows
        same = {name: kept for name, (since, kept) in self._so_far.items() if since == start}
        if pod != min(same):
            return None
        return self._sum([*self._open.get(start, ()), *same.values()])

    def take(self, before: float = float("inf")) -> Iterator[Batch]:
        """Yield the minutes that start before a Unix time, oldest first."""
        for start in sorted(start for start in self._open if start < before):
            self._last = start
            yield self._sum(self._open.pop(start))

    def _sum(self, pods: Sequence[tuple[Window, ...]]) -> Batch:
        return Batch(_summed(self._name, pods), None)


def _summed(name: str, pods: Sequence[tuple[Window, ...]]) -> tuple[Window, ...]:
    """The windows of the workload of this name, by those of each of its pods."""
    parts: dict[SeriesId, list[Window]] = defaultdict(list)
    for window in (window for windows in pods for window in windows):
        series = replace(window.series, target=name)
        # Of the time, the mean: a minute of three pods is not three minutes long.
        parts[series].append(
            replace(
                window,
                series=series,
                observed_seconds=window.observed_seconds / len(pods),
                down_seconds=window.down_seconds / len(pods),
            )
        )
    return tuple(
        merge_windows(same, start=same[0].start, length=same[0].length) for same in parts.values()
    )

"""Pods of one workload are judged and guarded as one server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from specwatch.config.service import KubernetesService
from specwatch.config.target import Target
from specwatch.daemon.workloads import Workloads
from specwatch.domain.model import MINUTE, Batch, Mode, PodInstance, Window
from specwatch.status import Failure, TargetStatus
from tests.fixtures import target_of
from tests.store.examples import T0, minute

NAME = "serving/deployment/vllm"
SERVICE = KubernetesService(kind="kubernetes", workload="deployment/vllm", namespace="serving")
WORKLOAD = target_of("http://vllm.serving", NAME).model_copy(update={"service": SERVICE})


def pod(name: str, workload: Target | None = WORKLOAD) -> Target:
    return target_of(f"http://{name}", name).in_pod(PodInstance(name, 1.0), workload)


class World:
    """Pods with their present status, and the minutes of their workload."""

    def __init__(self, *pods: str) -> None:
        self.statuses: dict[str, TargetStatus] = {}
        self.minutes: list[Window] = []
        targets: Any = SimpleNamespace(
            shown=self.statuses.__getitem__,
            is_healthy=lambda name: self.statuses[name].failure is None,
        )
        self.kept: list[Batch] = []
        self.workloads = Workloads(targets, self._put, self.kept.append)
        self.watch(*pods)

    def _put(self, name: str, batch: Batch) -> None:
        assert name == NAME
        assert batch.cursor is None
        self.minutes += batch.windows

    def watch(self, *pods: str, known: tuple[str, ...] = (), acting: bool = False) -> list[str]:
        """Watch these, while ``known`` others are watched elsewhere; the workloads then."""
        watched = [pod(name) for name in pods]
        found = self.workloads.configure(
            watched,
            [*watched, *map(pod, known)],
            acting={NAME} if acting else set(),
        )
        return [one.name for one in found]

    def close(self, name: str, start: int, tokens: int = 1, **changes: Any) -> None:
        """A pod closes a minute."""
        self.workloads.take(name, counted(name, start, tokens, **changes))

    def keep(self, name: str, start: int, tokens: int) -> list[int | None]:
        """A pod keeps its open minute; what is kept of the workload then."""
        self.kept.clear()
        self.workloads.keep(name, counted(name, start, tokens))
        return [one.windows[0].tally.generation_tokens for one in self.kept]

    def counted(self) -> list[tuple[int, int]]:
        return [(one.start - T0, one.tally.generation_tokens or 0) for one in self.minutes]


def counted(name: str, start: int, tokens: int, **changes: Any) -> Batch:
    """A minute of a pod."""
    window = msgspec.structs.replace(minute(start, target=name), observed_seconds=60.0)
    tally = msgspec.structs.replace(window.tally, generation_tokens=tokens)
    return Batch((msgspec.structs.replace(window, tally=tally, **changes),), None)


def test_an_open_minute_is_kept_with_what_its_pods_kept_last() -> None:
    world = World("a", "b", "c")
    assert world.keep("a", T0, 1) == [1]
    assert world.keep("b", T0, 10) == []
    assert world.keep("a", T0, 2) == [12]
    world.close("a", T0, 3)
    assert world.keep("b", T0, 20) == [23]
    assert world.keep("a", T0 + MINUTE, 5) == [5]
    assert world.minutes == []
    world.close("b", T0, 30)
    world.close("c", T0, 100)
    assert world.counted() == [(0, 133)]
    assert world.keep("c", T0, 200) == []


def test_a_minute_is_the_sum_of_those_of_all_pods() -> None:
    world = World("a", "b", "c")
    for tokens, name in enumerate("abc", start=1):
        assert world.minutes == []
        world.close(name, T0, tokens)
    (window,) = world.minutes
    assert window.series.target == NAME
    assert (window.tally.generation_tokens, window.observed_seconds, window.sound) == (6, 60, True)


def test_a_pod_that_lags_is_waited_for_until_another_closes_the_next_minute() -> None:
    world = World("a", "b")
    world.close("a", T0)
    world.close("a", T0 + MINUTE)
    assert world.counted() == [(0, 1)]
    world.close("b", T0, 100)
    assert world.counted() == [(0, 1)], "it comes too late"
    world.close("b", T0 + MINUTE, 10)
    assert world.counted() == [(0, 1), (MINUTE, 11)]


def test_a_minute_of_pods_in_several_modes_is_not_measured_by() -> None:
    world = World("a", "b")
    world.close("a", T0, mode=Mode.OFF)
    world.close("b", T0, mode=Mode.ON)
    (window,) = world.minutes
    assert window.mode is Mode.MIXED
    assert not window.sound


def test_what_pods_had_counted_is_handed_over_when_they_are_gone() -> None:
    world = World("a", "b")
    world.close("a", T0, 5)
    assert world.watch() == []
    assert world.counted() == [(0, 5)]


def test_what_is_not_complete_is_handed_over_at_the_end() -> None:
    world = World("a", "b")
    world.close("a", T0, 5)
    world.workloads.close()
    assert world.counted() == [(0, 5)]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((Mode.ON, Mode.OFF), Mode.ON),
        ((Mode.OFF, Mode.UNKNOWN), Mode.UNKNOWN),
        *(((mode, Mode.OFF), mode) for mode in Mode),
    ],
)
def test_speculation_is_off_once_it_is_off_in_every_pod(
    modes: tuple[Mode, Mode], expected: Mode
) -> None:
    world = World("a", "b")
    for name, mode, load in zip("ab", modes, (2.0, 3.0), strict=True):
        world.statuses[name] = TargetStatus(
            name, "", 5.0, models={"m": mode}, last_scrape=9.0, last_success=8.0, load=load
        )
    status = world.workloads.shown(NAME)
    assert status.models == {"m": expected}
    assert (status.load, status.last_scrape, status.last_success) == (5.0, 9.0, 8.0)


@pytest.mark.parametrize(
    ("listed", "second", "as_of"), [(9.0, 7.0, 7.0), (6.0, 7.0, 6.0), (9.0, None, 0.0)]
)
def test_what_is_known_is_as_old_as_the_oldest_page_and_the_list_of_pods(
    listed: float, second: float | None, as_of: float
) -> None:
    world = World("a", "b")
    world.workloads.listed = listed
    world.statuses["a"] = TargetStatus("a", "", 5.0, last_scrape=9.0, last_success=8.0)
    world.statuses["b"] = TargetStatus("b", "", 5.0, last_scrape=9.0, last_success=second)
    assert world.workloads.shown(NAME).as_of == as_of


def test_one_pod_that_answers_is_enough_to_be_read_but_not_to_be_healthy() -> None:
    world = World("a", "b")
    down = Failure("refused", "no", 1.0)
    world.statuses["a"] = TargetStatus("a", "", 5.0, last_scrape=9.0, last_success=8.0)
    world.statuses["b"] = TargetStatus("b", "", 5.0, last_scrape=9.0, failure=down)
    assert world.workloads.shown(NAME).failure is None
    assert not world.workloads.is_healthy(NAME)
    world.statuses["a"] = msgspec.structs.replace(world.statuses["a"], failure=down)
    assert world.workloads.shown(NAME).failure is down


def test_the_status_of_a_workload_is_the_sum_of_those_of_its_pods() -> None:
    """Requests of both in the time of one."""
    world = World("a", "b", "c")
    for name in "ab":
        window = msgspec.structs.replace(minute(T0, target=name), observed_seconds=60.0)
        world.statuses[name] = TargetStatus(
            name,
            "http://p",
            5.0,
            models={"m": Mode.ON},
            last_success=8.0,
            recent=(window,),
            engine_version="0.33.0",
        )
    world.statuses["c"] = TargetStatus("c", "http://p", 5.0)  # another daemon watches it
    (status,) = world.workloads.statuses({name: world.statuses[name] for name in "ab"})
    assert (status.name, status.url, status.pods) == (NAME, "", ("a", "b"))
    assert (status.models, status.engine_version) == ({"m": Mode.ON}, "0.33.0")
    (window,) = status.recent
    one = world.statuses["a"].recent[0]
    assert window.series.target == NAME
    assert window.tally.generation_tokens == 2 * (one.tally.generation_tokens or 0)
    assert window.observed_seconds == 60.0
    (again,) = world.workloads.statuses({name: world.statuses[name] for name in "ab"})
    assert again.recent is status.recent, "no pod has closed a minute since"
    world.statuses["b"] = msgspec.structs.replace(world.statuses["b"], recent=())
    (later,) = world.workloads.statuses({name: world.statuses[name] for name in "ab"})
    assert later.recent[0].tally == one.tally


def test_a_workload_without_a_pod_stays_while_the_guard_acts_on_it() -> None:
    world = World("a")
    assert world.watch(acting=True) == [NAME]
    status = world.workloads.shown(NAME)
    assert status.failure is not None
    assert status.last_scrape is not None, "that there is none is known"
    assert not world.workloads.is_healthy(NAME)
    assert world.watch("b", acting=True) == [NAME]
    assert world.watch() == []


def test_a_workload_whose_pods_others_watch_is_theirs() -> None:
    world = World("a")
    assert world.watch(known=("b",), acting=True) == []


def test_a_workload_that_is_the_service_of_a_target_is_not_guarded_twice() -> None:
    world = World()
    target = target_of("http://vllm-0", "chat", service=SERVICE)
    workloads = world.workloads.configure([pod("a")], [pod("a"), target], acting=set())
    assert workloads == ()

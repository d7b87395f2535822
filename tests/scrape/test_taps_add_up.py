"""Whatever happens, the windows by temperature add up to what the tap counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.domain.merge import merge_tallies
from specwatch.domain.model import Cursor, Moment, Source, Tally, Window
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from tests import pages

MODELS = ("a", "b")
TEMPERATURES = ("0", "(0,0.3]", ">1", "unknown")
K = 4


@dataclass
class Process:
    """One life of an engine, or of a proxy: the requests that it counted."""

    started: float | None
    taps: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)

    def engine_page(self) -> str:
        """The engine's page, with the tap's families where it has a tap."""
        text = ""
        for model in MODELS:
            mine = [r for r in self.requests if r["model_name"] == model]
            drafts = [kept for request in mine for kept in request["made"]]
            labels = {"engine": "0", "model_name": model}
            text += pages.page(
                pages.gauge("vllm:num_requests_running", 1, **labels),
                pages.counter("vllm:prompt_tokens", 7 * len(mine), **labels),
            )
            per_position = [sum(kept > index for kept in drafts) for index in range(K)]
            text += pages.speculation(len(drafts), per_position, model=model, k=K)
        return text + (self.tap_page() if self.taps else self._start())

    def tap_page(self) -> str:
        return pages.tap(*self.requests) + self._start()

    def _start(self) -> str:
        if self.started is None:
            return ""
        return pages.page(pages.gauge("process_start_time_seconds", self.started))


Sums = dict[tuple[str, str], Tally]


@dataclass
class Book:
    """What the pages of one source counted beyond its first page, as far as they were read."""

    total: list[dict[str, Any]] = field(default_factory=list)
    process: Process | None = None
    seen: int = 0
    saved: tuple[list[dict[str, Any]], Process | None, int] = field(default=([], None, 0))

    def read(self, process: Process) -> None:
        if self.process is not None:
            self.total += process.requests[self.seen if process is self.process else 0 :]
        self.process, self.seen = process, len(process.requests)

    def commit(self) -> None:
        self.saved = list(self.total), self.process, self.seen

    def lose(self) -> None:
        total, self.process, self.seen = self.saved
        self.total = list(total)


@dataclass
class World:
    """An engine, perhaps a proxy, the daemon, and books that know the truth."""

    proxied: bool
    several: bool = False
    wall: float = 1_700_000_000.0
    processes: int = 0
    cursor: Cursor | None = None
    windows: list[Window] = field(default_factory=list)
    engine_book: Book = field(default_factory=Book)
    tap_book: Book = field(default_factory=Book)
    restarts_of_proxy: int = 0
    reader: PageReader = field(default_factory=PageReader)
    watch: WindowBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self._process()
        self.proxy = self._process()
        self.watch = WindowBuilder("d", "t", max_gap=15.0)

    def _process(self) -> Process:
        self.processes += 1
        started = None if self.several else 1.7e9 + self.processes / 7
        return Process(started, taps=not self.proxied)

    def request(self, model: int, temperature: int, made: list[int], kind: str) -> None:
        """One request from its beginning to its end."""
        known = {
            "model_name": MODELS[model],
            "temperature": TEMPERATURES[temperature],
            "made": made,
            "k": K,
        }
        if kind == "record":
            known |= {"accepted": made, "method": "record", "finish_reason": "stop"}
            known |= {"tokens": sum(made) + len(made), "ttft": 0.25, "tpot": 0.5 * len(made)}
        else:
            known |= {"uncovered": kind}
        self.engine.requests.append(known)
        if self.proxied:
            self.proxy.requests.append(known)

    def restart(self) -> None:
        self.engine = self._process()

    def restart_proxy(self) -> None:
        self.proxy = self._process()

    def scrape(self, seconds: float, *, reach_proxy: bool = True) -> None:
        self.wall += seconds
        page = self.reader.read(self.engine.engine_page().encode())
        proxy = None
        if self.proxied and reach_proxy:
            proxy = self.reader.read(self.proxy.tap_page().encode())
        before = self.watch.cursor()
        observation = self.watch.observe(page, self.now, proxy)
        assert observation.error is observation.proxy_error is None
        self.take(observation)
        self.engine_book.read(self.engine)
        if not self.proxied:
            self.tap_book.read(self.engine)
        elif proxy is not None:
            seen = self.tap_book.process
            assert observation.proxy_restarted == (seen is not None and seen is not self.proxy)
            self.tap_book.read(self.proxy)
        assert before is None or self.watch.cursor() is not None

    def scrape_past_the_proxy(self, seconds: float) -> None:
        self.scrape(seconds, reach_proxy=False)

    def fail(self, seconds: float) -> None:
        self.wall += seconds
        self.take(self.watch.fail(self.now))

    def stop(self) -> None:
        self.take(self.watch.close())
        self.kill()

    def kill(self) -> None:
        self.engine_book.lose()
        self.tap_book.lose()
        self.watch = WindowBuilder("d", "t", max_gap=15.0, cursor=self.cursor)

    @property
    def now(self) -> Moment:
        return Moment(self.wall, self.wall - 1.6e9)

    def take(self, observation: ScrapeResult) -> None:
        assert observation.problems == ()
        if observation.batch is None:
            return
        series = [(window.series, window.start) for window in observation.batch]
        assert len(set(series)) == len(series)
        assert_agrees(list(observation.batch), proxied=self.proxied)
        self.windows += observation.batch
        self.cursor = observation.batch.cursor
        self.engine_book.commit()
        self.tap_book.commit()

    def end(self) -> None:
        self.take(self.watch.close())
        self.engine_book.lose()
        self.tap_book.lose()


def assert_adds_up(world: World) -> None:
    """Per bucket and for all, the windows hold what was counted."""
    of_tap = [window for window in world.windows if window.source is not Source.SERVER]
    for model in MODELS:
        whole = _sum(world.windows, model, "all")
        made = [r["made"] for r in world.engine_book.total if r["model_name"] == model]
        assert (whole.drafts or 0) == sum(map(len, made))
        assert whole.request_acceptance is None
        assert not {**whole.records, **whole.uncovered}
        for temperature in TEMPERATURES:
            total = _sum(of_tap, model, temperature)
            mine = [
                r
                for r in world.tap_book.total
                if (r["model_name"], r["temperature"]) == (model, temperature)
            ]
            _assert_counted(total, mine)


def assert_agrees(batch: list[Window], *, proxied: bool) -> None:
    """What the windows of a minute by temperature say of others is true."""
    whole = {w.series.model_name: w for w in batch if w.series.temperature == "all"}
    assert {window.source for window in whole.values()} == {Source.SERVER}
    parts = [window for window in batch if window.series.temperature != "all"]
    for window in parts:
        of_all = whole[window.series.model_name]
        siblings = [w for w in parts if w.series.model_name == window.series.model_name]
        assert window.source is (Source.PROXY if proxied else Source.TAP)
        assert window.source_drafts == sum(w.tally.drafts or 0 for w in siblings)
        assert window.server_drafts == of_all.tally.drafts
        assert window.gauges == of_all.gauges
        assert (window.mode, window.environment) == (of_all.mode, of_all.environment)
        assert window.restarts >= of_all.restarts
        # An idle bucket has no window.
        assert any((*window.tally.records.values(), *window.tally.uncovered.values()))


def _assert_counted(tally: Tally, requests: list[dict[str, Any]]) -> None:
    known = [r["accepted"] for r in requests if "accepted" in r]
    drafts = [kept for accepted in known for kept in accepted]
    assert (tally.drafts or 0) == len(drafts)
    assert (tally.draft_tokens or 0) == K * len(drafts)
    assert (tally.accepted_tokens or 0) == sum(drafts)
    per_position = tally.accepted_per_position or (0,) * K
    assert per_position == tuple(sum(kept > index for kept in drafts) for index in range(K))
    assert (tally.generation_tokens or 0) == sum(r.get("tokens", 0) for r in requests)
    for name, key in (
        ("records", "method"),
        ("uncovered", "uncovered"),
        ("requests", "finish_reason"),
    ):
        counts = {value: n for value, n in getattr(tally, name).items() if n}
        assert counts == Counter(r[key] for r in requests if key in r)
    for name in ("ttft", "tpot"):
        seen = [r[name] for r in requests if name in r]
        observed = getattr(tally, name)
        assert (observed.count if observed else 0) == len(seen)
        assert (observed.sum if observed else 0.0) == sum(seen)
    spread = tally.request_acceptance
    assert (spread.count if spread else 0) == sum(bool(accepted) for accepted in known)


def _sum(windows: list[Window], model: str, temperature: str) -> Tally:
    total = Tally()
    for window in windows:
        if (window.series.model_name, window.series.temperature) == (model, temperature):
            total = merge_tallies(total, window.tally)
    return total


some_seconds = st.sampled_from([1.0, 5.0, 5.0, 29.0, 61.0, 400.0])
request = st.tuples(
    st.just("request"),
    st.integers(0, 1),
    st.integers(0, 3),
    st.lists(st.integers(0, K), max_size=3),
    st.sampled_from(["record", "record", "record", "several", "disconnected"]),
)
scrape = st.tuples(st.just("scrape"), some_seconds)
without_restarts = (
    request,
    request,
    request,
    scrape,
    scrape,
    st.tuples(st.just("scrape_past_the_proxy"), some_seconds),
    st.tuples(st.just("fail"), some_seconds),
    st.just(("stop",)),
    st.just(("kill",)),
)
steps = st.one_of(*without_restarts, st.just(("restart",)), st.just(("restart_proxy",)))


def play(world: World, script: list[tuple[Any, ...]]) -> None:
    for name, *arguments in script:
        getattr(world, name)(*arguments)
    world.end()


@settings(max_examples=80)
@given(st.booleans(), st.lists(steps, min_size=15, max_size=50))
def test_windows_by_temperature_add_up_to_what_the_tap_counted(proxied, script):
    """Through restarts of engine, proxy and daemon, and pages that could not be read."""
    world = World(proxied)
    play(world, script)
    assert_adds_up(world)


@settings(max_examples=40)
@given(st.lists(st.one_of(*without_restarts), min_size=15, max_size=50))
def test_they_add_up_where_pages_name_no_process(script):
    """Multi-process mode of an engine with a tap inside."""
    world = World(proxied=False, several=True)
    play(world, script)
    assert_adds_up(world)


@pytest.mark.parametrize("proxied", [False, True])
def test_the_script_that_does_everything_once(proxied):
    """One fixed run that is known to reach every kind of event, so that the property does too."""
    world = World(proxied)
    script = [
        ("request", 0, 0, [1, 2], "record"),
        ("scrape", 5.0),
        ("request", 0, 1, [4], "record"),  # a label that was not there before
        ("request", 1, 3, [0, 0], "several"),
        ("scrape", 61.0),
        ("request", 0, 1, [3], "record"),
        ("scrape_past_the_proxy", 5.0),
        ("fail", 5.0),
        ("restart_proxy",),
        ("request", 0, 1, [2], "record"),
        ("scrape", 5.0),
        ("restart",),
        ("request", 0, 2, [1, 1, 1], "record"),
        ("scrape", 5.0),
        ("scrape", 61.0),
        ("stop",),
        ("request", 0, 2, [4], "record"),
        ("scrape", 61.0),
        ("kill",),
        ("request", 1, 0, [1], "disconnected"),
        ("scrape", 61.0),
        ("scrape", 61.0),
    ]
    play(world, script)
    assert_adds_up(world)
    assert {window.series.temperature for window in world.windows} == {"all", *TEMPERATURES}
    of_tap = [window for window in world.windows if window.source is not Source.SERVER]
    # A request that only a proxy that is gone had counted, unread, is lost with it.
    lost = 1 if proxied else 0
    a = [window for window in of_tap if window.series.model_name == "a"]
    assert sum(window.tally.drafts or 0 for window in a) == 1 + 1 - lost + 1 + 3 + 1
    assert max(window.restarts for window in a) == (2 if proxied else 1)

"""Whatever happens, the windows add up to what the server, its tap or its proxy counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import (
    ALL,
    COUNTERS,
    HISTOGRAMS,
    MINUTE,
    Cursor,
    Histogram,
    Mode,
    Moment,
    Source,
    Tally,
    Window,
)
from specwatch.errors import ScrapeReason
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from tests.scrape.server import MODELS, REASONS, TEMPERATURES, Book, Process, Request, request
from tests.segments import segment

ENGINES = ("0", "1")
BOUNDS = ((0.25, 0.5, 1.0), (0.25, 1.0, 4.0), (0.125,))


@dataclass
class World:
    """A server, perhaps with a tap inside or behind a proxy, a daemon that watches it, and books
    that know the truth. In multi-process mode (``several``) pages do not name their process."""

    tap: Source | None = None
    several: bool = False
    wall: float = 1_700_000_000.0
    monotonic: float = 50.0
    processes: int = 0
    glances: int = 0
    cursor: Cursor | None = None
    windows: list[Window] = field(default_factory=list)
    last_start: int = -1
    ends: bool = False
    """Whether the daemon stops or is killed."""
    engine_book: Book = field(default_factory=Book)
    tap_book: Book = field(default_factory=Book)
    reader: PageReader = field(default_factory=PageReader)
    engine: Process = field(init=False)
    proxy: Process = field(init=False)
    watch: WindowBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self._process(2 if self.tap else 1, 1, 2, 0)
        self.restart_proxy()
        self.watch = WindowBuilder("d", "t", max_gap=15.0)

    @property
    def now(self) -> Moment:
        return Moment(self.wall, self.monotonic)

    def _process(self, models: int, engines: int, k: int, bounds: int) -> Process:
        self.processes += 1
        # Of no two processes the same, whatever the clock is set to.
        started = None if self.several else self.wall + self.processes * math.pi / 22
        places = [(m, e) for m in MODELS[:models] for e in ENGINES[:engines]]
        return Process(started, places, k, BOUNDS[bounds])

    def restart(self, models: int, engines: int, k: int, bounds: int) -> None:
        """Another process takes the server's place, which shows only on pages that name it."""
        if not self.several:
            self.engine = self._process(2 if self.tap else models, engines, k, bounds)

    def restart_proxy(self) -> None:
        self.proxy = self._process(2, 2, 0, 0)

    def request(
        self,
        index: int,
        temperature: int,
        steps: list[int],
        kind: str,
        reason: str | None,
        ttft: float,
    ) -> None:
        """One request from its beginning to its end."""
        place = self.engine.places[index % len(self.engine.places)]
        made = request(place, temperature, steps, kind, reason, ttft, self.engine.k)
        self.engine.requests.append(made)
        self.proxy.requests.append(made)

    def hide(self, index: int) -> None:
        """Leave an engine off the page, but neither the first one nor what a tap counts."""
        if index and not self.tap:
            self.engine.hidden.add(self.engine.places[index % len(self.engine.places)])
            self.engine.hidden.discard(self.engine.places[0])

    def unhide(self) -> None:
        self.engine.hidden.clear()

    def _page(self) -> bytes:
        page = self.engine.engine_page()
        if self.tap is Source.TAP:
            page += self.engine.tap_page().partition("# HELP process_")[0]
        return page.encode()

    def _observe(self, proxy: dict[Any, float] | None) -> ScrapeResult:
        """As a scraper does: at a glance where that may do."""
        page = self._page()
        glance = None if self.tap is Source.PROXY else self.reader.glance(page)
        result = None if glance is None else self.watch.glance(glance, self.now)
        if result is not None:
            self.glances += 1
            return result
        result = self.watch.observe(self.reader.read(page), self.now, proxy)
        if self.tap is not Source.PROXY:
            self.watch.begin_glances(glance or self.reader.learn(page))
        return result

    def scrape(self, seconds: float, *, reach_proxy: bool = True) -> None:
        self.sleep(seconds)
        proxy = None
        if self.tap is Source.PROXY and reach_proxy:
            proxy = self.reader.read(self.proxy.tap_page().encode())
        result = self._observe(proxy)
        assert result.error is result.proxy_error is None
        self.take(result)
        self.engine_book.read(self.engine)
        if self.tap is Source.TAP:
            self.tap_book.read(self.engine)
        elif proxy is not None:
            before = self.tap_book.process
            assert result.proxy_restarted == (before is not None and before is not self.proxy)
            self.tap_book.read(self.proxy)

    def scrape_past_the_proxy(self, seconds: float) -> None:
        self.scrape(seconds, reach_proxy=False)

    def scrape_badly(self, seconds: float, index: int) -> None:
        """A page with a counter that is not a number: of no use as a whole."""
        self.sleep(seconds)
        page = self.reader.read(self._page())
        counters = [series for series in page if series.quantity.endswith("tokens")]
        page[counters[index % len(counters)]] = math.nan
        result = self.watch.observe(page, self.now)
        assert result.error is not None
        assert result.error.reason is ScrapeReason.NOT_A_NUMBER
        self.take(result)

    def fail(self, seconds: float) -> None:
        self.sleep(seconds)
        self.take(self.watch.fail(self.now))

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def step(self, seconds: float) -> None:
        """The wall clock is set; only forward where the daemon ends, too. After a restart of both
        it would look as if the server had run beside the one before."""
        self.wall += abs(seconds) if self.ends else seconds

    def stop(self) -> None:
        """Stop the daemon in good order, and start it again."""
        self.take(self.watch.close())
        self.kill()

    def kill(self) -> None:
        """Kill the daemon, and start it again where it left its cursor."""
        self.engine_book.lose()
        self.tap_book.lose()
        self.watch = WindowBuilder("d", "t", max_gap=15.0, cursor=self.cursor)
        self.last_start = -1

    def take(self, result: ScrapeResult) -> None:
        assert result.problems == ()
        if result.batch is None:
            return
        windows = list(result.batch)
        (start,) = {window.start for window in windows}
        assert start > self.last_start
        self.last_start = start
        assert len({window.series for window in windows}) == len(windows)
        assert_sane(windows, self.tap, several=self.several)
        self.windows += windows
        self.cursor = result.batch.cursor
        self.engine_book.commit()
        self.tap_book.commit()

    def play(self, script: list[tuple[Any, ...]]) -> None:
        self.ends = not {"stop", "kill"}.isdisjoint(name for name, *_ in script)
        for name, *arguments in script:
            getattr(self, name)(*arguments)
        if self.several:
            self.scrape(1.0)  # a killed daemon may have held back what its successor counts
        self.take(self.watch.close())
        self.engine_book.lose()  # what close() did not hand out does not exist
        self.tap_book.lose()


def assert_sane(windows: list[Window], tap: Source | None, *, several: bool) -> None:
    """Whole minutes, nothing negative, unknown where speculation was off; windows by temperature
    have what they say of the server from its own window."""
    servers = {w.series.model_name: w for w in windows if w.series.segment == ALL}
    for window in windows:
        tally, server = window.tally, servers[window.series.model_name]
        assert (window.start % MINUTE, window.length) == (0, MINUTE)
        assert min(window.observed_seconds, window.scrapes_ok, window.scrapes_failed) >= 0
        assert min(window.down_seconds, window.gauges.running_seconds) >= 0
        assert all((getattr(tally, name) or 0) >= 0 for name in COUNTERS)
        assert all(count >= 0 for count in tally.accepted_per_position or ())
        assert all(count >= 0 for count in tally.requests.values())
        for name in HISTOGRAMS:
            histogram = getattr(tally, name)
            assert histogram is None or (min(histogram.counts) >= 0 and histogram.sum >= 0)
        if window is server:
            assert window.source is Source.SERVER
            assert tally.request_acceptance is None
            assert not {**tally.records, **tally.uncovered}
            assert tally.prompt_tokens is not None
            if window.mode is not Mode.OFF or not several:
                assert (tally.drafts is None) is (window.mode is Mode.OFF)
            continue
        siblings = [w for w in windows if w.series.model_name == window.series.model_name]
        assert window.source is tap
        assert window.source_drafts == sum(w.tally.drafts or 0 for w in siblings if w is not server)
        assert window.server_drafts == server.tally.drafts
        assert window.gauges == server.gauges
        assert (window.mode, window.environment) == (server.mode, server.environment)
        assert window.restarts >= server.restarts
        # An idle bucket has no window.
        assert any(Counter(tally.records) + Counter(tally.uncovered) + Counter(tally.requests))


def assert_adds_up(world: World) -> None:
    """The windows hold exactly what was counted."""
    for model in MODELS:
        whole = tally_of(world.windows, model, "all")
        requests = [r for r in world.engine_book.total if r["model_name"] == model]
        assert_drafts(whole, [request for request in requests if request["k"]])
        assert (whole.prompt_tokens or 0) == 7 * len(requests)
        tokens = sum(sum(r["made"]) + len(r["made"]) for r in requests)
        assert (whole.generation_tokens or 0) == tokens
        assert_counts(whole.requests, requests, "reason")
        assert_observed(whole.ttft, [request["first"] for request in requests])
        for temperature in TEMPERATURES:
            part = tally_of(world.windows, model, temperature)
            requests = [
                r
                for r in world.tap_book.total
                if (r["model_name"], r["temperature"]) == (model, temperature)
            ]
            known = [request for request in requests if "accepted" in request]
            assert_drafts(part, known)
            assert (part.generation_tokens or 0) == sum(r.get("tokens", 0) for r in requests)
            assert_counts(part.records, requests, "method")
            assert_counts(part.uncovered, requests, "uncovered")
            assert_counts(part.requests, requests, "finish_reason")
            assert_observed(part.ttft, [r["ttft"] for r in requests if "ttft" in r])
            assert_observed(part.tpot, [r["tpot"] for r in requests if "tpot" in r])
            spread = part.request_acceptance
            assert (spread.count if spread else 0) == sum(bool(r["accepted"]) for r in known)


def tally_of(windows: Iterable[Window], model: str, temperature: str) -> Tally:
    return sum_tallies(
        window.tally
        for window in windows
        if (window.series.model_name, window.series.segment) == (model, segment(temperature))
    )


def assert_drafts(tally: Tally, requests: list[Request]) -> None:
    drafts = [accepted for request in requests for accepted in request["made"]]
    assert (tally.drafts or 0) == len(drafts)
    assert (tally.draft_tokens or 0) == sum(r["k"] * len(r["made"]) for r in requests)
    assert (tally.accepted_tokens or 0) == sum(drafts)
    positions = tally.accepted_per_position or ()
    for index in range(6):
        counted = positions[index] if index < len(positions) else 0
        assert counted == sum(accepted > index for accepted in drafts)


def assert_counts(counts: Any, requests: list[Request], key: str) -> None:
    expected = Counter(request[key] for request in requests if request.get(key) is not None)
    assert {name: count for name, count in counts.items() if count} == expected


def assert_observed(histogram: Histogram | None, values: list[float]) -> None:
    assert (histogram.sum if histogram else 0.0) == sum(values)
    below = 0
    if histogram is not None:
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            below += count
            assert below == sum(value <= bound for value in values)


WORLDS = (
    (None, False),
    (None, True),
    (Source.TAP, False),
    (Source.TAP, True),
    (Source.PROXY, False),
)
some_seconds = st.sampled_from([1.0, 5.0, 5.0, 5.0, 29.0, 61.0, 400.0])
index = st.integers(0, 9)
requests = st.tuples(
    st.just("request"),
    index,
    st.integers(0, 3),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["record", "record", "record", "several", "disconnected"]),
    st.sampled_from([None, *REASONS]),
    st.sampled_from([0.125, 0.25, 0.375, 0.75, 2.0, 9.0]),
)
scrapes = st.tuples(st.just("scrape"), some_seconds)
restarts = st.tuples(
    st.just("restart"),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([0, 1, 2, 4]),
    st.integers(0, 2),
)
steps = st.one_of(
    requests,
    requests,
    requests,
    scrapes,
    scrapes,
    scrapes,
    st.tuples(st.just("scrape_past_the_proxy"), some_seconds),
    st.tuples(st.just("scrape_badly"), some_seconds, index),
    st.tuples(st.just("fail"), some_seconds),
    st.tuples(st.just("step"), st.sampled_from([-4000.0, -90.0, -3.0, 7.0, 100.0, 3600.0])),
    restarts,
    st.tuples(st.just("restart_proxy")),
    st.tuples(st.just("hide"), index),
    st.tuples(st.just("unhide")),
    st.tuples(st.just("stop")),
    st.tuples(st.just("kill")),
)


@given(st.sampled_from(WORLDS), st.lists(steps, min_size=20, max_size=60))
def test_windows_add_up_to_what_was_counted(kind, script):
    """Through restarts, failures, gaps, clock steps, stops and kills of the daemon."""
    world = World(*kind)
    world.play(script)
    assert_adds_up(world)


@pytest.mark.parametrize("tap", [None, Source.TAP])
def test_pages_inside_a_minute_are_counted_at_a_glance(tap: Source | None) -> None:
    world = World(tap)
    for number in range(40):
        world.request(0, 0, [2, 1], "record", "stop", 0.25 + number % 3)
        world.scrape(5.0)
    assert world.glances > 25
    world.stop()
    assert_adds_up(world)


@given(st.lists(st.tuples(some_seconds, st.booleans()), min_size=1, max_size=40))
def test_windows_cover_the_time_from_the_first_page_to_the_last(script):
    """Failed scrapes lose no time: either the next page brings what happened, or it was down."""
    world = World()
    world.scrape(5.0)
    begin = world.monotonic
    world.play(
        [("scrape" if works else "fail", seconds) for seconds, works in [*script, (5.0, True)]]
    )
    covered = sum(w.observed_seconds + w.down_seconds for w in world.windows)
    assert covered == pytest.approx(world.monotonic - begin)
    good = sum(works for _, works in script)
    assert sum(window.scrapes_ok for window in world.windows) == good + 2
    assert sum(window.scrapes_failed for window in world.windows) == len(script) - good


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 5.0, 10.0]), st.sampled_from("ooofffr")),
        min_size=1,
        max_size=120,
    )
)
def test_no_window_is_longer_for_an_outage(script):
    """As long as specwatch scrapes, whether the engine comes back as it was or as another process.

    Silence is an outage if a scrape fails later than the longest gap, 15 s: a scrape of 10 s
    more, of which the first may lie in the window before.
    """
    world = World()
    world.scrape(5.0)
    for seconds, event in script:
        if event == "r":
            world.restart(1, 1, 2, 0)
        (world.fail if event == "f" else world.scrape)(seconds)
    world.play([])
    for window in world.windows:
        assert window.observed_seconds + window.down_seconds <= MINUTE + 15 + 10


@pytest.mark.parametrize(
    ("tap", "several", "drafts"),
    [
        (None, False, 3 + 1 + 1 + 2),
        (None, True, 3 + 1 + 1 + 2 + 2 + 1 + 2),  # one engine of one model
        (Source.TAP, False, 3 + 1 + 1 + 2),
        (Source.TAP, True, 3 + 1 + 1 + 1 + 2),  # one engine of two models
        (Source.PROXY, False, 3 + 1 + 1 + 2),
    ],
)
def test_a_script_that_reaches_every_kind_of_event(tap, several, drafts):
    """One fixed run with known drafts of the first model."""
    world = World(tap, several)
    script = [
        ("request", 0, 0, [1, 2], "record", "stop", 0.25),
        ("scrape", 5.0),
        ("request", 0, 1, [2, 0, 2], "record", "stop", 0.75),  # a label that was not there before
        ("scrape", 61.0),
        ("scrape_badly", 5.0, 0),
        ("fail", 5.0),
        ("request", 0, 1, [2], "several", "length", 9.0),
        ("scrape", 61.0),
        ("restart", 2, 2, 4, 1),
        ("request", 0, 2, [4], "record", "abort", 2.0),
        ("request", 3, 3, [3, 1], "several", "stop", 2.0),
        ("scrape", 5.0),
        ("hide", 3),
        ("scrape_past_the_proxy", 5.0),
        ("step", -4000.0),
        ("unhide",),
        ("request", 3, 3, [0, 0], "record", "stop", 0.125),
        ("restart_proxy",),
        ("scrape", 61.0),
        ("stop",),
        ("request", 2, 0, [1], "disconnected", "stop", 0.125),
        ("scrape", 5.0),
        ("scrape", 61.0),
        ("request", 0, 1, [4, 4], "record", "stop", 0.125),
        ("scrape", 1.0),
        ("kill",),
        ("scrape", 5.0),
    ]
    world.play(script)
    assert_adds_up(world)
    a = [w for w in world.windows if w.series.model_name == "a" and w.series.segment == ALL]
    assert sum(window.tally.drafts or 0 for window in a) == drafts
    assert sum(window.restarts for window in a) == (0 if several else 1)
    assert sum(window.scrapes_failed for window in a) == 2
    found = {window.series.segment.value for window in world.windows}
    assert found == ({"all", *TEMPERATURES} if tap else {"all"})

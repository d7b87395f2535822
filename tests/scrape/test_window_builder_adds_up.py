"""Whatever happens, the windows add up to what the server counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.domain.model import COUNTERS, HISTOGRAMS, MINUTE, Cursor, Mode, Moment, Window
from specwatch.errors import ScrapeReason
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from tests.scrape.server import REASONS, Engine, Ledger, Process, assert_adds_up

MODELS = ("a", 'b"\\')
ENGINES = ("0", "1")
BOUNDS = ((0.25, 0.5, 1.0), (0.25, 1.0, 4.0), (0.125,))


@dataclass
class World:
    """A server, a daemon that watches it, and the ledger that knows the truth."""

    multiprocess: bool
    wall: float = 1_700_000_000.0
    monotonic: float = 50.0
    processes: int = 0
    cursor: Cursor | None = None
    windows: list[Window] = field(default_factory=list)
    last_start: int = -1
    ledger: Ledger = field(default_factory=Ledger)
    reader: PageReader = field(default_factory=PageReader)
    process: Process = field(init=False)
    watch: WindowBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.restart(1, 1, 2, 0)
        self.watch = WindowBuilder("d", "t", max_gap=15.0)

    @property
    def now(self) -> Moment:
        return Moment(self.wall, self.monotonic)

    def restart(self, models: int, engines: int, k: int, bounds: int) -> None:
        """Another process takes the server's place."""
        self.processes += 1
        # Without a start time nobody can tell new bounds from old ones that stopped moving.
        chosen = BOUNDS[0 if self.multiprocess else bounds]
        self.process = Process(
            None if self.multiprocess else 1.7e9 + self.processes / 7,
            {(m, e): Engine(k, chosen) for m in MODELS[:models] for e in ENGINES[:engines]},
        )

    def work(self, index: int, accepted: list[int], reason: str | None, ttft: float) -> None:
        engines = list(self.process.engines.values())
        engines[index % len(engines)].work(accepted, reason, ttft)

    def show(self, index: int, *, hide: bool) -> None:
        names = list(self.process.engines)
        hidden = self.process.hidden
        (hidden.add if hide else hidden.discard)(names[index % len(names)])

    def scrape(self, seconds: float) -> None:
        self.sleep(seconds)
        samples = self.reader.read(self.process.page().encode())
        observation = self.watch.observe(samples, self.now)
        self.take(observation)
        if self.process.counts():
            assert observation.error is None
            self.ledger.see(self.process)
        else:
            assert observation.error is not None
            assert observation.error.reason is ScrapeReason.NO_ENGINE

    def scrape_badly(self, seconds: float, index: int) -> None:
        """A page with a counter that is no number: of no use as a whole."""
        self.sleep(seconds)
        samples = self.reader.read(self.process.page().encode())
        counters = [series for series in samples if series.quantity.endswith("tokens")]
        if counters:
            samples[counters[index % len(counters)]] = math.nan
            observation = self.watch.observe(samples, self.now)
            assert observation.error is not None
            assert observation.error.reason is ScrapeReason.NOT_A_NUMBER
        else:
            observation = self.watch.fail(self.now)
        self.take(observation)

    def fail(self, seconds: float) -> None:
        self.sleep(seconds)
        self.take(self.watch.fail(self.now))

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def step(self, seconds: float) -> None:
        self.wall += seconds

    def stop(self) -> None:
        """Stop the daemon in good order, and start it again."""
        self.take(self.watch.close())
        self.kill()

    def kill(self) -> None:
        """Kill the daemon, and start it again where it left its cursor."""
        self.ledger.lose()
        self.watch = WindowBuilder("d", "t", max_gap=15.0, cursor=self.cursor)
        self.last_start = -1

    def take(self, observation: ScrapeResult) -> None:
        assert observation.problems == ()
        if observation.batch is None:
            return
        starts = {window.start for window in observation.batch}
        assert len(starts) == 1
        assert min(starts) > self.last_start
        self.last_start = min(starts)
        assert len({window.series for window in observation.batch}) == len(
            observation.batch.windows
        )
        for window in observation.batch:
            assert_sane(window, multiprocess=self.multiprocess)
        self.windows += observation.batch
        self.cursor = observation.batch.cursor
        self.ledger.commit()


def assert_sane(window: Window, *, multiprocess: bool) -> None:
    """Whole minutes, nothing negative, and unknown where speculation was off."""
    assert window.start % MINUTE == 0
    assert window.length == MINUTE
    assert min(window.observed_seconds, window.scrapes_ok, window.scrapes_failed) >= 0
    assert window.down_seconds >= 0
    assert all((getattr(window.tally, name) or 0) >= 0 for name in COUNTERS)
    assert all(count >= 0 for count in window.tally.accepted_per_position or ())
    assert all(count >= 0 for count in window.tally.requests.values())
    for name in HISTOGRAMS:
        histogram = getattr(window.tally, name)
        assert histogram is None or (min(histogram.counts) >= 0 and histogram.sum >= 0)
    assert window.gauges.running_seconds >= 0
    assert window.tally.prompt_tokens is not None
    if window.mode is Mode.OFF and not multiprocess:
        assert window.tally.drafts is None
    if window.mode is not Mode.OFF:
        assert window.tally.drafts is not None


some_seconds = st.sampled_from([1.0, 5.0, 5.0, 5.0, 29.0, 61.0, 400.0])
index = st.integers(0, 9)
work = st.tuples(
    st.just("work"),
    index,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([None, *REASONS]),
    st.sampled_from([0.125, 0.25, 0.375, 0.75, 2.0, 9.0]),
)
scrape = st.tuples(st.just("scrape"), some_seconds)
steps = st.one_of(
    work,
    work,
    work,
    scrape,
    scrape,
    scrape,
    st.tuples(st.just("fail"), some_seconds),
    st.tuples(st.just("scrape_badly"), some_seconds, index),
    st.tuples(st.just("step"), st.sampled_from([-4000.0, -90.0, -3.0, 7.0, 100.0, 3600.0])),
    st.tuples(
        st.just("restart"),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from([0, 1, 2, 4]),
        st.integers(0, 2),
    ),
    st.tuples(st.just("hide"), index),
    st.tuples(st.just("unhide"), index),
    st.tuples(st.just("stop")),
    st.tuples(st.just("kill")),
)


def play(world: World, script: list[tuple]) -> None:
    for name, *arguments in script:
        if name in ("hide", "unhide"):
            world.show(*arguments, hide=name == "hide")
        else:
            getattr(world, name)(*arguments)
    world.take(world.watch.close())
    world.ledger.lose()  # what close() did not hand out does not exist


@settings(max_examples=100)
@given(st.booleans(), st.lists(steps, min_size=20, max_size=60))
def test_windows_add_up_to_what_the_server_counted(multiprocess, script):
    """Through restarts, failures, gaps, clock steps, stops and kills of the daemon."""
    world = World(multiprocess)
    play(world, script)
    assert_adds_up(world.windows, world.ledger.total)


@settings(max_examples=40)
@given(st.lists(st.tuples(some_seconds, st.booleans()), min_size=1, max_size=40))
def test_windows_cover_the_time_from_the_first_page_to_the_last(script):
    """Failed scrapes lose no time: either the next page brings what happened, or it was down."""
    world = World(multiprocess=False)
    world.scrape(5.0)
    begin = world.monotonic
    for seconds, works in [*script, (5.0, True)]:
        (world.scrape if works else world.fail)(seconds)
    world.take(world.watch.close())
    covered = sum(w.observed_seconds + w.down_seconds for w in world.windows)
    assert covered == pytest.approx(world.monotonic - begin)
    good = sum(works for _, works in script)
    assert sum(window.scrapes_ok for window in world.windows) == good + 2
    assert sum(window.scrapes_failed for window in world.windows) == len(script) - good


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 5.0, 10.0]), st.sampled_from("ooofffr")),
        min_size=1,
        max_size=120,
    )
)
def test_no_window_is_longer_for_an_outage(script):
    """As long as specwatch tries, whether the engine comes back as it was or as another process.

    Silence is known to be one when a look fails later than the longest gap, 15 s: a look of 10 s
    more, of which the first may lie in the window before.
    """
    world = World(multiprocess=False)
    world.scrape(5.0)
    for seconds, event in script:
        if event == "r":
            world.restart(1, 1, 2, 0)
        (world.fail if event == "f" else world.scrape)(seconds)
    world.take(world.watch.close())
    for window in world.windows:
        assert window.observed_seconds + window.down_seconds <= MINUTE + 15 + 10


@pytest.mark.parametrize("multiprocess", [False, True])
def test_the_script_that_does_everything_once(multiprocess):
    """One fixed run that is known to reach every kind of event, so that the property does too."""
    world = World(multiprocess)
    script = [
        ("work", 0, [1, 2], "stop", 0.25),
        ("scrape", 5.0),
        ("work", 0, [2, 0, 2], "stop", 0.75),
        ("scrape", 61.0),
        ("scrape_badly", 5.0, 0),
        ("fail", 5.0),
        ("work", 0, [2], "length", 9.0),
        ("scrape", 61.0),
        ("restart", 2, 2, 4, 1),
        ("work", 0, [4], "abort", 2.0),
        ("work", 3, [3, 1], "stop", 2.0),
        ("scrape", 5.0),
        ("hide", 3),
        ("scrape", 5.0),
        ("step", -4000.0),
        ("unhide", 3),
        ("work", 3, [0, 0], "stop", 0.125),
        ("scrape", 61.0),
        ("stop",),
        ("work", 1, [1], "stop", 0.125),
        ("scrape", 5.0),
        ("scrape", 61.0),
        ("work", 1, [4, 4], "stop", 0.125),
        ("scrape", 1.0),
        ("kill",),
        ("scrape", 5.0),
    ]
    play(world, script)
    assert_adds_up(world.windows, world.ledger.total)
    a = [window for window in world.windows if window.series.model_name == "a"]
    assert sum(window.tally.drafts or 0 for window in a) == 3 + 1 + 1 + 1 + 2
    assert sum(window.restarts for window in a) == 1
    assert sum(window.scrapes_failed for window in a) == 2

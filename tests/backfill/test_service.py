"""A backfill writes the windows that a daemon would have written, once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from specwatch.domain.model import ALL, HOUR, MINUTE, Moment, SeriesId, Window
from specwatch.errors import ConfigError, NoAnswer, StoreUnavailable
from specwatch.lab.backfill.prometheus import Access, Prometheus
from specwatch.lab.backfill.prometheus_pages import presence_selector
from specwatch.lab.backfill.prometheus_targets import BackfillSource, sources
from specwatch.lab.backfill.service import (
    MARGIN,
    OLD,
    Backfill,
    Filled,
    Span,
    discover,
    end_of,
)
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.batches import PackedBatch, pack_batch
from specwatch.store.repository import Store
from specwatch.store.stored_minutes import BACKFILL, Hold
from tests import pages
from tests.fixtures import OpenStore, each_database
from tests.simulated_prometheus import Recording, SimulatedPrometheus
from tests.store.examples import T0, batch, read, starts

DAEMON = "left"
TARGET = "gpu-1:8000"
LABELS = {"instance": TARGET, "job": "vllm"}
EVERY = 30.0
SPAN = Span(T0, T0 + 2 * HOUR)
NOW = float(T0 + 3 * HOUR)

Scrape = tuple[float, str]


def page(number: int, *, process: int = 0, since: int = 0) -> str:
    """What a server shows at a time: it counts steadily since its process began."""
    count = number - since
    requests = [
        {"model_name": "llama", "temperature": bucket, "accepted": [2, 4, 0], "ttft": 0.25}
        for bucket in ("0", "(0.3,0.7]")
        for _ in range(count // 16)
    ]
    families = [
        family
        for model in ("llama", "qwen")
        for family in (
            pages.gauge("vllm:num_requests_running", number % 5, model_name=model, engine="0"),
            pages.counter("vllm:generation_tokens", 40 * count, model_name=model, engine="0"),
            pages.histogram(
                "vllm:time_to_first_token_seconds",
                (0.1, 1.0),
                (count, count // 2, 0),
                count / 4,
                model_name=model,
                engine="0",
            ),
        )
    ]
    grouped: dict[str, pages.Family] = {}
    for name, kind, samples in families:
        grouped.setdefault(name, (name, kind, []))[2].extend(samples)
    return (
        pages.page(*grouped.values(), pages.gauge("process_start_time_seconds", float(process)))
        + pages.speculation(10 * count, (8 * count, 5 * count, count), model="llama")
        + pages.tap(*requests)
    )


def timeline(since: float = T0 + 7.0, until: float = T0 + 2 * HOUR) -> list[Scrape]:
    """Scrapes of parts of two hours: a restart in the first, a gap over the edge of the hours."""
    scrapes = []
    for number in range(int((until - since) // EVERY) + 1):
        time = since + EVERY * number
        if T0 + 1200 <= time < T0 + HOUR + 420 or time >= T0 + HOUR + 840:
            continue
        started = 0 if time < T0 + 434 else 14
        scrapes.append((time, page(number, process=started, since=min(started, number))))
    return scrapes


@functools.cache
def as_live() -> tuple[Window, ...]:
    """The windows of a daemon that saw those pages."""
    return tuple(watched(SCRAPES, EVERY))


def watched(scrapes: Sequence[Scrape], every: float) -> list[Window]:
    """As a daemon does it, by its own reader."""
    watch = WindowBuilder(DAEMON, TARGET, max_gap=3 * every)
    windows: list[Window] = []
    for time, text in scrapes:
        observed = watch.observe(pages.read(text), Moment(time, time))
        windows += observed.batch.windows if observed.batch else ()
    closed = watch.close().batch
    return [*windows, *(closed.windows if closed else ())]


def ordered(windows: Sequence[Window]) -> list[Window]:
    return sorted(windows, key=lambda w: (w.start, w.series.model_name, w.series.segment))


def in_all(window: Window) -> bool:
    return (window.series.model_name, window.series.segment) == ("llama", "all")


def drafts(windows: Sequence[Window]) -> int:
    return sum(w.tally.drafts or 0 for w in windows if w.series.segment == ALL)


@pytest.fixture
def server() -> Iterator[SimulatedPrometheus]:
    with SimulatedPrometheus() as running:
        yield running


SCRAPES = timeline()


def record(server: SimulatedPrometheus, scrapes: Sequence[Scrape]) -> None:
    for time, text in scrapes:
        server.recording.scrape(text, time, **LABELS)


@functools.cache
def recorded() -> Recording:
    recording = Recording()
    for time, text in SCRAPES:
        recording.scrape(text, time, **LABELS)
    return recording


@pytest.fixture
def full(server: SimulatedPrometheus) -> SimulatedPrometheus:
    server.recording = recorded()
    return server


def client(server: SimulatedPrometheus) -> Prometheus:
    return Prometheus(Access(url=server.url), sleep=lambda _: None)


def found(
    server: SimulatedPrometheus, span: Span = SPAN, name: str | None = None
) -> list[BackfillSource]:
    api = client(server)
    try:
        got = sources(
            discover(api, presence_selector("{}"), span),
            (),
            name=name,
            hostname="here",
            default_name=str,
        )
    finally:
        api.close()
    if got.refused:
        raise ConfigError("; ".join(got.refused))
    return got.sources


def fill(
    server: SimulatedPrometheus,
    store: Store,
    span: Span = SPAN,
    *,
    step: float | None = None,
    write: bool = True,
    past_cursors: bool = False,
    now: float = NOW,
) -> Filled:
    api = client(server)
    try:
        backfill = Backfill(
            api,
            store,
            DAEMON,
            lambda *_: None,
            step=step,
            write=write,
            past_cursors=past_cursors,
            now=lambda: now,
            sleep=lambda _: None,
        )
        (source,) = found(server, span)
        return backfill.fill(source, span)
    finally:
        api.close()


@each_database
def test_windows_are_those_of_a_daemon_and_written_once(
    full: SimulatedPrometheus, store: Store
) -> None:
    """In every field: counts through a restart and a gap, gauges, models, taps' temperatures."""
    expected = as_live()
    assert {w.series.segment.value for w in expected} >= {"all", "0", "(0.3,0.7]"}
    assert sum(w.restarts for w in expected if w.series.model_name == "qwen") == 1
    filled = fill(full, store)
    assert ordered(read(store)) == ordered(expected)
    minutes = len({w.start for w in expected})
    assert filled == Filled(TARGET, TARGET, 2, minutes, 0, 0, SPAN.until, 8)
    queries = full.page_queries()
    assert fill(full, store) == filled._replace(
        minutes_written=0, minutes_kept=minutes, skipped_hours=2, queries=0
    )
    assert full.page_queries() == queries
    assert ordered(read(store)) == ordered(expected)


def test_a_stopped_backfill_continues_after_the_last_whole_hour(
    full: SimulatedPrometheus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted across the edge of the hours is counted once, although it was stopped."""
    write = Store.add_missing
    with monkeypatch.context() as patched:

        def fail(self: Store, windows: Sequence[object], *rest: object) -> int:
            if windows[0].start >= T0 + HOUR:  # type: ignore[attr-defined]
                raise StoreUnavailable("killed")
            return write(self, windows, *rest)  # type: ignore[arg-type]

        patched.setattr(Store, "add_missing", fail)
        with pytest.raises(StoreUnavailable):
            fill(full, store)
    assert 0 < len(starts(read(store))) < len(as_live())
    assert max(starts(read(store))) < T0 + HOUR
    assert fill(full, store).skipped_hours == 1
    assert ordered(read(store)) == ordered(as_live())


def dense() -> list[Scrape]:
    """A scrape every ten seconds, with gaps: one of 110 s, and one over the edge of the hours that
    begins early in a minute."""
    spans = ((3000, 3100), (3210, 3246), (HOUR + 300, HOUR + 400))
    return [
        (float(T0 + time), page(time // 10 - 300))
        for first, last in spans
        for time in range(first, last, 10)
    ]


@pytest.mark.parametrize("live", [False, True])
def test_a_gap_after_the_hour_before_is_counted_unless_the_daemon_watched_it(
    server: SimulatedPrometheus, url: str, open_store: OpenStore, *, live: bool
) -> None:
    """What an earlier backfill wrote of the minute in which the gap began ends with the gap; what a
    daemon wrote of it goes on."""
    record(server, dense())
    filling = open_store(url, version=f"1{BACKFILL}")
    watching = open_store(url) if live else filling
    fill(server, watching, Span(T0, T0 + HOUR))
    fill(server, filling)
    expected = watched(dense(), 10.0)
    assert expected[-1].start > T0 + HOUR
    assert any(w.gauges.sampled_seconds < w.observed_seconds - 100 for w in expected)
    left_out = {T0 + HOUR + 300} if live else set()
    assert ordered(read(filling)) == ordered([w for w in expected if w.start not in left_out])


def test_hours_around_one_that_is_stored_are_filled_in(
    server: SimulatedPrometheus, store: Store
) -> None:
    """One of them is stored in half."""
    scrapes = [(T0 + 10.0 + 240 * number, page(number)) for number in range(45)]
    record(server, scrapes)
    fill(server, store, Span(T0 + HOUR, T0 + 2 * HOUR + 1800))
    filled = fill(server, store, Span(T0, T0 + 3 * HOUR))
    assert (filled.skipped_hours, filled.minutes_written) == (1, 22)
    assert ordered(read(store)) == ordered(watched(scrapes, 240.0))


def test_live_windows_stay_as_they_are(full: SimulatedPrometheus, store: Store) -> None:
    """Those of another daemon on the target too; together everything is counted once."""
    live = [
        msgspec.structs.replace(w, series=msgspec.structs.replace(w.series, daemon=who))
        for first, last, who in ((T0 + 300, T0 + 600, DAEMON), (T0 + 600, T0 + 900, "right"))
        for w in as_live()
        if first <= w.start < last
    ]
    store.write([batch(*live)], NOW)
    filled = fill(full, store)
    assert filled.minutes_kept == 10
    everything = read(store)
    assert [w for w in everything if T0 + 300 <= w.start < T0 + 900] == ordered(live)
    assert drafts(everything) == drafts(as_live())
    assert starts(everything) == starts(ordered(as_live()))


def test_a_gap_that_a_live_window_counts_is_not_filled(
    full: SimulatedPrometheus, store: Store
) -> None:
    """The daemon was away for five minutes, and its next window has what happened meanwhile."""
    expected = as_live()
    lost = [w for w in expected if T0 + 600 <= w.start < T0 + 900]
    made_up = [
        msgspec.structs.replace(
            w,
            observed_seconds=w.observed_seconds + 300,
            tally=msgspec.structs.replace(w.tally, drafts=(w.tally.drafts or 0) + drafts(lost)),
        )
        for w in expected
        if w.start == T0 + 900 and w.series.segment == ALL
    ]
    store.write([batch(*made_up)], NOW)
    fill(full, store)
    assert not [w for w in read(store) if T0 + 600 <= w.start < T0 + 900]
    llama = [w for w in read(store) if w.series.model_name == "llama"]
    assert drafts(llama) == drafts([w for w in expected if w.series.model_name == "llama"])


def test_a_window_that_would_count_what_a_live_one_has_is_left_out(
    full: SimulatedPrometheus, store: Store
) -> None:
    """Prometheus was away for some minutes, in which the daemon watched."""
    first_after = T0 + HOUR + 420
    live = msgspec.structs.replace(
        as_live()[0], series=SeriesId(DAEMON, TARGET, "llama"), start=T0 + HOUR
    )
    store.write([batch(live)], NOW)
    fill(full, store)
    written = {w.start for w in read(store) if w.series.model_name == "llama"}
    assert first_after not in written
    assert first_after + MINUTE in written
    assert first_after in {w.start for w in read(store) if w.series.model_name == "qwen"}


def test_minutes_written_meanwhile_are_not_written_twice(
    full: SimulatedPrometheus, store: Store, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another backfill fills the same hours while this one fetches them."""
    other = open_store(store.url, daemon="right")
    write = Store.add_missing

    def late(self: Store, *given: object) -> int:
        monkeypatch.setattr(Store, "add_missing", write)
        fill(full, other)
        return write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "add_missing", late)
    filled = fill(full, store)
    assert filled.minutes_written == 0, "another wrote them"
    assert ordered(read(store)) == ordered(as_live())
    with store.connected() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM minutes").scalar()
    assert rows == len(as_live())


def stopped_at(time: float) -> PackedBatch:
    """What a daemon wrote that stopped then."""
    watch = WindowBuilder(DAEMON, TARGET, max_gap=60)
    watch.observe(pages.read(page(1)), Moment(time, time))
    last = watch.close().batch
    assert last is not None
    return pack_batch(last)


@pytest.mark.parametrize("daemon", [DAEMON, "right"])
def test_nothing_is_written_after_the_last_scrape_of_a_daemon(
    full: SimulatedPrometheus, store: Store, open_store: OpenStore, daemon: str
) -> None:
    """It counts the rest itself when it runs again."""
    open_store(store.url, daemon=daemon, now=T0).write([stopped_at(T0 + 500.0)], NOW)
    filled = fill(full, store)
    assert filled.until == T0 + 480
    assert filled.held_by == Hold(daemon, T0 + 500.0, runs=True)
    assert sorted(set(starts(read(store)))) == list(range(T0, T0 + 540, MINUTE))


@each_database
def test_the_old_cursor_of_a_daemon_that_ended_can_be_passed(
    full: SimulatedPrometheus, store: Store, open_store: OpenStore
) -> None:
    """With the first window after it the cursor goes, so that the daemon counts none of it again;
    one that may run is never passed."""
    right = open_store(store.url, daemon="right", now=T0)
    right.write([stopped_at(T0 + 500.0)], NOW)
    much_later = NOW + OLD
    assert fill(full, store, past_cursors=True, now=much_later).until == T0 + 480
    right.close(T0 + 500.0)
    assert fill(full, store, past_cursors=True).until == T0 + 480, "too young"
    filled = fill(full, store, past_cursors=True, now=much_later)
    assert (filled.until, filled.held_by) == (SPAN.until, None)
    assert right.cursors() == {}
    assert max(starts(read(store))) == max(starts(as_live()))


def test_an_hour_is_completed_under_the_daemon_that_has_it(
    full: SimulatedPrometheus, store: Store, open_store: OpenStore
) -> None:
    """An hour is read of one daemon: one of two would be lost, once they are rolled up."""
    right = [
        msgspec.structs.replace(w, series=msgspec.structs.replace(w.series, daemon="right"))
        for w in as_live()
        if T0 + 300 <= w.start < T0 + 600
    ]
    open_store(store.url, daemon="right").write([batch(*right)], NOW)
    fill(full, store)
    assert {w.series.daemon for w in read(store)} == {"right"}
    store.roll_up(NOW, everybody=True)
    assert drafts(read(store, length=HOUR)) == drafts(as_live())


def test_a_gap_after_any_minute_of_an_earlier_backfill_is_counted(
    server: SimulatedPrometheus, url: str, open_store: OpenStore
) -> None:
    """Not only its last minute before an hour: a gap after any of them is counted."""
    scrapes = [
        (float(T0 + time), page(time // 10 - 300))
        for first, last in ((3000, 3080), (3210, 3246))
        for time in range(first, last, 10)
    ]
    record(server, scrapes)
    store = open_store(url, version=f"1{BACKFILL}")
    fill(server, store, Span(T0, T0 + 3180))
    fill(server, store, Span(T0, T0 + HOUR))
    assert ordered(read(store)) == ordered(watched(scrapes, 10.0))


def test_hours_are_right_and_stay_so_when_minutes_are_pruned(
    full: SimulatedPrometheus, store: Store
) -> None:
    fill(full, store)
    store.roll_up(NOW)
    before = read(store, length=HOUR)
    assert drafts(before) == drafts(as_live())
    later = NOW + 30 * 86_400
    store.prune(later, 86_400.0, 400 * 86_400.0)
    assert read(store) == []
    asked = full.page_queries()
    again = fill(full, store)
    assert (again.minutes_written, again.skipped_hours) == (0, 2)
    assert full.page_queries() == asked
    store.roll_up(later)
    assert read(store, length=HOUR) == before


def test_a_daemon_does_not_see_a_backfill_as_a_rival(
    full: SimulatedPrometheus, store: Store, open_store: OpenStore
) -> None:
    """Beside a daemon that runs it ends early enough, and without one when it likes."""
    assert end_of(store, NOW, NOW) == NOW - MARGIN
    filling = open_store(store.url, now=NOW, version=f"1{BACKFILL}")
    until = T0 + 2 * HOUR
    store.close(NOW)
    assert end_of(filling, until + 5.0, NOW) == until
    open_store(store.url, now=T0 + 60.0, pid=7)
    assert end_of(filling, until, until) == until - MARGIN
    fill(full, filling, Span(T0, end_of(filling, until, until)))
    assert starts(read(filling))


def test_slices_are_halved_if_the_server_refuses_their_size(
    full: SimulatedPrometheus, store: Store
) -> None:
    full.most_samples = 20
    with pytest.raises(NoAnswer, match="too many samples"):
        fill(full, store)
    full.most_samples = 500
    fill(full, store)
    assert ordered(read(store)) == ordered(as_live())


def test_a_history_of_fewer_samples_has_the_same_counts(
    full: SimulatedPrometheus, store: Store
) -> None:
    """A look a minute: the same counts, over all."""
    fill(full, store, step=60.0)
    minutely = read(store)
    assert drafts(minutely) == pytest.approx(drafts(as_live()), rel=0.02)
    of_minute = {w.start: w.tally for w in as_live() if in_all(w)}
    apart = {w.start - T0 for w in minutely if in_all(w) and w.tally != of_minute[w.start]}
    assert apart <= {0, 420}, "only at the first look and at the restart"
    assert {w.scrapes_ok for w in minutely if w.series.segment == ALL} == {1}


def test_pages_with_changed_labels_are_one_history(
    server: SimulatedPrometheus, store: Store
) -> None:
    """The pages under the new ones follow those under the old ones."""
    server.recording.add(recorded(), until=T0 + 700.0, pod="old")
    server.recording.add(recorded(), since=T0 + 700.0, pod="new")
    fill(server, store)
    assert ordered(read(store)) == ordered(as_live())


def test_a_dry_run_reports_what_would_be_written(full: SimulatedPrometheus, store: Store) -> None:
    planned = fill(full, store, write=False)
    assert full.page_queries() == 0
    assert read(store) == []
    assert planned == fill(full, store)


def test_a_store_that_is_locked_for_a_while_is_written_later(
    full: SimulatedPrometheus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = Store.add_missing, [StoreUnavailable("locked")] * 3

    def busy(self: Store, *given: object) -> int:
        if failures:
            raise failures.pop()
        return write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "add_missing", busy)
    fill(full, store)
    assert ordered(read(store)) == ordered(as_live())

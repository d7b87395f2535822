"""When windows close, what they are called, and what is sampled rather than counted."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.model import (
    MINUTE,
    Environment,
    Gauges,
    Mode,
    Moment,
    Series,
    SeriesId,
    Window,
)
from specwatch.domain.sample import samples_of
from specwatch.errors import ScrapeReason
from specwatch.scrape import tally
from specwatch.scrape.gauges import GpuMemory
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from tests.pages import counter, gauge, histogram, page, read, speculation

MAX_GAP = 15.0


def server(
    generated: float = 0.0,
    *,
    running: float = 0.0,
    waiting: float = 0.0,
    usage: float = 0.0,
    model: str = "m",
    start: float = 1.5,
    drafts: int | None = None,
) -> dict[Series, float]:
    """A page of one model, with speculation where ``drafts`` is given."""
    labels = {"engine": "0", "model_name": model}
    text = page(
        gauge("process_start_time_seconds", start),
        gauge("vllm:num_requests_running", running, **labels),
        gauge("vllm:num_requests_waiting", waiting, **labels),
        gauge("vllm:kv_cache_usage_perc", usage, **labels),
        counter("vllm:generation_tokens", generated, **labels),
    )
    return read(text + (speculation(drafts, [drafts], model=model) if drafts is not None else ""))


def new_watch(**options) -> WindowBuilder:
    return WindowBuilder("d", "t", max_gap=MAX_GAP, **options)


def at(seconds: float) -> Moment:
    return Moment(6000.0 + seconds, seconds)


def windows_of(*observations: ScrapeResult) -> list[Window]:
    return [window for o in observations if o.batch is not None for window in o.batch]


def only_window(watch: WindowBuilder) -> Window:
    (window,) = windows_of(watch.close())
    return window


def test_a_minute_closes_with_the_first_scrape_after_it():
    watch = new_watch()
    assert watch.observe(server(10), at(1)).batch is None
    assert watch.observe(server(15), at(31)).batch is None
    batch = watch.observe(server(100), at(61)).batch
    assert batch is not None
    (window,) = batch
    assert window.series == SeriesId("d", "t", "m")
    assert (window.start, window.length) == (6000, 60)
    assert window.tally.generation_tokens == 5
    assert (window.scrapes_ok, window.observed_seconds) == (2, 30)
    assert batch.cursor is not None
    assert batch.cursor.wall == 6031
    assert batch.cursor.process_start == 1.5
    assert sorted(batch.cursor.samples.values()) == [15.0]


@pytest.mark.parametrize(
    ("scrapes", "expected"),
    [
        pytest.param(
            [(at(1), 10), (at(301), 310)],
            [(6000, 1, 0, 0, 0), (6300, 1, 0, 300, 300)],
            id="counts of a gap are in the window of the page that brings them",
        ),
        pytest.param(
            [(at(1), 10), (at(6), 12), (at(61), None), (at(66), None), (at(121), 99)],
            [(6000, 2, 0, 2, 5), (6060, 0, 2, 0, 0), (6120, 1, 0, 87, 115)],
            id="failed scrapes close windows too and lose nothing",
        ),
        pytest.param(
            [
                (Moment(6001, 1), 0),
                (Moment(5401, 6), 1),
                (Moment(5999, 604), 2),
                (Moment(6059, 664), 3),
                (Moment(6060, 665), 4),
            ],
            [(6000, 4, 0, 3, 663), (6060, 1, 0, 1, 1)],
            id="a clock that steps back keeps the window open until it has caught up",
        ),
        pytest.param(
            [(Moment(6001, 1), 0), (Moment(9601, 6), 2)],
            [(6000, 1, 0, 0, 0), (9600, 1, 0, 2, 5)],
            id="a clock that steps forward ends the window and takes no time",
        ),
        pytest.param(
            [(at(1), None), (at(61), None)],
            [],
            id="before the first page there is no model that could have a window",
        ),
    ],
)
def test_windows_have_what_was_scraped_in_them(scrapes, expected):
    """Start, scrapes that succeeded and failed, tokens, and observed seconds."""
    watch = new_watch()
    results = [
        watch.fail(now) if tokens is None else watch.observe(server(tokens), now)
        for now, tokens in scrapes
    ]
    assert [
        (w.start, w.scrapes_ok, w.scrapes_failed, w.tally.generation_tokens, w.observed_seconds)
        for w in windows_of(*results, watch.close())
    ] == expected


def outage(*scrapes: tuple[float, dict[Series, float] | ScrapeReason], **options) -> list[Window]:
    """All windows of scrapes that failed or did not, by seconds."""
    watch = new_watch(**options)
    results = [
        watch.fail(at(seconds), what)
        if isinstance(what, ScrapeReason)
        else watch.observe(what, at(seconds))
        for seconds, what in scrapes
    ]
    return windows_of(*results, watch.close())


REFUSED, TOO_LARGE = ScrapeReason.REFUSED, ScrapeReason.TOO_LARGE


def times(windows: list[Window]) -> list[tuple[float, float]]:
    return [(window.observed_seconds, window.down_seconds) for window in windows]


def test_an_outage_is_downtime_of_each_of_its_minutes():
    """Up to the first page of the next process, and no part of what is observed."""
    windows = outage(
        *((seconds, server(seconds, running=9)) for seconds in range(0, 15, 5)),
        *((seconds, REFUSED) for seconds in range(15, 170, 5)),
        *((seconds, server(1, start=9000.0)) for seconds in range(170, 185, 5)),
    )
    assert times(windows) == [(10, 45), (0, 60), (5, 55), (5, 0)]
    assert [window.restarts for window in windows] == [0, 0, 1, 0]
    assert [window.gauges.sampled_seconds for window in windows] == [10, 0, 5, 5]
    sound = [sample.sound for sample in samples_of(windows)]
    assert sound == [False, False, False, True]


def test_an_outage_in_which_the_process_lived_is_downtime_too():
    """Its counts come with the first page after it, so that their window is not sound, even where
    hardly any of the outage lies in it."""
    windows = outage(
        (0, server(0)),
        *((seconds, REFUSED) for seconds in range(5, 120, 5)),
        *((seconds, server(seconds)) for seconds in range(120, 180, 5)),
    )
    assert times(windows) == [(0, 55), (0, 60), (55, 5)]
    assert windows[-1].tally.generation_tokens == 175
    assert [sample.sound for sample in samples_of(windows)] == [False] * 3


@pytest.mark.parametrize(
    ("scrapes", "expected"),
    [
        pytest.param(
            [
                *((seconds, server(seconds)) for seconds in range(0, 50, 5)),
                *((seconds, REFUSED) for seconds in range(50, 75, 5)),
                (75, server(1, start=9000.0)),
            ],
            [(45, 10), (0, 20)],
            id="seconds before a minute belong to it, though the outage is certain only after it",
        ),
        pytest.param(
            [(0, server(9)), (5, REFUSED), (10, server(1, start=9000.0))],
            [(0, 10)],
            id="a restart between two scrapes is downtime from the last good one",
        ),
        pytest.param(
            [(0, server(0)), (5, REFUSED), (10, REFUSED), (15, server(15))],
            [(15, 0)],
            id="a few failed scrapes of a process that lives are no outage",
        ),
        pytest.param(
            [(0, server(0)), (300, REFUSED), (320, server(320))],
            [(0, 0), (320, 0)],
            id="specwatch did not scrape before the outage",
        ),
        pytest.param(
            [(0, server(0)), *((s, REFUSED) for s in (5, 20, 300, 310)), (320, server(320))],
            [(0, 20), (280, 20)],
            id="specwatch did not scrape during the outage",
        ),
        pytest.param(
            [(0, server(0)), (10, REFUSED), (20, REFUSED), (320, server(320))],
            [(0, 20), (300, 0)],
            id="specwatch did not scrape after the outage",
        ),
        pytest.param(
            [(0, server(0)), *((s, TOO_LARGE) for s in range(5, 60, 5)), (60, server(5))],
            [(0, 0), (60, 0)],
            id="an engine whose page cannot be used is not down",
        ),
        pytest.param(
            [(0, server(0)), *((s, REFUSED) for s in (5, 10, 15, 20)), (25, TOO_LARGE)],
            [(0, 25)],
            id="an unusable page ends the outage",
        ),
    ],
)
def test_downtime_is_the_time_in_which_the_engine_did_not_answer(scrapes, expected):
    assert times(outage(*scrapes)) == expected


def test_a_daemon_that_starts_in_an_outage_counts_it_from_its_first_look():
    """And what the daemon before it saw of the outage counts once."""
    first = new_watch()
    first.observe(server(10), at(0))
    for seconds in (5, 10, 15, 20):
        first.fail(at(seconds))
    batch = first.close().batch
    assert batch is not None
    assert times(list(batch)) == [(0, 20)]
    windows = outage(
        *((seconds, REFUSED) for seconds in range(60, 100, 5)),
        (100, server(3, start=6098.0)),
        (105, server(4, start=6098.0)),
        cursor=batch.cursor,
    )
    assert times(windows) == [(2 + 5, 40)]


def test_failures_after_a_restart_of_the_daemon_belong_to_the_known_models():
    """With the mode that they had: an unreachable server is no baseline without speculation."""
    first = new_watch()
    first.observe(server(10, drafts=3), at(1))
    batch = first.close().batch
    assert batch is not None
    second = new_watch(cursor=batch.cursor)
    assert second.models == {"m": Mode.ON}
    (window,) = windows_of(second.fail(at(61)), second.fail(at(121)))
    assert (window.scrapes_ok, window.scrapes_failed) == (0, 1)
    assert window.mode is Mode.ON
    assert window.environment.fingerprint is None


@pytest.mark.parametrize("page_", [{}, read(page(gauge("process_start_time_seconds", 9000.0)))])
def test_a_page_without_an_engine_is_a_failed_scrape(page_):
    watch = new_watch()
    watch.observe(server(10), at(1))
    observation = watch.observe(page_, at(6))
    assert observation.error is not None
    assert observation.error.reason is ScrapeReason.NO_ENGINE
    assert "not of vLLM, llama.cpp" in str(observation.error)
    watch.observe(server(12), at(11))
    window = only_window(watch)
    assert (window.scrapes_ok, window.scrapes_failed, window.restarts) == (2, 1, 0)
    assert (window.tally.generation_tokens, window.observed_seconds) == (2, 10)


@given(st.lists(st.floats(-4000, 4000), max_size=30))
def test_windows_of_a_run_never_overlap_nor_run_backwards(steps):
    """However the wall clock jumps; nor after a window was closed before its time."""
    watch, wall, starts = new_watch(), 100_000.0, []
    for number, step in enumerate(steps):
        wall += step
        windows = windows_of(watch.observe(server(number), Moment(wall, 5.0 * number)))
        if number % 7 == 6:
            windows += windows_of(watch.close())
        starts += [window.start for window in windows]
    assert all(after >= before + MINUTE for before, after in itertools.pairwise(starts))
    assert all(start % MINUTE == 0 for start in starts)


def test_a_window_that_was_closed_early_is_not_opened_again():
    """The same minute twice in one run would be one row for two windows."""
    watch = new_watch()
    watch.observe(server(0), at(1))
    first = only_window(watch)
    watch.observe(server(7), at(6))
    second = only_window(watch)
    assert (first.start, second.start) == (6000, 6060)
    assert second.tally.generation_tokens == 7
    assert watch.close().batch is None


def test_a_restarted_daemon_continues_at_its_cursor():
    first = new_watch()
    first.observe(server(10), at(1))
    first.observe(server(11), at(6))
    batch = first.close().batch
    assert batch is not None
    second = WindowBuilder("d", "t", max_gap=MAX_GAP, cursor=batch.cursor)
    second.observe(server(40), Moment(6106, 3.0))
    window = only_window(second)
    assert (window.start, window.tally.generation_tokens, window.restarts) == (6060, 29, 0)
    assert window.observed_seconds == 100
    assert window.gauges.sampled_seconds == 0


@pytest.mark.parametrize(("start", "counted", "restarts"), [(1.5, 31, 0), (2.5, 41, 1)])
def test_a_late_cursor_counts_a_restart_while_the_daemon_was_down(
    start: float, counted: int, restarts: int
):
    """The minute into which it falls is not sound: it is in no speedup."""
    first = new_watch()
    first.observe(server(10, start=1.5), at(1))
    batch = first.close().batch
    assert batch is not None
    second = new_watch(cursor_follows=True)
    assert not second.observe(server(40, start=start), at(31)).restarted
    second.resume(batch.cursor, at(33))
    second.observe(server(41, start=start), at(36))
    window = only_window(second)
    assert (window.tally.generation_tokens, window.restarts) == (counted, restarts)
    assert window.observed_seconds == 35
    assert samples_of([window])[0].sound is (restarts == 0)


def test_a_daemon_that_takes_over_counts_everything_once():
    first, second = new_watch(), new_watch()
    for watch, tokens in ((first, 10), (second, 12)):
        watch.observe(server(tokens), at(1))
        assert watch.begin() is not None
    first.observe(server(30), at(40))
    second.observe(server(35), at(41))
    batch = first.observe(server(50), at(61)).batch
    assert batch is not None
    assert batch.cursor is not None
    assert (batch.cursor.after, batch.cursor.wall) == (at(1).wall, at(40).wall)
    late = second.observe(server(55), at(62)).batch
    assert late is not None
    assert late.cursor is not None
    assert late.cursor.after == at(1).wall
    second.supersede(batch.cursor)
    second.observe(server(70), at(70))
    window = only_window(second)
    assert window.tally.generation_tokens == 70 - 30
    assert window.observed_seconds == 30
    assert late.windows[0].start < window.start == at(120).wall, "a part of the open one is stored"


def test_the_time_of_a_daemon_that_was_down_across_a_clock_step_is_not_negative():
    first = new_watch()
    first.observe(server(10), at(500))
    batch = first.close().batch
    assert batch is not None
    second = new_watch(cursor=batch.cursor)
    second.observe(server(11), at(1))
    window = only_window(second)
    assert (window.observed_seconds, window.tally.generation_tokens) == (0, 1)


def test_the_mode_of_a_window_is_mixed_when_speculation_changed_inside_it():
    watch = new_watch()
    modes = []
    pages = [
        (1, server(0, drafts=0)),
        (31, server(0, drafts=4)),
        (61, server(0, drafts=6)),
        (91, server(5, start=9000.0)),
        (121, server(9, start=9000.0)),
        (181, server(9, start=9000.0)),
    ]
    for seconds, samples in pages:
        modes += [(w.mode, w.tally.drafts) for w in windows_of(watch.observe(samples, at(seconds)))]
    assert modes == [(Mode.ON, 4), (Mode.MIXED, 2), (Mode.OFF, None)]
    assert watch.models == {"m": Mode.OFF}


def test_a_restart_with_another_model_leaves_windows_of_both_and_then_of_one():
    watch = new_watch()
    watch.observe(server(0, model="a"), at(1))
    watch.observe(server(3, model="a"), at(6))
    watch.observe(server(5, model="b", start=9000.0), at(11))
    windows = windows_of(
        watch.observe(server(6, model="b", start=9000.0), at(61)),
        watch.observe(server(7, model="b", start=9000.0), at(121)),
    )
    assert [(w.series.model_name, w.start, w.tally.generation_tokens) for w in windows] == [
        ("a", 6000, 3),
        ("b", 6000, 5),
        ("b", 6060, 1),
    ]


def test_running_requests_are_weighted_by_time():
    """Between two samples the mean of both ends; the maximum is that of the samples."""
    watch = new_watch()
    for seconds, running, waiting in [(0, 0, 0), (10, 4, 1), (15, 4, 3), (30, 0, 0)]:
        watch.observe(server(running=running, waiting=waiting), at(seconds))
    assert only_window(watch).gauges == Gauges(
        sampled_seconds=30,
        busy_seconds=5 + 5 + 7.5,
        running_seconds=20 + 20 + 30,
        waiting_seconds=5 + 10 + 22.5,
        running_max=4,
        waiting_max=3,
        kv_cache_usage_max=0.0,
    )


def test_concurrency_follows_from_the_times_that_the_server_counts():
    """What reads its prompt is not in vLLM's gauge."""
    watch = new_watch()
    labels = {"engine": "0", "model_name": "m"}
    for times, seconds in enumerate((0, 10, 20, 30)):
        counted = page(
            histogram("vllm:time_to_first_token_seconds", [], [10 * times], 10.0 * times, **labels),
            histogram("vllm:inter_token_latency_seconds", [], [99 * times], 20.0 * times, **labels),
        )
        watch.observe({**server(running=2), **read(counted)}, at(seconds))
    assert only_window(watch).gauges.concurrency == pytest.approx(3)


def test_a_gauge_is_unknown_across_a_gap_and_across_a_restart():
    watch = new_watch()
    watch.observe(server(running=4), at(0))
    watch.observe(server(running=4), at(MAX_GAP))
    watch.observe(server(running=4), at(2 * MAX_GAP + 0.1))
    watch.observe(server(running=4, start=9000.0), at(35))
    watch.observe(server(running=4, start=9000.0), at(40))
    gauges = only_window(watch).gauges
    assert (gauges.sampled_seconds, gauges.busy_seconds) == (MAX_GAP + 5, MAX_GAP + 5)
    assert gauges.running_mean == 4


def test_a_gauge_of_a_model_that_was_off_the_page_is_unknown_until_its_second_page():
    """Its last sample is from before, not from the page before."""
    watch = new_watch()
    both = {**server(model="a"), **server(model="b", running=8)}
    watch.observe(both, at(0))
    watch.observe(server(model="a"), at(10))
    watch.observe(both, at(20))
    watch.observe(both, at(25))
    gauges = {w.series.model_name: w.gauges for w in windows_of(watch.close())}
    assert gauges["a"].sampled_seconds == 25
    assert (gauges["b"].sampled_seconds, gauges["b"].running_seconds) == (5, 40)


def test_cache_usage_and_gpu_memory_are_the_highest_of_the_window():
    watch = new_watch()
    for seconds, usage, used in [(0, 0.2, 10), (5, 0.9, 30), (10, 0.1, 20)]:
        watch.gpu_memory = GpuMemory(used, 80)
        watch.observe(server(usage=usage), at(seconds))
    gauges = only_window(watch).gauges
    assert gauges.kv_cache_usage_max == 0.9
    assert (gauges.gpu_memory_used_max, gauges.gpu_memory_total) == (30, 80)


def test_a_window_has_version_and_fingerprint():
    watch = new_watch()
    watch.environment = Environment(engine_version="0.32.0")
    samples = server(drafts=1)
    watch.observe(samples, at(0))
    assert only_window(watch).environment == Environment("0.32.0", tally.fingerprint_of(samples))


def switched(draft_tokens: int, ordered: int = 1, drafts: int = 1, **more) -> dict[Series, float]:
    gauges = page(
        gauge("specwatch_switch_draft_tokens", draft_tokens),
        gauge("specwatch_switch_ordered", ordered),
    )
    return {**server(drafts=drafts, **more), **read(gauges)}


def test_a_minute_in_standby_has_a_mode_of_its_own():
    watch = new_watch()
    watch.observe(switched(0), at(0))
    watch.observe(switched(0), at(5))
    assert watch.models == {"m": Mode.STANDBY}
    window = only_window(watch)
    assert window.mode is Mode.STANDBY
    assert window.environment.fingerprint.endswith("-0")


@pytest.mark.parametrize(
    ("before", "after"), [((4, 0), (0, 1)), ((0, 1), (2, 1)), ((2, 1), (4, 0))]
)
def test_a_minute_in_which_the_switch_changed_is_mixed(before, after):
    watch = new_watch()
    watch.observe(switched(*before), at(0))
    watch.observe(switched(*after), at(5))
    # Nothing of the minute that follows belongs to the setting before.
    (first,) = windows_of(watch.observe(switched(*after), at(61)))
    assert first.mode is Mode.MIXED
    assert only_window(watch).mode is watch.models["m"]


def test_a_change_between_two_minutes_makes_the_second_one_mixed():
    watch = new_watch()
    watch.observe(switched(4, 0), at(50))
    (first,) = windows_of(watch.observe(switched(2, 1), at(65)))
    assert first.mode is Mode.ON
    assert only_window(watch).mode is Mode.MIXED


@pytest.mark.parametrize("now", [(4, 0), (2, 1)])
def test_an_order_may_have_come_and_gone_while_specwatch_was_away(now):
    earlier = new_watch()
    earlier.observe(switched(4, 0), at(0))
    watch = new_watch(cursor=earlier.cursor())
    watch.observe(switched(*now), at(70))
    assert only_window(watch).mode is Mode.MIXED


def test_a_setting_that_the_server_cannot_read_is_the_one_before():
    watch = new_watch()
    for seconds, k in ((0, 0), (5, math.nan), (65, math.nan)):
        watch.observe(switched(k), at(seconds))
    assert only_window(watch).mode is Mode.STANDBY


def test_servers_behind_one_url_are_not_taken_for_restarts():
    """Two processes answer in turn: each counts from the first page on which it answers."""
    watch = new_watch()
    pages = [(10, 1.5), (20, 1.5), (5000, 2.5), (5010, 2.5), (31, 1.5), (33, 1.5), (5020, 2.5)]
    for number, (generated, start) in enumerate(pages):
        assert watch.processes.alternated_at == (6020.0 if number > 4 else None)
        result = watch.observe(server(generated, start=start), at(5 * number))
        assert (result.restarted, result.another) == (False, number in (2, 4, 6))
    (window,) = watch.close().batch.windows
    assert (window.tally.generation_tokens, window.restarts) == (10 + 10 + 2, 3)


def test_a_young_server_behind_one_url_is_taken_for_a_restart_once():
    """It may be one: clocks differ. Once the other one answers again, it is known not to be."""
    watch = new_watch()
    starts = [5950.0, 5990.0, 5950.0, 5990.0, 5950.0]
    results = [
        watch.observe(server(100 + number, start=start), at(5 * number))
        for number, start in enumerate(starts)
    ]
    assert [result.restarted for result in results] == [False, True, False, False, False]
    assert [result.another for result in results] == [False, False, True, True, True]
    (window,) = watch.close().batch.windows
    assert window.tally.generation_tokens == 101


def test_a_restart_is_no_change_of_the_switch():
    watch = new_watch()
    watch.observe(switched(0), at(0))
    watch.observe(switched(4, 0, start=9.5), at(65))
    window = only_window(watch)
    assert (window.mode, window.restarts) == (Mode.ON, 1)


def test_a_switch_of_a_server_without_speculation_means_nothing():
    watch = new_watch()
    off = {
        s: v for s, v in switched(0).items() if "draft" not in s.quantity or "switch" in s.quantity
    }
    off = {s: v for s, v in off.items() if not s.quantity.startswith("accepted")}
    watch.observe(off, at(0))
    assert watch.models == {"m": Mode.OFF}


def test_a_model_without_a_name_gets_one():
    watch = new_watch()
    watch.unnamed_model = "gguf"
    watch.observe(read("llamacpp:tokens_predicted_total 5\n"), at(0))
    assert only_window(watch).series.model_name == "gguf"


def test_whether_a_server_drafts_is_known_for_its_process_only():
    """Learnt after the first page, it counts for the minute; the next process has to say it."""
    watch = new_watch()
    page = "llamacpp:tokens_predicted_total {}\n"
    watch.observe(read(page.format(5)), at(0))
    assert watch.models == {"": Mode.UNKNOWN}
    watch.drafting = False
    watch.observe(read(page.format(9)), at(5))
    assert watch.models == {"": Mode.OFF}
    assert only_window(watch).mode is Mode.OFF
    watch.observe(read(page.format(1)), at(10))
    assert watch.models == {"": Mode.UNKNOWN}


def test_a_histogram_that_does_not_add_up_is_a_problem_of_its_window_only():
    name = "vllm:time_to_first_token_seconds"
    good = f'{name}_bucket{{le="1"}} 1\n{name}_bucket{{le="+Inf"}} 2\n{name}_sum 1\n'
    worse = f'{name}_bucket{{le="1"}} 9\n{name}_bucket{{le="+Inf"}} 3\n{name}_sum 1\n'
    tokens = "vllm:generation_tokens_total 5\nprocess_start_time_seconds 1.5\n"
    watch = new_watch()
    watch.observe(read(good + tokens), at(0))
    assert watch.observe(read(worse + tokens), at(5)).problems == ()
    observation = watch.observe(read(worse + tokens), at(60))
    assert observation.problems == ("the buckets of ttft of engine '' do not add up",)
    (window,) = windows_of(observation)
    assert window.tally.ttft is None
    assert window.tally.generation_tokens == 0
    watch.observe(read(worse + tokens), at(65))
    last = watch.close()
    assert last.problems == ()
    (window,) = windows_of(last)
    assert window.tally.ttft is not None
    assert window.tally.ttft.count == 0

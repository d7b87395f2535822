"""Pages that are read at a glance count as pages that are read whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.domain.model import Cursor, Mode, Moment, Window
from specwatch.scrape.counters import LARGEST
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from tests.scrape.pages import START, vllm


class Watched:
    """A server that is scraped as the daemon does it."""

    def __init__(self) -> None:
        self.watch = WindowBuilder("d", "t", max_gap=15.0)
        self.reader = PageReader()
        self.seconds = 0.0
        self.glances = 0

    def scrape(self, page: bytes) -> ScrapeResult:
        now = Moment(6000.0 + self.seconds, self.seconds)
        self.seconds += 5.0
        glance = self.reader.glance(page)
        result = None if glance is None else self.watch.glance(glance, now)
        if result is not None:
            self.glances += 1
            return result
        result = self.watch.observe(self.reader.read(page), now)
        self.watch.begin_glances(glance or self.reader.learn(page))
        return result

    def scrape_all(self, *tokens: float, start: float | None = START) -> None:
        for count in tokens:
            self.scrape(vllm(count, start=start))

    def end(self) -> Window:
        batch = self.watch.close().batch
        assert batch is not None
        (window,) = batch.windows
        return window


def test_what_was_glanced_at_is_in_the_open_minute_the_window_and_the_cursor() -> None:
    one = Watched()
    one.scrape_all(100, 110, 125)
    assert one.glances == 2
    (opened,) = one.watch.peek()
    assert opened.tally.generation_tokens == 25
    one.scrape_all(130)
    cursor = one.watch.cursor()
    assert cursor is not None
    assert 130 in cursor.samples.values()
    one.scrape_all(140)
    window = one.end()
    assert (window.tally.generation_tokens, window.scrapes_ok) == (40, 5)
    assert window.observed_seconds == 20
    assert window.gauges.running_seconds == 20


def test_a_minute_ends_with_what_was_glanced_at_in_it() -> None:
    one = Watched()
    one.scrape_all(*range(100, 112))
    batch = one.scrape(vllm(500)).batch
    assert batch is not None
    assert [window.tally.generation_tokens for window in batch] == [11]
    assert one.end().tally.generation_tokens == 389


@pytest.mark.parametrize("start", [START, START + 60], ids=["same start", "another start"])
def test_a_counter_that_falls_is_a_restart(start: float) -> None:
    one = Watched()
    one.scrape_all(100, 110)
    one.scrape_all(5, start=start)
    window = one.end()
    assert (window.tally.generation_tokens, window.restarts, one.glances) == (15, 1, 1)


def test_another_process_is_a_restart_where_no_counter_falls() -> None:
    one = Watched()
    one.scrape_all(100, 110)
    one.scrape_all(200, start=START + 60)
    window = one.end()
    assert (window.tally.generation_tokens, window.restarts) == (210, 1)


@pytest.mark.parametrize("count", [LARGEST, float("inf")])
def test_a_count_beyond_reason_is_refused(count: float) -> None:
    one = Watched()
    one.scrape_all(100, 110)
    result = one.scrape(vllm(int(count) if count == LARGEST else count))
    assert result.error is not None
    one.scrape_all(120)
    assert one.end().tally.generation_tokens == 20


def test_servers_that_do_not_name_their_process_are_never_only_glanced_at() -> None:
    one = Watched()
    one.scrape_all(100, 110, 120, start=None)
    assert not one.glances
    assert one.end().tally.generation_tokens == 20


def test_what_another_process_of_ours_has_counted_is_not_counted_again() -> None:
    one = Watched()
    one.scrape_all(100, 110)
    cursor = one.watch.cursor()
    assert isinstance(cursor, Cursor)
    later = {s: 130.0 if value == 110 else value for s, value in cursor.samples.items()}
    one.scrape_all(120)
    assert one.glances == 2
    one.watch.supersede(replace(cursor, samples=later))
    assert one.watch.peek() == ()
    one.scrape_all(137)
    window = one.end()
    assert (window.tally.generation_tokens, window.restarts) == (7, 0)


def lmdeploy(drafts: int) -> bytes:
    labels = '{engine="0",model_name="m"}'
    return (
        f"process_start_time_seconds {START}\n"
        f"lmdeploy:spec_decode_num_drafts_total{labels} {drafts}\n"
        f"lmdeploy:generation_tokens_total{labels} {100 + drafts}\n"
    ).encode()


@pytest.mark.parametrize("glancing", [True, False])
def test_a_mode_that_changes_inside_a_minute_is_noticed(glancing: bool) -> None:
    one = Watched()
    for drafts in (0, 0, 5, 9):
        one.scrape(lmdeploy(drafts))
        if not glancing:
            one.watch.begin_glances(None)
    assert one.glances == (3 if glancing else 0)
    window = one.end()
    assert (window.mode, window.tally.drafts) == (Mode.ON, 9)


def test_an_engine_that_may_stop_drafting_is_read_whole() -> None:
    one = Watched()
    for number in range(4):
        one.scrape(
            f"process_start_time_seconds {START}\n"
            f'trtllm_num_requests_running{{model_name="m",engine_type="x"}} 1\n'
            f'trtllm_generation_tokens_total{{model_name="m",engine_type="x"}} {number}\n'.encode()
        )
    assert not one.glances
    assert one.end().tally.generation_tokens == 3


@pytest.mark.parametrize(
    ("page", "same"),
    [
        (vllm(120), True),
        (vllm(120, model="n"), False),
        (vllm(120, drafts=1), False),
        (b"# HELP 1\n" + vllm(120), False),
        (vllm(120).replace(b'engine="0"', b'engine="1"'), False),
    ],
    ids=["the same page", "another model", "more series", "a comment more", "another number"],
)
def test_servers_with_the_same_page_share_its_layout(page: bytes, same: bool) -> None:
    one = Watched()
    one.scrape_all(100, 110)
    other = PageReader()
    other.read(page)
    glance = other.learn(page)
    assert glance is not None
    assert (one.watch.glance(glance, Moment(6010.0, 10.0)) is not None) is same

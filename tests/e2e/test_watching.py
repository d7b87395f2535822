"""The daemon watches a real vLLM: what it stores is what vLLM counted, whatever happens to both.

All tests check one course of events, which is in :mod:`tests.e2e.story`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable

import pytest

from specwatch.domain import histogram
from specwatch.domain.merge import merge_windows
from specwatch.domain.model import Histogram, Mode, Window
from tests.e2e.conftest import StartVllm
from tests.e2e.story import INTERVAL, TEMPERATURES, ProcessState, Story, StoryRunner
from tests.e2e.tap_page import quantile
from tests.e2e.witness import SPECULATIVE, mean, stored, total
from tests.lab.traffic import Outcome
from tests.postgres import PostgresServer

DAEMONS = ["left", "right"]
QUANTILES = [0.5, 0.9, 0.99]

ON, OFF = frozenset({Mode.ON}), frozenset({Mode.OFF})
UNNOTICED = 10.0
"""Seconds, at most, from when a server answers until we see that."""
SHOWN = {Mode.ON: ON, Mode.OFF: OFF, Mode.MIXED: ON | OFF}


@pytest.fixture(scope="module")
def story(
    start_vllm: StartVllm, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    """The story, with ``left`` writing to SQLite and ``right`` to Postgres."""
    folder = tmp_path_factory.mktemp("story")
    databases = {
        "left": f"sqlite:///{folder}/left/state/specwatch.db",
        "right": postgres.new_url(),
    }
    with start_vllm(speculation="draft-good", k=4, wait=False) as server:
        return StoryRunner(folder, server, databases).run()


@pytest.fixture(params=DAEMONS)
def windows(request: pytest.FixtureRequest, story: Story) -> list[Window]:
    """All windows of one daemon."""
    return story.windows[request.param]


def test_the_traffic_was_varied_enough(story: Story) -> None:
    """All answers came but those of which we hung up; speculation differs; reasons differ."""
    assert [o.error for o in story.streams + story.outcomes if not o.ok] == []
    assert {o.request.temperature for o in story.streams} == set(TEMPERATURES)
    assert [life.on for life in story.lives] == [True, True, False, True]
    first, second, off, last = (life.counts for life in story.lives)
    for life in (first, second):
        assert 0 < life["accepted at 3"] < life["accepted at 0"] < life["drafts"]
    assert not set(SPECULATIVE) & off.keys()
    assert last["drafts"] * 3 == last["draft_tokens"]
    assert last["requests stop"] > 0
    finished = last["requests stop"] + last["requests length"]
    assert last["ttft <= inf"] == finished + 1, "one began and did not finish"
    assert story.killed_amid > 0


def test_windows_add_up_to_what_vllm_counted_in_all_its_lives(
    story: Story, windows: list[Window]
) -> None:
    """To the last token: through deaths of vLLM, other flags, and the death of the daemon."""
    assert stored(windows) == total(life.counts for life in story.lives)


def test_no_window_is_there_twice(windows: list[Window]) -> None:
    starts = [(window.series, window.start) for window in windows]
    assert len(set(starts)) == len(starts)
    assert {(w.series.target, w.series.model_name) for w in windows} == {("tiny", "tiny")}


def test_every_minute_has_a_window(story: Story, windows: list[Window]) -> None:
    """So do those in which vLLM was down, and the one in which the daemon was killed."""
    starts = [window.start for window in windows]
    assert starts == list(range(starts[0], starts[-1] + 60, 60))
    assert starts[0] <= story.lives[0].watched
    assert starts[-1] + 60 > story.lives[-1].idle


def test_each_death_of_vllm_is_counted_once(story: Story, windows: list[Window]) -> None:
    assert sum(window.restarts for window in windows) == len(story.lives) - 1
    for status in story.last_status.values():
        assert status["targets"][0]["restarts"] == len(story.lives) - 1


def test_scrapes_that_failed_are_counted_while_vllm_is_down(
    story: Story, windows: list[Window]
) -> None:
    down = [(before.ended, after.begun) for before, after in itertools.pairwise(story.lives)]
    for window in windows:
        longest = max(min(end, window.start + 60) - max(begin, window.start) for begin, end in down)
        if longest > 10 * INTERVAL:
            assert window.scrapes_failed > 0
    assert sum(window.scrapes_failed for window in windows) > 0


def modes(lives: Iterable[ProcessState]) -> frozenset[Mode]:
    return frozenset(Mode.ON if life.on else Mode.OFF for life in lives)


def surely_scraped(life: ProcessState, window: Window) -> bool:
    """Whether every daemon scraped this life in this minute."""
    minute = window.start, window.start + 60
    known = ((life.begun, life.watched), (life.idle, life.ended))
    within = any(minute[0] <= begin and end <= minute[1] for begin, end in known)
    return within or (life.watched <= minute[0] and minute[1] <= life.idle)


def maybe_scraped(life: ProcessState, window: Window) -> bool:
    """Whether it could be, at a moment that we may not have noticed."""
    overlap = min(life.ended, window.start + 60) - max(life.begun, window.start)
    return overlap > -UNNOTICED


def test_a_window_shows_the_modes_that_vllm_had_in_its_minute(
    story: Story, windows: list[Window]
) -> None:
    """A life that a minute barely touches may have been scraped in it, or not.

    One ends just after a minute began, and the next begins in it: that minute is mixed.
    """
    watched = [window for window in windows if window.scrapes_ok]
    for window in watched:
        surely = modes(life for life in story.lives if surely_scraped(life, window))
        maybe = modes(life for life in story.lives if maybe_scraped(life, window))
        assert surely <= SHOWN[window.mode] <= maybe, window
    assert {Mode.ON} == {w.mode for w in watched if w.start < story.streams_until}


def test_without_speculation_drafts_are_unknown_and_not_zero(story: Story) -> None:
    """Seen by a daemon that got only a URL and ran only meanwhile."""
    assert story.off_windows
    for window in story.off_windows:
        assert window.mode is Mode.OFF
        assert window.tally.drafts is None
        assert window.tally.accepted_per_position is None
    assert stored(story.off_windows) == story.off_counts
    assert story.off_counts["requests length"] == 32


def test_windows_carry_the_version_that_vllm_said(story: Story, windows: list[Window]) -> None:
    (version,) = {life.version for life in story.lives}
    assert {w.environment.engine_version for w in windows if w.scrapes_ok} == {version}
    assert {w.environment.engine_version for w in story.off_windows} == {version}


def test_fingerprints_tell_the_configurations_apart(story: Story, windows: list[Window]) -> None:
    """Drafting with k = 4, off, and another draft with k = 3; the same twice is the same."""
    last_of = [
        max((w for w in windows if w.start + 60 <= story.lives[1].begun), key=lambda w: w.start),
        story.off_windows[-1],
        windows[-1],
    ]
    assert len({window.environment.fingerprint for window in last_of}) == 3
    drafting = {
        w.environment.fingerprint
        for w in windows
        if w.scrapes_ok and w.start + 60 <= story.lives[1].ended
    }
    assert drafting == {last_of[0].environment.fingerprint}


def of_streams(story: Story, windows: list[Window], metric: str) -> Histogram:
    """The windows in which nothing but the streams came, merged."""
    chosen = [window for window in windows if window.start < story.streams_until]
    merged = merge_windows(chosen, start=chosen[0].start, length=3600)
    found = getattr(merged.tally, metric)
    assert isinstance(found, Histogram)
    return found


def bucket(observed: Histogram, q: float) -> tuple[float, float]:
    """Bounds of the bucket that a window's quantile lies in."""
    at = histogram.quantile(observed, q)
    assert at is not None
    assert at.value is not None
    bounds = (0.0, *observed.bounds, math.inf)
    upper = len(bounds) - 1 if at.open_ended else bisect.bisect_left(bounds, at.value)
    return bounds[upper - 1], bounds[upper]


@pytest.mark.parametrize("q", QUANTILES)
def test_a_ttft_quantile_lies_in_the_bucket_of_the_clients(
    story: Story, windows: list[Window], q: float
) -> None:
    """The client's clock runs from before the server's to after it, for each request.

    So its observation of any rank is never below the server's of the same rank, and above it by
    what request and answer take on their way. How long that is on average shows the difference of
    the means, the server's being that of vLLM's own page; delays fall off exponentially, so that a
    share of 1 - q may take log(1 / (1 - q)) times as long. Only by that much, or 5 ms or 20 % where
    that is more, may it lie beyond the bucket; and of forty requests one may be held up for any
    time, as when many streams begin at once on two processors.
    """
    observed = of_streams(story, windows, "ttft")
    assert observed.count == len(story.streams)
    values = [outcome.ttft for outcome in story.streams if outcome.ttft is not None]
    way = sum(values) / len(values) - mean(story.streams_page, "vllm:time_to_first_token_seconds")
    lower, upper = bucket(observed, q)
    beyond = max(0.005, 0.2 * upper, way * (1 + math.log(1 / (1 - q))))
    assert way > 0
    assert lower < quantile(values, q)
    assert quantile(values, q - 0.025) <= upper + beyond


@pytest.mark.parametrize("q", QUANTILES)
def test_a_tpot_quantile_lies_in_the_bucket_of_the_clients(
    story: Story, windows: list[Window], q: float
) -> None:
    """Either end of a span may reach the client late, but a span is divided by many tokens.

    So client and server differ both ways, by at most 1 ms or a tenth: within that of a bound, the
    neighbouring bucket will do; and of a hundred requests one may be held up for any time, on
    either side.
    """
    observed = of_streams(story, windows, "tpot")
    assert observed.count == len(story.streams)
    lower, _ = bucket(observed, q - 0.01)
    _, upper = bucket(observed, q)
    values = [outcome.tpot for outcome in story.streams if outcome.tpot is not None]
    assert lower - max(0.001, 0.1 * lower) < quantile(values, q)
    assert quantile(values, q - 0.01) <= upper + max(0.001, 0.1 * upper)


def test_the_streams_windows_hold_the_clients_records(story: Story, windows: list[Window]) -> None:
    """A second witness: what vLLM said to the client about each request adds up to the same."""
    chosen = stored([w for w in windows if w.start < story.streams_until])
    assert chosen["drafts"] == records(story.streams, "drafts")
    assert chosen["draft_tokens"] == records(story.streams, "draft_tokens")
    assert chosen["accepted_tokens"] == records(story.streams, "accepted_tokens")
    assert chosen["generation_tokens"] == sum(o.tokens or 0 for o in story.streams)
    assert chosen["prompt_tokens"] == sum(o.prompt_tokens or 0 for o in story.streams)


def records(outcomes: list[Outcome], name: str) -> int:
    return sum(getattr(outcome.record, name) for outcome in outcomes)


def test_scrape_shows_what_the_page_says(story: Story) -> None:
    (model,) = story.scraped["models"]
    page = story.scraped_page
    assert (model["model_name"], model["speculation"]) == ("tiny", "on")
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert model[name] == page.get(name, 0)
    assert model["accepted_per_position"] == [page.get(f"accepted at {n}", 0) for n in range(3)]
    lengths = model["accepted_length_histogram"]
    assert sum(lengths) == page["drafts"]
    assert sum(n * drafts for n, drafts in enumerate(lengths)) == model["accepted_tokens"]
    assert model["acceptance_rate"] == pytest.approx(
        model["accepted_tokens"] / page["draft_tokens"]
    )
    assert model["ttft"]["count"] == page["ttft <= inf"]
    assert model["tpot"]["count"] == page["tpot <= inf"]
    assert (model["running"], model["waiting"]) == (0, 0)


def test_status_shows_the_target_as_it_is(story: Story) -> None:
    (target,) = story.status["targets"]
    assert (target["name"], target["failure"]) == ("tiny", None)
    assert target["models"] == {"tiny": "on"}
    assert target["engine_version"] == story.lives[-1].version
    assert story.status["store"]["error"] is None
    assert story.status["stuck"] == []


def test_nothing_was_dropped_or_left_unwritten(story: Story) -> None:
    for status in story.last_status.values():
        assert (status["store"]["dropped"], status["store"]["failures"]) == (0, 0)

"""Taps whose counts cannot be true, or that are missing or configured differently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from specwatch.domain import buckets
from specwatch.domain.model import ALL, TEMPERATURE, Cursor, Mode, Moment, Segment, Source, Window
from specwatch.errors import ScrapeReason
from specwatch.scrape.taps import BUCKETS_VARIABLE, Trouble
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.wording.text import LONGEST_SENTENCE
from specwatch_tap.settings import BUCKETS
from specwatch_tap.temperature import DEFAULT_EDGES
from tests import pages
from tests.segments import segment

M = {"model_name": "m", "temperature": "0"}


def drafts(
    count: int, *, model: str = "m", temperature: str = "0", kept: int = 1, **more: Any
) -> pages.Request:
    """One request of that many drafts, all of one token kept of four."""
    made = {"model_name": model, "temperature": temperature, "method": "record"}
    return {**made, "accepted": {kept: count}, **more}


def engine(
    count: int | None,
    *tap: pages.Request,
    start: float | None = 1.0,
    running: float = 0.0,
    inside: bool = False,
    model: str = "m",
    failures: float = 0.0,
    accepted: int | None = None,
    k: int = 0,
) -> dict[Any, float]:
    """An engine's page after ``count`` drafts, with a tap where it counted, or is ``inside``.

    Each draft had one token ``accepted`` of four, or of ``k``, but where another number is given.
    """
    text = pages.page(
        pages.gauge("vllm:num_requests_running", running, engine="0", model_name=model)
    )
    if count is not None:
        kept = count if accepted is None else accepted
        text += pages.speculation(count, [kept, 0, 0, 0], model=model, k=k)
    if tap or inside:
        text += pages.tap(*tap, failures=failures)
    if start is not None:
        text += pages.page(pages.gauge("process_start_time_seconds", start * 1e10))
    return pages.read(text)


def proxy(*requests: pages.Request, start: float = 5.0) -> dict[Any, float]:
    """A proxy's page after these requests."""
    text = pages.page(pages.gauge("process_start_time_seconds", start))
    return pages.read(pages.tap(*requests) + text)


class Story:
    """A watch that is shown pages, five seconds apart."""

    def __init__(self, **options: Any) -> None:
        self.watch = WindowBuilder("d", "t", max_gap=15.0, **options)
        self.seconds = 0.0
        self.problems: list[str] = []

    def see(
        self,
        page: dict[Any, float],
        by_proxy: dict[Any, float] | None = None,
        *,
        after: float = 5.0,
    ) -> Any:
        self.seconds += after
        now = Moment(6000.0 + self.seconds, self.seconds)
        return self.watch.observe(page, now, by_proxy)

    def trouble(self, edges: Iterable[float] = DEFAULT_EDGES) -> dict[str, Trouble]:
        return {warning.kind: warning for warning in self.watch.taps.trouble(tuple(edges))}

    def end(self) -> list[Window]:
        observation = self.watch.close()
        self.problems += observation.problems
        return [] if observation.batch is None else list(observation.batch)

    def by_temperature(self) -> dict[str, Window]:
        return {w.series.segment.value: w for w in self.end() if w.source is not Source.SERVER}


def test_a_tap_that_has_counted_nothing_is_known_by_its_failures() -> None:
    """Its failures stand on the page from its start."""
    story = Story()
    story.see(engine(0, inside=True))
    assert story.watch.taps.source is Source.TAP
    assert [window.series.segment for window in story.end()] == [ALL]


def test_a_taps_counts_do_not_change_the_servers_window() -> None:
    plain, tapped = Story(), Story()
    for story, tap in ((plain, ()), (tapped, (drafts(7, ttft=0.25, finish_reason="stop"),))):
        story.see(engine(0))
        story.see(engine(10, *tap, running=2.0))
    (of_all,), (same, of_bucket) = plain.end(), tapped.end()
    assert same == of_all
    assert of_bucket.tally.drafts == 7
    assert tapped.watch.models == plain.watch.models == {"m": Mode.ON}


def test_drafts_of_a_tap_alone_do_not_mean_that_speculation_is_on() -> None:
    story = Story()
    story.see(engine(None, drafts(7)))
    assert story.watch.models == {"m": Mode.OFF}


def test_a_proxys_page_is_not_accepted_as_an_engines() -> None:
    story = Story()
    observation = story.see(proxy(drafts(1)))
    assert observation.error is not None
    assert observation.error.reason is ScrapeReason.NO_ENGINE
    assert "tap proxy" in str(observation.error)


def test_a_window_has_its_source_and_coverage() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(100, drafts(40), drafts(20, temperature=">1")))
    windows = story.by_temperature()
    assert {temperature: window.tally.drafts for temperature, window in windows.items()} == {
        "0": 40,
        ">1": 20,
    }
    assert {window.coverage for window in windows.values()} == {0.6}
    assert {window.source for window in windows.values()} == {Source.TAP}


Pages = list[tuple[dict[Any, float], dict[Any, float] | None]]
TWICE, TOO_MUCH = "counts_twice", "accepts_too_much"


def inside(count: int, tap: pages.Request, *, start: float | None = 1.0, **more: Any) -> Pages:
    """Pages before and after ``count`` drafts of an engine with a tap inside."""
    return [
        (engine(0, start=start, inside=True), None),
        (engine(count, tap, start=start, **more), None),
    ]


def behind(
    count: int, tap: pages.Request, *, running: int = 0, before: int = 400_000, **more: Any
) -> Pages:
    """Pages before and after ``count`` drafts of an engine behind a proxy."""
    first = [drafts(before)] if before else []
    return [
        (engine(500, running=running), proxy(*first)),
        (engine(500 + count, running=running, **more), proxy(*first, tap)),
    ]


def joined(tokens: int, method: str = "derived") -> pages.Request:
    """What a server that streams several steps at once looks like: fewer drafts, with more tokens
    accepted of each."""
    return drafts(tokens // 3, kept=3, method=method)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        # Inside, by the totals on one page: several processes are read one after the other.
        (inside(1000, drafts(1064)), None),
        (inside(1000, drafts(1065)), TWICE),
        (inside(10, drafts(2000)), TWICE),
        (inside(1000, drafts(2034), start=None), None),
        (inside(1000, drafts(2035), start=None), TWICE),
        (inside(200_000, drafts(203_024), start=None), None),
        (inside(200_000, drafts(203_025), start=None), TWICE),
        # However few drafts it counted: the slack is that of drafts, of four tokens each.
        (inside(20_000, joined(15_000), accepted=0), TOO_MUCH),
        (inside(20_000, joined(255), accepted=0), None),
        (inside(20_000, joined(258), accepted=0), TOO_MUCH),
        (inside(20_000, joined(15_000), accepted=14_744), None),
        (inside(20_000, joined(15_000), accepted=14_743), TOO_MUCH),
        (inside(20_000, joined(14_196), accepted=10_000, start=None), None),
        (inside(20_000, joined(14_199), accepted=10_000, start=None), TOO_MUCH),
        # A proxy since both are watched, with room for what is under way and a share.
        (behind(0, drafts(1000)), None),
        (behind(0, drafts(1001)), TWICE),
        (behind(10_000, drafts(11_500)), None),
        (behind(10_000, drafts(11_501)), TWICE),
        (behind(10_000, drafts(15_500), running=2), None),
        (behind(10_000, drafts(15_501), running=2), TWICE),
        (behind(80_000, joined(3999), accepted=500), None),
        (behind(80_000, joined(4002), accepted=500), TOO_MUCH),
        (behind(80_000, joined(19_998), accepted=500, running=2), None),
        (behind(80_000, joined(20_001), accepted=500, running=2), TOO_MUCH),
        (behind(100_000, joined(108_999), before=0), None),
        (behind(100_000, joined(109_002), before=0), TOO_MUCH),
    ],
)
def test_a_tap_cannot_have_counted_more_than_the_server(seen: Pages, kind: str | None) -> None:
    story = Story()
    for page, by_proxy in seen:
        story.see(page, by_proxy)
    assert set(story.trouble()) == ({kind} if kind else set())
    assert bool(story.by_temperature()) is (kind is None)


TOO_MANY_TOKENS = "the tap counted 80,000 draft tokens where the server counted 60,"


@pytest.mark.parametrize(
    ("seen", "kind", "start", "end"),
    [
        (
            inside(20_000, joined(15_000), accepted=0),
            TOO_MUCH,
            "the tap counted 15,000 accepted tokens where the server counted 0, and is left out:"
            " this server joins steps",
            "--per-request-spec-decode-metrics summary",
        ),
        (
            inside(20_000, joined(15_000, "record"), accepted=0),
            TOO_MUCH,
            "the tap counted 15,000 accepted tokens where the server counted 0: it counts twice",
            "watch one server through one proxy",
        ),
        # As when each step of a server that drafts less was taken for a whole draft.
        (inside(20_000, drafts(20_000), k=3), TWICE, TOO_MANY_TOKENS, "one proxy"),
        (inside(20_000, drafts(20_000, method="derived"), k=3), TWICE, TOO_MANY_TOKENS, "summary"),
        (behind(19_500, drafts(20_000), k=3, before=0), TWICE, TOO_MANY_TOKENS[:-3], "one proxy"),
        (inside(500, drafts(900, kept=4)), TWICE, "the tap counted 900 drafts where", "one proxy"),
    ],
)
def test_trouble_says_what_was_counted_and_the_remedy(
    seen: Pages, kind: str, start: str, end: str
) -> None:
    story = Story()
    for page, by_proxy in seen:
        story.see(page, by_proxy)
    (trouble,) = story.trouble().values()
    assert (trouble.kind, trouble.model_name) == (kind, "m")
    assert trouble.text.startswith(start)
    assert trouble.text.endswith(end)
    assert len(trouble.text) <= LONGEST_SENTENCE


def test_tokens_of_a_server_that_does_not_count_drafts_contradict_nothing() -> None:
    """vLLM 0.8.3, and V0, where they mean nothing."""
    total = "vllm:spec_decode_num_accepted_tokens"
    old = pages.page(
        pages.gauge("vllm:num_requests_running", 0, model_name="m"),
        pages.counter(total, 7, model_name="m"),
    )
    story = Story()
    story.see(pages.read(old + pages.tap()))
    story.see(pages.read(old + pages.tap(drafts(5000))))
    assert story.trouble() == {}


def test_one_model_is_doubted_until_the_counts_agree() -> None:
    story = Story()
    both = {**engine(0, model="a"), **engine(0, inside=True)}
    story.see(both)
    story.see({**engine(500, model="a"), **engine(500, drafts(900), drafts(300, model="a"))})
    trouble = story.trouble()["counts_twice"]
    assert trouble.model_name == "m"
    assert "900" in trouble.text
    assert "500" in trouble.text
    assert [window.series.model_name for window in story.by_temperature().values()] == ["a"]
    story.see({**engine(500, model="a"), **engine(1000, drafts(900), drafts(300, model="a"))})
    assert story.trouble() == {}


def test_a_server_that_does_not_count_drafts_cannot_contradict() -> None:
    """V0 and llama.cpp: the coverage is not known then."""
    story = Story()
    story.see(engine(None, inside=True))
    story.see(engine(None, drafts(5000)))
    assert story.trouble() == {}
    (window,) = story.by_temperature().values()
    assert (window.tally.drafts, window.coverage) == (5000, None)


def test_steps_without_a_draft_are_not_drafts_of_a_server_of_n_grams() -> None:
    """llama.cpp's timings do not tell them from others: the tokens tell which drafts there were."""
    story = Story()
    story.see(engine(0), proxy())
    quiet, busy = (
        drafts(count, temperature=label, kept=0, k=1, method="timings")
        for label, count in (("0", 10_000), (">1", 30_000))
    )
    story.see(engine(10_000), proxy(quiet, busy))
    assert story.trouble() == {}
    windows = story.by_temperature()
    assert {label: one.tally.drafts for label, one in windows.items()} == {"0": 2500, ">1": 7500}
    assert {one.coverage for one in windows.values()} == {1.0}
    story.see(engine(10_010), proxy(quiet, drafts(50_000, kept=0, method="timings")))
    assert "draft tokens" in story.trouble()["counts_twice"].text


def test_a_tap_on_a_v0_page_keeps_its_drafts() -> None:
    """The token counters that V0 itself has mean nothing, but only those."""
    v0 = pages.page(
        pages.gauge("vllm:num_requests_running", 0, model_name="m"),
        pages.gauge("vllm:spec_decode_draft_acceptance_rate", 0.5, model_name="m"),
        pages.counter("vllm:spec_decode_num_draft_tokens", 77, model_name="m"),
    )
    story = Story()
    story.see(pages.read(v0 + pages.tap()))
    story.see(pages.read(v0 + pages.tap(drafts(5))))
    windows = {window.series.segment.value: window.tally for window in story.end()}
    assert windows["all"].draft_tokens is None
    assert (windows["0"].drafts, windows["0"].draft_tokens) == (5, 20)


@pytest.mark.parametrize("who", ["tap", "proxy"])
def test_what_was_doubted_stays_out_when_its_process_ends(who: str) -> None:
    """The one that follows counts rightly, and is not doubted for its predecessor."""
    story = Story()
    if who == "tap":
        story.see(engine(0, inside=True))
        story.see(engine(10, drafts(5000)))
        story.see(engine(4, drafts(3), start=2.0))
    else:
        story.see(engine(0), proxy())
        story.see(engine(10), proxy(drafts(5000)))
        story.see(engine(14), proxy(drafts(3), start=6.0))
    assert story.trouble() == {}
    (window,) = story.by_temperature().values()
    assert (window.tally.drafts, window.restarts) == (3, 1)


def test_a_tap_lost_in_a_restart_is_reported_until_there_is_one() -> None:
    story = Story()
    story.see(engine(10, drafts(5)))
    story.see(engine(20, drafts(9)))
    story.see(engine(3, start=2.0))
    assert set(story.trouble()) == {"gone"}
    assert story.watch.taps.source is None
    # What it counted before is in the window.
    assert story.by_temperature()["0"].tally.drafts == 4
    story.see(engine(5, drafts(1), start=3.0))
    assert story.trouble() == {}


DAY = 86_400.0


@pytest.mark.parametrize(
    ("after", "start", "over"),
    [
        (5.0, 2.0, False),
        (DAY - 1, 2.0, False),
        (DAY, 2.0, True),
        (5.0, 3.0, True),
    ],
)
@pytest.mark.parametrize("proxied", [False, True])
def test_a_lost_tap_is_reported_for_a_day_or_one_restart(
    after: float, start: float, over: bool, proxied: bool
) -> None:
    """Somebody may have taken it away on purpose."""
    by_proxy = proxy() if proxied else None
    story = Story()
    story.see(engine(10, drafts(5)), by_proxy)
    story.see(engine(3, start=2.0), by_proxy)
    assert "or after a day" in story.trouble()["gone"].text
    story.see(engine(4, start=start), by_proxy, after=after)
    assert story.watch.taps.gone is ("gone" in story.trouble()) is not over


def test_the_day_begins_when_the_tap_was_lost() -> None:
    story = Story()
    story.see(engine(10, drafts(5)))
    story.see(engine(11, drafts(6)), after=2 * DAY)
    story.see(engine(3, start=2.0))
    story.see(engine(4, start=2.0), after=DAY / 2)
    assert set(story.trouble()) == {"gone"}
    story.see(engine(5, start=2.0), after=DAY / 2)
    assert story.trouble() == {}


def test_a_tap_lost_while_the_daemon_was_down_is_reported() -> None:
    first = Story()
    first.see(engine(10, drafts(5)))
    second = Story(cursor=first.watch.cursor())
    second.see(engine(3, start=2.0))
    assert set(second.trouble()) == {"gone"}


def test_the_servers_own_tap_takes_precedence_over_a_proxy() -> None:
    """Both count the same requests: together they would count twice."""
    story = Story()
    story.see(engine(0, inside=True), proxy())
    story.see(engine(100, drafts(60)), proxy(drafts(61)))
    assert set(story.trouble()) == {"two_taps"}
    (window,) = story.by_temperature().values()
    assert (window.source, window.tally.drafts) == (Source.TAP, 60)


def test_a_proxy_counts_when_the_servers_own_tap_is_gone() -> None:
    story = Story()
    story.see(engine(0, inside=True), proxy())
    story.see(engine(0, start=2.0), proxy())
    story.end()
    story.see(engine(100, start=2.0), proxy(drafts(61)))
    (window,) = story.by_temperature().values()
    assert (window.source, window.tally.drafts) == (Source.PROXY, 61)


@pytest.mark.parametrize("who", ["engine", "proxy"])
def test_a_proxy_is_measured_anew_after_a_restart_of_either_side(who: str) -> None:
    """What the engine drafted between its last page and its end is nowhere but in records."""
    story = Story()
    story.see(engine(0), proxy())
    if who == "engine":
        story.see(engine(0, start=2.0), proxy(drafts(3000)))
        story.see(engine(2500, start=2.0), proxy(drafts(5500)))
    else:
        story.see(engine(0), proxy(drafts(3000), start=6.0))
        story.see(engine(2500), proxy(drafts(5500), start=6.0))
    assert story.trouble() == {}


def test_drafts_of_a_server_while_its_proxy_could_not_be_read_count_too() -> None:
    story = Story()
    story.see(engine(0), proxy())
    story.see(engine(9000))
    story.see(engine(9001), proxy(drafts(9001)))
    assert story.trouble() == {}


def test_a_proxy_that_restarts_alone_marks_its_own_windows() -> None:
    story = Story()
    story.see(engine(0), proxy(drafts(500)))
    observation = story.see(engine(10), proxy(drafts(3), start=6.0))
    assert (observation.restarted, observation.proxy_restarted) == (False, True)
    of_all, of_bucket = story.end()
    assert (of_all.restarts, of_bucket.restarts) == (0, 1)
    assert of_bucket.tally.drafts == 3


def test_a_proxys_page_with_a_counter_that_is_no_number_fails_the_proxy_alone() -> None:
    story = Story()
    story.see(engine(0), proxy())
    broken = {series: float("nan") for series in proxy(drafts(3))}
    observation = story.see(engine(10), broken)
    assert observation.error is None
    assert observation.proxy_error is not None
    assert observation.proxy_error.reason is ScrapeReason.NOT_A_NUMBER
    story.see(engine(10), proxy(drafts(7)))
    of_all, of_bucket = story.end()
    assert (of_all.tally.drafts, of_bucket.tally.drafts) == (10, 7)


def test_a_proxys_page_without_a_tap_is_reported() -> None:
    story = Story()
    story.see(engine(0), pages.read(pages.page(pages.gauge("process_start_time_seconds", 1.0))))
    assert set(story.trouble()) == {"proxy_without_tap"}
    assert story.watch.taps.source is None


def test_engine_families_on_a_proxys_page_are_ignored() -> None:
    story = Story()
    story.see(engine(0), proxy())
    story.see(engine(10), {**proxy(drafts(7)), **engine(99, start=5.0)})
    of_all, of_bucket = story.end()
    assert (of_all.tally.drafts, of_bucket.tally.drafts) == (10, 7)


def test_a_late_cursor_counts_for_the_tap_inside_too() -> None:
    first = Story()
    first.see(engine(0, drafts(2)))
    second = Story(cursor_follows=True)
    second.see(engine(6, drafts(5)))
    second.watch.resume(first.watch.cursor(), Moment(6006.0, 6.0))
    assert [window.tally.drafts for window in second.end()] == [6, 3]


@pytest.mark.parametrize("late", [False, True])
def test_a_late_cursor_counts_for_the_proxy_too(late: bool) -> None:
    """Whether the proxy was read before the database was there, or not yet."""
    first = Story()
    first.see(engine(0), proxy(drafts(2)))
    cursor = first.watch.cursor()
    assert isinstance(cursor, Cursor)
    second = Story(cursor_follows=True)
    second.see(engine(6), None if late else proxy(drafts(5)))
    second.see(engine(7), None if late else proxy(drafts(6)))
    second.watch.resume(cursor, Moment(6006.0, 6.0))
    second.see(engine(10), proxy(drafts(9)))
    assert [window.tally.drafts for window in second.end()] == [10, 7]


def test_another_proxy_begins_anew_and_the_minute_goes_on() -> None:
    story = Story()
    story.see(engine(0), proxy())
    story.see(engine(5), proxy(drafts(3)))
    story.watch.change_proxy()
    story.see(engine(9), proxy(drafts(1000), start=7.0))
    story.see(engine(9), proxy(drafts(1002), start=7.0))
    of_all, of_bucket = story.end()
    assert (of_all.tally.drafts, of_bucket.tally.drafts, of_bucket.restarts) == (9, 5, 0)


def test_a_model_that_the_server_does_not_have_has_no_window() -> None:
    story = Story()
    page = {**engine(0, model="a"), **engine(0, inside=True)}
    story.see(page)
    story.see({**page, **engine(9, drafts(5), drafts(7, model="other"))})
    assert set(story.trouble()) == {"unknown_model"}
    assert list(story.by_temperature()) == ["0"]
    assert story.problems == ["the tap counts for 'other', which the server's page does not have"]


@pytest.mark.parametrize("named", ["ggml.gguf", "t", ""])
def test_a_model_without_a_name_is_the_one_that_the_tap_names(named: str) -> None:
    """llama.cpp names none on its page."""
    llama = pages.page(pages.gauge("llamacpp:requests_processing", 0))
    story = Story()
    story.watch.unnamed_model = "ggml.gguf"
    story.see(pages.read(llama), proxy())
    story.see(pages.read(llama), proxy(drafts(5, model=named, method="timings")))
    (window,) = story.by_temperature().values()
    assert (window.series.model_name, window.tally.records) == ("ggml.gguf", {"timings": 1})


@pytest.mark.parametrize(
    ("name", "models", "expected"),
    [
        ("m", {"m", "n"}, "m"),
        ("", {"m"}, "m"),
        ("m", {""}, ""),
        ("", {"m", "n"}, None),
        ("x", {"m"}, None),
        ("x", {"", "m"}, None),
        ("unnamed", {"", "m"}, ""),
        ("m", set(), None),
    ],
)
def test_models_are_matched_by_name(name: str, models: set[str], expected: str | None) -> None:
    assert buckets.matching(name, models, "unnamed") == expected


def test_two_names_of_one_model_add_up_in_one_window() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(9, drafts(5), drafts(2, model="")))
    (window,) = story.by_temperature().values()
    assert (window.tally.drafts, window.source_drafts) == (7, 7)


def test_temperatures_of_a_hostile_page_are_bounded() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    made_up = [drafts(1, temperature=f"t{number}") for number in range(40)]
    story.see(engine(90, *made_up))
    windows = {window.series.segment.value: window for window in story.end()}
    assert len(windows) == 2 + buckets.MOST_VALUES
    assert windows["other"].tally.drafts == 40 - buckets.MOST_VALUES


def test_a_temperature_called_all_cannot_pass_for_the_whole() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(10, drafts(3, temperature="all")))
    whole, part = story.end()
    assert (whole.series.segment, whole.source, whole.tally.drafts) == (ALL, Source.SERVER, 10)
    assert (part.series.segment, part.tally.drafts) == (Segment(TEMPERATURE, "all"), 3)


def test_buckets_unlike_the_configured_are_kept_and_reported() -> None:
    story = Story()
    story.see(engine(0, inside=True))
    story.see(engine(10, drafts(3, temperature="(0,0.5]"), drafts(1, temperature="unknown")))
    assert "(0,0.5]" in story.trouble()["other_buckets"].text
    assert story.trouble()["other_buckets"].text.endswith(
        "start it with SPECWATCH_TAP_TEMPERATURE_BUCKETS=0,0.3,0.7,1"
    )
    assert story.trouble((0.0, 0.5)) == {}
    assert set(story.by_temperature()) == {"(0,0.5]", "unknown"}


def test_the_remedy_names_the_variable_that_the_tap_reads() -> None:
    assert BUCKETS_VARIABLE == BUCKETS


def test_failures_of_the_tap_are_reported() -> None:
    story = Story()
    story.see(engine(0, inside=True, failures=3))
    assert story.watch.taps.failures == 3
    assert "failed 3 times" in story.trouble()["tap_failed"].text


def test_buckets_are_ordered_by_temperature_with_the_unknown_last() -> None:
    labels = ["unknown", "x", "(0.7,1]", ">1", "0", "(0,0.3]", "[0,0.2]", "(1e-05,0.1]"]
    assert sorted(labels, key=lambda label: buckets.order_of(segment(label))) == [
        "0",
        "(1e-05,0.1]",
        "[0,0.2]",
        "(0,0.3]",
        "(0.7,1]",
        ">1",
        "x",
        "unknown",
    ]


@pytest.mark.parametrize("label", [">--", "(.,.]", "", "\0"])
def test_labels_that_are_not_buckets_come_after_buckets(label: str) -> None:
    assert (
        buckets.order_of(segment(">9"))
        < buckets.order_of(segment(label))
        < buckets.order_of(segment("unknown"))
    )

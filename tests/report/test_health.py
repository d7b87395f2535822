"""Whether what a report says can be relied on."""

from __future__ import annotations

import pytest

from specwatch.domain.model import MINUTE, Histogram, Mode, Source, Tally
from specwatch.report.health import MOST_GAPS, health
from specwatch.report.model import Gap
from tests.report.hours import at, drafted, window


def hours(*numbers, **others):
    return [window(number, **others) for number in numbers]


def test_a_period_that_was_watched_throughout_needs_no_warning():
    state = health(hours(*range(-2, 4), running=0.0), at(0), at(4))
    assert (state.expected, state.observed) == (4 * 3600, 4 * 3600)
    assert (state.gap_count, state.gaps, state.warnings) == (0, (), ())
    assert (state.scrapes_ok, state.scrapes_failed, state.restarts) == (4 * 720, 0, 0)


def test_scrapes_and_restarts_are_of_the_period_and_of_all_temperatures_together():
    windows = [
        *hours(-1, scrapes_failed=7, restarts=7),
        *hours(0, scrapes_failed=1, restarts=2),
        *hours(0, scrapes_failed=2, mode=Mode.OFF, seconds=0.0, restarts=1),
        *hours(0, scrapes_failed=1, restarts=2, temperature="0"),
    ]
    state = health(windows, at(0), at(1))
    assert (state.scrapes_ok, state.scrapes_failed, state.restarts) == (1440, 3, 3)


def minutes(*numbers):
    return [window(number, length=MINUTE, seconds=60.0) for number in numbers]


GAPS = {
    "missing hours": (hours(0, 1, 4, 5), 6, [(2, 4)], 4.0),
    "at either end": (hours(2, 3), 6, [(0, 2), (4, 6)], 2.0),
    "what is missing beside it is part of it": (
        [*hours(0), *hours(1, seconds=1200.0), *hours(4, seconds=600.0), *hours(5)],
        6,
        [(1 + 1 / 3, 5 - 1 / 6)],
        2.5,
    ),
    "what is missing of an hour alone has no place": (
        [*hours(0, seconds=3300.0), *hours(1, seconds=1800.0)],
        2,
        [],
        1.5,
    ),
    "an hour that was hardly watched": (
        [*hours(0), *hours(1, seconds=60.0, scrapes_failed=600), *hours(2)],
        3,
        [(1, 2)],
        121 / 60,
    ),
    "minutes": (
        minutes(*range(7), *range(9, 60)),
        1,
        [(7 / 60, 9 / 60)],
        58 / 60,
    ),
}


@pytest.mark.parametrize(("windows", "until", "gaps", "observed"), GAPS.values(), ids=GAPS)
def test_missing_windows_are_gaps(windows, until, gaps, observed):
    state = health([*hours(-1), *windows], at(0), at(until))
    assert [(gap.start, gap.end) for gap in state.gaps] == [
        (pytest.approx(at(begin)), pytest.approx(at(end))) for begin, end in gaps
    ]
    assert state.gap_count == len(gaps)
    assert state.observed == pytest.approx(3600 * observed)


def test_time_in_which_the_server_was_down_was_watched():
    """It is neither time in which it served nor time of which nobody knows."""
    windows = [
        *hours(-1, 0),
        *hours(1, seconds=1800.0, down_seconds=1800.0, scrapes_ok=360, scrapes_failed=360),
        *hours(2, seconds=0.0, down_seconds=3600.0, scrapes_ok=0, scrapes_failed=720),
        *hours(3, seconds=1200.0, down_seconds=600.0, restarts=12, scrapes_ok=240),
    ]
    state = health(windows, at(0), at(4))
    assert (state.expected, state.observed, state.down) == (14_400, 6600, 6000)
    assert state.gaps == ()
    assert state.warnings == (
        "the server was down for 42% of the time (100 min; 12 restarts)",
        "12% of the time was not watched (30 min): what was served then is not in here",
    )


def test_down_time_that_two_daemons_saw_counts_once():
    twice = [
        window(0, daemon=daemon, seconds=3000.0, down_seconds=600.0) for daemon in ("d", "other")
    ]
    state = health([*hours(-1), *twice], at(0), at(1))
    assert (state.observed, state.down) == (3000, 600)


def test_before_a_target_was_there_nobody_could_watch_it():
    state = health(hours(2, 3), at(0), at(4))
    assert (state.expected, state.observed, state.gap_count) == (2 * 3600, 2 * 3600, 0)
    assert state.warnings == ("it is watched since 2026-11-02 02:00 UTC only",)


def test_parts_of_an_hour_and_what_made_up_for_a_gap_are_no_more_than_the_hour():
    windows = [
        *hours(0, seconds=1800.0),
        *hours(0, seconds=1800.0, running=9.0),
        *hours(1, seconds=9000.0),
        *hours(2),
        *hours(2, daemon="other"),
    ]
    state = health([*hours(-1), *windows], at(0), at(3))
    assert (state.observed, state.expected) == (3 * 3600, 3 * 3600)
    windows = hours(-1), hours(0, seconds=9000.0), hours(1, seconds=1800.0)
    assert health([item for one in windows for item in one], at(0), at(2)).observed == 5400


def test_the_longest_gaps_are_told_and_all_of_them_counted():
    watched = {0, 2, 5, 7, 9, 11, 13, 15, 20, 22}
    state = health(hours(-1, *watched), at(0), at(23))
    assert state.gap_count == 9
    assert len(state.gaps) == MOST_GAPS
    assert state.gaps[:2] == (Gap(start=at(16), end=at(20)), Gap(start=at(3), end=at(5)))
    assert state.gaps[2] == Gap(start=at(1), end=at(2))


def test_nothing_at_all():
    state = health([], at(0), at(4))
    assert (state.expected, state.observed, state.gap_count) == (0, 0, 0)
    assert state.coverage is state.source is None
    assert state.warnings == ("it was not watched at all",)
    state = health(hours(-3), at(0), at(4))
    assert (state.expected, state.observed) == (4 * 3600, 0)
    assert state.gaps == (Gap(start=at(0), end=at(4)),)


def tapped(hour, *, server, known, unknown=0, **others):
    """An hour of which a tap saw so many drafts."""
    parts = {"0": known // 2, ">1": known - known // 2, "unknown": unknown}
    return [
        window(hour, drafted(server)),
        *(
            window(
                hour,
                drafted(drafts, **others),
                temperature=label,
                server_drafts=server,
                source_drafts=known + unknown,
            )
            for label, drafts in parts.items()
            if drafts
        ),
    ]


COVERED = {
    "each draft once, in all hours": (
        [*tapped(0, server=3000, known=3000), *tapped(1, server=1000, known=500, unknown=300)],
        3500 / 4000,
        ["12% of the drafts have no temperature; does all traffic pass through the tap?"],
    ),
    "all, though a request under way counts twice": (tapped(0, server=1000, known=1004), 1.0, []),
    "half, for reasons": (
        tapped(0, server=1000, known=400, uncovered={"several": 30, "refused": 2}),
        0.4,
        [
            "more than half of the drafts have no temperature; requests not covered: 60 (more than"
            " one completion was asked for"
        ],
    ),
    "from the second hour on": (
        [window(0, drafted(500)), *tapped(1, server=1500, known=1500)],
        0.75,
        ["25% of the drafts have no temperature; none is known before 2026-11-02 01:00 UTC"],
    ),
    "none, without a tap": (
        [window(0, drafted(10))],
        None,
        [
            "temperatures are not known: nothing but the server's own counters was read;"
            " `specwatch tap flags`"
        ],
    ),
    "none, and nothing to know": (hours(0, fingerprint="aaaa-0"), None, []),
}


@pytest.mark.parametrize(("windows", "coverage", "warnings"), COVERED.values(), ids=COVERED)
def test_coverage_is_the_share_of_drafts_whose_temperature_is_known(windows, coverage, warnings):
    known = health([*hours(-1), *windows], at(0), at(2 if windows[-1].start > at(0) else 1))
    assert known.coverage == (None if coverage is None else pytest.approx(coverage))
    assert known.source == ("server" if coverage is None else "tap")
    assert [
        text.startswith(begin) for text, begin in zip(known.warnings, warnings, strict=True)
    ] == [True] * len(warnings)


def test_the_source_is_the_one_that_there_is_now():
    windows = [
        window(0, drafted(1), temperature="0", source=Source.PROXY),
        window(1, drafted(1), temperature="0", source=Source.TAP),
    ]
    assert health(windows, at(0), at(2)).source == "tap"


def buckets_of(number, bounds, **others):
    return window(number, Tally(ttft=Histogram(bounds, (1,) * (len(bounds) + 1), 1.0, **others)))


WARNINGS = {
    "17% of the looks at the server failed": hours(0, scrapes_ok=600, scrapes_failed=120),
    "for 50% of the requests the acceptance by temperature is derived": tapped(
        0, server=10, known=10, records={"derived": 1, "record": 1}
    ),
    "the buckets of TTFT changed": [buckets_of(0, (0.25, 1.0)), buckets_of(1, (0.5, 1.0))],
    "the buckets of TTFT changed within": [buckets_of(0, (1.0,), coarsened=True)],
    "33% of the time was not watched (2 h): what was served then is not in here": hours(0, 1, 4, 5),
}


@pytest.mark.parametrize(("begin", "windows"), WARNINGS.items(), ids=WARNINGS)
def test_what_makes_figures_unreliable_is_a_warning(begin, windows):
    until = windows[-1].start + windows[-1].length
    (warning,) = health([*hours(-1), *windows], at(0), until).warnings
    assert warning.startswith(begin)

"""The last hour of each model from its minutes."""

from __future__ import annotations

import msgspec
import pytest

from specwatch.domain.model import ALL, Histogram, Mode, Window
from specwatch.rules.last_hour import last_hour
from tests.segments import segment
from tests.web.statuses import minute, of_tap

AT = 1_699_999_200
SINCE, UNTIL = AT, AT + 3600


def test_minutes_add_up_by_temperature_and_model() -> None:
    windows = [
        window
        for n in range(3)
        for window in (
            minute(AT + 60 * n),
            of_tap(AT + 60 * n, ">1", drafts=10, of=90, server=100),
            of_tap(AT + 60 * n, "0", drafts=80, of=90, server=100),
        )
    ]
    hour = last_hour([*windows, minute(AT, model_name="b")], SINCE, UNTIL)["chat"]
    assert sorted(hour) == ["b", "llama"]
    one = hour["llama"]
    assert one.whole is not None
    assert one.whole.tally.drafts == 300
    assert [bucket.series.segment.value for bucket in one.segments] == ["0", ">1"]
    assert [one.share(bucket) for bucket in one.segments] == pytest.approx([8 / 9, 1 / 9])
    assert one.coverage is not None
    assert one.coverage.coverage == 0.9


def test_what_lies_outside_the_hour_is_left_out() -> None:
    windows = [minute(AT - 60), minute(AT), minute(AT + 3600)]
    one = last_hour(windows, SINCE, UNTIL)["chat"]["llama"]
    assert one.whole is not None
    assert one.whole.tally.drafts == 100
    assert last_hour(windows[:1], SINCE, UNTIL) == {}


def test_a_minute_that_is_missing_is_a_gap() -> None:
    """So is one without drafts; and all temperatures have the same minutes."""
    idle = minute(AT + 60, drafts=0)
    late = of_tap(AT + 180, "0", drafts=1, of=1, server=1)
    one = last_hour([minute(AT), idle, minute(AT + 180), late], SINCE, UNTIL)["chat"]["llama"]
    assert one.points[ALL] == ((AT, 0.5), (AT + 60, None), (AT + 120, None), (AT + 180, 0.5))
    assert one.points[segment("0")] == (
        (AT, None),
        (AT + 60, None),
        (AT + 120, None),
        (AT + 180, 0.5),
    )


def test_sums_begin_with_the_last_change_of_mode() -> None:
    """What was served with speculation, or in the minute of the change, is not the present."""
    modes = [Mode.OFF, Mode.ON, Mode.MIXED, Mode.OFF, Mode.OFF]
    windows = [
        window
        for n, mode in enumerate(modes)
        for window in (
            minute(AT + 60 * n, mode=mode),
            msgspec.structs.replace(of_tap(AT + 60 * n, "0", drafts=1, of=1, server=1), mode=mode),
        )
    ]
    one = last_hour(windows, SINCE, UNTIL)["chat"]["llama"]
    assert (one.on, one.start, one.seconds) == (False, AT + 180, 120)
    assert [sample.length for sample in (one.whole, *one.segments) if sample is not None] == [
        120,
        120,
    ]
    assert len(one.points[ALL]) == 5
    one = last_hour(windows[:4], SINCE, UNTIL)["chat"]["llama"]
    assert (one.on, one.start, one.seconds) == (True, AT + 60, 60)


def test_sums_begin_with_the_last_restart() -> None:
    """In the same mode, too; directly after it there are none."""
    windows = [minute(AT + 60 * n) for n in range(4)]
    windows[1] = msgspec.structs.replace(windows[1], restarts=1)
    one = last_hour(windows, SINCE, UNTIL)["chat"]["llama"]
    assert (one.start, one.seconds) == (AT + 120, 120)
    assert last_hour(windows[:2], SINCE, UNTIL)["chat"] == {}


def test_minutes_of_several_daemons_add_up() -> None:
    """The store has one minute of a series, now of this daemon and then of that."""
    other = minute(AT + 60)
    other = msgspec.structs.replace(
        other, series=msgspec.structs.replace(other.series, daemon="right")
    )
    one = last_hour([minute(AT), other], SINCE, UNTIL)["chat"]["llama"]
    assert one.whole is not None
    assert one.whole.tally.drafts == 200


@pytest.mark.parametrize(
    ("windows", "seconds", "end"),
    [
        pytest.param([minute(AT), minute(AT + 60), minute(AT + 1800)], 180, 1860, id="gaps"),
        pytest.param(
            [
                msgspec.structs.replace(minute(AT), length=300),
                msgspec.structs.replace(of_tap(AT + 60, "0", drafts=1, of=1, server=1), length=240),
                minute(AT + 600),
            ],
            360,
            660,
            id="sums of minutes that overlap",
        ),
    ],
)
def test_each_minute_counts_once_and_the_time_between_them_does_not(
    windows: list[Window], seconds: int, end: int
) -> None:
    one = last_hour(windows, SINCE, UNTIL)["chat"]["llama"]
    assert (one.seconds, one.start, one.end) == (seconds, AT, AT + end)


def test_single_requests_of_all_temperatures_are_those_of_the_buckets() -> None:
    """The engine counts no single requests; a source that does so at all of them is believed."""
    parts = [of_tap(AT, label, drafts=9, of=18, server=18) for label in ("0", ">1")]
    one = last_hour([minute(AT), *parts], SINCE, UNTIL)["chat"]["llama"]
    assert one.request_acceptance == Histogram((0.5, 1.0), (2, 8, 0), 8.0)
    own = minute(AT)
    own = msgspec.structs.replace(
        own,
        tally=msgspec.structs.replace(
            own.tally, request_acceptance=Histogram((0.5, 1.0), (3, 0, 0), 1.0)
        ),
    )
    one = last_hour([own, *parts], SINCE, UNTIL)["chat"]["llama"]
    assert one.request_acceptance == Histogram((0.5, 1.0), (3, 0, 0), 1.0)
    assert last_hour([minute(AT)], SINCE, UNTIL)["chat"]["llama"].request_acceptance is None

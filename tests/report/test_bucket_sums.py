"""A report says the same of sums of temperature buckets as of the hours that they are of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec
import pytest

from specwatch.domain.model import HOUR, Histogram, Mode, Source, Window
from specwatch.report.bucket_sums import BucketSums
from specwatch.report.build import build
from specwatch.report.grouped_data import Recorded, ReportSources
from specwatch.report.hours import hours_of, members_by_target
from specwatch.store.repository import Store
from tests.segments import segment
from tests.store.examples import T0, batch, minute

HOURS = 8
SINCE, UNTIL = T0 + HOURS // 2 * HOUR, T0 + HOURS * HOUR
LABELS = ("0", "(0.7,1]", "unknown", "output=text", "stream=no")


def _history(silent: tuple[str, ...] = (), **more: Any) -> Iterator[Window]:
    """Two loads, two versions and some time without speculation; ``silent`` is what the server
    leaves to its buckets."""
    version = more.pop("engine_version", None)
    for at in range(HOURS * 2):
        start = T0 + at * HOUR // 2
        mode = Mode.OFF if at % 7 == 5 else Mode.ON
        for place, label in enumerate(("all", *LABELS)):
            window = minute(
                start,
                temperature=label,
                drafts=0 if mode is Mode.OFF else 40 + at * 7 % 11 + place,
                concurrency=1.0 + at % 3 * 4,
                mode=mode,
                engine_version=version or ("0.11.0" if at < 10 else "0.12.0"),
                **more,
            )
            tally = msgspec.structs.replace(
                window.tally,
                tpot=Histogram((0.01, 0.03), (place, 20 + at, 3), 0.5 + at / 4),
                request_acceptance=None if label == "all" else Histogram((0.5,), (at, 2), 1.5),
                prompt_tokens=1000 + at,
                records={} if label == "all" else {"record": at, "derived": place},
                uncovered={} if label == "all" else {"refused": at % 2},
            )
            if label == "all":
                tally = msgspec.structs.replace(tally, **dict.fromkeys(silent))
            source = Source.SERVER if label == "all" else Source.TAP
            yield msgspec.structs.replace(window, tally=tally, source=source)


def _read(store: Store) -> list[Window]:
    members = members_by_target(store)["chat"]
    return list(hours_of(store, members, T0, UNTIL))


def _summed(store: Store, hours_since: float = -math.inf) -> list[Recorded]:
    members = members_by_target(store)["chat"]
    summed = BucketSums(SINCE, hours_since)
    return list(hours_of(store, members, T0, UNTIL, summed=summed))


def _in_order(recorded: Iterable[Recorded]) -> list[Window]:
    """Windows as hours come, none of which has its buckets in sums."""
    windows = [each for each in recorded if isinstance(each, Window)]
    return sorted(windows, key=attrgetter("start", "series.segment"))


@pytest.mark.parametrize("silent", [(), ("drafts", "generation_tokens"), ("ttft", "tpot")])
def test_a_report_of_sums_is_that_of_the_hours(store: Store, silent: tuple[str, ...]) -> None:
    store.write([batch(*_history(silent))], now=0)
    store.roll_up(UNTIL + HOUR)
    hours, sums = _read(store), _summed(store)
    expected = build(ReportSources(target="chat", windows=hours), SINCE, UNTIL)
    found = build(ReportSources(target="chat", windows=sums), SINCE, UNTIL)
    assert expected
    assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)
    # Where the server says all there are fewer, else they are the same.
    assert (_in_order(sums) == hours) if silent else (len(sums) < len(hours))


def test_so_is_one_of_which_all_hours_before_the_period_are_sums(store: Store) -> None:
    """One bucket was last asked for earlier than the others."""
    some = [
        each
        for each in _history(engine_version="0.12.0")
        if each.series.segment != segment("0") or each.start < T0 + 2 * HOUR or each.start >= SINCE
    ]
    store.write([batch(*some)], now=0)
    store.roll_up(UNTIL + HOUR)
    single, sums = _summed(store), _summed(store, SINCE)
    assert len(sums) < len(single)
    expected = build(ReportSources(target="chat", windows=_read(store)), SINCE, UNTIL)
    found = build(ReportSources(target="chat", windows=sums), SINCE, UNTIL)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


def test_the_hours_of_two_daemons_are_not_summed(store: Store) -> None:
    store.write([batch(*_history(), *_history(daemon="right", scrapes_ok=13))], now=0)
    store.roll_up(UNTIL + HOUR)
    assert _in_order(_summed(store)) == _read(store)

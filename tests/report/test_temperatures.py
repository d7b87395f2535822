"""By temperature: shares, acceptance, and latencies beside those without speculation."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.domain.baseline import Origin
from specwatch.domain.model import Environment, Histogram, Mode, Tally, Window
from specwatch.report.model import ReportSegment
from tests.domain.samples import RATE_BOUNDS, TPOT_BOUNDS, TTFT_BOUNDS, observed
from tests.report.history import HOURS, bucket, counted, flat, hour, measurement, report


def rows(windows: list[Window], *measurements: Any) -> dict[str, ReportSegment]:
    return {row.segment.value: row for row in report(windows, *measurements).segments}


def timed(tpot: float, requests: int, rate: float | None = 0.6) -> Tally:
    """Requests that all took the same."""
    return replace(
        counted(rate=rate, requests=requests),
        tpot=observed([tpot] * requests, TPOT_BOUNDS),
        ttft=observed([10 * tpot] * requests, TTFT_BOUNDS),
    )


def plain(tpot: float, requests: int) -> Tally:
    return timed(tpot, requests, rate=None)


def test_all_comes_first_and_then_the_buckets_ascending():
    parts = {label: bucket() for label in (">1", "unknown", "(0.7,1]", "0", "(0,0.3]")}
    row = rows(flat([hour(0, buckets=parts)]))
    assert list(row) == ["all", "0", "(0,0.3]", "(0.7,1]", ">1", "unknown"]


@pytest.mark.parametrize(
    ("zero", "hot", "shares"),
    [(30, 20, (1.0, 0.3, 0.2)), (300, 100, (1.0, 0.75, 0.25))],
    ids=["of the requests of the server", "of those of the tap where it counts more"],
)
def test_shares_add_up_to_one_at_most(zero, hot, shares):
    whole = rows(flat([hour(0, buckets={"0": bucket(zero), ">1": bucket(hot)})]))
    assert tuple(row.share for row in whole.values()) == shares


def test_no_requests_have_no_shares():
    result = rows(flat([hour(0, counted(requests=0, tokens=0), buckets={"0": bucket(0)})]))
    assert [row.share for row in result.values()] == [None, None]
    assert result["0"].ttft.on is None


def test_acceptance_and_that_of_the_period_before():
    windows = flat(
        hour(at, buckets={"0": bucket(rate=0.8 if at < 0 else 0.4)}) for at in range(-3, 3)
    )
    row = rows(windows)["0"]
    one = windows[-1].tally
    accepted, drafts = one.accepted_tokens, one.drafts
    assert row.acceptance.rate == pytest.approx(accepted / (4 * drafts))
    assert row.acceptance.mean_length == pytest.approx(1 + accepted / drafts)
    assert row.acceptance_before == pytest.approx(0.8, abs=0.001)


def test_requests_spread_by_their_own_acceptance():
    rates = [0.125] * 15 + [0.525] * 70 + [0.975] * 15
    parts = {"0": bucket(100, request_acceptance=observed(rates, RATE_BOUNDS))}
    spread = rows(flat([hour(0, buckets=parts)]))["0"].acceptance.per_request
    assert spread.count == 100
    assert (round(spread.p10, 2), round(spread.p90, 2)) == (0.13, 0.97)
    assert 0.5 < spread.p50 <= 0.55


def test_the_server_spreads_as_its_buckets_do():
    parts = {"0": bucket(10, rate=0.9), ">1": bucket(30, rate=0.3)}
    assert rows(flat([hour(0, buckets=parts)]))["all"].acceptance.per_request.count == 40


def test_a_quantile_beyond_the_last_bound_is_named():
    slow = replace(counted(), ttft=observed([0.3] * 90 + [9.0] * 10, TTFT_BOUNDS))
    row = rows(flat([hour(0, slow)]))["all"].ttft.on
    assert (row.p95, row.p99, row.beyond) == (5.0, 5.0, ("p95", "p99"))
    assert row.p50 < 0.5


def test_without_bounds_only_the_mean_is_known():
    """Before vLLM 0.11 there is no TPOT but in sums."""
    sums = replace(counted(), tpot=Histogram((), (200,), 4.0))
    row = rows(flat([hour(0, sums)]))["all"].tpot.on
    assert (row.count, row.mean, row.p50, row.p99) == (200, 0.02, None, None)
    assert row.beyond == ()


def test_off_is_as_the_requests_with_speculation_weigh_by_load():
    """Without: 24 ms at 3-4, 90 ms at 9-16, as often as not; with: nine of ten requests at 3-4."""
    windows = flat(
        [
            hour(-2, plain(0.024, 500), mode=Mode.OFF, running=4.0),
            hour(-1, plain(0.09, 500), mode=Mode.OFF, running=12.0),
            hour(0, timed(0.01, 90), running=4.0),
            hour(1, timed(0.01, 10), running=12.0),
        ]
    )
    row = rows(windows)["all"].tpot.off
    assert row.count == 1000
    assert row.mean == pytest.approx(0.9 * 0.024 + 0.1 * 0.09)
    assert 0.02 < row.p50 <= 0.025
    assert 0.075 < row.p95 <= 0.1


def test_off_is_that_of_the_baseline_s_own_traffic_where_there_is_such():
    own = measurement(
        origin=Origin.WINDOWS,
        ttft=observed([0.45] * 50, TTFT_BOUNDS),
        of_tpot=observed([0.045] * 50, TPOT_BOUNDS),
    )
    windows = flat([hour(-1, plain(0.09, 9), mode=Mode.OFF), hour(0, timed(0.01, 40))])
    row = rows(windows, own)["all"]
    assert (row.tpot.off.count, row.tpot.off.mean) == (50, pytest.approx(0.045))
    assert row.ttft.off.mean == pytest.approx(0.45)


NO_MEASURE = {
    "a fixed workload": ([hour(0)], [measurement(of_tpot=observed([0.045] * 50, TPOT_BOUNDS))]),
    "another server": (
        [hour(-1, mode=Mode.OFF, environment=Environment("0.31.0", "cafe-0")), hour(0)],
        [],
    ),
    "a load that only some requests had": (
        [
            hour(-2, plain(0.024, 500), mode=Mode.OFF, running=4.0),
            hour(0, timed(0.01, 40), running=4.0),
            hour(1, timed(0.01, 60), running=12.0),
        ],
        [],
    ),
}


@pytest.mark.parametrize(("hours", "measurements"), NO_MEASURE.values(), ids=NO_MEASURE)
def test_what_is_no_measure_of_latencies_without_speculation(hours, measurements):
    whole = rows(flat(hours), *measurements)["all"]
    assert (whole.tpot.on.count, whole.tpot.off) == (100, None)


def test_a_bucket_is_compared_with_its_own_windows_without_speculation():
    def part(tpot: float, **others: Any) -> dict[str, Tally]:
        return {"0": bucket(20, tpot=observed([tpot] * 20, TPOT_BOUNDS), **others)}

    silent = dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position"))
    windows = flat(
        [
            hour(-1, mode=Mode.OFF, buckets=part(0.024, **silent)),
            hour(0, buckets=part(0.012)),
            hour(1, mode=Mode.OFF, buckets=part(0.024, **silent)),
            hour(2, buckets={">1": bucket()}),
        ]
    )
    by_label = rows(windows)
    assert (by_label["0"].tpot.on.count, by_label["0"].tpot.off.count) == (20, 40)
    assert by_label["0"].tpot.off.mean == pytest.approx(0.024)
    assert by_label[">1"].tpot.off is None


def test_the_speedup_of_a_bucket_is_its_length_over_the_cost_of_a_step():
    """o = 20 ms x tau / 30 ms, S = tau_b / o."""
    parts = {"0": bucket(rate=0.9), ">1": bucket(rate=0.2)}
    windows = flat(hour(at, buckets=parts) for at in range(HOURS))
    by_label = rows(windows, measurement())
    whole = windows[0].tally
    tau = 10_000 / (10_000 - whole.accepted_tokens)
    for label, part in parts.items():
        length = 1 + part.accepted_tokens / part.drafts
        assert by_label[label].speedup.value == pytest.approx(
            length / (0.02 * tau / 0.03), rel=1e-3
        )
    assert by_label["all"].speedup.value == pytest.approx(1.5)

"""Days whose every request is known: what a report says of them is what the requests say.

Here these are four days; ``tests/nightly/report`` has a month, in which intervals can be judged.
The way is that of the product: samples of pages, minutes, the store and its hours, the report. The
truth is computed from the request log by :mod:`tests.report.truth`, which shares nothing with that
way but the definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from specwatch.config.loading import Config
from specwatch.domain.model import ALL, Mode
from specwatch.lab.simulator.counters import INTER_TOKEN_BOUNDS, TTFT_BOUNDS
from specwatch.lab.simulator.page import SimulatedPage
from specwatch.report.estimates import Bounds, Quantiles
from specwatch.report.model import ModelReport, Report, ReportLoad
from specwatch.report.reader import read_report
from specwatch.scrape.exposition import PageReader
from specwatch.store.readers import Reader
from tests.report import month as months
from tests.report import truth
from tests.report.month import DAY, FOUR_DAYS, START, TARGET, Month, Plan, Request
from tests.report.truth import BUCKETS, Timeline

GPUS = 2
LIMIT, OBJECTIVE = 0.25, 0.9
"""Of an objective for TTFT, in seconds: a bound of vLLM's buckets."""
BOUNDS = {"ttft": TTFT_BOUNDS, "tpot": INTER_TOKEN_BOUNDS}
VALUES: dict[str, Callable[[Request], float]] = {"ttft": truth.ttft, "tpot": truth.tpot}
CONFIG = Config.model_validate(
    {
        "daemon": "d",
        "database": "sqlite:////nowhere/specwatch.db",
        "targets": [
            {
                "name": TARGET,
                "url": "http://127.0.0.1:8000",
                "gpus": list(range(GPUS)),
                "objective": "tpot",  # the truth is that of tokens
            }
        ],
        "slos": [
            {
                "name": "first token",
                "metric": "ttft",
                "threshold": f"{LIMIT}s",
                "objective": f"{OBJECTIVE:.0%}",
                "window": "7d",
            }
        ],
    }
)


@dataclass(frozen=True)
class Part:
    """A report of some days, and what is known of their requests."""

    report: Report
    month: Month
    first: int
    last: int

    @property
    def model(self) -> ModelReport:
        (result,) = self.report.targets
        return result

    @property
    def span(self) -> tuple[float, float]:
        return START + self.first * DAY, START + self.last * DAY

    @property
    def log(self) -> list[Request]:
        return truth.during(self.month.log, *self.span)

    @property
    def log_before(self) -> list[Request]:
        since, until = self.span
        return truth.during(self.month.log, 2 * since - until, since)


ReportOf = Callable[[int, int], Part]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return FOUR_DAYS


@pytest.fixture(scope="module")
def month(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Month:
    return months.run(tmp_path_factory.mktemp("month"), plan)


@pytest.fixture(scope="module")
def report_of(month: Month) -> Iterator[ReportOf]:
    """Reads the report of some days."""
    reader = Reader.of(month.url)

    @cache
    def read(first: int, last: int) -> Part:
        report = read_report(
            reader,
            since=START + first * DAY,
            until=START + last * DAY,
            now=month.plan.end + DAY,
            config=CONFIG,
        )
        return Part(report, month, first, last)

    yield read
    reader.close()


@pytest.fixture
def whole(report_of: ReportOf, plan: Plan) -> Part:
    return report_of(0, plan.days)


@pytest.fixture(params=["the last days", "all days"])
def part(report_of: ReportOf, plan: Plan, request: pytest.FixtureRequest) -> Part:
    return report_of(*(plan.last if request.param == "the last days" else (0, plan.days)))


@pytest.fixture(scope="module")
def timeline(month: Month) -> Timeline:
    return Timeline(month.log)


def of(log: Sequence[Request], label: str) -> list[Request]:
    """Those of a temperature bucket."""
    return [request for request in log if label in ("all", BUCKETS[request.temperature])]


def test_the_daemon_is_shown_what_stands_on_the_servers_page() -> None:
    """The month goes without the text of pages; what it takes instead is the same samples."""
    engine = months.engine(FOUR_DAYS, seed=3)
    server = months.Server(engine, FOUR_DAYS, [])
    at = FOUR_DAYS.open[0] * months.HOUR + months.BURST_AT + 60.0
    samples = server.page(at)
    read = PageReader().read(SimulatedPage(engine).render())
    assert read == {series: value for series, value in samples.items() if series.segment == ALL}
    assert {series.segment.value for series in samples} > {"0", ">1"}


def test_it_has_days_with_speculation_and_without_and_every_temperature(month: Month) -> None:
    plan = month.plan
    assert len(month.log) > 60 * plan.days
    days = {int((entry.arrival - START) // DAY) for entry in month.log}
    assert days == set(range(plan.days)) - set(plan.idle_days)
    off = {int((entry.arrival - START) // DAY) for entry in month.log if not entry.k}
    assert off == set(plan.off_days)
    assert {request.k for request in month.log} == {0, months.K, months.SHORTER_K}
    assert {item.reason for item in month.log} == {"stop", "length"}
    assert {BUCKETS[entry.temperature] for entry in month.log} == set(BUCKETS.values())


def test_totals_are_exact(part: Part) -> None:
    known, before = truth.counts(part.log), truth.counts(part.log_before)
    traffic = part.model.traffic
    assert traffic.requests == known.requests
    assert traffic.prompt_tokens == known.prompt_tokens
    assert traffic.generation_tokens == known.generation_tokens
    assert (traffic.requests_before or 0) == before.requests
    assert (traffic.generation_tokens_before or 0) == before.generation_tokens


def test_acceptance_is_exact_at_every_temperature(part: Part) -> None:
    """And so are the histogram of accepted lengths, the share and the week before."""
    rows = {row.segment.value: row for row in part.model.segments}
    assert list(rows) == ["all", *BUCKETS.values()]
    for label, row in rows.items():
        known = truth.counts(of(part.log, label))
        assert row.requests == known.requests
        assert row.share == pytest.approx(known.requests / len(part.log))
        result = row.acceptance
        assert result.drafts == known.drafts
        assert result.draft_tokens == known.draft_tokens
        assert result.accepted_tokens == known.accepted_tokens
        assert result.histogram == known.histogram
        assert result.rate == pytest.approx(known.rate)
        assert result.mean_length == pytest.approx(1 + known.accepted_tokens / known.drafts)
        before = of(part.log_before, label)
        rate = truth.counts(before).rate if before else None
        assert row.acceptance_before == (None if rate is None else pytest.approx(rate))


def test_quantiles_are_in_the_right_bucket(part: Part) -> None:
    """Of every latency and temperature, with speculation, now and before."""
    for row in part.model.segments:
        for metric in ("ttft", "tpot"):
            latency = getattr(row, metric)
            ran = [request for request in of(part.log, row.segment.value) if request.k]
            assert_quantiles(latency.on, ran, metric)
            ran = [item for item in of(part.log_before, row.segment.value) if item.k]
            assert (latency.before is None) is (not ran)
            if ran:
                assert_quantiles(latency.before, ran, metric)


def assert_quantiles(found: Quantiles, log: Sequence[Request], metric: str) -> None:
    values = [VALUES[metric](request) for request in log]
    assert found.count == len(values)
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.beyond == ()
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        low, high = truth.bucket(BOUNDS[metric], truth.nearest_rank(values, q))
        assert low <= getattr(found, name) <= high, (metric, name)


def test_the_spread_of_requests_is_in_the_right_bucket(part: Part) -> None:
    """Of the acceptance rates of single requests, in twentieths."""
    bounds = [step / 20 for step in range(1, 21)]
    for row in part.model.segments:
        drafted = [item for item in of(part.log, row.segment.value) if item.draft_tokens]
        rates = [truth.counts([request]).rate for request in drafted]
        spread = row.acceptance.per_request
        assert spread is not None
        assert spread.count == len(rates)
        for name, q in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
            low, high = truth.bucket(bounds, truth.nearest_rank(rates, q))
            assert low <= getattr(spread, name) <= high, (row.segment, name)


def bin_of(load: ReportLoad) -> int:
    first = int(load.load.split("-")[0].rstrip("+"))
    return next(at for at, (begin, _) in enumerate(truth.BINS) if begin == first)


def test_time_is_that_of_the_clock(part: Part, timeline: Timeline) -> None:
    """On and off from look to look; busy as well as looks every few seconds can tell."""
    traffic = part.model.traffic
    off = DAY * len([day for day in part.month.plan.off_days if part.first <= day < part.last])
    assert traffic.seconds[Mode.OFF] == off
    on = (part.last - part.first) * DAY - off
    assert traffic.seconds[Mode.ON] == pytest.approx(on, abs=months.IDLE_SCRAPE)
    assert traffic.seconds[Mode.MIXED] == 0
    busy = timeline.busy(timeline.chosen(*part.span))
    assert traffic.busy_on == pytest.approx(busy, rel=0.1)
    loads = part.model.loads
    assert sum(load.busy for load in loads) == pytest.approx(traffic.busy_on)
    assert sum(load.share for load in loads) == pytest.approx(1)
    for load in loads:
        where = timeline.chosen(*part.span) & (timeline.load == bin_of(load))
        if timeline.busy(where) > 60:  # a look every ten seconds sees more of them
            assert load.running == pytest.approx(timeline.running(where), rel=0.25)


def test_the_objective_is_counted_to_the_request(part: Part) -> None:
    (result,) = part.model.objectives
    slow = [request for request in part.log if truth.ttft(request) > LIMIT]
    assert result.requests == len(part.log)
    assert result.bad == len(slow)
    assert result.spent == pytest.approx(len(slow) / (len(part.log) * (1 - OBJECTIVE)))
    hours = dict(truth.by_hour(part.log, lambda each: each.first))
    bad = {at: sum(truth.ttft(e) > LIMIT for e in item) for at, item in hours.items()}
    assert result.worst_hour is not None
    assert result.worst_hour.bad == max(bad.values())
    assert bad[result.worst_hour.start] == max(bad.values())
    assert result.worst_hour.requests == len(hours[result.worst_hour.start])


def test_goodput_is_counted_to_the_request(part: Part) -> None:
    whole, *by_mode = part.model.goodput
    met = sum(truth.ttft(request) <= LIMIT for request in part.log)
    assert whole.requests == len(part.log)
    assert whole.share == Bounds(lower=met / len(part.log), upper=met / len(part.log))
    assert whole.watched == pytest.approx((part.last - part.first) * DAY, abs=months.IDLE_SCRAPE)
    assert whole.offered == pytest.approx(len(part.log) / whole.watched)
    assert bool(by_mode) == bool(part.model.traffic.seconds[Mode.OFF])
    assert sum(item.requests for item in by_mode) in (0, len(part.log))


def test_it_was_watched_throughout(whole: Part, month: Month) -> None:
    health = whole.model.health
    assert health.observed == pytest.approx(health.expected, abs=months.IDLE_SCRAPE)
    assert health.gaps == ()
    assert health.coverage == 1.0
    assert health.source == "tap"
    assert health.scrapes_failed == 0
    assert health.scrapes_ok == month.pages
    # On each day without speculation and the next, to fewer draft tokens, and once for nothing.
    switched = {day + after for day in month.plan.off_days for after in (0, 1)}
    assert health.restarts == len(switched) + 2
    assert health.warnings == ()


def test_another_draft_length_is_told_with_its_effect(part: Part) -> None:
    (result,) = part.model.changes
    at = START + part.month.plan.shorter
    assert result.at == at
    for side, since in ((result.before, at - DAY), (result.after, at)):
        known = truth.counts(truth.during(part.month.log, since, since + DAY))
        assert side.acceptance_rate == pytest.approx(known.rate)
        assert side.mean_length == pytest.approx(1 + known.accepted_tokens / known.drafts)

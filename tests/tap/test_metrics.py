"""What the tap counts stands on a page, in one process and over several."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from specwatch.domain import histogram
from specwatch.domain.model import Series
from specwatch.domain.tap_keys import METHODS
from specwatch.rules import summary
from specwatch.scrape.exposition import PageReader
from specwatch_tap.acceptance import Acceptance
from specwatch_tap.families import TAP
from specwatch_tap.metrics import BOUNDS, STAGES, TapCounters
from specwatch_tap.outcome import RequestOutcome
from specwatch_tap.server_facts import ServerFacts
from tests.segments import segment

RECORD = Acceptance("record", 8, 32, 19, (7, 5, 4, 0))
ALL = RequestOutcome(
    finish_reason="stop", tokens=28, prompt_tokens=300, ttft=0.3, tpot=0.02, acceptance=RECORD
)


def page(registry: CollectorRegistry) -> dict[Series, float]:
    """The page as the daemon reads it."""
    return PageReader().read(generate_latest(registry))


def counted(*outcomes: RequestOutcome, bucket: str = "(0,0.3]") -> dict[str, float]:
    """The series of the outcomes by quantity, part and key, without the empty buckets."""
    registry = CollectorRegistry()
    counters = TapCounters(registry)
    for outcome in outcomes:
        counters.count(ServerFacts("tiny"), bucket, outcome)
    values = {}
    for series, value in page(registry).items():
        if series.part == "bucket" or series.quantity == "tap_failures":
            continue
        assert (series.model_name, series.segment, series.engine) == ("tiny", segment(bucket), "")
        values[" ".join(filter(None, (series.quantity, series.part, series.key)))] = value
    return values


def test_an_outcome_with_everything() -> None:
    assert counted(ALL) == {
        "requests stop": 1,
        "generation_tokens": 28,
        "records record": 1,
        "endings usual": 1,
        "drafts": 8,
        "draft_tokens": 32,
        "accepted_tokens": 19,
        "accepted_per_position 0": 7,
        "accepted_per_position 1": 5,
        "accepted_per_position 2": 4,
        "accepted_per_position 3": 0,
        "ttft count": 1,
        "ttft sum": 0.3,
        "tpot count": 1,
        "tpot sum": 0.02,
        "decode_seconds 257-2048": pytest.approx(27 * 0.02),
        "decode_tokens 257-2048": 27,
        "request_acceptance count": 1,
        "request_acceptance sum": 19 / 32,
    }


def test_outcomes_add_up() -> None:
    assert counted(ALL, ALL, ALL) == {
        name: pytest.approx(3 * n) for name, n in counted(ALL).items()
    }


def test_what_is_not_known_is_not_counted() -> None:
    assert counted(RequestOutcome()) == {}
    assert counted(RequestOutcome(uncovered="several")) == {"uncovered several": 1}
    assert counted(RequestOutcome(finish_reason="stop", tokens=0)) == {"requests stop": 1}


def test_decoding_is_counted_by_the_tokens_of_the_prompt() -> None:
    outcomes = [
        RequestOutcome(tokens=11, prompt_tokens=prompt, tpot=0.5)
        for prompt in (256, 257, 257, None)
    ]
    counts = counted(*outcomes)
    assert {name: count for name, count in counts.items() if name.startswith("decode")} == {
        "decode_tokens 1-256": 10,
        "decode_seconds 1-256": 5.0,
        "decode_tokens 257-2048": 20,
        "decode_seconds 257-2048": 10.0,
        "decode_tokens unknown": 10,
        "decode_seconds unknown": 5.0,
    }


def test_a_request_that_drafted_nothing_has_no_rate() -> None:
    counts = counted(RequestOutcome(acceptance=Acceptance("derived", 0, 0, 0)))
    assert counts == {"records derived": 1, "drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


def test_at_most_64_positions_have_a_series() -> None:
    counts = counted(RequestOutcome(acceptance=Acceptance("record", 1, 500, 500, (1,) * 500)))
    assert len([name for name in counts if name.startswith("accepted_per_position")]) == 64


def acceptance_buckets(*accepted: int) -> dict[float, float]:
    """Cumulative counts of requests with so many of 20 tokens accepted, by upper bound."""
    registry = CollectorRegistry()
    counters = TapCounters(registry)
    for tokens in accepted:
        record = Acceptance("record", 20, 20, tokens)
        counters.count(ServerFacts("tiny"), "0", RequestOutcome(acceptance=record))
    return {
        float(series.key): value
        for series, value in page(registry).items()
        if series.quantity == "request_acceptance" and series.part == "bucket"
    }


def test_a_rate_falls_into_the_bucket_that_ends_with_it() -> None:
    for rate in range(21):
        filled = [bound for bound, count in acceptance_buckets(rate).items() if count]
        assert min(filled) == pytest.approx(rate / 20)


def test_requests_of_which_nothing_was_accepted_have_quantiles_of_zero() -> None:
    buckets = acceptance_buckets(*[0] * 9, 10)
    rates = summary.request_acceptance(histogram.from_cumulative(buckets, 0.5))
    assert rates == summary.RequestAcceptance(10, 0.0, 0.0, 0.0)


def test_every_family_of_the_names_is_exposed_with_its_labels() -> None:
    registry = CollectorRegistry()
    counters = TapCounters(registry)
    counters.show_launch(ServerFacts("tiny", launch=("schedule",)))
    counters.count(ServerFacts("tiny"), "0", ALL)
    counters.count(ServerFacts("tiny"), "0", RequestOutcome(uncovered="several"))
    collected = {family.name: family for family in registry.collect()}
    assert set(collected) == {family.exposed for family in TAP}
    for known in TAP:
        family = collected[known.exposed]
        assert (family.type, family.documentation) == (known.kind, known.help)
        expected = {"model_name", *known.segment_labels} if known.segment_labels else set()
        expected |= {known.label} if known.label else set()
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == expected
    assert {series.quantity for series in page(registry)} == {f.quantity for f in TAP}


def test_a_page_has_all_of_a_request_or_nothing() -> None:
    """A scrape in another thread, between two counts of one request."""
    registry = CollectorRegistry()
    counters = TapCounters(registry)
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counters.count(ServerFacts("tiny"), "0", ALL)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(50):
            values = {series.quantity: value for series, value in page(registry).items()}
            if "records" in values:
                assert values["drafts"] == 8 * values["records"]
                assert values["accepted_tokens"] == 19 * values["records"]
    finally:
        stop.set()
        thread.join()


def test_every_way_to_know_has_a_name() -> None:
    for method in METHODS:
        assert (
            counted(RequestOutcome(acceptance=Acceptance(method, 1, 1, 1)))[f"records {method}"]
            == 1
        )


def test_failures_are_on_the_page_from_the_start() -> None:
    registry = CollectorRegistry()
    counters = TapCounters(registry)
    expected = {Series("tap_failures", "", "", "", stage): 0.0 for stage in STAGES}
    assert page(registry) == expected
    counters.fail("count")
    assert page(registry) == expected | {Series("tap_failures", "", "", "", "count"): 1.0}


def test_odd_names_survive_the_page() -> None:
    registry = CollectorRegistry()
    TapCounters(registry).count(
        ServerFacts('a"b\\c\nd é'), ">1", RequestOutcome(finish_reason="stop")
    )
    requests = [series for series in page(registry) if series.quantity == "requests"]
    assert [(series.model_name, series.segment.value) for series in requests] == [
        ('a"b\\c\nd é', ">1")
    ]


def test_a_registry_holds_one_set_of_counters() -> None:
    registry = CollectorRegistry()
    TapCounters(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        TapCounters(registry)


@pytest.mark.parametrize("quantity", BOUNDS)
def test_bounds_ascend(quantity: str) -> None:
    assert list(BOUNDS[quantity]) == sorted(set(BOUNDS[quantity]))

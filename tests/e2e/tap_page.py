"""What a tap counted, read from its page without specwatch, under the names of ``witness``."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from specwatch.domain.model import ALL, Window
from tests.e2e import witness
from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts, counted, running, stored, total
from tests.lab.traffic import Outcome

COUNTER_NAMES = {
    "specwatch_drafts_total": "drafts",
    "specwatch_draft_tokens_total": "draft_tokens",
    "specwatch_accepted_tokens_total": "accepted_tokens",
    "specwatch_generation_tokens_total": "generation_tokens",
}
LABELLED = {
    "specwatch_accepted_tokens_per_position_total": ("accepted at", "position"),
    "specwatch_requests_total": ("requests", "finish_reason"),
    "specwatch_tap_records_total": ("records", "method"),
    "specwatch_tap_uncovered_requests_total": ("uncovered", "reason"),
    "specwatch_tap_failures_total": ("failures", "stage"),
    "specwatch_time_to_first_token_seconds_bucket": ("ttft <=", "le"),
    "specwatch_time_per_output_token_seconds_bucket": ("tpot <=", "le"),
    "specwatch_request_acceptance_ratio_bucket": ("acceptance <=", "le"),
}
SEGMENT_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "requests")
BUCKETS = ("0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")

Buckets = dict[str, Counts]
"""Counts by temperature bucket, less those in which there is nothing."""


def bucket_of(temperature: float | None, default: float = 1.0) -> str:
    """The bucket of a request; None leaves its temperature to the server's default."""
    effective = default if temperature is None else temperature
    ends = (0.0, 0.3, 0.7, 1.0)
    return BUCKETS[sum(effective > end for end in ends)]


def tapped(page: str) -> Buckets:
    """What the tap on this page has counted; its failures are in the bucket ``''``."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in COUNTER_NAMES:
                name = COUNTER_NAMES[sample.name]
            elif sample.name in LABELLED:
                name, label = LABELLED[sample.name]
                value = sample.labels[label]
                name = f"{name} {float(value):g}" if label == "le" else f"{name} {value}"
            else:
                continue
            assert sample.labels.get("model_name", "tiny") == "tiny", sample
            found[sample.labels.get("temperature", "")][name] += int(sample.value)
    return _without_nothing(found)


def segmented(page: str) -> dict[str, Buckets]:
    """What the tap on this page has counted by segment, by kind and value."""
    found: defaultdict[str, defaultdict[str, Counter[str]]]
    found = defaultdict(lambda: defaultdict(Counter))
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("specwatch_segment_").removesuffix("_total")
            if name in SEGMENT_COUNTERS and "segment" in sample.labels:
                by_value = found[sample.labels["segment"]]
                by_value[sample.labels["value"]][name] += int(sample.value)
    return {kind: _without_nothing(by_value) for kind, by_value in found.items()}


def difference(before: Buckets, after: Buckets) -> Buckets:
    """What was counted in between."""
    return _without_nothing(
        {bucket: witness.difference(before.get(bucket, {}), of) for bucket, of in after.items()}
    )


def everywhere(buckets: Buckets) -> Counts:
    """The sum over the buckets."""
    return total(buckets.values())


def chosen(buckets: Buckets, *prefixes: str) -> Buckets:
    """Only those counts whose name begins with one of these."""
    return _without_nothing(
        {
            bucket: {name: count for name, count in of.items() if name.startswith(prefixes)}
            for bucket, of in buckets.items()
        }
    )


ACCEPTANCE = ("drafts", "draft_tokens", "accepted_tokens", "accepted at")
"""Names that the records of requests account for."""


def of_records(outcomes: Iterable[Outcome], default: float = 1.0) -> Buckets:
    """What the records that a client saw add up to, by bucket."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        record = outcome.record
        if record is not None:
            assert sum(record.accepted_lengths) == record.drafts
            counts = found[bucket_of(outcome.request.temperature, default)]
            counts["drafts"] += record.drafts
            counts["draft_tokens"] += record.draft_tokens
            counts["accepted_tokens"] += record.accepted_tokens
            for position, accepted in enumerate(record.accepted_per_position):
                counts[f"accepted at {position}"] += accepted
    return _without_nothing(found)


def of_server(page: str) -> Counts:
    """The server's own counts of what records account for."""
    return {name: count for name, count in counted(page).items() if name.startswith(ACCEPTANCE)}


def grown(before: str, after: str) -> Counts:
    """What a server itself counted between two of its pages, of what records account for."""
    return witness.difference(of_server(before), of_server(after))


def at_rest(metrics: Callable[[], str]) -> str:
    """The page once nothing runs and nothing moves on it any more."""
    seen: list[tuple[Counts, Buckets]] = []

    def still() -> str | None:
        page = metrics()
        seen.append((counted(page), tapped(page)))
        return page if not running(page) and seen[-2:-1] == seen[-1:] else None

    return eventually(still, what="the server is idle", within=240, every=0.5)


def _without_nothing(buckets: Mapping[str, Mapping[str, int]]) -> Buckets:
    found = {
        bucket: {name: count for name, count in sorted(of.items()) if count}
        for bucket, of in sorted(buckets.items())
    }
    return {bucket: of for bucket, of in found.items() if of}


@dataclass(frozen=True)
class Latency:
    """A histogram of one temperature bucket, in seconds."""

    below: Mapping[float, int]
    """Observations up to each bound."""
    sum: float

    def __sub__(self, before: Latency) -> Latency:
        """What was observed since ``before``."""
        below = {bound: n - before.below.get(bound, 0) for bound, n in self.below.items()}
        return Latency(below, self.sum - before.sum)

    @property
    def mean(self) -> float:
        """In seconds."""
        return self.sum / self.count

    @property
    def count(self) -> int:
        """Number of observations."""
        return self.below[math.inf]

    def bucket(self, q: float) -> tuple[float, float]:
        """Bounds of the bucket with the observation of rank q × n."""
        lower = 0.0
        for bound, count in sorted(self.below.items()):
            if count >= math.ceil(q * self.count):
                return lower, bound
            lower = bound
        raise AssertionError("the last bucket has all of them")


TTFT, TPOT = "specwatch_time_to_first_token_seconds", "specwatch_time_per_output_token_seconds"


def latency(page: str, family: str, temperature: str) -> Latency:
    """What the tap observed of :data:`TTFT` or :data:`TPOT` in one temperature bucket."""
    below: dict[float, int] = {}
    total = 0.0
    for exposed in text_string_to_metric_families(page):
        for sample in exposed.samples if exposed.name == family else ():
            if sample.labels["temperature"] == temperature:
                if "le" in sample.labels:
                    below[float(sample.labels["le"])] = int(sample.value)
                elif sample.name.endswith("_sum"):
                    total = sample.value
    return Latency(below, total)


QUANTILES = (0.5, 0.9)


def assert_same_ttft(
    observed: Latency, client: Sequence[float], quantiles: Sequence[float] = QUANTILES
) -> None:
    """Quantiles lie in the same bucket, or beyond it by what the way to the client takes.

    The client's clock runs from before the tap's to after it, so it is never the lower. How long
    the way is on average shows the difference of the means; delays fall off exponentially, so that
    a share of 1 - q may take log(1 / (1 - q)) times as long.
    """
    assert observed.count == len(client)
    way = sum(client) / len(client) - observed.mean
    assert way > 0
    for q in quantiles:
        lower, upper = observed.bucket(q)
        beyond = max(0.005, 0.2 * upper, way * (1 + math.log(1 / (1 - q))))
        assert lower < quantile(client, q) <= upper + beyond, (q, lower, upper, way)


def assert_same_tpot(
    observed: Latency, client: Sequence[float], quantiles: Sequence[float] = QUANTILES
) -> None:
    """Quantiles lie in the same bucket, but for 1 ms or a tenth at its bounds.

    Either end of a span may reach the client late, but a span is divided by many tokens.
    """
    assert observed.count == len(client)
    for q in quantiles:
        lower, upper = observed.bucket(q)
        found = quantile(client, q)
        spare = max(0.001, 0.1 * found)
        assert lower - spare < found <= upper + spare, (q, lower, upper)


def quantile(values: Sequence[float], q: float) -> float:
    """The observation of rank q × n."""
    return sorted(values)[math.ceil(q * len(values)) - 1]


def in_windows(windows: Iterable[Window]) -> Buckets:
    """What windows of single temperature buckets add up to, in the same names."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for window in windows:
        if window.series.segment == ALL:
            continue
        counts, tally = found[window.series.segment.value], window.tally
        counts.update(stored([window]))
        counts.update({f"records {method}": count for method, count in tally.records.items()})
        counts.update({f"uncovered {reason}": count for reason, count in tally.uncovered.items()})
        if (rates := tally.request_acceptance) is not None:
            bounds = (*rates.bounds, math.inf)
            below = itertools.accumulate(rates.counts)
            for bound, count in zip(bounds, below, strict=True):
                counts[f"acceptance <= {bound:g}"] += count
    return _without_nothing(found)

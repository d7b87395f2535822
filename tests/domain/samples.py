"""Samples, baselines and evidence, as tests of the decision want them."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specwatch.domain.baseline import Baseline, BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.finishes import FinishedHour
from specwatch.domain.model import (
    LOAD_BINS,
    MINUTE,
    Gauges,
    Histogram,
    Mode,
    RankCounts,
    Tally,
    load_bin,
)
from specwatch.domain.sample import Sample, completed
from specwatch.domain.switchback import Switchback
from specwatch.rules.evidence import Evidence
from tests.segments import in_segments, segment

START = 1_700_000_040
"""A whole minute, Unix."""
TTFT_BOUNDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
TPOT_BOUNDS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5)
LENGTH_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
RATE_BOUNDS = tuple(step / 20 for step in range(1, 21))


def observed(values: Iterable[float], bounds: Sequence[float]) -> Histogram:
    """A histogram of values, as Prometheus counts: a bound belongs to the bucket below it."""
    counts = [0] * (len(bounds) + 1)
    total = 0.0
    for value in values:
        counts[bisect.bisect_left(bounds, value)] += 1
        total += value
    return Histogram(tuple(bounds), tuple(counts), total)


def spread(around: float, count: int) -> list[float]:
    """Latencies from half to one and a half times ``around``, evenly."""
    return [around * (0.5 + (n + 0.5) / count) for n in range(count)]


def tally(
    *,
    rate: float = 0.6,
    drafts: int = 1000,
    k: int = 4,
    requests: int = 20,
    ttft: float = 0.1,
    tpot: float = 0.02,
    **others: Any,
) -> Tally:
    """What ``requests`` count that drafted ``drafts`` times ``k`` tokens; latencies in seconds."""
    return Tally(
        drafts=drafts,
        draft_tokens=drafts * k,
        accepted_tokens=round(drafts * k * rate),
        requests={"stop": requests},
        ttft=observed(spread(ttft, requests), TTFT_BOUNDS),
        tpot=observed(spread(tpot, requests), TPOT_BOUNDS),
        **others,
    )


def gauges(running: float = 4.0, **others: Any) -> Gauges:
    """Of a minute that was busy throughout."""
    return Gauges(sampled_seconds=60.0, busy_seconds=60.0, running_seconds=60.0 * running, **others)


def minute(
    n: int,
    counted: Tally | None = None,
    *,
    mode: Mode = Mode.ON,
    running: float = 4.0,
    buckets: Mapping[str, Tally] | None = None,
    **others: Any,
) -> Sample:
    """The minute number ``at`` since :data:`START`."""
    others.setdefault("gauges", gauges(running))
    return Sample(
        start=START + n * MINUTE,
        length=MINUTE,
        mode=mode,
        tally=completed(tally() if counted is None else counted, list((buckets or {}).values())),
        segments=in_segments(buckets or {}),
        **others,
    )


def minutes(count: int, counted: Tally | None = None, **others: Any) -> list[Sample]:
    """As many alike, from the first on."""
    return [minute(n, counted, **others) for n in range(count)]


def baseline(
    *,
    tpot: float = 0.03,
    ttft: float = 0.1,
    running: Sequence[float] = (4.0,),
    requests: int = 4000,
) -> Baseline:
    """Measured without speculation at some concurrencies; latencies in seconds."""
    bins = {}
    for load in running:
        bin_ = load_bin(load)
        if bin_ is None:
            raise ValueError(f"nothing runs at {load}; use one of {LOAD_BINS}")
        points = tuple(
            Point(START - 600.0 + 60 * n, load, tpot * (100 + n), 100.0 + n, by_token=False)
            for n in range(8)
        )
        bins[bin_] = Measurement(
            BaselineKey("chat", "model"),
            bin_,
            Origin.WINDOWS,
            points,
            observed(spread(ttft, requests), TTFT_BOUNDS),
            observed(spread(tpot, requests), TPOT_BOUNDS),
        )
    return Baseline(bins, bins)


def baseline_of_paces(paces: Mapping[float, float]) -> Baseline:
    """Measured seconds per token, by the number of running requests."""
    bins = {}
    for load, pace in paces.items():
        bin_ = load_bin(load)
        assert bin_ is not None
        points = tuple(Point(60.0 * n, load, 1e3 * pace, 1e3) for n in range(10))
        bins[bin_] = Measurement(BaselineKey("chat", "model"), bin_, Origin.WINDOWS, points)
    return Baseline(bins)


def evidence(
    samples: Sequence[Sample],
    *,
    baseline: Baseline | None = None,
    reference: Mapping[str, Tally] | None = None,
    now: float | None = None,
    experiment: Switchback | None = None,
    finished: Sequence[FinishedHour] = (),
    ranks: Sequence[tuple[int, Mapping[str, RankCounts]]] = (),
) -> Evidence:
    """At the end of the newest sample, unless ``now`` says otherwise."""
    newest = max((sample.start + sample.length for sample in samples), default=START)
    return Evidence(
        samples,
        baseline=Baseline() if baseline is None else baseline,
        reference={segment(label): one for label, one in (reference or {}).items()},
        now=float(newest) if now is None else now,
        experiment=experiment,
        finished=finished,
        ranks=ranks,
    )


def finished_hours(
    off: Mapping[str, Tally], on: Sequence[Mapping[str, Tally]], hours: int = 24
) -> list[FinishedHour]:
    """Requests by temperature: of two hours without speculation, and of earlier hours with it, each
    of ``on`` in turn."""
    first = START - 86400

    def hour(n: int, without: bool, counted: Mapping[str, Tally]) -> FinishedHour:
        by_segment = {segment(label): one for label, one in counted.items()}
        return FinishedHour(first + 3600 * n, without, by_segment)

    before = [hour(n, False, on[n % len(on)]) for n in range(hours)]
    return [*before, *(hour(n, True, off) for n in (2, 7))]

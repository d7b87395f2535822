"""Latencies with speculation beside those without, at equal load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specwatch.domain import histogram, quantile
from specwatch.domain.baseline import Measurement
from specwatch.domain.model import Histogram
from specwatch.domain.quantile import QuantileEstimate
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import LEAST_SHARE

BaselineLatencies = Mapping[str, Histogram]
"""Seconds, by metric (``ttft``, ``tpot``); counts are weights, not requests."""


class EqualLoad(NamedTuple):
    """Latencies now and without speculation, at the same loads.

    ``parts`` are the minutes of ``now``, from whose spread the design effect is estimated, which is
    assumed to be the same on both sides. ``effective`` is the number of requests that the
    ``baseline``, whose counts are weights, is worth.
    """

    parts: list[Histogram]
    now: Histogram
    baseline: Histogram
    effective: float

    def estimates(self, q: float) -> tuple[QuantileEstimate | None, QuantileEstimate | None]:
        """A quantile of both sides with its interval; None without bounds."""
        value = histogram.quantile(self.now, q)
        if value is None or value.value is None:
            return None, None
        effect = quantile.design_effect(self.parts, q, value.value)
        return (
            quantile.estimate(self.now, q, self.now.count / effect),
            quantile.estimate(self.baseline, q, self.effective / effect),
        )


def by_load(samples: Sequence[Sample]) -> dict[int | None, list[Sample]]:
    """Samples by load bin."""
    grouped: dict[int | None, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.load_bin, []).append(sample)
    return grouped


def at_equal_load(
    samples: Mapping[int | None, Sequence[Sample]], bins: Mapping[int, Measurement], metric: str
) -> EqualLoad | str:
    """A latency in samples with speculation by load bin and that of the target's own minutes
    without, ``bins``, at the loads that both have and as these weigh in the samples; or why they
    are not compared.

    A fixed workload has other prompts and lengths, so its latencies are not compared with.
    """
    by_bin: dict[int | None, list[Histogram]] = {}
    sums: dict[int | None, Histogram] = {}
    for bin_, group in samples.items():
        observed = [getattr(sample.tally, metric) for sample in group]
        by_bin[bin_] = [one for one in observed if one is not None and any(one.counts)]
        whole = histogram.merge_all(by_bin[bin_])
        if whole is not None:
            sums[bin_] = whole
    counts = {bin_: whole.count for bin_, whole in sums.items()}
    if not counts:
        return f"no {metric.upper()}"
    if not bins:
        return "the server's own traffic was never measured without speculation"
    known: dict[int, Histogram] = {
        bin_: observed
        for bin_ in counts
        if bin_ is not None
        and bin_ in bins
        and (observed := getattr(bins[bin_], metric)) is not None
        and observed.count
    }
    if sum(counts[bin_] for bin_ in known) < LEAST_SHARE * sum(counts.values()):
        return f"no {metric.upper()} without speculation at the load that there was"
    mixed = quantile.mixture((known[bin_], float(counts[bin_])) for bin_ in sorted(known))
    parts = [part for bin_ in known for part in by_bin[bin_]]
    now = histogram.merge_all(sums[bin_] for bin_ in known)
    if mixed is None or now is None:
        return f"no {metric.upper()}"
    return EqualLoad(parts, now, *mixed)

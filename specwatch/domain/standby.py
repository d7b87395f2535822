"""What standby costs: a server with its switch at 0 draft tokens, beside one without a draft."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.counterfactual import Baselines
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode, Objective, load_bin_label
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import NO_STANDBY, Comparison


class StandbyCost(NamedTuple):
    """Time in standby over time without speculation at the same conditions, above 1 where the
    drafter costs time; None if unknown, and ``missing`` says why, as words."""

    cost: Interval | None
    missing: str | None = None


def standby_cost(
    samples: Iterable[Sample],
    baseline: Baseline | Baselines,
    objective: Objective = Objective.TPOT,
    *,
    loads: Collection[str] | None = None,
) -> StandbyCost:
    """The standby cost, from minutes in standby of the newest environment among ``samples`` and its
    baseline. It holds at the loads of these minutes, which are those in the bins ``loads`` or all;
    its interval includes the uncertainty of both.
    """
    standby = [
        sample
        for sample in samples
        if sample.usable(Mode.STANDBY)
        and sample.pace
        and sample.load_bin is not None
        and (loads is None or load_bin_label(sample.load_bin) in loads)
    ]
    if not standby:
        return StandbyCost(None, NO_STANDBY)
    newest = max(standby, key=lambda sample: sample.start).environment
    alike = [sample for sample in standby if sample.environment == newest]
    compared = Comparison(alike, baseline, objective=objective, mode=Mode.STANDBY)
    speedup = compared.interval()
    return StandbyCost(None if speedup is None else speedup.inverse(), compared.missing)

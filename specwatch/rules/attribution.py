"""Why the speedup changed: which factors changed, and how much each of them explains.

The change of log(tau / cost) (see :mod:`specwatch.domain.period`) is taken apart: tau into how much
is drafted, the temperature mix and the acceptance within buckets, the cost into the load and the
rest. Factors that multiply are separated by their Shapley values: the mean, over all orders in
which they could have changed one after another, of what each changed (L. Shapley, *A Value for
n-Person Games*, 1953). What is left is unexplained, and shown with other facts that changed.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specwatch.config.rules import Rule
from specwatch.domain.baseline import Baseline
from specwatch.domain.interval import LEAST_SAMPLES, Interval
from specwatch.domain.model import MINUTE, Segment
from specwatch.domain.period import LENGTH, PACE, SPEEDUP, Part, Period, comparable
from specwatch.domain.period_differences import Difference, differences
from specwatch.domain.sample import Sample
from specwatch.rules.history import REFERENCE_SECONDS

_Key = TypeVar("_Key", int, Segment)
_LEAST = 1e-9
"""A change of a logarithm below this is rounding."""
_EFFECTS = {
    SPEEDUP: "{:+.2f} of speedup",
    PACE: "{:+.1f} tokens per second",
    LENGTH: "{:+.2f} tokens per step",
}


class Factor(enum.StrEnum):
    """Factors that may have changed."""

    TEMPERATURE_MIX = "temperature_mix"
    ACCEPTANCE = "acceptance"
    DRAFTING = "drafting"
    LOAD = "load"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """The effect of one factor: ``contribution`` to the logarithm, ``effect`` on the metric.

    Contributions add up to the change of the logarithm, effects to that of the metric; shares are
    of the contributions' sizes and add up to 1.
    """

    factor: Factor
    contribution: float
    effect: float
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """The change of ``metric`` from the reference period to now, and its causes, greatest first.

    ``metric`` is ``speedup_ratio``, without a baseline ``tokens_per_second`` (of a request),
    without times ``acceptance_length``. ``change`` is now / before with its interval; None where
    minutes are too few. ``missing`` says why nothing could be compared.
    """

    metric: str = ""
    before: float | None = None
    now: float | None = None
    change: Interval | None = None
    causes: tuple[ChangeCause, ...] = ()
    facts: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str | None = None

    @property
    def within_noise(self) -> bool:
        """Whether the change may be chance."""
        change = self.change
        return change is None or change.lower <= 1.0 <= change.upper

    @property
    def likely(self) -> ChangeCause | None:
        """The greatest cause, unless the change is known to be within noise."""
        return None if self.change is not None and self.within_noise else self.leading

    @property
    def leading(self) -> ChangeCause | None:
        """The greatest cause in the direction of the change; None without a change."""
        total = math.fsum(cause.contribution for cause in self.causes)
        return next((cause for cause in self.causes if cause.contribution * total > 0), None)


def attribute(
    now: Sequence[Sample], reference: Sequence[Sample], baseline: Baseline
) -> Attribution:
    """Causes of the change from the reference samples to those of now, of one model; in any order.

    Only usable minutes with speculation count.
    """
    facts = differences(now, reference)
    sides = comparable(now, reference, baseline)
    if sides is None:
        return Attribution(facts=facts, missing=_missing(now, reference, baseline))
    metric, after, before = sides
    causes = _causes(metric, before, after, facts)
    # The limits of A. Donner, G. Zou, *Closed-form confidence intervals for functions of the normal
    # mean and standard deviation* (2012), on logarithms.
    change = None
    if after.interval is not None and before.interval is not None:
        change = after.interval.over(before.interval)
    notes = []
    if change is None:
        notes.append("too few minutes to tell the change from noise")
    elif change.lower <= 1.0 <= change.upper:
        notes.append("the change is within noise")
    if before.mix is None or after.mix is None:
        notes.append("temperatures are not known: their mix counts as acceptance")
    if metric == PACE:
        notes.append("there is no baseline at this load: compared is tokens per second")
    if metric == LENGTH:
        notes.append("times are not known: compared is tokens per step")
    return Attribution(metric, before.value, after.value, change, causes, facts, tuple(notes))


def explain(
    rule: Rule, samples: Iterable[Sample], baseline: Baseline, *, now: float
) -> Attribution:
    """Causes of the change from the day before a breach to the minutes that confirmed it.

    Of a window that is just beyond a threshold about half is in breach. ``samples`` are the known
    minutes of about a day; ``now`` is a Unix time in seconds.
    """
    shortest = min(rule.window_of(condition) for condition in rule.conditions)
    since = now - max(shortest / 2 + rule.for_, LEAST_SAMPLES * MINUTE)
    known = [sample for sample in samples if since - REFERENCE_SECONDS <= sample.start < now]
    present = [sample for sample in known if sample.start >= since]
    before = [sample for sample in known if sample.start < since]
    return attribute(present, before, baseline)


def _missing(now: Sequence[Sample], reference: Sequence[Sample], baseline: Baseline) -> str:
    for name, samples in (("reference", reference), ("present", now)):
        if comparable(samples, samples, baseline) is None:
            return f"the {name} period has no sound minute in which speculation ran"
    return "the two periods were not counted alike"


def _causes(
    metric: str, before: Period, after: Period, facts: Sequence[Difference]
) -> tuple[ChangeCause, ...]:
    total = math.log(after.value / before.value)
    known = _of_length(before, after) | _of_load(before, after)
    known[Factor.UNEXPLAINED] = total - math.fsum(known.values())
    known = {factor: part for factor, part in known.items() if abs(part) > _LEAST}
    whole = math.fsum(map(abs, known.values()))
    of_metric = _log_mean(before.value, after.value)
    causes = [
        ChangeCause(
            factor=factor,
            contribution=part,
            effect=part * of_metric,
            share=abs(part) / whole,
            sentence=_sentence(factor, part, metric, (before, after), facts),
        )
        for factor, part in known.items()
    ]
    return tuple(sorted(causes, key=lambda cause: (-abs(cause.contribution), cause.factor)))


def _of_length(before: Period, after: Period) -> dict[Factor, float]:
    """Contributions to the logarithm of tau = 1 + drafted * acceptance."""
    sides = (before, after)
    if before.mix is None or after.mix is None:
        return _shapley(
            (Factor.DRAFTING, Factor.ACCEPTANCE),
            lambda drafting, accepting: math.log1p(
                sides[drafting].drafted * sides[accepting].acceptance
            ),
        )
    mixes = (before.mix, after.mix)
    return _shapley(
        (Factor.DRAFTING, Factor.TEMPERATURE_MIX, Factor.ACCEPTANCE),
        lambda drafting, mix, accepting: math.log1p(
            sides[drafting].drafted * _mixed(mixes, mix, accepting)
        ),
    )


def _of_load(before: Period, after: Period) -> dict[Factor, float]:
    """Contribution of the load; a bin that only one period has costs what it costs there."""
    known = (before.loads, after.loads)
    parts = _shapley(
        (Factor.LOAD, Factor.UNEXPLAINED),
        lambda load, within: -math.log(_mixed(known, load, within)),
    )
    return {Factor.LOAD: parts[Factor.LOAD]}


def _mixed(
    known: tuple[Mapping[_Key, Part], Mapping[_Key, Part]], shares: int, figures: int
) -> float:
    """The mean of the figures of one period by the shares of one; 0 is before, 1 after."""
    other = known[1 - figures]
    return math.fsum(
        part.share * known[figures].get(key, other.get(key, part)).figure
        for key, part in known[shares].items()
    )


def _shapley(factors: Sequence[Factor], value: Callable[..., float]) -> dict[Factor, float]:
    """Shapley value of each argument of ``value(0, 0, ..)``, as they become 1 one by one."""
    orders = list(itertools.permutations(range(len(factors))))
    parts: dict[Factor, list[float]] = {factor: [] for factor in factors}
    for order in orders:
        state = [0] * len(factors)
        level = value(*state)
        for turn in order:
            state[turn] = 1
            then = value(*state)
            parts[factors[turn]].append(then - level)
            level = then
    return {factor: math.fsum(values) / len(orders) for factor, values in parts.items()}


def _log_mean(first: float, second: float) -> float:
    """Factor from parts of a change of a logarithm to parts of the change itself."""
    change = math.log(second / first)
    return first if abs(change) < _LEAST else (second - first) / change


def _sentence(
    factor: Factor,
    contribution: float,
    metric: str,
    sides: tuple[Period, Period],
    facts: Sequence[Difference],
) -> str:
    """The change of a factor from the first period to the second, and its effect."""
    before, after = sides
    if factor is Factor.LOAD:
        clause = f"running requests {_moved(before.concurrency, after.concurrency, '.1f')}"
        if not before.loads.keys() & after.loads.keys():
            clause += " (no load in common: all of a step's cost counts)"
    elif factor is Factor.UNEXPLAINED:
        clause = f"at the same load a step costs {math.exp(-contribution):.2f} times what it did"
        changed = [fact.sentence for fact in facts if fact.changed]
        clause += f" ({'; '.join(changed)})" if changed else ", cause unknown"
    else:
        if factor is Factor.DRAFTING:
            clause = f"draft tokens per step {_moved(before.drafted, after.drafted, '.2f')}"
        elif factor is Factor.TEMPERATURE_MIX:
            clause = _mix_clause(before.mix or {}, after.mix or {})
        else:
            clause = _acceptance_clause(before, after, math.copysign(1.0, contribution))
        effect = contribution * _log_mean(before.length, after.length)
        return f"{clause}: {_EFFECTS[LENGTH].format(effect)}"
    effect = contribution * _log_mean(before.value, after.value)
    return f"{clause}: {_EFFECTS[metric].format(effect)}"


def _mix_clause(old: Mapping[Segment, Part], new: Mapping[Segment, Part]) -> str:
    """The temperature that gained most."""
    before = {one: old[one].share if one in old else 0.0 for one in new}
    most = max(sorted(new), key=lambda one: new[one].share - before[one])
    return f"draft tokens at temperature {most.value} {_moved(before[most], new[most].share)}"


def _acceptance_clause(before: Period, after: Period, sign: float) -> str:
    """The temperature with the greatest effect in a direction."""
    old, new = before.mix, after.mix
    if old is None or new is None:
        return f"acceptance {_moved(before.acceptance, after.acceptance)}"

    def effect(label: Segment) -> float:
        first, second = old[label], new[label]
        return sign * (first.share + second.share) * (second.figure - first.figure)

    label = max(sorted(old.keys() & new.keys()), key=effect)
    return f"acceptance at temperature {label.value} {_moved(old[label].figure, new[label].figure)}"


def _moved(old: float, new: float, form: str = ".0%") -> str:
    before, after = f"{old:{form}}", f"{new:{form}}"
    if before == after:
        return f"hardly moved from {before}"
    return f"{'rose' if new > old else 'fell'} from {before} to {after}"

"""The speedup that speculation would have now, while off, and whether a switch is worth a restart.

The minutes when it was on tell the cost of a step at each load, o(L), which is the server's, and
how far drafts got at each temperature, tau_b, which is the draft's. The minutes without it tell
what is asked for now: n_b tokens at each temperature, and the load. So

    tau = sum(n_b) / sum(n_b / tau_b)      S = tau / o(L)

at the load that there would be: with a speedup of S as many requests run as now, divided by S
(J. D. C. Little, *A Proof for the Queuing Formula L = lambda W*, 1961).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import assess
from specwatch.domain.interval import LEAST_SAMPLES, Interval, ratio_interval
from specwatch.domain.model import ALL, Mode, Segment, Tally, load_bin
from specwatch.domain.sample import Sample

MINUTES_OF_ACCEPTANCE = LEAST_SAMPLES
"""Newest minutes of a temperature that its tau is taken from: the draft may have got worse."""
_MINUTES_OF_COSTS = 60
"""Newest minutes of a load bin that its o is taken from."""
LEAST_KNOWN = 0.9
"""Share of the present tokens that must be of temperatures with a known tau."""
_TURNS = 40


class Cost(NamedTuple):
    """o at a mean number of running requests."""

    concurrency: float
    cost: Interval


@dataclass(frozen=True, slots=True)
class Experience:
    """Results of the minutes with speculation: o by load, tau by temperature and of ``all``."""

    costs: tuple[Cost, ...]
    lengths: Mapping[Segment, Interval]

    @classmethod
    def of(cls, remembered: Iterable[Sample], baseline: Baseline) -> Experience:
        """From minutes with speculation, at any load and mix; others are ignored."""
        ran = sorted((e for e in remembered if e.usable()), key=_start)
        labels = sorted({label for sample in ran for label in sample.buckets})
        lengths = {label: _length_of(ran, label) for label in [ALL, *labels]}
        known = {label: length for label, length in lengths.items() if length is not None}
        return cls(tuple(_costs(ran, baseline)), known)

    def speedup(self, present: Iterable[Sample]) -> Interval | None:
        """The speedup that speculation would have now, with its interval.

        ``present`` are the last minutes, without speculation. None where they are too few or idle,
        where their temperatures were never seen with speculation on, or o is not known at all. The
        interval is open on one side where it is not known for the load that there would be: to 0
        for a higher one, to infinity for a lower.
        """
        now = [sample for sample in present if sample.usable(Mode.OFF) and sample.pace]
        running = _running(now)
        tau = self._length_at(_mix(now))
        if len(now) < LEAST_SAMPLES or not running or tau is None or not self.costs:
            return None
        speedup = 1.0
        for _ in range(_TURNS):
            cost = self._cost_at(_while_busy(running / speedup))
            speedup = math.sqrt(speedup * tau.value / cost.value)
        return tau.over(cost)

    def _length_at(self, mix: Mapping[Segment, float]) -> Interval | None:
        """tau at a mix: the harmonic mean, as what has few tokens a step takes more steps."""
        known = {label: length for label, length in self.lengths.items() if label in mix}
        if not known or sum(mix[label] for label in known) < LEAST_KNOWN * sum(mix.values()):
            return None
        steps = {label: mix[label] / length.value for label, length in known.items()}
        total = sum(steps.values())
        value = sum(mix[label] for label in known) / total
        down = math.hypot(*(steps[label] / total * length.down for label, length in known.items()))
        up = math.hypot(*(steps[label] / total * length.up for label, length in known.items()))
        count = sum(length.samples for length in known.values())
        return Interval(value, value * math.exp(-down), value * math.exp(up), count)

    def _cost_at(self, concurrency: float) -> Interval:
        """o between the loads at which it is known.

        A step for more requests costs no less, as they leave less arithmetic unused: above the
        highest load o is at least that of there, below the lowest at most.
        """
        below = [cost for cost in self.costs if cost.concurrency <= concurrency]
        above = [cost for cost in self.costs if cost.concurrency > concurrency]
        if below and above:
            (low, first), (high, second) = below[-1], above[0]
            share = (concurrency - low) / (high - low)
            value, lower, upper = (
                (1 - share) * getattr(first, end) + share * getattr(second, end)
                for end in ("value", "lower", "upper")
            )
            return Interval(value, lower, upper, first.samples + second.samples)
        nearest, known = below[-1] if below else above[0]
        if load_bin(concurrency) == load_bin(nearest):
            return known
        return replace(known, upper=math.inf) if below else replace(known, lower=0.0)


def worth_it(
    speedup: Interval, *, speculating: bool, horizon: float, restart_seconds: float
) -> bool:
    """Whether changing the mode pays for the restart within ``horizon`` seconds.

    ``speculating`` is the present mode, whose time is saved. The bound of the interval that is
    nearest to 1 has to pay for it, so that a gain that may be chance causes no switch.
    """
    saved = 1 - speedup.upper if speculating else 1 - 1 / max(speedup.lower, 1e-9)
    return saved * horizon > restart_seconds


class RememberedMinutes:
    """Minutes with speculation worth remembering: the newest of each load bin and temperature."""

    def __init__(self) -> None:
        self._bins: dict[int, deque[Sample]] = {}
        self._labels: dict[Segment, deque[Sample]] = {}

    def add(self, sample: Sample) -> None:
        """Add a minute; minutes of other environments are dropped."""
        bin_ = sample.load_bin
        if not sample.usable() or bin_ is None:
            return
        newest = next(reversed(self._bins.values()), None)
        if newest and newest[-1].environment != sample.environment:
            self._bins, self._labels = {}, {}
        # The bin of the newest minute comes last.
        kept = self._bins.pop(bin_, deque(maxlen=_MINUTES_OF_COSTS))
        kept.append(sample)
        self._bins[bin_] = kept
        for label, counted in sample.buckets.items():
            if counted.drafts:
                kept = self._labels.setdefault(label, deque(maxlen=MINUTES_OF_ACCEPTANCE))
                kept.append(sample)

    @property
    def samples(self) -> list[Sample]:
        """All of them, oldest first."""
        groups = [*self._bins.values(), *self._labels.values()]
        return sorted(
            {sample.start: sample for group in groups for sample in group}.values(), key=_start
        )


def _start(sample: Sample) -> int:
    return sample.start


def _running(samples: Sequence[Sample]) -> float:
    """Mean of running requests, idle times included."""
    sampled = math.fsum(sample.gauges.sampled_seconds for sample in samples)
    running = math.fsum(sample.gauges.running_seconds for sample in samples)
    return running / sampled if sampled else 0.0


def _while_busy(running: float) -> float:
    """Their mean while any run, for Poisson arrivals."""
    return running / -math.expm1(-running) if running > 1e-6 else 1.0


def _mix(samples: Sequence[Sample]) -> Mapping[Segment, float]:
    """Tokens by temperature; all of them together where temperatures are not known."""
    mix: dict[Segment, float] = {}
    for sample in samples:
        for label, counted in sample.buckets.items():
            mix[label] = mix.get(label, 0.0) + _tokens(counted)
    mix = {label: tokens for label, tokens in mix.items() if tokens > 0}
    return mix or {ALL: 1.0}


def _tokens(counted: Tally) -> float:
    """Tokens after the first of each request."""
    firsts = counted.ttft.count if counted.ttft else sum(counted.requests.values())
    return float(max((counted.generation_tokens or 0) - firsts, 0))


def _length_of(samples: Sequence[Sample], label: Segment) -> Interval | None:
    """Tokens a step of a temperature, over its newest minutes."""
    rows = []
    for sample in reversed(samples):
        steps, tokens = _steps_and_tokens(sample, label)
        if steps:
            rows.append((tokens, steps))
        if len(rows) == MINUTES_OF_ACCEPTANCE:
            break
    return ratio_interval([tokens for tokens, _ in rows], [steps for _, steps in rows])


def _steps_and_tokens(sample: Sample, label: Segment) -> tuple[float, float]:
    """Decoding steps and what they yielded, over all temperatures or of one."""
    pace, steps, drafts = sample.pace, sample.steps, sample.tally.drafts
    if pace is None or not steps or not drafts:
        return 0.0, 0.0
    yielded = steps + (sample.tally.accepted_tokens or 0)
    # Where an output ends inside a step the rest of its tokens is thrown away.
    kept = min(pace.tokens / yielded, 1.0) if pace.by_token else 1.0
    if label == ALL:
        return steps, yielded * kept
    counted = sample.buckets.get(label, Tally())
    part = (counted.drafts or 0) * steps / drafts
    return part, (part + (counted.accepted_tokens or 0)) * kept


def _costs(samples: Sequence[Sample], baseline: Baseline) -> list[Cost]:
    speedups = []
    for estimate in assess(samples, baseline).bins:
        inside = [sample for sample in samples if sample.load_bin == estimate.load_bin]
        running = math.fsum(sample.gauges.running_seconds for sample in inside)
        busy = math.fsum(sample.gauges.busy_seconds for sample in inside)
        speedups.append(Cost(running / busy, estimate.step_cost))
    return speedups

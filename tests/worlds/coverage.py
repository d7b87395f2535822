"""How often the confidence interval contains the truth, on the simulated engine.

The truth is the limit of the estimate: what the same formula gives over hundreds of hours on both
sides. Each run sees a stretch of minutes with speculation, and a baseline of another stretch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specwatch.core.baseline import Baseline, BaselineKey, Measurement, Origin, choose, point_of
from specwatch.core.breakeven import Assessment, assess
from specwatch.core.interval import CONFIDENCE, Interval
from specwatch.core.sample import Sample, samples_of
from specwatch.model import Mode
from tests.worlds.cache import trace_of
from tests.worlds.trace import MODEL, TARGET, Trace
from tests.worlds.world import HOT, WORLDS, World

KEY = BaselineKey(TARGET, MODEL, "0.32.0", "world")
BASELINE_MINUTES = 120
LENGTHS = (5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Covered:
    """How it went for one figure: ``mean`` and ``truth`` tell bias from width."""

    case: str
    minutes: int
    figure: str
    runs: int
    inside: int
    below: int
    """Runs whose whole interval lay below the truth."""
    mean: float
    truth: float
    width: float
    """Median of upper over lower, less 1."""
    apart: int
    """Stretches that have no minute in common: there is no more to know in any number of runs."""

    @property
    def doubt(self) -> float:
        """Standard error of the share, were the intervals right."""
        return math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / min(self.runs, self.apart))

    @property
    def share(self) -> float:
        """Of the runs, those whose interval contained the truth."""
        return self.inside / self.runs


def cases() -> dict[str, World]:
    """Servers at several loads, all with two temperatures."""
    return {
        f"{rate:g}/s": _at_rate(f"coverage {rate:g}/s", rate) for rate in (0.3, 1.0, 2.0)
    }  # fmt: skip


def _at_rate(name: str, rate: float) -> World:
    settings = WORLDS["helps"].settings
    temperatures = ((0.0, 0.5), (HOT, 0.5))
    traffic = dataclasses.replace(settings.traffic, rate=rate, temperatures=temperatures)
    return World(name, name, dataclasses.replace(settings, traffic=traffic, seed=7))


def samples_in(trace: Trace) -> list[Sample]:
    """All minutes of a trace as the decision sees them."""
    return [each for at in range(len(trace)) for each in samples_of(trace.windows(at))]


def baseline_of(samples: Iterable[Sample], *, most: int | None = None) -> Baseline:
    """All of their minutes as a baseline; ``most`` points a bin."""
    grouped: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.load_bin is not None and sample.pace is not None:
            grouped.setdefault(sample.load_bin, []).append(sample)
    found = []
    for bin_, group in grouped.items():
        points = tuple(point for each in group if (point := point_of(each)) is not None)
        found.append(Measurement(KEY, bin_, Origin.CALIBRATION, points[-most:] if most else points))
    latest = max(sample.start for sample in samples)
    return choose(found, next(iter(samples)).environment, now=latest, max_age=float("inf"))


def measure(
    case: str,
    on: Sequence[Sample],
    off: Sequence[Sample],
    *,
    lengths: Sequence[int] = LENGTHS,
    runs: int = 400,
    judge: Callable[[Sequence[Sample], Baseline], Assessment] = assess,
) -> Iterator[Covered]:
    """The coverage of every figure for stretches of so many minutes."""
    truths = dict(_figures(judge(on, baseline_of(off))))
    for length in lengths:
        generator = np.random.default_rng(length)
        found: dict[str, list[Interval]] = {name: [] for name in truths}
        for _ in range(runs):
            stretch = _stretch(generator, on, length)
            reference = _stretch(generator, off, BASELINE_MINUTES)
            for name, interval in _figures(judge(stretch, baseline_of(reference))):
                found.setdefault(name, []).append(interval)
        for name, intervals in found.items():
            if name in truths and len(intervals) >= runs / 2:
                truth = truths[name].value
                yield _covered(case, length, name, intervals, truth, len(on) // length)


def run(
    *,
    hours: int = 200,
    runs: int = 400,
    room: Path | None = None,
    lengths: Sequence[int] = LENGTHS,
    progress: Callable[[str], object] = lambda text: None,
) -> Iterator[Covered]:
    """The coverage in every case."""
    for name, world in cases().items():
        progress(f"coverage: {name}")
        on, off = (samples_in(trace_of(world, mode, hours, room=room)) for mode in _MODES)
        yield from measure(name, on, off, lengths=lengths, runs=runs)


_MODES = (Mode.ON, Mode.OFF)


def _figures(found: Assessment) -> Iterator[tuple[str, Interval]]:
    if found.speedup is None:
        return
    yield "S", found.speedup
    for label, bucket in sorted(found.buckets.items()):
        yield f"S {label}", bucket.speedup
    for each in found.bins:
        yield f"o bin {each.load_bin}", each.step_cost


def _stretch(generator: Any, samples: Sequence[Sample], length: int) -> Sequence[Sample]:
    at = int(generator.integers(0, len(samples) - length + 1))
    return samples[at : at + length]


def _covered(
    case: str, minutes: int, figure: str, intervals: Sequence[Interval], truth: float, apart: int
) -> Covered:
    inside = sum(each.lower <= truth <= each.upper for each in intervals)
    below = sum(each.below(truth) for each in intervals)
    mean = float(np.mean([each.value for each in intervals]))
    width = float(np.median([each.upper / each.lower - 1 for each in intervals]))
    return Covered(case, minutes, figure, len(intervals), inside, below, mean, truth, width, apart)

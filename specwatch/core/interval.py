"""Ratios with their confidence intervals, by bootstrap over windows.

What is estimated is a ratio of sums, as of the tokens that steps yielded by those steps. How is in
:mod:`specwatch.core.resampling`; here is what has to be known of it without numpy.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from specwatch.core.resampling import Resampled

LEAST_SAMPLES = 5
"""Windows below which there is no interval: too little data says nothing."""
CONFIDENCE = 0.95
RESAMPLES = 600


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval; ``samples`` is the number of windows behind it."""

    value: float
    lower: float
    upper: float
    samples: int
    confidence: float = CONFIDENCE

    def below(self, line: float) -> bool:
        """Whether the whole interval is."""
        return self.upper < line

    def above(self, line: float) -> bool:
        """Whether the whole interval is."""
        return self.lower > line

    def inverse(self) -> Interval:
        """That of 1 / what this is of."""
        return Interval(
            1 / self.value, 1 / self.upper, 1 / self.lower, self.samples, self.confidence
        )

    def over(self, other: Interval) -> Interval:
        """The quotient of two independent figures: relative errors add up as squares do."""
        value = self.value / other.value
        return Interval(
            value,
            value * math.exp(-math.hypot(self.down, other.up)),
            value * math.exp(math.hypot(self.up, other.down)),
            min(self.samples, other.samples),
            self.confidence,
        )

    @property
    def down(self) -> float:
        """How far the lower end lies below the value, as a logarithm."""
        return math.log(self.value / self.lower) if self.lower > 0 else math.inf

    @property
    def up(self) -> float:
        """How far the upper end lies above the value, as a logarithm."""
        return math.log(self.upper / self.value)


class Pair(NamedTuple):
    """What a ratio of sums adds up of one sample."""

    over: float
    under: float


class Reference:
    """A rate known from samples of its own: the sum of ``over`` by that of ``under``.

    Resampling it is most of the work, and is done once: keep it, and use it again.
    """

    __slots__ = ("over", "rate", "resampled", "under")

    def __init__(self, over: Iterable[float], under: Iterable[float]) -> None:
        # By content, so that the order of samples does not matter.
        pairs = sorted(zip(under, over, strict=True))
        self.over = array("d", (each for _, each in pairs))
        self.under = array("d", (each for each, _ in pairs))
        whole = sum(self.under)
        self.rate = sum(self.over) / whole if whole else 0.0
        self.resampled: dict[tuple[int, int, int], Resampled] = {}
        """By seed, stream and number of resamples."""

    def __len__(self) -> int:
        return len(self.under)


@dataclass(frozen=True, slots=True)
class Ratio:
    """sum over r of (sum of ``parts[...][r]``) * rate of reference r, over the sum of ``under``.

    ``parts`` has a row for each sample, and in it a column for each reference.
    """

    parts: Sequence[Sequence[float]]
    under: Sequence[float]


def interval_of(
    ratio: Ratio,
    references: Sequence[Reference],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """The ratio and its interval; None for too few samples, or where there is nothing to divide.

    Raises ValueError when ``parts`` has not a row for each sample, and in it a column for each
    reference.
    """
    count = len(ratio.under)
    if len(ratio.parts) != count or any(len(row) != len(references) for row in ratio.parts):
        shape = (len(ratio.parts), *sorted({len(row) for row in ratio.parts}))
        raise ValueError(
            f"parts of shape {shape} for {count} samples and {len(references)} references"
        )
    used = [at for at in range(len(references)) if any(row[at] for row in ratio.parts)]
    fewest = min([count, *(len(references[at]) for at in used)])
    if not used or fewest < LEAST_SAMPLES or sum(ratio.under) <= 0:
        return None
    # numpy takes a fifth of the memory of a daemon, which has no use for it while all is well.
    from specwatch.core import resampling

    parts = [[row[at] for at in used] for row in ratio.parts]
    known = [(at, references[at]) for at in used]
    return resampling.interval_of(parts, ratio.under, known, seed, confidence, resamples)


def paired_interval(
    over: Sequence[Pair],
    under: Sequence[Pair],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """One ratio of sums by another, of samples that were taken in turns: resampled together.

    What troubles both samples of a turn is then no noise. None for too few turns, or where there
    is nothing to divide. Raises ValueError for sequences of unlike lengths.
    """
    turns = list(zip(over, under, strict=True))
    known = [(a, b) for a, b in turns if min(*a, *b) > 0]
    if len(known) < LEAST_SAMPLES:
        return None
    from specwatch.core import resampling

    rows = sorted((*a, *b) for a, b in known)
    return resampling.paired_interval(rows, seed, confidence, resamples)

"""Acceptance with its interval, by bootstrap over requests.

Drafts of one request are alike and requests differ, so whole requests are resampled, each with all
its drafts; if only the server's counters are known, blocks of requests. Requests with the same
prompt are resampled together, as they add little information, at temperature 0 none (A. Davison, D.
Hinkley, *Bootstrap Methods and their Application*, 1997, 3.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, zip_longest

from specwatch.domain.acceptance import accepted_length_histogram
from specwatch.domain.experiments import Acceptance, Estimate
from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.model import Tally
from specwatch.lab.loadtest.resampling import Pair, ratio_interval
from specwatch.lab.loadtest.result_parts import estimate_of
from specwatch_tap.acceptance import Acceptance as Record


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """The drafts of one request, or of one block.

    ``histogram`` has the drafts that had 0, 1, .. tokens accepted. None means not known.
    ``prompts`` are those that it answered; if empty, it shares none with other parts.
    """

    drafts: int | None
    draft_tokens: int
    accepted_tokens: int
    histogram: tuple[int, ...] | None = None
    prompts: frozenset[str] = frozenset()

    def __add__(self, other: DraftCounts) -> DraftCounts:
        drafts: int | None = None
        histogram: tuple[int, ...] | None = None
        if self.drafts is not None and other.drafts is not None:
            drafts = self.drafts + other.drafts
        histograms = [part.histogram for part in (self, other) if part.draft_tokens]
        if histograms and None not in histograms:
            values = [value or () for value in histograms]
            histogram = tuple(map(sum, zip_longest(*values, fillvalue=0)))
        return DraftCounts(
            drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            histogram,
            self.prompts | other.prompts,
        )

    @classmethod
    def of_record(cls, record: Record, prompts: Iterable[str] = ()) -> DraftCounts:
        """From the record in a response."""
        return cls(
            record.drafts,
            record.draft_tokens,
            record.accepted_tokens,
            record.accepted_lengths,
            frozenset(prompts),
        )

    @classmethod
    def of_counters(cls, counted: Tally, prompts: Iterable[str] = ()) -> DraftCounts | None:
        """From the counters of a server; None if it does not count draft and accepted tokens."""
        if counted.draft_tokens is None or counted.accepted_tokens is None:
            return None
        histogram = accepted_length_histogram(
            counted.drafts, counted.accepted_per_position, counted.accepted_tokens
        )
        return cls(
            counted.drafts,
            counted.draft_tokens,
            counted.accepted_tokens,
            histogram,
            frozenset(prompts),
        )


def drawn(parts: Iterable[DraftCounts]) -> list[DraftCounts]:
    """The units of resampling: sums over the parts, with drafts, that have a prompt in common."""
    by_key: dict[object, DraftCounts] = {}
    of_prompt: dict[str, object] = {}
    for part in parts:
        if not part.draft_tokens:
            continue
        place, merged = object(), part
        for other in {of_prompt[prompt] for prompt in part.prompts if prompt in of_prompt}:
            merged += by_key.pop(other)
        by_key[place] = merged
        of_prompt.update(dict.fromkeys(merged.prompts, place))
    return list(by_key.values())


def acceptance_of(parts: Sequence[DraftCounts], *, seed: int = 0) -> Acceptance | None:
    """All parts together; None if nothing was drafted. No interval for fewer than five units."""
    whole = reduce(DraftCounts.__add__, parts, DraftCounts(0, 0, 0))
    if not whole.draft_tokens:
        return None
    interval = rate_interval(parts, seed=seed)
    rate = Estimate(value=whole.accepted_tokens / whole.draft_tokens)
    per_position = None
    if whole.histogram is not None and any(whole.histogram):
        # A draft with j accepted tokens had its first j positions accepted.
        at_least = list(accumulate(reversed(whole.histogram)))[::-1]
        per_position = tuple(count / at_least[0] for count in at_least[1:])
    return Acceptance(
        drafts=whole.drafts,
        draft_tokens=whole.draft_tokens,
        accepted_tokens=whole.accepted_tokens,
        rate=rate if interval is None else estimate_of(interval),
        mean_length=1 + whole.accepted_tokens / whole.drafts if whole.drafts else None,
        histogram=whole.histogram,
        per_position=per_position,
    )


def rate_interval(parts: Sequence[DraftCounts], *, seed: int = 0) -> Interval | None:
    """Acceptance rate; None for too few parts.

    The logarithm of the smaller of the two shares, accepted and rejected, is resampled, so that the
    interval stays between 0 and 1. If that share is 0, the interval is the exact one for as many
    requests without a success (C. Clopper, E. Pearson, *Biometrika* 26, 1934).
    """
    samples = drawn(parts)
    if len(samples) < LEAST_SAMPLES:
        return None
    drafted = [float(part.draft_tokens) for part in samples]
    accepted = [float(part.accepted_tokens) for part in samples]
    if 2 * sum(accepted) <= sum(drafted):
        return _share(accepted, drafted, seed)
    rejected = _share([d - a for d, a in zip(drafted, accepted, strict=True)], drafted, seed)
    if rejected is None:
        return None
    return replace(linear(rejected, 1.0, -1.0), value=sum(accepted) / sum(drafted))


def length_interval(
    parts: Sequence[DraftCounts], *, drafting: float = 1.0, seed: int = 0
) -> Interval | None:
    """tau over all decoding steps, of which the share ``drafting`` drafted; None if unknown.

    Its relative error is that of the acceptance rate, as the length of drafts hardly varies.
    """
    rate = rate_interval(parts, seed=seed)
    if rate is None or not all(part.drafts is not None for part in parts):
        return None
    drafts = sum(part.drafts or 0 for part in parts)
    per_step = drafting * sum(part.draft_tokens for part in parts) / drafts if drafts else 0.0
    return linear(rate, 1.0, per_step)


def linear(interval: Interval, offset: float, factor: float) -> Interval:
    """The interval of ``offset + factor * x``."""
    value, *ends = (offset + factor * x for x in (interval.value, interval.lower, interval.upper))
    return replace(interval, value=value, lower=min(ends), upper=max(ends))


def _share(over: Sequence[float], under: Sequence[float], seed: int) -> Interval | None:
    count = len(under)
    if not sum(over):
        return Interval(0.0, 0.0, 1 - ((1 - CONFIDENCE) / 2) ** (1 / count), count, CONFIDENCE)
    interval = ratio_interval(list(map(Pair, over, under)), seed=seed)
    if interval is None:
        return None
    value = sum(over) / sum(under)  # exact, unlike the exponential of a logarithm
    return Interval(value, interval.lower, min(interval.upper, 1.0), count, interval.confidence)

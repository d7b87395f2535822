"""Whether a server answers with speculation as it does without: where answers part, how often.

At temperature 0 speculation must not change the text. No engine promises equal bits, though: the
sums of a batch depend on what else is in it, and where two tokens are nearly as likely, the other
one may win. So the server without speculation is asked twice, in batches of another size, and what
differs then is what to compare with.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from msgspec import Struct

from specwatch.domain.experiments import Estimate, Subject, Workload
from specwatch.domain.quantile import NORMAL
from specwatch.lab.loadtest.requests import Answer

_EXCERPT = 60
"""Characters of two answers that are shown from where they part."""
_MOST_PARTINGS = 1000
_CHANCE = 0.025

Outcome = Literal["no_more", "more", "unknown"]
"""Whether answers differ more often with speculation than without it, asked twice."""


class AnswerSet(NamedTuple):
    """The answers to one prompt."""

    on: Answer
    off: Answer
    again: Answer
    """Without speculation, the second time."""

    @property
    def ok(self) -> bool:
        """Whether all are complete."""
        return self.on.ok and self.off.ok and self.again.ok


class Differences(Struct, frozen=True, kw_only=True):
    """How many pairs of answers differ. Positions are in characters; None without differences."""

    count: int
    share: Estimate
    first_position: int | None
    """Of all, where the first one parts."""
    median_position: float | None


class Parting(Struct, frozen=True, kw_only=True):
    """Two answers from where they part; ``prompt`` counts from 0, ``position`` is in characters."""

    prompt: int
    position: int
    on: str
    off: str


class AnswerComparison(Struct, frozen=True, kw_only=True, tag_field="kind", tag="answers"):
    """Answers at temperature 0 with speculation and without, and without a second time.

    ``compared`` are the prompts of which all three answers came.
    """

    version: str
    began: float
    ended: float
    complete: bool
    on: Subject
    off: Subject
    workload: Workload
    concurrency: int
    again_concurrency: int
    """Requests at a time the second time without speculation."""
    compared: int
    errors: dict[str, int]
    differences: Differences | None
    """With and without speculation."""
    differences_again: Differences | None
    """Without speculation, both times."""
    outcome: Outcome
    at_limit: dict[str, int]
    """Answers that ended at the limit of length, by ``on``, ``off`` and ``again``."""
    partings: tuple[Parting, ...]
    notes: tuple[str, ...] = ()


class Compared(NamedTuple):
    """What some sets of answers say."""

    differences: Differences | None
    again: Differences | None
    outcome: Outcome
    at_limit: dict[str, int]
    partings: tuple[Parting, ...]
    errors: dict[str, int]


def compare(sets: Sequence[AnswerSet]) -> Compared:
    """Compare the answers to each prompt.

    Whether more differ with speculation is decided by the prompts of which only one pair differs:
    either would be as likely (Q. McNemar, *Psychometrika* 12, 1947; the exact test, one-sided at
    2.5 %).
    """
    whole = [(index, one) for index, one in enumerate(sets) if one.ok]
    partings = [
        Parting(
            prompt=index,
            position=place,
            on=one.on.text[place : place + _EXCERPT],
            off=one.off.text[place : place + _EXCERPT],
        )
        for index, one in whole
        if (place := parting(one.on, one.off)) is not None
    ]
    again = [parting(one.off, one.again) for _, one in whole]
    positions = {one.prompt: one.position for one in partings}
    pairs = [(positions.get(index), other) for (index, _), other in zip(whole, again, strict=True)]
    only_on = sum(on is not None and other is None for on, other in pairs)
    only_again = sum(on is None and other is not None for on, other in pairs)
    outcome: Outcome = "unknown"
    if whole:
        chance = _at_least(only_on, only_on + only_again)
        outcome = "more" if chance <= _CHANCE else "no_more"
    return Compared(
        _differences([on for on, _ in pairs]),
        _differences(again),
        outcome,
        {
            name: sum(getattr(one, name).finish_reason == "length" for _, one in whole)
            for name in AnswerSet._fields
        },
        tuple(sorted(partings, key=lambda one: one.position)[:_MOST_PARTINGS]),
        dict(Counter(str(answer.error) for one in sets for answer in one if not answer.ok)),
    )


def parting(first: Answer, second: Answer) -> int | None:
    """The position of the first character that differs, or that only one has; None if all are
    equal. Answers that end for unlike reasons differ at their end."""
    if first.text == second.text:
        return None if first.finish_reason == second.finish_reason else len(first.text)
    pairs = zip(first.text, second.text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _differences(positions: Sequence[int | None]) -> Differences | None:
    """None without answers."""
    if not positions:
        return None
    known = [position for position in positions if position is not None]
    return Differences(
        count=len(known),
        share=_share(len(known), len(positions)),
        first_position=min(known, default=None),
        median_position=statistics.median(known) if known else None,
    )


def _share(count: int, of: int) -> Estimate:
    """A share with its interval (E. Wilson, *J. Am. Stat. Assoc.* 22, 1927)."""
    z = NORMAL**2 / of
    share = count / of
    middle = (share + z / 2) / (1 + z)
    away = math.sqrt(z * (share * (1 - share) + z / 4)) / (1 + z)
    return Estimate(value=share, lower=max(middle - away, 0.0), upper=min(middle + away, 1.0))


def _at_least(count: int, of: int) -> float:
    """The chance of so many heads, or more, of so many coins."""
    # Of integers, as floats end at 2**1024.
    return sum(math.comb(of, number) for number in range(count, of + 1)) / (1 << of)

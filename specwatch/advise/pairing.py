"""Do target and draft fit in size and family, by what has worked for others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from specwatch.advise.candidate import Candidate
from specwatch.advise.model import Finding, Level
from specwatch.advise.sources import reported

_BILLION = 1e9
_TOO_SMALL = 0.3
_TOO_DEAR = 3.0
_NEVER = 3.0
_RARELY = 8.4
"""Models called 8B have up to 8.4 billion parameters."""
_MOST_RELIABLE = 67
"""The ratio of the pair named as most reliable, 0.5B for 32B, exactly counted."""
_ROUNDING = 1.05
"""How far a size may be off its round name."""


class _Range(NamedTuple):
    """What is said of size ratios from those of the range before, up to ``end``."""

    end: float
    level: Level
    text: str
    source: str
    remedy: str = ""
    closed: bool = True
    """Whether ``end`` itself is in it."""

    def fits(self, ratio: float) -> bool:
        return ratio < self.end or (self.closed and ratio == self.end)


_SMALLER = "take a smaller draft of the same family"
_MEASURE = "measure its acceptance first: specwatch probe"
_RATIOS = (
    _Range(
        1, "wrong", "the draft is as large as the target, and cannot pay", "arithmetic", _SMALLER
    ),
    _Range(
        5, "doubt", "too large a draft: 1:8 to 1:12 is usual", reported("F"), _SMALLER,
        closed=False,
    ),
    _Range(
        8, "note", "a large draft: 1:8 to 1:12 is usual", reported("F"), _MEASURE, closed=False
    ),
    _Range(12, "ok", "as with most general drafts, 1:8 to 1:12", reported("F")),
    _Range(
        30, "ok", "between the 1:8 to 1:12 of one report and the 1:30 to 1:60 of another",
        reported("FT"), closed=False,
    ),
    _Range(
        _MOST_RELIABLE, "ok", "in the range 1:30 to 1:60 reported for very small drafts",
        reported("T"),
    ),
    _Range(
        80, "note", "1:70 is too small in one report, good in another", reported("FG"), _MEASURE
    ),
    _Range(
        150, "doubt", "1:140 was reported once, with 1.5 times the speed at low rate",
        reported("F"), _MEASURE,
    ),
    _Range(math.inf, "doubt", "smaller than anything reported to work", reported("FT"), _MEASURE),
)  # fmt: skip
"""Size ratios, the largest drafts first."""


def findings(target: Candidate, draft: Candidate | None) -> Iterator[Finding]:
    """Yield what is to be said of the sizes and families; ``draft`` is a model of its own."""
    yield from of_target(target)
    if draft is None:
        return
    if target.total is not None and draft.total is not None:
        yield _ratio(target.total, draft.total)
        yield from _of_draft(draft.total)
    yield from _families(target, draft)
    yield from _contexts(target, draft)


def of_target(target: Candidate) -> Iterator[Finding]:
    """Yield whether a target of its size gains from speculation at all."""
    if target.total is None:
        return
    billions = target.total / _BILLION
    said = f"the target has {size(target.total)} parameters ({target.told_by})"
    if billions <= _NEVER * _ROUNDING:
        yield Finding(
            topic="pairing",
            level="doubt",
            text=f"{said}: targets of 3B and below never gained",
            reason="its own steps are as cheap as drafting",
            source=reported("TGP"),
            remedy="measure before it goes live: specwatch bench, with and without",
        )
    elif billions <= _RARELY:
        yield Finding(
            topic="pairing",
            level="doubt",
            text=f"{said}: targets of 8B and below rarely gain",
            reason="there is no draft that is small enough beside them and still good",
            source=reported("TGP"),
            remedy="n-gram lookup or an EAGLE head cost less than a draft model; measure both",
        )
    else:
        yield Finding(
            topic="pairing",
            level="ok",
            text=f"{said}: large enough to gain",
            source=reported("TGP"),
        )
    if target.active is not None and target.active < target.total:
        yield Finding(
            topic="pairing",
            level="note",
            text=f"the target is a mixture of experts: a token uses {size(target.active)}",
            reason="drafting is measured against those; and each drafted token picks experts of"
            " its own, so checking several reads more weights than one step, which the speedups"
            " expected here leave out",
            source="arithmetic",
        )


def _ratio(target: int, draft: int) -> Finding:
    ratio = target / max(draft, 1)
    found = next(each for each in _RATIOS if each.fits(ratio))
    return Finding(
        topic="pairing",
        level=found.level,
        text=f"size ratio 1:{ratio:.3g} ({size(draft)} for {size(target)}): {found.text}",
        reason="what drafts cost grows with the draft, and how many are kept too",
        source=found.source,
        remedy=found.remedy,
    )


def _of_draft(total: int) -> Iterator[Finding]:
    billions = total / _BILLION
    if billions <= _TOO_SMALL:
        yield Finding(
            topic="pairing",
            level="doubt",
            text=f"the draft has {size(total)} parameters: drafts of 0.3B and below collapse",
            reason="so little of what they draft is kept that it does not pay for drafting",
            source=reported("T"),
            remedy="0.5B for 32B was the most reliable: measure with specwatch probe",
        )
    elif billions * _ROUNDING >= _TOO_DEAR:
        yield Finding(
            topic="pairing",
            level="note",
            text=f"the draft has {size(total)} parameters: reports contradict each other",
            reason="3B and above cost too much in one [T]; another starts with 8B for 70B [F]",
            source=reported("TF"),
            remedy="compare it with the next smaller one: specwatch bench compare",
        )


def _families(target: Candidate, draft: Candidate) -> Iterator[Finding]:
    ours, theirs = target.family, draft.family
    if ours is None or theirs is None:
        return
    if ours == theirs:
        yield Finding(
            topic="pairing",
            level="ok",
            text=f"both are of the {ours} family",
            source="their model types, or their names",
        )
        return
    yield Finding(
        topic="pairing",
        level="doubt",
        text=f"different families: {ours} and {theirs}",
        reason="even with the same tokens they were trained to say different things",
        source=reported("F"),
        remedy=f"take a draft of the {ours} family",
    )


def _contexts(target: Candidate, draft: Candidate) -> Iterator[Finding]:
    if target.architecture is None or draft.architecture is None:
        return
    ours, theirs = target.architecture.context, draft.architecture.context
    if ours is not None and theirs is not None and theirs < ours:
        yield Finding(
            topic="pairing",
            level="note",
            text=f"the draft was trained for {theirs:,} tokens, the target for {ours:,}",
            reason="past the draft's length nothing is drafted, or what is drafted is not kept",
            source="their config.json",
        )


def size(parameters: int) -> str:
    """``70.6B``, ``494M``."""
    if parameters >= _BILLION:
        return f"{parameters / _BILLION:.3g}B"
    return f"{parameters / 1e6:.3g}M" if parameters >= 1e6 else f"{parameters / 1e3:.3g}K"

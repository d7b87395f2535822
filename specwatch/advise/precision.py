"""What quantising target or draft does to acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.advise.candidate import Candidate
from specwatch.advise.model import Finding
from specwatch.advise.sources import reported

_FOUR_BITS = 6.0
"""Bits a weight below which a format counts as one of four bits, as embeddings keep theirs."""
_EIGHT_BITS = 12.0
_POINTS = "more than 5 points lost against the unquantised pair calls for another choice"


def findings(target: Candidate, draft: Candidate | None) -> Iterator[Finding]:
    """Yield what is to be said of the formats of both; nothing where neither is quantised."""
    if target.quantization is not None and target.bits is not None:
        yield from _of_target(target.quantization, target.bits)
    if draft is not None and draft.quantization is not None and draft.bits is not None:
        yield Finding(
            topic="quantization",
            level="ok",
            text=f"the draft is quantised ({draft.quantization}), which hardly hurts acceptance",
            source=reported("F"),
        )
    if draft is not None and _is_dearer(target, draft):
        yield Finding(
            topic="quantization",
            level="note",
            text=f"the target is quantised ({target.quantization}) and the draft is not",
            reason="each draft token then costs more of a step of the target",
            source=f"arithmetic; that quantising a draft hardly hurts: {reported('F')}",
            remedy="quantise the draft too: it hardly hurts",
        )


def _of_target(name: str, bits: float) -> Iterator[Finding]:
    if bits < _FOUR_BITS:
        yield Finding(
            topic="quantization",
            level="doubt",
            text=f"the target is quantised to about 4 bits ({name}), which hurts acceptance",
            reason=f"INT4 more than INT8; {_POINTS}",
            source=reported("F"),
            remedy="measure both on the same prompts (specwatch probe), or take 8 bits",
        )
    elif bits < _EIGHT_BITS:
        yield Finding(
            topic="quantization",
            level="note",
            text=f"the target is quantised to about 8 bits ({name}): acceptance may fall a little",
            reason=_POINTS,
            source=reported("F"),
            remedy="compare with the unquantised pair: specwatch probe on the same prompts",
        )


def _is_dearer(target: Candidate, draft: Candidate) -> bool:
    if target.quantization is None or target.bits is None or draft.bits is None:
        return False
    return draft.bits > 1.5 * target.bits

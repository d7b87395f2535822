"""How many tokens of a draft are accepted: a small histogram for each temperature bucket."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specwatch.report.charts.frame import AXIS, WIDTH
from specwatch.report.charts.scale import Scale, ticks
from specwatch.report.charts.style import FILLS
from specwatch.report.charts.svg import SIZE, document, element, rule, sentence, words
from specwatch.report.model import Temperature
from specwatch.wording.text import shown

_MOST = 9
_IN_A_ROW = 3
_LEFT, _HIGH, _HEAD, _FOOT, _GAP = 48.0, 72.0, 22.0, 22.0, 12.0
_NAME = 14


def histogram(temperatures: Sequence[Temperature], prefix: str = "histogram") -> str:
    """The share of drafts by how many tokens were accepted; at most nine buckets are drawn.

    A sentence where no histogram is known.
    """
    found = [(each.temperature, _shares(each.acceptance.histogram)) for each in temperatures]
    drawn_ = [(label, shares) for label, shares in found if shares]
    if len(drawn_) == 2 and drawn_[0][0] == "all":
        drawn_ = drawn_[1:]  # the only bucket is all of it
    drawn_ = drawn_[:_MOST]
    if not drawn_:
        return sentence("How many tokens of a draft are accepted is not known.")
    steps = ticks(0, max(max(shares) for _, shares in drawn_), 3)
    row = _HEAD + _HIGH + _FOOT
    wide = (WIDTH - _LEFT - _GAP * (_IN_A_ROW - 1) - 4) / _IN_A_ROW
    content: list[str] = []
    for number, (label, shares) in enumerate(drawn_):
        left = _LEFT + number % _IN_A_ROW * (wide + _GAP)
        top = number // _IN_A_ROW * row + _HEAD
        down = Scale(0, steps[-1], top + _HIGH, top)
        content += _levels(steps, down, left, wide, labelled=number % _IN_A_ROW == 0)
        content += _bars(shares, down, left, wide)
        content.append(words(shown(label, _NAME), left, top - 7, font_weight=600))
    height = math.ceil(len(drawn_) / _IN_A_ROW) * row
    told = "; ".join(_told(label, shares) for label, shares in drawn_)
    return document(
        prefix, (WIDTH, round(height + 4)),
        "Share of drafts by the number of tokens accepted, by temperature", f"{told}.", content,
    )  # fmt: skip


def _shares(counts: Sequence[int] | None) -> list[float]:
    whole = sum(max(each, 0) for each in counts or ())
    return [max(each, 0) / whole for each in counts or ()] if whole else []


def _levels(
    steps: Sequence[float], down: Scale, left: float, wide: float, *, labelled: bool
) -> Iterator[str]:
    for value in steps:
        y = down.at(value)
        yield rule((left, y), (left + wide, y), **(AXIS if not value else {}))
        if labelled:
            yield words(f"{value:.0%}", left - 5, y + SIZE * 0.34, "end")


def _bars(shares: Sequence[float], down: Scale, left: float, wide: float) -> Iterator[str]:
    each = wide / len(shares)
    every = max(1, math.ceil(len(shares) * 18 / wide))
    for number, share in enumerate(shares):
        x, top = left + number * each, down.at(share)
        yield element(
            "rect", x=x + each * 0.1, y=top, width=each * 0.8, height=down.start - top, **FILLS[0]
        )
        if number % every == 0:
            yield words(str(number), x + each / 2, down.start + SIZE + 2, "middle")


def _told(label: str, shares: Sequence[float]) -> str:
    listed = ", ".join(f"{number} in {share:.0%}" for number, share in enumerate(shares[:17]))
    more = "" if len(shares) <= 17 else ", and so on"
    name = "all temperatures" if label == "all" else f"temperature {shown(label)}"
    return f"{name}: {listed}{more} of the drafts"

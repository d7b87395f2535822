"""The segments of one model on the status page, as plain text and figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from specwatch.domain.segments import label_of
from specwatch.rules.segment_view import SegmentView, segment_views
from specwatch.status import TargetStatus
from specwatch.wording import figures
from specwatch.wording.segments import kind_title, segment_words


class StatusSegment(NamedTuple):
    """One segment over the last minutes.

    ``cells`` are the speedup of the last hour, its share of the tokens, acceptance, tokens a step,
    mean TPOT, and requests.
    """

    segment: str
    cells: tuple[str, ...]
    loses: bool


def segments_of(target: TargetStatus, name: str) -> Iterator[tuple[str, tuple[StatusSegment, ...]]]:
    """Yield the segments of a model by kind, each kind with its title."""
    windows = [window for window in target.segments if window.series.model_name == name]
    views = segment_views(windows, target.segment_speedups)
    for kind, rows in itertools.groupby(views, key=lambda view: view.segment):
        yield kind_title(kind), tuple(map(_segment, rows))


def _segment(view: SegmentView) -> StatusSegment:
    cells = (
        figures.number(None if view.speedup is None else view.speedup.value, 2),
        figures.UNKNOWN if view.token_share is None else f"{view.token_share:.0%}",
        figures.percent(view.acceptance_rate),
        figures.number(view.mean_acceptance_length, 2),
        figures.seconds(view.mean_tpot),
        figures.number(view.requests),
    )
    loses = view.speedup is not None and view.speedup.upper < 1
    return StatusSegment(segment_words(label_of(view.segment, view.value)), cells, loses)

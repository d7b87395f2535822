"""The hours of a target for its report, added up where the report shows only sums.

Most rows are those of segments. A report shows the drafts of a segment hour by hour and
everything else as sums. Of the time before its period it shows sums only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

import numpy as np

from specwatch.domain.model import ALL, HOUR, Mode, Segment, Window
from specwatch.report.grouped_data import Beside, Drafted, Recorded, add_drafted
from specwatch.report.hours import Member
from specwatch.store.column_texts import Ints, Mask
from specwatch.store.frame import Frame, replaced
from specwatch.store.frame_sum import Group, numbered, sum_rows

_START = attrgetter("start")
_MODES = list(Mode)


class BucketSums:
    """Makes windows from rows of the hours.

    The period begins at ``since``. Before ``hours_since`` the report needs no single hour with
    speculation (both Unix seconds).

    Each segment gets one window for each mode, load bin and environment, for the period and for the
    time before. Its start is that of the last hour in it. Within the period the drafts of each hour
    come with the window of all requests. Before ``hours_since`` windows of all requests are
    added up, too. Every row stays a window of one hour where speculation is off, or where the
    server does not count everything itself: there a report needs the hours of segments.
    """

    def __init__(self, since: float, hours_since: float = -math.inf) -> None:
        self._since = since
        self._hours_since = hours_since

    def __call__(self, frame: Frame, members: Mapping[int, Member]) -> list[Recorded]:
        """Windows of rows that one daemon wrote, by start."""
        if not len(frame):
            return []
        contexts = frame.contexts
        modes = {id_: _MODES.index(contexts[id_].mode) for id_ in set(frame.context_ids.tolist())}
        mode = frame.of_contexts(modes)
        whole, complete = _wholes(frame, members, mode)
        now = frame.starts >= self._since
        of_bucket = whole >= 0
        long_ago = (frame.starts < self._hours_since) & (mode == _MODES.index(Mode.ON))
        # Rows that are added up have all of these in common; every other row is a group by itself.
        added = of_bucket | (complete & long_ago & ~now)
        alone = np.where(added, -1, np.arange(len(frame)))
        alike = (now, frame.series, frame.context_ids, frame.load_bins)
        first, group = numbered([alone, *(np.where(added, column, 0) for column in alike)])
        last = np.zeros(len(first), np.int64)
        last[group] = np.arange(len(frame))
        places = zip(frame.series[last].tolist(), frame.starts[last].tolist(), strict=True)
        groups = [Group(members[id_].series, start) for id_, start in places]
        windows = sum_rows(frame, group, groups)
        summed: list[Recorded] = []
        beside = _beside(frame, members, whole, of_bucket & now)
        for window, index in zip(windows, last.tolist(), strict=True):
            if of_bucket[index]:
                # What was sampled is of the last window of all requests beside it.
                beside_it = windows[group[whole[index]]]
                summed.append(
                    Window(
                        series=window.series,
                        start=window.start,
                        length=HOUR,
                        mode=beside_it.mode,
                        tally=window.tally,
                        gauges=beside_it.gauges,
                        environment=beside_it.environment,
                        source=window.source,
                    )
                )
            else:
                drafted = beside.get(index)
                summed.append(window if drafted is None else Beside(window.start, window, drafted))
        return sorted(summed, key=_START)


def _beside(
    frame: Frame, members: Mapping[int, Member], whole: Ints, chosen: Mask
) -> dict[int, dict[Segment, Drafted]]:
    """What the chosen rows drafted, by their row of all requests."""
    rows = np.flatnonzero(chosen)
    label = {id_: member.series.segment for id_, member in members.items()}
    counted = (frame.numbers[name][rows] for name in ("drafts", "draft_tokens", "accepted_tokens"))
    drafted = zip(*(np.maximum(counts, 0).tolist() for counts in counted), strict=True)
    by_whole: dict[int, dict[Segment, Drafted]] = {}
    for series, beside, counts in zip(
        frame.series[rows].tolist(), whole[rows].tolist(), drafted, strict=True
    ):
        add_drafted(by_whole.setdefault(beside, {}), label[series], counts)
    return by_whole


def _wholes(frame: Frame, members: Mapping[int, Member], mode: Ints) -> tuple[Ints, Mask]:
    """The row of all requests beside each row, of the same server; and which rows those are.

    -1 for a row that is itself of all requests, and where there is no such row, where
    speculation is off, or where the server does not count everything that a report shows.
    """
    model = {id_: member.series.model_name for id_, member in members.items()}
    models = list(dict.fromkeys(model.values()))
    contexts = {id_: frame.contexts[id_].environment for id_ in set(frame.context_ids.tolist())}
    environments = list(dict.fromkeys(contexts.values()))
    of_context = {id_: environments.index(each) for id_, each in contexts.items()}
    of_all = {id_: member.series.segment == ALL for id_, member in members.items()}
    # What windows of one server have in common.
    first, place = numbered(
        [
            frame.starts,
            replaced(frame.series, {id_: models.index(name) for id_, name in model.items()}),
            frame.of_contexts(of_context),
            frame.load_bins,
            mode,
        ]
    )
    all_temperatures = replaced(frame.series, of_all) > 0
    ran = mode != _MODES.index(Mode.OFF)
    complete = all_temperatures & ran & _all_counted(frame)
    places = np.full(len(first), -1)
    places[place[complete]] = np.flatnonzero(complete)
    return np.where(all_temperatures, -1, places[place]), complete


def _all_counted(frame: Frame) -> Mask:
    """For each row whether drafts, tokens, latencies and finished requests are counted."""
    known = (frame.numbers["drafts"] >= 0) & (frame.numbers["generation_tokens"] >= 0)
    for name in ("ttft", "tpot"):
        known &= frame.arrays[name].known
    finished = np.zeros(len(frame), np.bool_)
    for rows, counts in frame.keys["requests"].values():
        finished[rows[counts > 0]] = True
    usable: Mask = known & finished
    return usable

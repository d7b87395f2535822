"""Whether the figures are reliable: downtime, gaps, and drafts without a temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from specwatch.domain.merge import sum_fields
from specwatch.domain.model import ALL, TEMPERATURE, UNKNOWN_TEMPERATURE, Window
from specwatch.report.model import Gap, Health
from specwatch.scrape.coverage import LOW_COVERAGE, leading_reasons, share_derived
from specwatch.wording import figures
from specwatch.wording.figures import moment

MOST_GAPS = 5
WATCHED = 0.9
"""Share of its length from which a window counts as watched throughout: the first minute of a
daemon is never complete."""
UNWATCHED = 0.1
"""Share below which it counts as missing."""
_MUCH = 0.05
"""Share of the time, of the scrapes or of the drafts that is worth a warning."""
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "the whole request"}


class _Slot(NamedTuple):
    """A minute or an hour, and for how many seconds of it scrapes were answered (``seconds``) and
    were not (``down``)."""

    start: int
    length: int
    seconds: float
    down: float

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def tried(self) -> float:
        return self.seconds + self.down

    @property
    def missing(self) -> float:
        return 0.0 if self.tried >= WATCHED * self.length else self.length - self.tried


def health(windows: Sequence[Window], since: float, until: float) -> Health:
    """How well one model was watched from ``since`` to ``until`` (Unix seconds).

    ``windows`` are hours or minutes of it, of all temperatures, also from before ``since``. Time
    before the first of them is not a gap, because there was nothing to watch.
    """
    inside = [window for window in windows if since <= window.start < until]
    wholes = [window for window in inside if window.series.segment == ALL]
    parts = [window for window in inside if window.series.segment.dimension == TEMPERATURE]
    first = min((window.start for window in windows if window.start < until), default=until)
    begin = min(max(since, first), until)
    slots = _slots(wholes)
    gaps = sorted(_gaps(slots, begin, until), key=lambda gap: (gap.start - gap.end, gap.start))
    down = min(sum(slot.down for slot in slots), until - begin)
    # Of which temperatures come now; without any, all.
    last = max(parts or wholes, key=attrgetter("start"), default=None)
    observed = sum(slot.length - slot.missing for slot in slots) - down
    health = Health(
        expected=until - begin,
        observed=min(observed, until - begin - down),
        down=down,
        scrapes_ok=sum(window.scrapes_ok for window in wholes),
        scrapes_failed=sum(window.scrapes_failed for window in wholes),
        restarts=sum(window.restarts for window in wholes),
        coverage=_coverage(wholes, parts),
        source=None if last is None else str(last.source),
        uncovered=dict(sum_fields((window.tally for window in parts), ["uncovered"])["uncovered"]),
        gap_count=len(gaps),
        gaps=tuple(gaps[:MOST_GAPS]),
    )
    late = begin if since < begin < until else None
    warnings = (*_watching(health, late), *_counting(health, wholes, parts))
    return msgspec.structs.replace(health, warnings=warnings)


def _slots(wholes: Sequence[Window]) -> list[_Slot]:
    """By start. Of an hour there may be several windows, of several daemons even."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for window in wholes:
        watched = seconds.setdefault((window.start, window.length), [0.0, 0.0])
        watched[0] += window.observed_seconds
        watched[1] += window.down_seconds
    return [
        _Slot(
            start, length, *(part * min(1.0, length / max(sum(watched), 1.0)) for part in watched)
        )
        for (start, length), watched in sorted(seconds.items())
    ]


def _gaps(slots: Sequence[_Slot], begin: float, until: float) -> Iterator[Gap]:
    """Yield stretches of missing windows, and of the windows beside them the part that is missing.

    Time that is missing within one window has no known place, and is not a stretch.
    """
    time, before = begin, 0.0
    for slot in slots:
        if slot.tried < UNWATCHED * slot.length:
            continue
        if slot.start > time:
            yield Gap(start=max(time - before, begin), end=slot.start + slot.missing)
            before = 0.0
        else:
            before = slot.missing
        time = slot.end
    if time < until:
        yield Gap(start=max(time - before, begin), end=until)


def _coverage(wholes: Sequence[Window], parts: Sequence[Window]) -> float | None:
    """Share of the drafts that the server counted whose temperature is known."""
    server = sum(window.tally.drafts or 0 for window in wholes)
    if not server or not parts:
        return None
    drafts = sum(
        window.tally.drafts or 0 for window in parts if window.series.segment != UNKNOWN_TEMPERATURE
    )
    # A record comes at the end of its request, so a request under way may count twice.
    return min(drafts / server, 1.0)


def _watching(health: Health, late: float | None) -> Iterator[str]:
    if not health.expected:
        yield "it was not watched at all"
        return
    if late is not None:
        yield f"it is watched since {moment(late)} only"
    down = health.down / health.expected
    if down > _MUCH:
        restarts = figures.counted(health.restarts, "restart")
        yield (
            f"the server was down for {down:.0%} of the time"
            f" ({figures.span(health.down)}; {restarts})"
        )
    missed = health.expected - health.observed - health.down
    if missed > _MUCH * health.expected:
        yield (
            f"{missed / health.expected:.0%} of the time was not watched"
            f" ({figures.span(missed)}): what was served then is not in here"
        )
    looks = health.scrapes_ok + health.scrapes_failed
    if health.scrapes_failed > (_MUCH + down) * looks:
        yield f"{health.scrapes_failed / looks:.0%} of the looks at the server failed"


def _counting(health: Health, wholes: Sequence[Window], parts: Sequence[Window]) -> Iterator[str]:
    if health.coverage is None:
        if any(window.tally.drafts for window in wholes):
            yield (
                "temperatures are not known: nothing but the server's own counters was read;"
                " `specwatch tap flags` shows what to add to the server's command"
            )
    elif health.coverage < 1 - _MUCH:
        yield _uncovered(health, wholes, parts)
    records = sum_fields((window.tally for window in parts), ["records"])["records"]
    derived = share_derived(records)
    if derived > _MUCH:
        yield (
            f"for {derived:.0%} of the requests the acceptance by temperature is derived from"
            " streamed steps, as the server keeps no record of it"
        )
    coarse = []
    for metric, name in _LATENCIES.items():
        seen = [value for window in wholes if (value := getattr(window.tally, metric)) is not None]
        bounds = {histogram.bounds for histogram in seen}
        if len(bounds) > 1 or any(histogram.coarsened for histogram in seen):
            coarse.append(name)
    if coarse:
        yield (
            f"the buckets of {' and '.join(coarse)} changed within the period: only the bounds"
            " that they share count, so that quantiles are rougher"
        )


def _uncovered(health: Health, wholes: Sequence[Window], parts: Sequence[Window]) -> str:
    share = 1 - (health.coverage or 0.0)
    much = "more than half" if share > 1 - LOW_COVERAGE else f"{share:.0%}"
    text = f"{much} of the drafts have no temperature"
    reasons = leading_reasons(health.uncovered)
    if reasons:
        named = ", ".join(f"{count:,} ({reason})" for count, reason in reasons)
        text += f"; requests not covered: {named}"
    first_known = min(window.start for window in parts)
    if first_known > min(window.start for window in wholes if window.tally.drafts):
        return f"{text}; none is known before {moment(first_known)}"
    return text if reasons else f"{text}; does all traffic pass through the tap?"

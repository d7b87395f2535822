"""Changes of the server's version, configuration or draft length, and their effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from specwatch.domain import histogram
from specwatch.domain.acceptance import acceptance_rate, mean_acceptance_length
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import speedup_of
from specwatch.domain.merge import sum_fields
from specwatch.domain.model import (
    ALL,
    HOUR,
    WEIGHTS,
    Environment,
    Mode,
    Tally,
    Window,
)
from specwatch.domain.sample import Sample, samples_of
from specwatch.report import latencies
from specwatch.report.estimates import ratio_of
from specwatch.report.model import ReportChange, ReportSide
from specwatch.wording.text import shown

SIDE = 24 * HOUR
"""Seconds before and after a change that are compared, at most."""
MOST_CHANGES = 20
"""The latest: a server that changes more often is two behind one address."""

_LONGEST_VERSION = 40
_FIELDS = ("drafts", "draft_tokens", "accepted_tokens", "tpot")
_NO_K = ("", "0", "?")

BaselineOf = Callable[[Environment], Baseline]


class _ServerState(NamedTuple):
    """Facts about a server; ``k`` is that of its fingerprint, None without speculation."""

    version: str | None = None
    configuration: str | None = None
    k: str | None = None

    @classmethod
    def of(cls, environment: Environment) -> _ServerState:
        k = environment.drafting
        known = None if k.partition(" ")[0] in _NO_K else k
        return cls(environment.engine_version, environment.configuration, known)

    def updated(self, newer: _ServerState) -> _ServerState:
        """The newer server, with missing facts filled in from this one."""
        return _ServerState(
            *(old if new is None else new for old, new in zip(self, newer, strict=True))
        )

    def is_like(self, other: _ServerState) -> bool:
        """Whether no fact that both have differs."""
        return all(
            one is None or another is None or one == another
            for one, another in zip(self, other, strict=True)
        )


class _Switch(NamedTuple):
    """A change between two neighbouring samples."""

    at: float
    before: _ServerState
    after: _ServerState


def changes(
    windows: Sequence[Window], baseline_of: BaselineOf, since: float, until: float
) -> tuple[ReportChange, ...]:
    """The changes of version, configuration or k in ``since`` to ``until`` (Unix seconds), by time.

    ``windows`` are hours or minutes of one model and all temperatures, also from before ``since``.
    ``baseline_of`` gives the baseline of a server with that environment; an empty one
    leaves the speedups unknown. Switching speculation off or on is not a change.
    """
    begun = [window for window in windows if window.start < until]
    switches = list(_switches(begun))
    ends = [float("-inf"), *(switch.at for switch in switches), float("inf")]
    spans = [
        (switch, max(before, switch.at - SIDE), min(after, switch.at + SIDE))
        for switch, before, after in zip(switches, ends[:-2], ends[2:], strict=True)
        if since <= switch.at < until
    ]
    return tuple(
        ReportChange(
            at=switch.at,
            what=_what(switch.before, switch.after),
            before=_side(_within(begun, begin, switch.at, switch.before), baseline_of),
            after=_side(_within(begun, switch.at, end, switch.after), baseline_of),
        )
        for switch, begin, end in spans[-MOST_CHANGES:]
    )


def _switches(windows: Iterable[Window]) -> Iterator[_Switch]:
    """Yield the changes. Where a window has both servers, it lies between their shares of it.

    A server that answered for parts of two hours at most, and then no longer, is not a change.
    """
    wholes = [window for window in windows if window.series.segment == ALL]
    start = attrgetter("start")
    slots = [list(group) for _, group in groupby(sorted(wholes, key=start), key=start)]
    server = _ServerState()
    for slot, following in zip(slots, [*slots[1:], []], strict=False):
        same = _those(slot, server)
        for one in same:
            server = server.updated(_ServerState.of(one.environment))
        if len(same) == len(slot) or (same and _those(following, server)):
            continue
        stayed = sum(window.gauges.sampled_seconds for window in same)
        time = slot[0].start + min(stayed, float(slot[0].length))
        others = [_ServerState.of(window.environment) for window in slot if window not in same]
        last = next((window for window in others if _those(following, window)), others[-1])
        yield _Switch(time, server, server.updated(last))
        server = server.updated(last)


def _those(windows: Iterable[Window], server: _ServerState) -> list[Window]:
    return [window for window in windows if _ServerState.of(window.environment).is_like(server)]


def _within(
    windows: Iterable[Window], since: float, until: float, server: _ServerState
) -> list[Sample]:
    """What one server did between two times, with the windows that reach over them."""
    near = (
        window
        for window in windows
        if since < window.start + window.length and window.start < until
    )
    return samples_of(_those(near, server))


def _what(before: _ServerState, after: _ServerState) -> str:
    """``vLLM 0.31.0 -> 0.32.0, k 4 -> 5, configuration``."""
    differences = []
    if after.version != before.version:
        versions = [shown(one.version or "", _LONGEST_VERSION) for one in (before, after)]
        # llama.cpp counts its builds: b4567.
        engine = "vLLM" if all(version[:1].isdigit() for version in versions) else "version"
        differences.append(f"{engine} {versions[0]} -> {versions[1]}")
    if after.k != before.k:
        # A schedule of the switch is named by a number that says nothing to readers.
        olds = (before.k or "?").split()
        news = (after.k or "?").split()
        only_weights = all(word.startswith(WEIGHTS) for word in {*olds} ^ {*news})
        same = "weights" if only_weights else "lengths of drafts"
        old, new = shown(olds[0]), shown(news[0])
        differences.append(f"k {old} -> {new}" if old != new else same)
    if after.configuration != before.configuration:
        differences.append("configuration")
    return ", ".join(differences)


def _side(samples: Sequence[Sample], baseline_of: BaselineOf) -> ReportSide:
    """With speculation only, but for the hours: of all that was watched."""
    ran = [sample for sample in samples if sample.mode is Mode.ON]
    tally = Tally(**sum_fields((sample.tally for sample in ran), _FIELDS))
    tpot = tally.tpot
    quantiles = {
        name: None if tpot is None else histogram.quantile(tpot, q)
        for name, q in (("tpot_p50", 0.5), ("tpot_p99", 0.99))
    }
    p50, p99 = (None if quantile is None else quantile.value for quantile in quantiles.values())
    return ReportSide(
        hours=sum(sample.gauges.sampled_seconds for sample in samples) / HOUR,
        acceptance_rate=acceptance_rate(tally),
        mean_length=mean_acceptance_length(tally),
        tpot_mean=None if tpot is None else histogram.mean(tpot),
        tpot_p50=p50,
        tpot_p99=p99,
        speedup=ratio_of(speedup_of(ran, baseline_of(ran[-1].environment)) if ran else None),
        beyond=latencies.beyond(quantiles),
        buckets=latencies.buckets(quantiles),
    )

"""What a tap saw of each model over the last minutes, and what that says of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import ALL_TEMPERATURES, UNCOVERED, Source, Window
from specwatch.scrape.taps import KEEP_RECORDS, Trouble

LEAST_DRAFTS = 1000
"""Drafts of the server below which a low coverage says nothing, nor a high one."""
LOW_COVERAGE = 0.5
HIGH_COVERAGE = 0.9
"""The coverage from which on the tap's acceptance has to be that of the server."""
MOST_OFF = 0.05
"""How far apart the two acceptance rates may be."""
_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a tap saw of one model, and what the server counted in the same minutes.

    ``server_drafts`` is None where the server does not say, as are the acceptance rates where
    nothing was drafted.
    """

    source: Source
    drafts: int
    server_drafts: int | None
    records: Mapping[str, int]
    uncovered: Mapping[str, int]
    acceptance_rate: float | None = None
    server_acceptance_rate: float | None = None

    @property
    def coverage(self) -> float | None:
        """Share of the server's drafts that the tap saw; None where there were none.

        A request's record comes at its end, so that it may exceed 1 by what was under way at the
        beginning.
        """
        return self.drafts / self.server_drafts if self.server_drafts else None


def coverages(
    windows: Iterable[Window], source: Source | None, doubted: Collection[str] = ()
) -> dict[str, Coverage]:
    """The coverage of each model by the tap ``source`` that there is now, or has been.

    Models in ``doubted`` have none. ``windows`` are those of one target over the same minutes.
    """
    of_all: dict[str, Window] = {}
    parts: dict[str, list[Window]] = {}
    for window in windows:
        model = window.series.model_name
        if window.series.temperature == ALL_TEMPERATURES:
            of_all[model] = window
        else:
            parts.setdefault(model, []).append(window)
    by_model = {}
    for model in sorted({*of_all, *parts} - set(doubted)):
        seen = parts.get(model, [])
        if source is None and not seen:
            continue
        total = sum_tallies(window.tally for window in seen)
        whole = of_all.get(model)
        by_model[model] = Coverage(
            source or seen[-1].source,
            total.drafts or 0,
            None if whole is None else whole.tally.drafts,
            total.records,
            total.uncovered,
            acceptance_rate(total),
            None if whole is None else acceptance_rate(whole.tally),
        )
    return by_model


def trouble_of(model: str, seen: Coverage) -> Trouble | None:
    """What is wrong with how much a tap saw of a model; None where nothing is."""
    share = seen.coverage
    if share is None or not seen.server_drafts:
        return None
    if seen.uncovered.get("no_record") and not sum(seen.records.values()):
        return Trouble("no_record", _NO_RECORD, model)
    if seen.server_drafts < LEAST_DRAFTS:
        return None
    if share < LOW_COVERAGE:
        return Trouble("low_coverage", _low(share, seen.uncovered), model)
    if share >= HIGH_COVERAGE and seen.records.get("derived"):
        return _derived_off(model, seen.acceptance_rate, seen.server_acceptance_rate)
    return None


_NO_RECORD = f"no response carries a record of its acceptance: {KEEP_RECORDS}"


def _derived_off(model: str, derived: float | None, counted: float | None) -> Trouble | None:
    if derived is None or counted is None or abs(derived - counted) <= MOST_OFF:
        return None
    message = (
        f"the acceptance rate derived from streamed steps is {derived:.1%}, where the server"
        f" counted {counted:.1%}: it may join steps, as for slow clients, or draft less than it"
        f" could. For figures by temperature that hold, {KEEP_RECORDS}"
    )
    return Trouble("derived_off", message, model)


def _low(share: float, uncovered: Mapping[str, int]) -> str:
    message = f"the tap covers {share:.1%} of the drafts of the last minutes"
    reasons = leading_reasons(uncovered)
    if not reasons:
        return f"{message}; does all traffic pass through it?"
    named = ", ".join(f"{count:,} ({reason})" for count, reason in reasons)
    return f"{message}; requests that it does not: {named}"


def leading_reasons(uncovered: Mapping[str, int]) -> list[tuple[int, str]]:
    """How many requests were not covered, and why in words, for the most frequent reasons."""
    ordered = sorted(uncovered.items(), key=lambda entry: (-entry[1], entry[0]))
    return [
        (count, UNCOVERED.get(reason, reason[:60]))
        for reason, count in ordered[:_MOST_REASONS]
        if count
    ]


def share_derived(records: Mapping[str, int]) -> float:
    """Share of requests whose acceptance was derived from streamed steps, 0 of none."""
    total = sum(records.values())
    return records.get("derived", 0) / total if total else 0.0

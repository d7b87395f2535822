"""How much of each model's traffic a tap covered over the last minutes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import ALL, TEMPERATURE, Source, Window
from specwatch.domain.tap_keys import UNCOVERED
from specwatch.scrape.taps import KEEP_RECORDS, Trouble

LEAST_DRAFTS = 1000
"""With fewer drafts of the server, coverage is not judged."""
LOW_COVERAGE = 0.5
HIGH_COVERAGE = 0.9
"""From this coverage on, the tap's acceptance rate must agree with the server's."""
MOST_OFF = 0.05
"""Largest difference between the two acceptance rates."""
_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a tap saw of one model, and what the server counted in the same minutes.

    ``server_drafts`` is None if the server does not count drafts; an acceptance rate is None if
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
        """Share of the server's drafts that the tap saw; None if the server made no drafts.

        It may exceed 1: the tap counts all drafts of a request at its end, including those made
        before the first minute.
        """
        return self.drafts / self.server_drafts if self.server_drafts else None


def coverages(
    windows: Iterable[Window], source: Source | None, doubted: Collection[str] = ()
) -> dict[str, Coverage]:
    """The coverage of each model by the tap ``source``, or by the one in the windows if None.

    Models in ``doubted`` are left out. ``windows`` are those of one target over the same minutes.
    """
    of_all: dict[str, Window] = {}
    parts: dict[str, list[Window]] = {}
    for window in windows:
        model = window.series.model_name
        if window.series.segment == ALL:
            of_all[model] = window
        elif window.series.segment.dimension == TEMPERATURE:
            parts.setdefault(model, []).append(window)
    by_model = {}
    for model in sorted({*of_all, *parts} - set(doubted)):
        seen = parts.get(model, [])
        if source is None and not seen:
            continue
        total = sum_tallies(window.tally for window in seen)
        server = of_all.get(model)
        by_model[model] = Coverage(
            source or seen[-1].source,
            total.drafts or 0,
            None if server is None else server.tally.drafts,
            total.records,
            total.uncovered,
            acceptance_rate(total),
            None if server is None else acceptance_rate(server.tally),
        )
    return by_model


def trouble_of(model: str, seen: Coverage) -> Trouble | None:
    """The problem with a tap's coverage of a model, if any."""
    share = seen.coverage
    if share is None or not seen.server_drafts:
        return None
    if seen.uncovered.get("no_record") and not sum(seen.records.values()):
        message = (
            f"no response carries a record of its acceptance: {KEEP_RECORDS}, or have the clients"
            " of SGLang (0.5.19 or later) send return_spec_tokens_details: true"
        )
        return Trouble("no_record", message, model)
    if seen.server_drafts < LEAST_DRAFTS:
        return None
    if share < LOW_COVERAGE:
        reasons = leading_reasons(seen.uncovered)
        named = ", ".join(f"{count:,} ({reason})" for count, reason in reasons)
        cause = f"requests that it does not: {named}"
        if not reasons:
            cause = "does all traffic pass through it?"
        message = f"the tap covers {share:.1%} of the drafts of the last minutes; {cause}"
        return Trouble("low_coverage", message, model)
    derived, counted = seen.acceptance_rate, seen.server_acceptance_rate
    if share < HIGH_COVERAGE or not seen.records.get("derived"):
        return None
    if derived is None or counted is None or abs(derived - counted) <= MOST_OFF:
        return None
    message = (
        f"the acceptance rate derived from streamed steps is {derived:.1%}, where the server"
        f" counted {counted:.1%}: it may join steps, as for slow clients, or draft less than it"
        f" could. For figures by temperature that hold, {KEEP_RECORDS}"
    )
    return Trouble("derived_off", message, model)


def leading_reasons(uncovered: Mapping[str, int]) -> list[tuple[int, str]]:
    """The most frequent reasons why requests were not covered: how many, and the reason."""
    ordered = sorted(uncovered.items(), key=lambda entry: (-entry[1], entry[0]))
    return [
        (count, UNCOVERED.get(reason, reason[:60]))
        for reason, count in ordered[:_MOST_REASONS]
        if count
    ]


def share_derived(records: Mapping[str, int]) -> float:
    """Share of requests whose acceptance was derived from streamed steps; 0 without requests."""
    total = sum(records.values())
    return records.get("derived", 0) / total if total else 0.0

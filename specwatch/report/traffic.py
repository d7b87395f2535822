"""How much there was to do, in tokens and in time."""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.domain.model import Mode, Tally
from specwatch.report.ledger import Cell
from specwatch.report.model import Traffic

_ENOUGH = 0.9
"""The time watched in the period before, by that in this one, from which their amounts compare."""


def requests_of(counted: Tally) -> int:
    """Requests that finished, however they did."""
    return sum(counted.requests.values())


def traffic(cells: Sequence[Cell]) -> Traffic:
    """Of all temperatures; the figures of the period before are None where it was not
    watched nearly as long."""
    now = [each for each in cells if each.place.now]
    before = [each for each in cells if not each.place.now and each.observed]
    if sum(each.observed for each in before) < _ENOUGH * sum(each.observed for each in now):
        before = []
    observed = {mode: _seconds(now, mode, busy=False) for mode in Mode}
    return Traffic(
        requests=_requests(now),
        prompt_tokens=sum(each.all.prompt_tokens or 0 for each in now),
        generation_tokens=_generated(now),
        seconds_on=observed[Mode.ON],
        seconds_off=observed[Mode.OFF],
        seconds_mixed=observed[Mode.MIXED],
        seconds_unknown=observed[Mode.UNKNOWN],
        busy_on=_seconds(now, Mode.ON, busy=True),
        busy_off=_seconds(now, Mode.OFF, busy=True),
        requests_before=_requests(before) if before else None,
        generation_tokens_before=_generated(before) if before else None,
    )


def _requests(cells: Sequence[Cell]) -> int:
    return sum(requests_of(each.all) for each in cells)


def _generated(cells: Sequence[Cell]) -> int:
    return sum(each.all.generation_tokens or 0 for each in cells)


def _seconds(cells: Sequence[Cell], mode: Mode, *, busy: bool) -> float:
    inside = [each for each in cells if each.place.mode is mode]
    return sum(each.busy if busy else each.observed for each in inside)

"""Queries with one term for each state or number, and the values of the guard's states."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from specwatch.generate.dashboards.panels import Mappings
from specwatch.guard.state import Phase

_COLORS = {
    Phase.OBSERVING: "green",
    Phase.SUSPECT: "yellow",
    Phase.CONFIRMED: "orange",
    Phase.DRAINING: "purple",
    Phase.RESTARTING: "purple",
    Phase.VERIFYING: "purple",
    Phase.DISABLED: "blue",
    Phase.TRIAL: "light-blue",
    Phase.ROLLING_BACK: "red",
    Phase.HELD: "dark-red",
}
_GUARD_STATES: dict[float | str | None, Sequence[str]] = {
    number: (phase.replace("_", " "), _COLORS[phase]) for number, phase in enumerate(Phase)
}
MAPPINGS: Mapping[str, Mappings] = {
    "GUARD_STATES": _GUARD_STATES,
    "GUARD_STATES_OR_NONE": {**_GUARD_STATES, None: ("no guard", "gray")},
}
"""By their name in our YAML files."""


def guard_state(selector: str) -> str:
    """Query for the number of the current state of the guard of each target.

    The series of all other states are 0.
    """
    numbered = "\n  or ".join(
        f'{number} * specwatch_guard_state{{{selector}, state="{phase}"}}'
        for number, phase in enumerate(Phase)
    )
    return f"max by (target) (\n  {numbered}\n)"


def accepted_lengths(selector: str, longest: int) -> str:
    """Share of the drafts within the range that had 0, 1, ... tokens accepted, in this order.

    With S(p) the drafts whose token at position p was accepted: H(0) = drafts - S(0),
    H(j) = S(j-1) - S(j), and H(k) = S(k-1) where S(k) does not exist.
    """
    counter = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    drafts = f"sum(increase(vllm:spec_decode_num_drafts_total{{{selector}}}[$__range]))"
    accepted_at = [
        f'sum(increase({counter}{{{selector}, position="{position}"}}[$__range]))'
        for position in range(longest + 1)
    ]
    counts = [f"{drafts} - {accepted_at[0]}"]
    for before, position in itertools.pairwise(accepted_at):
        counts.append(f"{before} - ({position} or 0 * {before})")
    # Both counters are extrapolated separately: what should be 0 may be negative.
    named = "\n  or ".join(
        f'label_replace(clamp_min({count}, 0), "accepted", "{accepted}", "", "")'
        for accepted, count in enumerate(counts)
    )
    return f"(\n  {named}\n) / on () group_left () ({drafts} > 0)"

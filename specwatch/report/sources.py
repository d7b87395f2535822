"""What a report is made of, whoever read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specwatch.config.rules import Slo
from specwatch.domain.baseline import MAX_AGE, Measurement
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.experiments import Experiment
from specwatch.domain.model import Objective, Window
from specwatch.rules.decisions import Decision


@dataclass(frozen=True, slots=True)
class GuardStep:
    """A step of the guard as it was stored; ``at`` is a Unix time."""

    at: float
    incident: str
    phase_before: str
    phase: str
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


Drafted = tuple[int, int, int]
"""Drafts, draft tokens and accepted tokens."""


def add_drafted(found: dict[str, Drafted], label: str, counts: Drafted) -> None:
    """Add to what is known of a temperature."""
    known = found.get(label)
    found[label] = (
        counts
        if known is None
        else (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
    )


class Beside(NamedTuple):
    """A window of all temperatures and what was drafted in it, by temperature bucket.

    Windows of these buckets are sums of many such ones, drafts included; they come with one of
    them, and are no part of it.
    """

    start: int
    window: Window
    drafted: Mapping[str, Drafted]


Recorded = Window | Beside


def model_of(recorded: Recorded) -> str:
    """The name of the model."""
    window = recorded.window if isinstance(recorded, Beside) else recorded
    return window.series.model_name


@dataclass(frozen=True, slots=True)
class Sources:
    """All that the report of one target is made of.

    ``windows`` are hours, or minutes of a short period, of all its models and temperatures, by
    start; they begin a period earlier than the report. They are read once, and not kept. Where
    sums of temperature buckets do, each window of all temperatures comes with their drafts.
    ``decisions`` are changes of verdicts. ``objective`` is what speedups are of. ``max_age`` is
    that of a baseline, in seconds. ``experiments`` are those of the period by model, oldest first.
    ``damaged`` counts the stored rows that could not be decoded, once windows were read.
    """

    target: str
    windows: Iterable[Recorded]
    measurements: Sequence[Measurement] = ()
    decisions: Sequence[Decision] = ()
    steps: Sequence[GuardStep] = ()
    slos: Sequence[Slo] = ()
    gpus: int | None = None
    draft_cost_ratio: float = DRAFT_COST_RATIO
    objective: Objective = Objective.E2E
    max_age: float = MAX_AGE
    experiments: Mapping[str, Sequence[Experiment]] = field(default_factory=dict)
    damaged: Callable[[], int] = lambda: 0

"""The last decisions on the status page: changed verdicts and the guard's steps, in one list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specwatch.guard.status import StepRecord
from specwatch.rules.decisions import Decision
from specwatch.wording import guard, speculation
from specwatch.wording.text import LONGEST_SENTENCE, shown

MOST_CHANGES = 20


@dataclass(frozen=True, slots=True)
class Change:
    """A decision at a Unix time, and why; ``badge`` is the CSS class of ``what``."""

    at: float
    target: str
    what: str
    badge: str
    why: str


def last_changes(verdicts: Iterable[Decision], steps: Iterable[StepRecord]) -> tuple[Change, ...]:
    """The newest of both, newest first."""
    changes = [*map(_of_verdict, verdicts), *map(_of_step, steps)]
    return tuple(sorted(changes, key=lambda change: -change.at)[:MOST_CHANGES])


_VERDICTS = {"breach": "in breach", "pass": "passes", "no_data": "without data"}
_BADGES = {"breach": "bad", "pass": "good"}
_PHASES = {"held": "bad", "rolling_back": "bad", "observing": "good"}


def _of_verdict(one: Decision) -> Change:
    model = f"; model {shown(one.model_name)}" if one.model_name else ""
    verdict = _VERDICTS.get(one.verdict, shown(one.verdict))
    return Change(
        at=one.at,
        target=shown(one.target),
        what=verdict,
        badge=_BADGES.get(one.verdict, ""),
        why=f"{speculation.change(one)}{model}",
    )


def _of_step(one: StepRecord) -> Change:
    incident = f" [{shown(one.incident)}]" if one.incident else ""
    return Change(
        at=one.at,
        target=shown(one.target),
        what=f"guard: {guard.phase(one.phase)}",
        badge=_PHASES.get(one.phase, "warn"),
        why=f"{shown(one.reason, LONGEST_SENTENCE)}{incident}",
    )

"""Which minutes the guard's figures come from, and when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specwatch.config.guard import Guard
from specwatch.daemon.guard_measurements import GuardMeasurements
from specwatch.domain.model import HOUR, MINUTE, Mode, Objective, Window
from specwatch.errors import StoreUnavailable
from specwatch.guard.observation import Situation
from specwatch.guard.state import GuardState, Phase
from specwatch.store.repository import Store

NOW = 1_800_000_000.0
DISABLED = GuardState("chat", Phase.DISABLED, NOW, Mode.OFF, disabled_at=NOW, rearm_at=NOW + HOUR)


class Asked(Store):
    """An empty store that remembers what it was asked for, as since, until and length."""

    def __init__(self) -> None:
        super().__init__("sqlite:////nowhere/specwatch.db", daemon="d")
        self.asked: list[tuple[float, float, int]] = []
        self.fails = False

    def windows(self, **selection: Any) -> Iterator[Window]:
        """Of the target alone."""
        if self.fails:
            raise StoreUnavailable("away")
        assert selection["target"] == "chat"
        self.asked.append((selection["since"], selection["until"], selection["length"]))
        return iter(())


def asked(state: GuardState, *moments: float) -> list[tuple[float, float, int]]:
    """What a survey asks the store for at moments that follow one another."""
    store = Asked()
    survey = GuardMeasurements("chat", store, dict, Objective.E2E)
    for now in moments:
        survey.extend(Situation(now), state, Guard())
    return store.asked


def test_each_phase_asks_for_its_own_time() -> None:
    now = NOW + 20 * MINUTE
    assert asked(GuardState("chat", Phase.TRIAL, NOW), now) == [(NOW, now, MINUTE)]
    verifying = GuardState("chat", Phase.VERIFYING, NOW + 9, began=NOW, healthy_at=NOW + 60)
    assert asked(verifying, now) == [(NOW - HOUR, now, MINUTE)]
    confirmed = GuardState("chat", Phase.CONFIRMED, NOW)
    assert asked(confirmed, now) == [(now - 25 * HOUR, now, HOUR)]
    assert asked(DISABLED, now) == [
        (NOW - 24 * HOUR, NOW, MINUTE),
        (now - 15 * MINUTE, now, MINUTE),
    ]
    assert asked(GuardState("chat", Phase.OBSERVING, NOW), now) == []


@pytest.mark.parametrize(
    ("early_at", "rearm_at", "first"),
    [
        (0.0, NOW + HOUR, NOW + 15 * MINUTE),
        (NOW + 40 * MINUTE, NOW + HOUR, NOW + 40 * MINUTE),
        (NOW + 2 * HOUR, NOW + HOUR, NOW + HOUR),
    ],
)
def test_a_prediction_begins_when_there_is_a_present_and_a_trial_may_come(
    early_at: float, rearm_at: float, first: float
) -> None:
    state = GuardState(
        "chat",
        Phase.DISABLED,
        NOW,
        Mode.OFF,
        disabled_at=NOW,
        rearm_at=rearm_at,
        early_at=early_at,
    )
    assert asked(state, first - 1) == []
    assert len(asked(state, first)) == 2


def test_a_figure_is_asked_for_once_a_minute() -> None:
    state = GuardState("chat", Phase.TRIAL, NOW)
    assert len(asked(state, NOW + 1, NOW + 60, NOW + 60.5)) == 1
    assert len(asked(state, NOW + 1, NOW + 61, NOW + 121)) == 3
    assert len(asked(state, NOW + 61, NOW + 1)) == 2, "the clock was set back"


def test_a_figure_of_an_earlier_phase_does_not_last_into_the_next() -> None:
    store = Asked()
    survey = GuardMeasurements("chat", store, dict, Objective.E2E)
    survey.extend(Situation(NOW + 1), GuardState("chat", Phase.TRIAL, NOW), Guard())
    survey.extend(Situation(NOW + 3), GuardState("chat", Phase.TRIAL, NOW + 2), Guard())
    assert [since for since, _, _ in store.asked] == [NOW, NOW + 2]


def test_what_a_database_cannot_give_is_not_known_and_asked_for_again() -> None:
    store = Asked()
    survey = GuardMeasurements("chat", store, dict, Objective.E2E)
    state = GuardState("chat", Phase.TRIAL, NOW)
    store.fails = True
    assert survey.extend(Situation(NOW + 1), state, Guard()).trial is None
    assert str(survey.error) == "away"
    store.fails = False
    survey.extend(Situation(NOW + 3), state, Guard())
    assert (len(store.asked), survey.error) == (1, None)

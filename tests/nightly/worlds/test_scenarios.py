"""All scenarios: their pages, the same seed, their truths."""

from __future__ import annotations

import pytest

from tests.worlds.scenarios import WORLDS
from tests.worlds.servers import ServedWorld
from tests.worlds.test_servers import ZERO, check_pages, pages
from tests.worlds.traffic import HOUR, Machine, Regime, Traffic, constant


@pytest.mark.parametrize("name", WORLDS)
def test_pages_of_every_scenario_are_read(name: str) -> None:
    check_pages(name, 0.5)


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_seed_gives_the_same_pages(name: str) -> None:
    first, second, other = (pages(WORLDS[name](seed), 1.0) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_a_deploy_brings_another_number_of_draft_tokens() -> None:
    world = WORLDS["k_changed"](1)
    world.page(ZERO)
    world.restart(ZERO + 10.0, False)
    assert "spec_decode" not in (world.page(ZERO + 20 * HOUR) or "")
    assert 'position="7"' in (world.page(ZERO + 50 * HOUR) or "")


def test_truths() -> None:
    for name, speedup, margin in (
        ("helps", 1.4, 0.05),
        ("hurts", 0.75, 0.05),
        ("even", 1.0, 0.01),
        ("barely", 1.02, 0.01),
    ):
        assert WORLDS[name](1).truth(ZERO) == pytest.approx(speedup, abs=margin)
    world = WORLDS["drop"](1)
    world.page(ZERO)
    assert {round(world.truth(ZERO + hour * HOUR), 1) for hour in range(200)} == {1.4, 0.7}


def test_the_truth_of_a_server_that_cannot_keep_up_is_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.worlds.servers.TRUTH_SEEDS", 1)
    monkeypatch.setattr("tests.worlds.servers.TRUTH_REQUESTS", 1)
    regime = Regime(Traffic(rate=0.8), machine=Machine(most_sequences=4))
    world = ServedWorld("overloaded", constant(regime), 1)
    assert 1.5 < world.truth(ZERO) <= 5.0

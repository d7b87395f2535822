"""The harness scores what a policy does, and the real guard decides right in a short life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import __main__ as program
from tests.worlds import daemon, servers
from tests.worlds.daemon import Specwatch
from tests.worlds.life import Score, Server, live
from tests.worlds.scenarios import WORLDS, hot_days
from tests.worlds.world import START


class Stub:
    """A world without traffic, with given truths; down for a minute after a restart."""

    name, interval = "stub", 60.0

    def __init__(self, *truths: tuple[float, float]) -> None:
        """``truths`` are pairs of an hour and the truth from then on."""
        self.truths, self.speculation, self.up_at = truths, True, START

    def page(self, now: float) -> str | None:
        if now < self.up_at:
            return None
        return "vllm:spec_decode_num_draft_tokens_total 0\n" if self.speculation else "nothing\n"

    def restart(self, now: float, speculation: bool) -> None:
        self.speculation, self.up_at = speculation, now + 60

    def truth(self, now: float) -> float:
        return [truth for hour, truth in self.truths if now >= START + 3600 * hour][-1]

    def calibrate(
        self, load: int, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> list[str]:
        return []


class Planned:
    """Switches at given hours."""

    name = "planned"

    def __init__(self, *switches: tuple[float, bool]) -> None:
        self.switches = list(switches)

    def step(self, server: Server) -> None:
        while self.switches and server.now >= START + 3600 * self.switches[0][0]:
            server.restart(speculation=self.switches.pop(0)[1])

    def end(self) -> dict[str, Any]:
        return {"final_state": "done", "held": False}


def scored(world: Stub, *switches: tuple[float, bool]) -> Score:
    return live(world, Planned(*switches), hours=10, seed=1)


def test_a_long_false_disable_counts_and_a_short_one_apart() -> None:
    score = scored(Stub((0, 1.5)), (1, False), (2, True), (4, False), (4.15, True))
    assert (score.false_disables, score.short_false_disables) == (1, 1)
    assert score.longest_false_disable_minutes == pytest.approx(60)
    assert score.restarts == 4


def test_a_false_disable_that_never_ends_counts_too() -> None:
    assert scored(Stub((0, 1.5)), (1, False)).false_disables == 1


def test_a_right_disable_is_wrong_from_when_speculation_helps() -> None:
    """Off from the first hour on, which loses from the third to the fifth, and in the last."""
    turns = Stub((0, 0.7), (3, 1.4), (5, 0.7), (9, 1.4))
    score = scored(turns, (1, False))
    assert (score.false_disables, score.false_disables_over_an_hour) == (2, 1)
    assert score.longest_false_disable_minutes == pytest.approx(120)
    assert score.false_disable_minutes == pytest.approx(180)


def test_the_delay_is_from_the_drop_and_trials_have_none() -> None:
    drops = Stub((0, 1.4), (2, 0.7))
    score = scored(drops, (2.25, False), (5, True), (5.5, False))
    assert score.delays_s == [900.0]
    assert score.missed_minutes == pytest.approx(15 + 29, abs=2)
    assert (score.false_disables, score.undone_disables) == (0, 0)


def test_a_right_disable_that_is_put_back_at_once_was_undone() -> None:
    assert scored(Stub((0, 0.7)), (1, False), (1.15, True)).undone_disables == 1


def test_regret_is_time_against_an_oracle() -> None:
    """An hour off at 1.5 of ten, and two minutes down."""
    score = scored(Stub((0, 1.5)), (1, False), (2, True))
    assert score.regret_percent == pytest.approx(100 * (58 * 0.5 + 2) / 600, abs=0.3)
    assert scored(Stub((0, 1.5))).regret_percent == 0.0


@pytest.fixture
def rough_truths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Truths are the means of fewer requests."""
    monkeypatch.setattr(servers, "TRUTH_SEEDS", 1)
    servers.truth_of.cache_clear()
    yield
    servers.truth_of.cache_clear()


@pytest.mark.usefixtures("rough_truths")
def test_a_loss_from_the_beginning_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the product itself, calibrated after ten minutes."""
    monkeypatch.setattr(daemon, "CALIBRATE_AFTER", 600.0)
    monkeypatch.setattr(daemon, "CALIBRATE_SECONDS", 240.0)
    world = WORLDS["hurts"](1)
    world.interval = 30.0
    score = live(world, Specwatch(world), hours=0.42, seed=1)
    assert (score.final_state, score.restarts, score.undone_disables) == ("disabled", 1, 0)
    assert score.speedup_low == score.speedup_high == pytest.approx(0.75, abs=0.05)
    assert 600 < score.delays_s[0] < 900


def test_a_loss_at_loads_that_nobody_measured_is_told_within_45_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under default settings, which switch nothing off; it was calibrated at those of the night."""
    monkeypatch.setattr(daemon, "CALIBRATE_AFTER", 600.0)
    monkeypatch.setattr(daemon, "CALIBRATE_SECONDS", 240.0)
    world = hot_days(1, dawn=0.4)
    world.interval = 30.0
    monkeypatch.setattr(world, "truth", lambda now: 1.0)
    policy = Specwatch(world)
    assert live(world, policy, hours=1.15, seed=1).restarts == 0
    assert 24 + 30 <= (policy.breached["unjudged"] - START) / 60 <= 24 + 45
    assert "net-negative" not in policy.breached


def test_a_plugin_is_run_and_its_scores_are_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from tests.worlds.test_worlds import Stub\n"
        "WORLDS = {'mine': lambda seed: Stub((0, 1.5))}\n"
    )
    words = "--hours 0.2 --policy always-off --json --nice 0 --plugin"
    program.main([*words.split(), str(plugin)])
    result = json.loads(capsys.readouterr().out)
    assert (result["world"], result["policy"], result["restarts"]) == ("mine", "always-off", 1)
    assert result["regret_percent"] > 20

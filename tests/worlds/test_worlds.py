"""The harness scores what a policy does, and the real guard decides right in short lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import __main__ as program
from tests.worlds.daemon import Specwatch
from tests.worlds.life import Score, Server, live
from tests.worlds.scenarios import WORLDS
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


def test_a_loss_from_the_beginning_is_switched_off_and_stays_off() -> None:
    world = WORLDS["hurts"](1)
    score = live(world, Specwatch(world), hours=1.6, seed=1)
    assert (score.final_state, score.restarts, score.undone_disables) == ("disabled", 1, 0)


def test_a_gain_is_explored_once_and_put_back_within_the_time_of_verifying() -> None:
    world = WORLDS["helps"](1)
    policy = Specwatch(world, explore={"budget": "1%"})
    score = live(world, policy, hours=1.5, seed=1)
    assert (score.final_state, score.restarts) == ("observing", 2)
    assert (score.false_disables, score.short_false_disables) == (0, 1)


def test_loops_are_reported_within_the_hour_and_nothing_before() -> None:
    """They make speculation faster still, so no other rule sees them."""
    world = WORLDS["loops"](1)
    policy = Specwatch(world)
    live(world, policy, hours=1.7, seed=1)
    assert policy.breached.keys() == {"suspicious-output"}
    assert 1.0 < (policy.breached["suspicious-output"] - START) / 3600 < 2.0


def test_a_plugin_is_run_and_its_scores_are_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from tests.worlds.scenarios import WORLDS as ALL\nWORLDS = {'mine': ALL['helps']}\n"
    )
    words = "--hours 0.5 --policy always-off --json --nice 0 --plugin"
    program.main([*words.split(), str(plugin)])
    result = json.loads(capsys.readouterr().out)
    assert (result["world"], result["policy"], result["restarts"]) == ("mine", "always-off", 1)
    assert result["regret_percent"] > 20

"""A change of a unit that is killed or fails at any step, from all beginnings, on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actuators.interrupted_changes import STARTS, fail_at_each_step, kill_at_each_step


@pytest.mark.parametrize("start", STARTS)
def test_a_killed_change_is_ended_by_the_same_call_with_one_restart(
    tmp_path: Path, start: str
) -> None:
    kill_at_each_step(tmp_path, start)


@pytest.mark.parametrize("start", STARTS)
def test_a_step_that_fails_leaves_all_as_it_was_or_says_so(tmp_path: Path, start: str) -> None:
    fail_at_each_step(tmp_path, start)

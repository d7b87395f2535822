"""Whether the process that held a guard has certainly ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specwatch.actuators import owner

SAYS = "from specwatch.actuators import owner; print(owner.identity(), flush=True); input()"


def test_a_process_is_known_until_it_has_ended() -> None:
    assert not owner.is_gone(owner.identity())
    command = [sys.executable, "-c", SAYS]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        of = other.stdout.readline().strip()
        assert not owner.is_gone(of)
        other.communicate("\n")
    assert owner.is_gone(of)


def test_another_process_with_its_number_is_not_it() -> None:
    place, namespace, pid, started, random = owner.identity().split(".")
    assert owner.is_gone(".".join([place, namespace, pid, f"{int(started) - 1}", random]))


@pytest.mark.parametrize("part", [0, 1], ids=["machine", "container"])
def test_of_one_elsewhere_nothing_is_known(part: int) -> None:
    parts = owner.identity().split(".")
    parts[part], parts[3] = "0", "1"
    assert not owner.is_gone(".".join(parts))


@pytest.mark.parametrize("text", ["", "a1b2c3d4", "1", "x.y.z", "a.b.c.d.e.f"])
def test_another_text_says_nothing(text: str) -> None:
    assert not owner.is_gone(text)

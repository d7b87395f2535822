"""Calls to systemd over a bus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actuators.fake_bus import FakeBus

NAME = "vllm.service"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBus]:
    bus = FakeBus(tmp_path)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={bus.path}")
    yield bus
    bus.close()


@pytest.mark.parametrize("ends", ["done", "failed"])
def test_signals_are_received_during_a_restart_only(bus: FakeBus, ends: str) -> None:
    """The bus would keep those of all jobs of the machine, for as long as nobody reads them."""
    client = bus.client()
    client.load(NAME)
    bus.ends = ends
    for _ in range(2):
        assert client.restart(NAME, 60.0) == ends
    bus.wait_closed()
    assert bus.matches == {}
    assert client.load(NAME).active_state == "active"
    assert list(bus.matches.values()) == [[]]
    client.close()


def test_after_a_job_that_lasts_longer_no_signals_are_received(bus: FakeBus) -> None:
    bus.ends = None
    assert bus.client().restart(NAME, 0.0) == "waiting"
    bus.wait_closed()
    assert bus.matches == {}


def test_a_restart_goes_on_while_the_bus_is_restarted(bus: FakeBus) -> None:
    bus.drops = True
    assert bus.client().restart(NAME, 60.0) == "done"
    assert bus.calls[-2:] == ["GetAll", "GetAll"], "the unit was not asked for again"
    bus.wait_closed()
    assert not any(bus.matches.values())

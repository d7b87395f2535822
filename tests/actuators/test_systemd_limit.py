"""A helper whose daemon was taken over restarts vLLM no more often than root allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.actuators.base import Claim
from specwatch.actuators.systemd.drop_in import UnitFiles
from specwatch.actuators.systemd.limit import SwitchLimit
from specwatch.actuators.systemd.unit import SystemdUnit
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from tests.actuators.fake_systemd import NAME, FakeSystemd

SERVE = "/opt/vllm serve m --spec-method ngram"
HOUR, DAY = 3600.0, 86400.0


class Limited:
    """A unit that is restarted four times in 24 hours, a minute apart."""

    def __init__(self, folder: Path) -> None:
        self.systemd = FakeSystemd(folder)
        self.systemd.write(SERVE)
        self.systemd.reload()
        self.now = 1_795_000_000.0
        self.counted = folder / "counted"
        self.counted.mkdir()

    @property
    def unit(self) -> SystemdUnit:
        """Of a helper that has just been started."""
        folder = self.systemd.folder
        files = UnitFiles(NAME, units=folder, records=folder / "records")
        limit = SwitchLimit(NAME, most=4, cooldown=60, folder=self.counted, now=lambda: self.now)
        return SystemdUnit(NAME, self.systemd, files, timeout=60, limit=limit)

    def switch(self, count: int) -> None:
        """Switch off and on in turns, an hour apart, beginning with off."""
        for number in range(count):
            unit = self.unit
            (unit.enable if number % 2 else unit.disable)(Claim(f"{self.now:.0f}"))
            self.now += HOUR

    def refused(self, do: str, message: str, *, retry: bool = False) -> None:
        """Nothing is changed, neither on disk nor in systemd's memory."""
        restarts, reloads, before = self.systemd.restarts, self.systemd.reloads, self.unit.status()
        with pytest.raises(ActuatorError, match=message) as caught:
            getattr(self.unit, do)(Claim("refused"))
        assert (caught.value.changed, caught.value.retry) == (False, retry)
        assert (self.systemd.restarts, self.systemd.reloads) == (restarts, reloads)
        assert self.unit.status() == before


@pytest.fixture
def limited(tmp_path: Path) -> Limited:
    return Limited(tmp_path)


def test_the_last_restart_of_a_day_is_kept_for_the_way_back(limited: Limited) -> None:
    limited.switch(3)
    limited.refused("disable", "at most 4 times in 24 hours, the last one to switch back on: 3")
    limited.unit.enable(Claim("back"))
    assert limited.unit.status().mode is Mode.ON
    limited.now += HOUR
    limited.refused("enable", r"at most 4 times in 24 hours: 4 were done.*systemctl edit specwatch")
    limited.now += DAY - 3 * HOUR
    limited.unit.disable(Claim("next day"))
    assert limited.systemd.restarts == 5


def test_what_would_be_refused_has_no_plan(limited: Limited) -> None:
    """So a guard does not begin it, and a person is told why."""
    limited.unit.disable(Claim("a"))
    assert limited.unit.plan().steps == (f"restart {NAME}",), "the cooldown is over soon"
    limited.now += HOUR
    limited.switch(2)
    with pytest.raises(ActuatorError, match=r"the next may be from 2026-11-19 \d\d:\d\d UTC on"):
        limited.unit.plan()


def test_between_two_restarts_there_is_time(limited: Limited) -> None:
    limited.unit.disable(Claim("a"))
    limited.now += 59
    limited.refused("enable", "59s ago, and waits 1m between", retry=True)
    limited.now += 1
    limited.unit.enable(Claim("b"))


def test_a_server_that_is_down_is_put_back_at_once(limited: Limited) -> None:
    """And that is not counted: only what runs can be disturbed."""
    limited.systemd.job_result = "failed"
    with pytest.raises(ActuatorError, match="was not restarted"):
        limited.unit.disable(Claim("a"))
    limited.systemd.job_result = "done"
    limited.unit.enable(Claim("a"))
    assert limited.unit.status().mode is Mode.ON
    limited.refused("disable", "waits 1m", retry=True)
    limited.now += HOUR
    limited.switch(2)
    limited.refused("disable", "3 were done")


def test_one_incident_is_no_way_around_it(limited: Limited) -> None:
    """The server dies of each restart, or is said to."""
    limited.systemd.job_result = "failed"
    for _ in range(3):
        with pytest.raises(ActuatorError, match="was not restarted"):
            limited.unit.disable(Claim("same"))
        limited.now += HOUR
    for _ in range(3):
        with pytest.raises(ActuatorError, match="at most 4 times"):
            limited.unit.disable(Claim("same"))
    assert limited.systemd.restarts == 3


def test_a_restart_that_is_asked_for_again_is_counted_once(limited: Limited) -> None:
    limited.systemd.refuses["restart"] = ActuatorError("gone")
    with pytest.raises(ActuatorError, match="gone"):
        limited.unit.disable(Claim("a"))
    limited.unit.disable(Claim("a"))
    limited.unit.disable(Claim("a"))
    assert limited.systemd.restarts == 1
    limited.now += HOUR
    limited.switch(2)
    limited.refused("disable", "3 were done")


@pytest.mark.parametrize("set_by", [-30 * DAY, 30 * DAY, -HOUR])
def test_a_clock_that_was_set_locks_nobody_out(limited: Limited, set_by: float) -> None:
    limited.unit.disable(Claim("a"))
    limited.now += set_by
    limited.unit.enable(Claim("b"))
    assert limited.systemd.restarts == 2


@pytest.mark.parametrize("damage", ["", "{}", '[{"at": "x"}]'])
def test_a_record_that_cannot_be_read_is_no_licence(limited: Limited, damage: str) -> None:
    (limited.counted / f"{NAME}.json").write_text(damage)
    limited.refused("disable", "cannot be read: .*; if it is damaged, remove it")


def test_without_its_folder_the_helper_asks_for_its_units(limited: Limited) -> None:
    limited.counted.rmdir()
    limited.refused("disable", "install its units of this version")


def test_a_record_that_cannot_be_written_restarts_nothing(limited: Limited) -> None:
    (limited.counted / f".{NAME}.json.new").mkdir()
    with pytest.raises(ActuatorError, match="cannot be recorded"):
        limited.unit.disable(Claim("a"))
    assert limited.systemd.restarts == 0

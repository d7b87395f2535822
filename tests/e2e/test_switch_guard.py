"""The guard of a real vLLM that has the switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.conftest import StartSwitched
from tests.e2e.processes import DaemonProcess, specwatch
from tests.e2e.switching import K, Traffic, ask, follows
from tests.e2e.waiting import eventually


def test_the_guard_needs_no_restart(start_switched: StartSwitched, tmp_path: Path) -> None:
    """A breach, standby, kill -9 of the daemon, a trial that is lost, and standby again."""
    low = {
        "name": "low",
        "metric": "acceptance_ratio",
        "below": 0.3,
        "window": "1m",
        "for": "0s",
        "clear_for": "1m",
        "min_drafts": 20,
        "action": "disable",
    }
    guard = {
        "mode": "act",
        "cooldown": "0s",
        "verify": "10s",
        "max_actions_per_day": 9,
        "rearm": {"after": "1m", "trial": "2m"},
    }
    database = f"sqlite:///{tmp_path}/specwatch.db"

    def state(daemon: DaemonProcess) -> dict[str, Any]:
        known: dict[str, Any] = daemon.status()["targets"][0]["guard"]["state"] or {}
        return known

    def reached(daemon: DaemonProcess, phase: str) -> dict[str, Any]:
        eventually(lambda: state(daemon).get("phase") == phase, what=phase, within=300)
        return state(daemon)

    bad = start_switched("draft-bad")
    # More than the rule needs, and it spares the cores.
    traffic = Traffic(bad.server.url, 1, pause=1.5, max_tokens=100)
    with bad as (server, _), traffic.running():
        config = {
            "targets": [bad.target],
            "rules": {"use_defaults": False, "extra": [low]},
            "guard": guard,
        }
        pid = server.pid
        with DaemonProcess.configured(tmp_path, database, config) as daemon:
            off = reached(daemon, "disabled")
            assert off["standby"] is True
            follows(server, 0, exact=True)
            assert ask(server, "GET")[1]["by"] == f"specwatch guard ({off['incident']['id']})"
            daemon.kill()
            daemon.start()
            assert reached(daemon, "disabled")["standby"] is True
            reached(daemon, "trial")
            follows(server, K, exact=True)
            lost = reached(daemon, "disabled")
            assert (lost["standby"], lost["incident"]["cause"]) == (True, "trial_lost")
            follows(server, 0, exact=True)
            done = specwatch("guard", "enable", "chat", "--database", database, "--by", "e")
            assert done.returncode == 0, done.stderr
            follows(server, K, exact=True)
        assert (server.pid, server.running) == (pid, True)
    traffic.check()

"""What may go wrong with the new process, all at once, under a real systemd.

Each server is its own unit, a simulated vLLM that goes wrong in its own way when it is started
without speculation. A person orders that for all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from specwatch.domain.units import format_duration
from tests.e2e.guarded import Guarded, GuardService, LoadBalancer
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS
from tests.e2e.waiting import eventually
from tests.lab.systemd_machine import SystemdMachine

_SPECULATION = """'{"model": "draft", "num_speculative_tokens": 4}'"""
_SIMULATED = f"""\
#!/bin/sh
# vllm serve MODEL FLAGS...: without speculation it goes wrong as $FAULT says
export PYTHONPATH={CHECKOUT}
shift
case " $* " in *" --speculative-config "*) FAULT= ;; esac
case $FAULT in
crash | loop) exit 3 ;;
hang) exec sleep infinity ;;
killed) (sleep 0.1; kill -9 $$) & ;;
model) set -- "$@" --served-model-name another ;;
ignore) set -- "$@" --speculative-config {_SPECULATION} ;;
esac
exec {sys.executable} -m specwatch simulate "$@"
"""
_UNIT = """\
[Service]
Environment=FAULT={fault}
ExecStart=/opt/lab/vllm serve tiny --host 127.0.0.1 --port {port} --speculative-config {speculation}
TimeoutStopSec=60
{more}
"""
STARTS_WITHIN = 40
"""Seconds that the guard gives a server; a simulated one takes few."""
ENDS = {
    "crash": "vLLM does not run",
    # More than the three that it takes, where the guard does not look for a while.
    "loop": r"vLLM died ([3-9]|\d\d+) times after the restart",
    "killed": "vLLM does not run",
    "hang": f"vLLM was not healthy within {format_duration(STARTS_WITHIN)}",
    "model": "it serves another instead of tiny",
    "ignore": "it still speculates after the restart",
}
"""What the guard says in the end, of those that it gives up, as patterns."""


@dataclass
class SimulatedUnit(Guarded):
    """A simulated vLLM with a fault."""

    def install(self) -> None:
        # For ever: by default systemd gives up, which may be before the guard has looked thrice.
        loop = "Restart=always\nRestartSec=1\n[Unit]\nStartLimitIntervalSec=0\n"
        more = loop if self.name == "loop" else ""
        text = _UNIT.format(fault=self.name, port=self.port, speculation=_SPECULATION, more=more)
        self.machine.write_file(f"{UNITS}/{self.unit}", text)


@pytest.fixture(scope="module")
def service(systemd_machine: SystemdMachine) -> Iterator[GuardService]:
    """Once everything has come to its end."""
    systemd_machine.write_file("/opt/lab/vllm", _SIMULATED, mode=0o755)
    servers = [SimulatedUnit(systemd_machine, name) for name in (*ENDS, "stopped")]
    for server in servers:
        server.install()
    systemd_machine.run("systemctl", "daemon-reload")
    systemd_machine.run("systemctl", "start", *(server.unit for server in servers))
    for server in servers:
        eventually(server.is_healthy, what=f"{server.unit} is healthy", within=180)
    balancer = LoadBalancer()
    service = GuardService(
        systemd_machine, servers, "http://127.0.0.1:9", balancer, start_timeout=f"{STARTS_WITHIN}s"
    )
    service.start()
    try:
        for server in servers:
            service.wait_for(server.name, "observing", within=180)
        eventually(
            lambda: all(service.state(server.name).get("goal") == "on" for server in servers),
            what="all are seen to speculate",
            within=180,
        )
        systemd_machine.run("systemctl", "kill", "--signal=STOP", "stopped.service")
        for server in servers:
            service.guard("disable", server.name, "--no-wait", "--by", "ann")
        yield service
    finally:
        balancer.close()


def state(service: GuardService, name: str, phase: str) -> dict[str, Any]:
    return service.wait_for(name, phase, within=480)


@pytest.mark.parametrize("name", ENDS)
def test_a_failed_restart_is_undone_and_held(service: GuardService, name: str) -> None:
    found = state(service, name, "held")
    assert re.match(ENDS[name], found["why"]), found["why"]
    server = next(each for each in service.servers if each.name == name)
    eventually(
        lambda: server.is_healthy() and server.speculates(),
        what="vLLM serves as before",
        within=180,
    )
    if name != "loop":
        assert server.starts() == 3


def test_a_frozen_server_is_restarted(service: GuardService) -> None:
    state(service, "stopped", "disabled")
    server = next(each for each in service.servers if each.name == "stopped")
    assert server.is_healthy()
    assert not server.speculates()
    assert server.starts() == 2

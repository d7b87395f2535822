"""The daemon that acts is killed or stopped around its order; another one goes on.

Of a server with a switch, and of a unit of systemd. Services that are commands are in
``test_guard_killed.py``, workloads in ``test_workloads.py``.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from specwatch.domain.model import Mode
from specwatch.guard.state import Phase
from tests.e2e.conftest import unavailable
from tests.e2e.guarded import Guarded
from tests.e2e.interrupted import LEASE_SECONDS, POINTS, Interrupted, require_one_effect
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS
from tests.e2e.waiting import eventually
from tests.lab import systemd_machine as machines
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.vllm_server import free_port
from tests.postgres import PostgresServer
from tests.switched_server import SwitchedServer

CASES = tuple(product(("sqlite", "postgres"), (signal.SIGKILL, signal.SIGSTOP), POINTS))
_VLLM = f"""\
#!/bin/sh
shift
exec {sys.executable} -m specwatch simulate "$@"
"""
_SPECULATING = ("--speculative-config", '{"model": "draft", "num_speculative_tokens": 4}')
_UNIT = """\
[Service]
Environment=PYTHONPATH={checkout} HOME=/root
ExecStart=/opt/lab/vllm serve tiny --host 127.0.0.1 --port {port} \\
    {flag} '{value}'
"""


def test_a_switch_gets_each_order_once(postgres: PostgresServer, tmp_path: Path) -> None:
    cases = []
    with ExitStack() as stack:
        for kind, how, point in CASES:
            folder = tmp_path / f"{kind}-{how.name}-{point}"
            server = stack.enter_context(SwitchedServer(tmp_path / f"{folder.name}-switch"))
            target = {
                "name": "chat",
                "url": server.url,
                "interval": "1s",
                "switch": {"directory": str(server.directory)},
            }
            case = Interrupted(
                folder,
                postgres.new_url() if kind == "postgres" else f"sqlite:///{folder}.db",
                {"targets": [target]},
                guard="chat",
                point=point,
                how=how,
                effects=server.used.__len__,
            )
            cases.append(stack.enter_context(case))
        require_one_effect(cases)


@pytest.fixture
def machine(postgres: PostgresServer, tmp_path: Path) -> Iterator[SystemdMachine]:
    """A booted machine that sees the folder ``shared``, and the database."""
    if reason := machines.missing():
        unavailable(reason)
    (tmp_path / "shared").mkdir()
    machine = SystemdMachine(tmp_path / "machine", [tmp_path / "shared", postgres.directory])
    try:
        machine.up()
        yield machine
    finally:
        machine.down()


def restarts(server: Guarded) -> int:
    """How often systemd has started it after the first time."""
    return server.starts() - 1


def test_a_unit_is_restarted_once_for_each_order(
    machine: SystemdMachine, postgres: PostgresServer, tmp_path: Path
) -> None:
    machine.write_file("/opt/lab/vllm", _VLLM, mode=0o755)
    servers = [Guarded(machine, f"vllm-{number}") for number in range(len(CASES))]
    for server in servers:
        flag, value = _SPECULATING
        text = _UNIT.format(checkout=CHECKOUT, port=server.port, flag=flag, value=value)
        machine.write_file(f"{UNITS}/{server.unit}", text)
    machine.shell(f"systemctl daemon-reload; systemctl start {' '.join(s.unit for s in servers)}")
    for server in servers:
        eventually(server.is_healthy, what=f"{server.unit} answers", within=180)
    with ExitStack() as stack:
        cases = []
        for server, (kind, how, point) in zip(servers, CASES, strict=True):
            folder = tmp_path / f"shared/{kind}-{how.name}-{point}"
            target = {
                "name": "chat",
                "url": server.url,
                "interval": "1s",
                "service": {"kind": "systemd", "unit": server.unit},
            }
            case = Interrupted(
                folder,
                postgres.new_url() if kind == "postgres" else f"sqlite:///{folder}.db",
                {"targets": [target]},
                guard="chat",
                point=point,
                how=how,
                effects=partial(restarts, server),
                around=machine.entering(),
            )
            cases.append(stack.enter_context(case))
        require_one_effect(cases)


def test_a_child_is_restarted_once_for_each_order(tmp_path: Path) -> None:
    """Its daemon is stopped for longer than its lease lasts. Nobody else can restart its child."""
    vllm = tmp_path / "vllm"
    vllm.write_text(_VLLM)
    vllm.chmod(0o755)
    with ExitStack() as stack:
        cases = []
        for point in POINTS:
            port = free_port()
            target = {
                "name": "chat",
                "url": f"http://127.0.0.1:{port}",
                "interval": "1s",
                "service": {"kind": "supervised"},
            }
            serve = [str(vllm), "serve", "tiny", "--host", "127.0.0.1", "--port", str(port)]
            case = Interrupted(
                tmp_path / point,
                f"sqlite:///{tmp_path}/{point}.db",
                {"targets": [target]},
                guard="chat",
                point=point,
                how=signal.SIGSTOP,
                effects=lambda: 0,
                child=[*serve, *_SPECULATING],
            )
            cases.append(stack.enter_context(case))
        for case in cases:
            case.first.start()
        for case in cases:
            case.order(Mode.OFF)
        for case in cases:
            case.wait_point()
            case.stop()
        time.sleep(1.5 * LEASE_SECONDS)
        for case in cases:
            case.go_on()
        for case in cases:
            case.wait_phase(Phase.DISABLED)
            assert modes_started(case) == ["on", "off"], case.label
            case.order(Mode.ON)
        for case in cases:
            case.wait_phase(Phase.OBSERVING)
            assert modes_started(case) == ["on", "off", "on"], case.label


def modes_started(case: Interrupted) -> list[str]:
    """The modes in which the first daemon has started its child, one after another."""
    return [event["mode"] for event in case.first.events() if event["event"] == "vllm_started"]

"""The daemon that acts is killed or stopped around its order; another one goes on.

Of a server with a switch, and of a unit of systemd. Services that are commands are in
``test_guard_killed.py``, workloads in ``test_workloads.py``.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from tests.e2e.conftest import unavailable
from tests.e2e.guarded import Guarded
from tests.e2e.interrupted import POINTS, Interrupted, require_one_effect
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS
from tests.e2e.waiting import eventually
from tests.lab import systemd_machine as machines
from tests.lab.systemd_machine import SystemdMachine
from tests.postgres import PostgresServer
from tests.switched_server import SwitchedServer

CASES = tuple(product(("sqlite", "postgres"), (signal.SIGKILL, signal.SIGSTOP), POINTS))
_VLLM = f"""\
#!/bin/sh
shift
exec {sys.executable} -m specwatch simulate "$@"
"""
_UNIT = """\
[Service]
Environment=PYTHONPATH={checkout} HOME=/root
ExecStart=/opt/lab/vllm serve tiny --host 127.0.0.1 --port {port} \\
    --speculative-config '{{"model": "draft", "num_speculative_tokens": 4}}'
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
        text = _UNIT.format(checkout=CHECKOUT, port=server.port)
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
                around=machine.seen_from_here(),
            )
            cases.append(stack.enter_context(case))
        require_one_effect(cases)

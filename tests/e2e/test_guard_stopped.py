"""The daemon that has a switch is killed or stopped around its order; another one goes on.

Services that are commands are in ``test_guard_killed.py``, workloads in ``test_workloads.py``.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from tests.e2e.interrupted import POINTS, Interrupted, require_one_effect
from tests.postgres import PostgresServer
from tests.switched_server import SwitchedServer


def test_a_switch_gets_each_order_once(postgres: PostgresServer, tmp_path: Path) -> None:
    cases = []
    kinds = product(("sqlite", "postgres"), (signal.SIGKILL, signal.SIGSTOP), POINTS)
    with ExitStack() as stack:
        for kind, how, point in kinds:
            folder = tmp_path / f"{kind}-{how.name}-{point}"
            server = stack.enter_context(SwitchedServer(tmp_path / f"{folder.name}-switch"))
            target = {
                "name": "chat", "url": server.url, "interval": "1s",
                "switch": {"directory": str(server.directory)},
            }  # fmt: skip
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

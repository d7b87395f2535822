"""Real vLLMs as units of a real systemd, specwatch as another, and clients that never stop."""

from __future__ import annotations

import http.server
import json
import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS, DaemonUnit, install_helper
from tests.e2e.waiting import eventually
from tests.e2e.witness import speculates
from tests.lab.http_get import is_ok
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.vllm_server import ENVIRONMENT, free_port, serve_command, speculation_flags

# Stopped while requests run, this vLLM waits for them for ever, without an engine.
_VLLM = """\
[Unit]
Description=a real vLLM

[Service]
Environment=HOME=/root {environment}
EnvironmentFile=/etc/default/{name}
ExecStart={command} $SPECULATION
TimeoutStopSec=10
"""
_SPECWATCH = f"""\
[Service]
Environment=PYTHONPATH={CHECKOUT}
RestartSec=1
"""


@dataclass
class Guarded:
    """A server that is a unit of a machine."""

    machine: SystemdMachine
    name: str
    port: int = field(default_factory=free_port, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def unit(self) -> str:
        return f"{self.name}.service"

    def is_healthy(self) -> bool:
        return is_ok(self.url + "/health")

    def speculates(self) -> bool:
        """Whether its page has the families of speculation."""
        return speculates(self.url)

    def starts(self) -> int:
        """How often systemd has started it."""
        shown = self.machine.run(
            "journalctl", "--no-pager", "-o", "cat", "-u", self.unit, "--grep", "^Started "
        )
        return len(shown.stdout.splitlines())


@dataclass
class GuardedVllm(Guarded):
    """A real vLLM."""

    vllm: Path
    models: Path

    def configure(self, draft: str) -> None:
        """Write its unit as an owner does: the flags are in an environment file.

        ``draft`` is the folder of the draft model.
        """
        flags = shlex.join(speculation_flags(self.models, draft, 4))
        quoted = flags.replace("\\", "\\\\").replace('"', '\\"')
        self.machine.write_file(
            f"/etc/default/{self.name}", f'PORT={self.port}\nSPECULATION="{quoted}"\n'
        )
        environment = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        command = " ".join(serve_command(self.vllm, self.models, "${PORT}"))
        text = _VLLM.format(name=self.name, environment=environment, command=command)
        self.machine.write_file(f"{UNITS}/{self.unit}", text)
        self.machine.run("systemctl", "daemon-reload")


class LoadBalancer:
    """What the hooks talk to: keeps the targets that are to get no requests now."""

    def __init__(self) -> None:
        self.drained: set[str] = set()
        balancer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, target, what = self.path.split("/")
                (balancer.drained.add if what == "drain" else balancer.drained.discard)(target)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def hook(self, what: str) -> list[str]:
        """The command of a hook."""
        script = (
            "import os, sys, urllib.request\n"
            "url = f\"{sys.argv[1]}/{os.environ['SPECWATCH_TARGET']}/{sys.argv[2]}\"\n"
            "urllib.request.urlopen(url, timeout=60)"
        )
        url = f"http://127.0.0.1:{self._server.server_port}"
        return [sys.executable, "-c", script, url, what]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class GuardService(DaemonUnit):
    """``specwatch.service`` in the machine, with the helper of each unit."""

    def __init__(
        self,
        machine: SystemdMachine,
        servers: Sequence[Guarded],
        alertmanager: str,
        balancer: LoadBalancer,
        start_timeout: str = "9m",
    ) -> None:
        super().__init__(machine, _SPECWATCH)
        self.servers = servers
        install_helper(machine)
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
        self.configure(
            targets=[
                {
                    # Each a group of its own: none waits for the trial of another.
                    "name": server.name,
                    "url": server.url,
                    "interval": "1s",
                    "group": server.name,
                    "service": {"kind": "systemd", "unit": server.unit},
                }
                for server in servers
            ],
            rules={"use_defaults": False, "extra": [low]},
            guard={
                "mode": "act",
                "cooldown": "10s",
                "max_actions_per_day": 20,
                "drain_timeout": "20s",
                "start_timeout": start_timeout,
                "verify": "10s",
                "rearm": {"after": "1m", "most": "10m", "trial": "2m"},
                "hooks": {"before": balancer.hook("drain"), "after": balancer.hook("ready")},
            },
            alertmanager={"urls": [alertmanager], "resend": "10s"},
        )
        machine.run("systemctl", "daemon-reload")

    def start(self) -> None:
        sockets = [f"specwatch-guard@{server.name}.socket" for server in self.servers]
        self.machine.run("systemctl", "start", *sockets, "specwatch.service")

    def state(self, target: str) -> dict[str, Any]:
        """The guard's state of a target; empty before there is one."""
        guard = next(t["guard"] for t in self.status()["targets"] if t["name"] == target)
        return (guard or {}).get("state") or {}

    def wait_for(self, target: str, phase: str, *, within: float) -> dict[str, Any]:
        """The state, once it is in that phase."""
        eventually(
            lambda: self.state(target).get("phase") == phase,
            what=f"the guard of {target} is {phase}",
            within=within,
            every=0.5,
        )
        return self.state(target)

    def history(self, target: str) -> list[dict[str, Any]]:
        """Its steps, oldest first, as ``specwatch guard history`` prints them."""
        found = self.guard("history", target, "--limit", "1000")
        return sorted(found["steps"], key=lambda step: step["version"])

    def guard(self, *arguments: str) -> dict[str, Any]:
        """What ``specwatch guard`` answers to root, as JSON: it finds the service's database."""
        shown = self.machine.run("/opt/specwatch/bin/specwatch", "guard", *arguments, "--json")
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

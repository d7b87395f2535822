"""A real vLLM server as a process that tests start, stop, kill and restart."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.lab.http_get import is_ok, page

SERVE = Path(__file__).parent / "serve_vllm.sh"
START_TIMEOUT = 600.0
"""Seconds until a tiny model must be served; 10 to 30 on an idle machine with two cores."""
STOP_TIMEOUT = 120.0
"""Seconds that a server has to obey SIGTERM."""

_DEBRIS = re.compile(r"nanobind: | - leaked |See .*nanobind| - \.\.\. skipped")


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def speculation_flags(models: Path, speculation: str | None, k: int) -> list[str]:
    """Flags for ``draft-good``, ``draft-bad``, ``ngram`` or None, with ``k`` draft tokens.

    With speculation they also ask for per-request records, without it vLLM refuses to make them.
    """
    if speculation is None:
        return []
    config: dict[str, object] = {"num_speculative_tokens": k}
    if speculation == "ngram":
        config |= {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    elif (models / speculation).is_dir():
        config |= {"method": "draft_model", "model": str(models / speculation)}
    else:
        raise ValueError(
            f"no draft called {speculation!r}: expected draft-good, draft-bad, ngram or None"
        )
    return [
        "--speculative-config", json.dumps(config),
        "--per-request-spec-decode-metrics", "summary",
    ]  # fmt: skip


class ServerFailed(Exception):
    """The server ended, or did not answer in time; the text ends with the tail of its log."""


class VllmServer:
    """One port on which a vLLM process is served, with one log for all its lives.

    ``flags`` go to ``vllm serve`` as they are; ``environment`` is added to that of the tests.
    """

    def __init__(
        self,
        vllm: Path,
        models: Path,
        log: Path,
        *flags: str,
        speculation: str | None = None,
        k: int = 4,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._vllm = vllm
        self._models = models
        self._flags = flags
        self._speculation = speculation
        self._k = k
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of vLLM's main process, which leads its own process group."""
        if self._process is None:
            raise ServerFailed("the server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the main process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does not wait for it to answer."""
        if self.running:
            raise ServerFailed(f"the server on port {self.port} is running already")
        flags = speculation_flags(self._models, self._speculation, self._k)
        # Should the test run be killed, its servers end with it.
        command = [
            "setpriv", "--pdeathsig", "TERM",
            str(SERVE), str(self._vllm), str(self._models), *flags, *self._flags,
        ]  # fmt: skip
        environment = {**os.environ, **self._environment, "PORT": str(self.port)}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_healthy(self) -> None:
        """Return once ``GET /health`` answers 200.

        Raises :class:`ServerFailed` when the process ends, or after :data:`START_TIMEOUT`.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not self.healthy():
            if not self.running:
                code = self._process.returncode if self._process else None
                raise ServerFailed(f"vLLM ended with status {code}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"no answer within {START_TIMEOUT:g} s\n{self.log_tail()}")
            time.sleep(0.2)

    def healthy(self) -> bool:
        """Whether ``GET /health`` answers 200 now."""
        return is_ok(self.url + "/health", timeout=5)

    def metrics(self) -> str:
        """The text of ``GET /metrics``."""
        return page(self.url + "/metrics")

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """SIGTERM, then after ``timeout`` seconds SIGKILL; nothing of the group survives."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the group, as when the kernel runs out of memory."""
        deadline = time.monotonic() + STOP_TIMEOUT
        while self.processes():
            if time.monotonic() > deadline:
                raise ServerFailed(f"processes {self.processes()} survived SIGKILL")
            os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        if self._process is not None:
            # Its first thread may be gone while others still end.
            self._process.wait(STOP_TIMEOUT)

    def processes(self) -> list[int]:
        """Ids of the processes of the server's group that run."""
        if self._process is None:
            return []
        self._process.poll()
        alive = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it ended while we looked
            state, _, group = stat.rpartition(")")[2].split()[:3]
            if int(group) == self._process.pid and state != "Z":
                alive.append(int(folder.name))
        return sorted(alive)

    def restart(self, *, speculation: str | None = None, k: int = 4) -> None:
        """Stop and start again on the same port, without the former flags."""
        self.stop()
        self._flags, self._speculation, self._k = (), speculation, k
        self.start()
        self.wait_healthy()

    def log_tail(self) -> str:
        """The last lines of the log, but for the debris that this build reports when it ends."""
        if not self.log.exists():
            return ""
        written = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in written if not _DEBRIS.match(line)][-100:])

    def __enter__(self) -> VllmServer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

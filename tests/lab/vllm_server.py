"""A real vLLM server as a process that tests start, stop, kill and restart."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.http_get import is_ok, page

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The server has an engine beside its front end, and a test machine has two cores.
    "OMP_NUM_THREADS": "1",
    # This spares it two thirds of a start.
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}
KV_CACHE_BYTES = 2**28
"""For 16,000 tokens; what is allotted is also filled."""
START_TIMEOUT = 600.0
"""Seconds until a tiny model must be served; 10 to 30 on an idle machine with two cores."""
STOP_TIMEOUT = 120.0
"""Seconds that a server has to obey SIGTERM."""

FORKS = "SPECWATCH_FORK_SERVER"
"""Environment variable: the socket of a fork server that several test runs share."""
FORK_SERVER = Path(__file__).parent / "fork_server.py"
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
        "--speculative-config",
        json.dumps(config),
        "--per-request-spec-decode-metrics",
        "summary",
    ]


def serve_command(vllm: Path, models: Path, port: int | str) -> list[str]:
    """The command that serves the tiny target, without speculation.

    With float32, because some virtual CPUs announce bfloat16 instructions and then refuse them.
    """
    return [
        str(vllm / "bin/vllm"),
        "serve",
        str(models / "target"),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "1024",
        "--enforce-eager",
        "--dtype",
        "float32",
        "--kv-cache-memory-bytes",
        str(KV_CACHE_BYTES),
    ]


@contextlib.contextmanager
def fork_server(vllm: Path, folder: Path) -> Iterator[Path]:
    """A process of :mod:`tests.lab.fork_server` for a ``with`` block: the path of its socket."""
    path = folder / "forks"
    with (folder / "forks.log").open("ab") as log:
        process = subprocess.Popen(
            # Without the folder of the program among those with modules.
            ["setpriv", "--pdeathsig", "TERM", vllm / "bin/python", "-P", FORK_SERVER, path],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield path
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT)


class ForkServer:
    """A connection to a fork server, which need not listen yet."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + START_TIMEOUT
        while self._connection.connect_ex(path):
            if time.monotonic() > deadline:
                raise ServerFailed(f"no fork server at {path}")
            time.sleep(0.05)
        self._stream = self._connection.makefile("rw")

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
        """Start a server as that command does, in its own session."""
        asked = {"command": command, "environment": environment, "log": str(log)}
        return Forked(self, self._ask(asked))

    def exit_status(self, pid: int) -> int | None:
        """Of a server that was started here; None while it runs."""
        found: int | None = self._ask(pid)
        return found

    def close(self) -> None:
        """Disconnect, which ends the servers that are left."""
        self._stream.close()
        self._connection.close()

    def _ask(self, asked: object) -> Any:
        with self._lock:
            print(json.dumps(asked), file=self._stream, flush=True)
            answer = self._stream.readline()
        if not answer:
            raise ServerFailed("the fork server has ended")
        return json.loads(answer)


class Forked:
    """A process of a :class:`ForkServer`, with what a ``Popen`` has."""

    def __init__(self, parent: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.exit_status(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status, once it has ended; :class:`subprocess.TimeoutExpired` if it has not."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status

    def terminate(self) -> None:
        """SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class ServerFailed(Exception):
    """The server ended, or did not answer in time; the text ends with the tail of its log."""


class VllmServer:
    """One port on which a vLLM process is served, with one log for all its lives.

    ``flags`` go to ``vllm serve`` as they are; ``environment`` is added to that of the tests. With
    ``forks`` it is started by that one, in a fifth of the time.
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
        forks: ForkServer | None = None,
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
        self._forks = forks
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._worked: list[float] = []
        """Seconds of processors by life, as far as they were noted."""

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
        self._worked.append(0.0)
        flags = speculation_flags(self._models, self._speculation, self._k)
        command = [*serve_command(self._vllm, self._models, self.port), *flags, *self._flags]
        environment = {**os.environ, **ENVIRONMENT, **self._environment}
        if self._forks is not None:
            self._process = self._forks.start(command, environment, self.log)
            return
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                # Should the test run be killed, its servers end with it.
                ["setpriv", "--pdeathsig", "TERM", *command],
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
            self._note_work()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the group, as when the kernel runs out of memory."""
        deadline = time.monotonic() + STOP_TIMEOUT
        self._note_work()
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
        return sorted(self._alive())

    def processor_seconds(self) -> float:
        """What it has taken so far, in all its lives, without their ends."""
        self._note_work()
        return sum(self._worked)

    def _note_work(self) -> None:
        if self._worked:
            self._worked[-1] = max(self._worked[-1], sum(self._alive().values()))

    def _alive(self) -> dict[int, float]:
        """Seconds of processors that each process of the group has taken, by its id."""
        if self._process is None:
            return {}
        self._process.poll()
        alive = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it ended while we looked
            state, _, group, *fields = stat.rpartition(")")[2].split()
            if int(group) == self._process.pid and state != "Z":
                alive[int(folder.name)] = sum(map(int, fields[8:10])) / os.sysconf("SC_CLK_TCK")
        return alive

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

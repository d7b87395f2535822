"""Replicas that a user's command restarts, the router before them, and a network to cut."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.processes import CHECKOUT
from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts, counted
from tests.lab.http_get import is_ok, page

_STARTS_WITHIN = 180.0
_SWITCH = """\
#!/bin/sh
# switch on|off|status: what a user's own command may look like
cd {folder} || exit 1
test "$1" != status || exec cat mode
exec 9>> lock
flock 9
# What this life has counted is kept, once no request runs that would be counted after it.
runs_requests() {{
    curl -s --max-time 5 {url}/metrics > page
    grep -Eq '^vllm:num_requests_(running|waiting)[^ ]* [1-9]' page
}}
busy=
test -s pid && runs_requests && busy=busy
touch closed
sleep 0.2
while test -s pid && runs_requests; do sleep 0.1; done
echo "$(date +%s.%N) $1 $busy" >> runs
if test -s pid; then
    mv page "lives/$(date +%s.%N)"
    pid=$(cat pid)
    kill $pid
    while kill -0 $pid 2> /dev/null; do sleep 0.02; done
fi
echo $1 > mode.new
mv mode.new mode
flags=
test "$1" = off || flags={speculating}
PYTHONPATH={checkout} setsid {python} -m specwatch simulate tiny --host 127.0.0.1 --port {port} \\
    --simulated-acceptance-scale 0.2 --simulated-step-time 0.005 \\
    $flags < /dev/null >> log 2>&1 9>&- &
echo $! > pid
rm -f closed
"""
_SPECULATING = '--speculative-config {"model":"draft","num_speculative_tokens":4}'
_RESET_SECONDS = 5.0
"""After so long without an answer the keepalives of a connection end it."""
_ports = itertools.count(20_000 + os.getpid() % 4000)


def _port() -> int:
    """A port that no connection gets as its own end while its server is down."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Replica:
    """A simulated vLLM with a draft that is rarely right."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.port = _port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder / name
        (self._folder / "lives").mkdir(parents=True)
        script = _SWITCH.format(
            folder=shlex.quote(str(self._folder)),
            url=self.url,
            port=self.port,
            speculating=shlex.quote(_SPECULATING),
            checkout=CHECKOUT,
            python=sys.executable,
        )
        self._switch = self._folder / "switch"
        self._switch.write_text(script)
        self._switch.chmod(0o755)

    def service(self) -> dict[str, Any]:
        """The section ``service`` of its target."""
        words = {"disable": "off", "enable": "on", "status": "status"}
        commands = {key: [str(self._switch), word] for key, word in words.items()}
        return {"kind": "command", **commands, "timeout": "20s"}

    def start(self) -> None:
        """Start it with speculation."""
        subprocess.run([self._switch, "on"], check=True, stderr=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        """Return once it answers."""
        ready = self.url + "/health"
        eventually(lambda: is_ok(ready), what=f"{self.name} answers", within=_STARTS_WITHIN)

    def metrics(self) -> str:
        """The text of ``GET /metrics``."""
        return page(self.url + "/metrics")

    def kill(self) -> None:
        """End it."""
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)

    @property
    def closed(self) -> bool:
        """Whether it is about to be restarted."""
        return (self._folder / "closed").exists()

    def runs(self) -> list[list[str]]:
        """Of the command after the first: when, which mode, and ``busy`` if requests ran."""
        lines = (self._folder / "runs").read_text().splitlines()[1:]
        return [line.split() for line in lines]

    def lives(self) -> list[tuple[float, Counts]]:
        """When each life ended, but for the present one, and what it had counted."""
        files = sorted((self._folder / "lives").iterdir(), key=lambda file: float(file.name))
        return [(float(file.name), counted(file.read_text())) for file in files]


class Router:
    """Sends each request to a replica that answers, in turn; drained ones only if no other does."""

    def __init__(self, replicas: Sequence[Replica], drained: Callable[[], Iterable[str]]) -> None:
        self.failures: list[str] = []
        """Of requests that no replica answered."""
        turns = itertools.count()
        router = self

        def in_turn() -> list[Replica]:
            turn = next(turns) % len(replicas)
            out = set(drained())
            around = [*replicas[turn:], *replicas[:turn]]
            return sorted(around, key=lambda one: (one.closed, one.name in out))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                tried: list[str] = []
                for replica in in_turn():
                    try:
                        status, answer = _post(replica.port, self.path, body)
                        break
                    except (OSError, http.client.HTTPException) as error:
                        tried.append(f"{replica.name}: {error}")
                else:
                    router.failures.append("; ".join(tried))
                    status, answer = 503, b"no replica answers"
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()


def _post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Relay:
    """A network between one daemon and the socket of a Postgres."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._passing = asyncio.Event()
        self._passing.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Nothing passes any more, and what is open ends as by its keepalives."""
        self.hold()
        self._loop.call_soon_threadsafe(self._loop.call_later, _RESET_SECONDS, self._reset)

    def hold(self) -> None:
        """Nothing passes, and all of it arrives later."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def heal(self) -> None:
        """All passes again."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def close(self) -> None:
        """End all of it."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reset(self) -> None:
        if not self._passing.is_set():
            for writer in self._open:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ways: list[asyncio.Task[None]] = []
        ends = [writer.transport]
        try:
            await self._passing.wait()
            above = await asyncio.open_unix_connection(str(self._upstream))
            ends.append(above[1].transport)
            self._open.add(writer)
            ways.append(asyncio.create_task(self._pass_on(reader, above[1], writer)))
            ways.append(asyncio.create_task(self._pass_on(above[0], writer, writer)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            # Postgres learns that a client is gone once the network is back.
            await self._passing.wait()
        except (OSError, asyncio.CancelledError):
            pass  # Postgres is away, or the relay is closed
        finally:
            self._open.discard(writer)
            for way in ways:
                way.cancel()
            for end in ends:
                end.abort()

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._passing.wait()
                if client.is_closing():
                    return
                to.write(data)
                await to.drain()

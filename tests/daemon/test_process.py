"""The real process, ``python -m specwatch run``; ``tests.robustness`` kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.daemon.running import stored
from tests.fixtures import Serve
from tests.hostile import hanging, page, wait_for
from tests.runtime.notify import NotifySocket
from tests.scrape.pages import vllm

ROOT = Path(__file__).parents[2]
LEAVES_WITHIN = 30.0
"""Seconds; it promises five, but not of a machine that stops meanwhile."""


class Process:
    """A daemon of its own, logging to a file."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self._log = folder / "log"
        self._read_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "specwatch", "run", "--config", folder / "c.yml"],
                cwd=ROOT,
                env={**os.environ, **environ},
                stderr=log,
                stdout=log,
            )

    @property
    def log(self) -> list[dict[str, Any]]:
        """What this process has logged."""
        lines = self._log.read_bytes()[self._read_from :].decode().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log entry of an event, once it is there."""

        def there() -> bool:
            ended = self.popen.poll() is not None
            assert not ended or self._has(event), self._log.read_text()
            return self._has(event)

        wait_for(there)
        return next(entry for entry in self.log if entry["event"] == event)

    def _has(self, event: str) -> bool:
        return any(entry["event"] == event for entry in self.log)

    def scraped(self, times: int, target: str = "t") -> None:
        """Wait until a target was scraped so many times more."""
        url = self.wait_for("started")["listen"]

        def count() -> int:
            targets = requests.get(f"{url}/api/v1/targets", timeout=10).json()["targets"]
            return next((int(t["scrapes"]) for t in targets if t["name"] == target), 0)

        before = count()
        wait_for(lambda: count() >= before + times)

    def end(self, how: signal.Signals) -> int:
        """Send a signal; the exit code, which must come in time."""
        self.popen.send_signal(how)
        return self.popen.wait(LEAVES_WITHIN)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Process] = []

    def started(*urls: str, **environ: str) -> Process:
        configure(tmp_path, *urls)
        running.append(Process(tmp_path, **environ))
        running[-1].wait_for("started")
        return running[-1]

    yield started
    for process in running:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait(10)


def configure(folder: Path, *urls: str, more: str = "") -> None:
    """Write the configuration; targets are called t, t1, t2."""
    targets = [
        f"  - {{name: t{n or ''}, url: '{url}', interval: 1s}}" for n, url in enumerate(urls)
    ]
    head = [f"database: sqlite:///{folder}/d.db", "listen: 127.0.0.1:0", "daemon: d", "targets:"]
    (folder / "c.yml").write_text("\n".join([*head, *targets, more]) + "\n")


def test_signals_read_the_file_again_refuse_a_bad_one_and_end_it_in_time(
    start: Start, serve: Serve, tmp_path: Path
) -> None:
    """In time, although a target hangs; and a bad file changes nothing."""
    url, other, hung = serve(page(vllm())).url, serve(page(vllm())).url, serve(hanging)
    with NotifySocket(str(tmp_path / "n")) as notify:
        process = start(url, NOTIFY_SOCKET=notify.address)
        notify.until(lambda message: "READY" in message)
        configure(tmp_path, url, other, hung.url)
        process.popen.send_signal(signal.SIGHUP)
        notify.until(lambda message: "RELOADING" in message)
        notify.until(lambda message: message.get("STATUS", "").startswith("Watching 3 targets"))
        process.scraped(1, "t1")
        # It takes a fifth of the memory, and is for benches and probes.
        assert "/numpy/" not in Path(f"/proc/{process.popen.pid}/maps").read_text()
        configure(tmp_path, url, more="tragets: []")
        process.popen.send_signal(signal.SIGHUP)
        refused = process.wait_for("reload_refused")
        assert f"{tmp_path}/c.yml:" in refused["detail"]
        assert 'did you mean "targets"?' in refused["detail"]
        notify.until(lambda message: "READY" in message)
        wait_for(lambda: hung.visits)
        assert process.end(signal.SIGTERM) == 0
        notify.until(lambda message: "STOPPING" in message)
    assert process.wait_for("stopped")["unwritten"] == 0
    assert {window.series.target for window in stored(tmp_path / "d.db")} >= {"t", "t1"}

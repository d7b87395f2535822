"""The real process, ``python -m specwatch run``; ``tests.robustness`` kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen, self._log = popen, log

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log entry of an event, once it is there."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            ended = self.popen.poll() is not None
            lines = self._log.read_text().splitlines()
            entries = [json.loads(line) for line in lines if line.endswith("}")]
            found.extend(entry for entry in entries if entry["event"] == event)
            assert found or not ended, lines
            return bool(found)

        wait_for(there)
        return found[0]


@contextmanager
def running(folder: Path, **environ: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "specwatch", "run", "--config", folder / "c.yml"]
    with (folder / "log").open("wb") as log:
        popen = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environ, stderr=log, stdout=log
        )
    try:
        yield Process(popen, folder / "log")
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait(10)


def configure(folder: Path, *urls: str, more: str = "") -> None:
    """Write the configuration; targets are called t0, t1, t2."""
    targets = [f"  - {{name: t{n}, url: '{url}', interval: 1s}}" for n, url in enumerate(urls)]
    head = [f"database: sqlite:///{folder}/d.db", "listen: 127.0.0.1:0", "daemon: d", "targets:"]
    (folder / "c.yml").write_text("\n".join([*head, *targets, more]) + "\n")


def test_signals_read_the_file_again_refuse_a_bad_one_and_end_it_in_time(
    serve: Serve, tmp_path: Path
) -> None:
    """In time, although a target hangs; and a bad file changes nothing."""
    first, second, hung = serve(page(vllm())), serve(page(vllm())), serve(hanging)
    configure(tmp_path, first.url)
    with (
        NotifySocket(str(tmp_path / "n")) as notify,
        running(tmp_path, NOTIFY_SOCKET=notify.address) as process,
    ):
        notify.until(lambda message: "READY" in message)
        configure(tmp_path, first.url, second.url, hung.url)
        process.popen.send_signal(signal.SIGHUP)
        notify.until(lambda message: "RELOADING" in message)
        notify.until(lambda message: message.get("STATUS", "").startswith("Watching 3 targets"))
        configure(tmp_path, first.url, more="tragets: []")
        process.popen.send_signal(signal.SIGHUP)
        refused = process.wait_for("reload_refused")
        assert f"{tmp_path}/c.yml:" in refused["detail"]
        assert 'did you mean "targets"?' in refused["detail"]
        notify.until(lambda message: "READY" in message)
        wait_for(lambda: second.paths.count("/metrics") > 1 and hung.visits)
        # It takes a fifth of the memory, and is for benches and probes.
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(LEAVES_WITHIN) == 0
        notify.until(lambda message: "STOPPING" in message)
        assert process.wait_for("stopped")["unwritten"] == 0
    assert {window.series.target for window in stored(tmp_path / "d.db")} >= {"t0", "t1"}

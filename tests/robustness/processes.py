"""Processes of a daemon and of a proxy that a campaign starts, watches and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests

from tests.hostile import wait_for

ROOT = Path(__file__).parents[2]
LEAVES_WITHIN = 30.0
"""Seconds; it promises five, but not of a machine that stops meanwhile."""


class Process:
    """Runs ``specwatch`` with these words, logging to the file ``log`` of a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log_file = folder / "log"
        self._read_from = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "specwatch", *words], cwd=ROOT, stdout=log, stderr=log
            )

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log entry of an event, once it is there."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            ended = self.popen.poll() is not None
            found.extend(entry for entry in self._logged() if entry["event"] == event)
            assert found or not ended, self.log_file.read_text()
            return bool(found)

        wait_for(there)
        return found[0]

    def end(self, how: signal.Signals) -> int:
        """Send a signal; the exit code, which must come in time."""
        self.popen.send_signal(how)
        return self.popen.wait(LEAVES_WITHIN)

    def _logged(self) -> list[dict[str, Any]]:
        lines = self.log_file.read_bytes()[self._read_from :].decode().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


class Daemon(Process):
    """``specwatch run`` with the configuration ``c.yml`` of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "run", "--config", str(folder / "c.yml"))

    def scraped(self, times: int, target: str = "t") -> None:
        """Wait until a target was scraped so many times more."""
        url = self.wait_for("started")["listen"]

        def count() -> int:
            targets = requests.get(f"{url}/api/v1/targets", timeout=10).json()["targets"]
            return next((int(t["scrapes"]) for t in targets if t["name"] == target), 0)

        before = count()
        wait_for(lambda: count() >= before + times)


class Proxy(Process):
    """``specwatch tap proxy`` before an upstream."""

    def __init__(self, folder: Path, upstream: str) -> None:
        super().__init__(folder, "tap", "proxy", "--upstream", upstream, "--listen", "127.0.0.1:0")
        self.port = int(self.wait_for("proxy_started")["url"].rpartition(":")[2])

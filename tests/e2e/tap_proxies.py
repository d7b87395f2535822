"""``specwatch tap proxy`` as a process."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.api import get
from tests.e2e.processes import STARTS_WITHIN, Specwatch
from tests.e2e.waiting import eventually
from tests.lab.vllm_server import free_port


class TapProxy(Specwatch):
    """A proxy on a port of its own, before the server at ``upstream``."""

    def __init__(self, log: Path, upstream: str, *flags: str) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        super().__init__(
            log, "tap", "proxy", "--upstream", upstream, "--listen", address,
            "--log-format", "json", *flags,
        )  # fmt: skip

    def metrics(self) -> str:
        """Its own page."""
        status, body = get(self.url + "/metrics")
        assert status == 200, body
        return body

    def wait_ready(self) -> None:
        """Return once it serves; by then it has looked at its upstream."""
        eventually(self._ready, what=f"{self.url} answers", within=STARTS_WITHIN)

    def _ready(self) -> bool:
        assert self.running, f"the proxy ended\n{self.said()}"
        try:
            return get(self.url + "/specwatch/healthz")[0] == 200
        except OSError:
            return False

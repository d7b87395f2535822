"""Real vLLMs whose counters are files (``PROMETHEUS_MULTIPROC_DIR``): pages that do not say when
their process started, and keep the totals of earlier ones."""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.conftest import StartVllm
from tests.e2e.processes import DaemonProcess
from tests.e2e.waiting import eventually
from tests.lab.http_get import get, page
from tests.lab.traffic import requests_at, send_all
from tests.lab.vllm_server import VllmServer

KEY = "PROMETHEUS_MULTIPROC_DIR"
DRAFTS = "vllm:spec_decode_num_drafts_total"
WITHIN = 120.0


def started(start_vllm: StartVllm, folder: Path, speculation: str | None) -> VllmServer:
    folder.mkdir(exist_ok=True)
    # prometheus-client looks at the variable when it is imported.
    return start_vllm(speculation=speculation, environment={KEY: str(folder)}, forked=False)


def daemon_on(folder: Path, url: str) -> DaemonProcess:
    target = {"name": "tiny", "url": url, "interval": "1s"}
    database = f"sqlite:///{folder}/specwatch.db"
    return DaemonProcess.configured(folder / "daemon", database, {"targets": [target]})


def mode(daemon: DaemonProcess) -> Any:
    return daemon.status()["targets"][0]["models"].get("tiny")


def test_totals_of_an_earlier_process_are_no_speculation(
    start_vllm: StartVllm, tmp_path: Path
) -> None:
    """After a restart without speculation in the same folder."""
    requests = requests_at([0.0], 24, max_tokens=60)
    with started(start_vllm, tmp_path / "metrics", "draft-good") as server:
        send_all(server.url, requests[:4])
    with started(start_vllm, tmp_path / "metrics", None) as server:
        shown = server.metrics()
        assert DRAFTS in shown, "the totals of the process before are still there"
        assert "process_start_time_seconds" not in shown
        with daemon_on(tmp_path, server.url) as daemon:
            daemon.wait_scraped(0)
            assert mode(daemon) == "on"
            send_all(server.url, requests)
            eventually(lambda: mode(daemon) == "off", what="it is off", within=WITHIN)
            send_all(server.url, requests[:4])
            assert mode(daemon) == "off"


@contextmanager
def in_turn(servers: Sequence[VllmServer]) -> Iterator[str]:
    """A load balancer: each request goes to the next server."""
    turns = itertools.cycle(servers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = get(next(turns).url + self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    balancer = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=balancer.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{balancer.server_port}"
    finally:
        balancer.shutdown()
        balancer.server_close()


def counted(server: VllmServer) -> float:
    """Its drafts."""
    found = [line for line in page(server.url + "/metrics").splitlines() if line.startswith(DRAFTS)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_servers_behind_one_address_are_recognised_and_not_added_up(
    start_vllm: StartVllm, tmp_path: Path
) -> None:
    with (
        started(start_vllm, tmp_path / "one", "draft-good") as one,
        started(start_vllm, tmp_path / "two", "draft-good") as two,
    ):
        send_all(one.url, requests_at([0.0], 30, max_tokens=40))
        send_all(two.url, requests_at([0.0], 8, max_tokens=40))
        before = counted(one) + counted(two)
        with in_turn([one, two]) as url, daemon_on(tmp_path, url) as daemon:
            eventually(
                lambda: "several" in {problem["kind"] for problem in daemon.status()["problems"]},
                what="it is seen that several servers answer",
                within=WITHIN,
            )
            send_all(one.url, requests_at([0.0], 4, max_tokens=40))
            daemon.wait_scraped(daemon.status()["now"])
            daemon.stop()
            meanwhile = counted(one) + counted(two) - before
        drafts = sum(window.tally.drafts or 0 for window in daemon.windows())
    assert drafts <= meanwhile, "no more than both have counted"

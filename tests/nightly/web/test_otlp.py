"""A process exports to a collector of OpenTelemetry."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.daemon.test_process import configure, running
from tests.fixtures import Serve
from tests.hostile import page, wait_for
from tests.scrape.pages import vllm
from tests.web.test_otlp import Collector, collector, points

__all__ = ["collector"]


def test_a_process_exports_once_its_configuration_says_so(
    collector: Collector, serve: Serve, tmp_path: Path
) -> None:
    url = serve(page(vllm())).url
    configure(tmp_path, url)
    with running(tmp_path) as process:
        process.wait_for("started")
        configure(tmp_path, url, more=f"otlp: {{endpoint: '{collector.url}', interval: 1s}}")
        assert collector.received == []
        process.popen.send_signal(signal.SIGHUP)
        wait_for(lambda: len(collector.received) >= 2)
        assert ("specwatch_target_up", frozenset({("target", "t0")})) in points(
            collector.received[1]
        )
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(60) == 0

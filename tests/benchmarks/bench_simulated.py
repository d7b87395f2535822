"""How fast the simulated engine runs in virtual time, and renders its page."""

from __future__ import annotations

import statistics
import time

from specwatch.simulator.engine import SimulatedEngine
from specwatch.simulator.page import SimulatedPage
from specwatch.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulator.workload import SimulatedTraffic
from tests.benchmarks.figure import Figure

_HOURS = 0.5
_REQUESTS_PER_SECOND = 2.0
_LOOKS = 200
_INTERVAL = 5.0


def run() -> list[Figure]:
    """Measure half an hour of traffic, then looks at the page every 5 s."""
    traffic = SimulatedTraffic(rate=_REQUESTS_PER_SECOND)
    engine = SimulatedEngine(SimulatedSettings(speculation=SimulatedSpeculation(), traffic=traffic))
    began = time.process_time()
    engine.advance(_HOURS * 3600)
    hours = _HOURS / (time.process_time() - began)
    page = SimulatedPage(engine)
    page.render()
    renders = []
    for _ in range(_LOOKS):
        engine.advance(engine.now + _INTERVAL)
        began_ns = time.thread_time_ns()
        page.render()
        renders.append((time.thread_time_ns() - began_ns) / 1e3)
    return [
        Figure(
            f"simulated vLLM, {_REQUESTS_PER_SECOND:g} requests/s: virtual hours a second",
            hours,
            "h",
        ),
        Figure("simulated vLLM: rendering its page", statistics.median(renders), "µs"),
    ]

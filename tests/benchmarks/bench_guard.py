"""What the guard of a large fleet costs while it only observes: CPU, time and writes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from specwatch.config.rules import DEFAULT_RULES
from specwatch.daemon.guard_service import TURN_SECONDS
from specwatch.domain.model import ALL
from specwatch.guard.state import Phase
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.store.repository import Store
from tests.benchmarks.figure import Figure
from tests.guard.daemons import GuardingDaemon, World
from tests.guard.simulated_server import SimulatedServer

TARGETS = 200
_TURNS = 150


def run() -> list[Figure]:
    """Measure the turns of 200 targets, as often as they come in five minutes."""
    with tempfile.TemporaryDirectory(prefix="specwatch-bench-") as directory:
        store = Store(f"sqlite:///{Path(directory) / 'guard.db'}", daemon="bench")
        store.open(0)
        daemon = fleet(store)
        with writes(store) as written:
            took, cpu = measure(daemon)
        store.close(0)
    minutes = _TURNS * TURN_SECONDS / 60
    seconds = cpu / _TURNS
    return [
        Figure(
            f"guard: a turn of {TARGETS} targets, CPU",
            seconds * 1e3,
            "ms",
            budget=TURN_SECONDS * 1e3 / 100,
            aim=TURN_SECONDS * 1e3 / 200,
        ),
        Figure(f"guard: a turn of {TARGETS} targets, median", statistics.median(took) * 1e3, "ms"),
        Figure(f"guard: a turn of {TARGETS} targets, longest", max(took) * 1e3, "ms"),
        Figure(
            f"guard: of a core, a turn every {TURN_SECONDS:g} s",
            100 * seconds / TURN_SECONDS,
            "%",
        ),
        Figure("guard: writing transactions a minute", len(written) / minutes, "/min"),
    ]


def fleet(store: Store) -> GuardingDaemon:
    """A daemon that has seen all of its targets, none of which is in breach."""
    world = World(*(f"target-{number}" for number in range(TARGETS)))
    for server in world.servers.values():
        server.bad = False
    daemon = GuardingDaemon(world, store)
    daemon.live(4 * TURN_SECONDS, name="target-0")
    assert all(daemon.state(name).phase is Phase.OBSERVING for name in ("target-0", "target-199"))
    return daemon


def measure(daemon: GuardingDaemon) -> tuple[list[float], float]:
    """Seconds that each turn took, and seconds of CPU that all took."""
    for name, server in daemon.world.servers.items():
        fix(name, server)
    took = []
    began = time.process_time()
    for _ in range(_TURNS):
        before = time.perf_counter()
        daemon.guarding.turn()
        took.append(time.perf_counter() - before)
        daemon.world.wait()
    return took, time.process_time() - began


def fix(name: str, server: SimulatedServer) -> None:
    """Have it answer at once: every rule passes."""
    findings = tuple(
        Finding(
            rule,
            name,
            "tiny",
            ALL,
            Verdict.PASS,
            Verdict.PASS,
            server.now,
            None,
            (),
            at=server.now,
        )
        for rule in DEFAULT_RULES
    )
    status, decision = server.seen(), TargetDecision(findings=findings)
    server.seen = lambda: status  # type: ignore[method-assign]
    server.decision = lambda: decision  # type: ignore[method-assign]


@contextmanager
def writes(store: Store) -> Iterator[list[float]]:
    """Notes the time of every writing transaction."""
    found: list[float] = []
    plain = store.writing

    @contextmanager
    def noted(now: float, **options: bool) -> Iterator[sa.Connection]:
        found.append(now)
        with plain(now, **options) as connection:
            yield connection

    store.writing = noted  # type: ignore[method-assign]
    yield found

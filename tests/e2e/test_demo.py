"""The demo shows, in a short run, what it is there to show."""

from __future__ import annotations

import json

from tests.e2e.processes import specwatch


def test_the_demo_shows_acceptance_falling_with_temperature() -> None:
    done = specwatch("demo", "--json", "--duration", "20")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    predictable, creative, without = found["phases"]
    assert [phase["speculation"] for phase in found["phases"]] == ["on", "on", "off"]
    assert creative["acceptance_rate"] < 0.3 < predictable["acceptance_rate"]
    assert without["acceptance_rate"] is None
    assert 0 < found["drafts_stored"] <= found["drafts_counted_by_engine"]
    # The tap counts a request when it ends, the engine while it runs: one that began before the
    # phase puts a short phase above 1.
    assert 0.5 < predictable["coverage"] < 1.2
    # On a slow machine few requests end in the time, and not at every temperature.
    rates = [row["acceptance_rate"] for row in predictable["temperatures"] if row["requests"]]
    assert len(rates) > 1
    assert rates[0] > rates[-1]
    assert "By temperature, predictable text" in done.stderr

"""What the daemon holds in memory from its first second, for as long as it runs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import specwatch.daemon.daemon
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import assess
from specwatch.rules.attribution import attribute
from specwatch.domain.prediction import Experience
from tests.domain.minutes import baseline, off, on
minutes = [on(n) for n in range(9)]
assert assess(minutes, Baseline()).missing == "no baseline"
assert assess(minutes, baseline([off(n) for n in range(9)])).measured
heavy = {"numpy", "alembic", "psycopg", "requests", "jinja2", "specwatch.pages"}
assert attribute(minutes, minutes, baseline([off(n) for n in range(9)])).change
assert Experience.of(minutes, baseline([off(n) for n in range(9)])).lengths
print(*heavy & set(sys.modules))
import specwatch.lab.loadtest.resampling
print(*heavy & set(sys.modules))
"""


def test_numpy_is_not_loaded_for_a_decision() -> None:
    """It takes a fifth of the memory: what resamples is a bench, or a probe. The others are for who
    migrates, uses Postgres, or alerts."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["", "numpy"]

"""What the daemon holds in memory from its first second, for as long as it runs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import specwatch.daemon
from specwatch.core.baseline import Baseline
from specwatch.core.breakeven import assess
from specwatch.core.interval import Ratio, Reference, interval_of
from tests.core.minutes import baseline, off, on
minutes = [on(n) for n in range(9)]
assert assess(minutes, Baseline()).missing == "no baseline"
assert assess(minutes, baseline([off(n) for n in range(9)])).measured
heavy = {"numpy", "alembic", "psycopg", "requests"}
print(*heavy & set(sys.modules))
assert interval_of(Ratio([[1.0]] * 5, [1.0] * 5), [Reference([1.0] * 5, [1.0] * 5)])
print(*heavy & set(sys.modules))
"""


def test_numpy_is_not_loaded_before_something_is_resampled() -> None:
    """It takes a fifth of the memory, and a speedup does without; the others are for who migrates,
    uses Postgres, or alerts."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["", "numpy"]

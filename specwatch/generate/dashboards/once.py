"""Series as panels show them: once, however many daemons tell of one target.

Two daemons may watch one server under one name, and differ a little. What panels show and join is
the worse of both, whichever way that is; what each daemon counts of itself is summed.
"""

from __future__ import annotations

from specwatch.generate.dashboards.panels import Query

TARGET = "target"
MODEL = "target, model_name"
SERIES = "target, model_name, temperature"
FINDING = "rule, target, model_name, temperature"
OBJECTIVE = "target, model_name, slo"

LOOKED = ((None, "green"), (60.0, "orange"), (300.0, "red"))
"""For :func:`last_look`."""


def most(expr: str, by: str = "") -> str:
    """The greatest of all that have these labels in common, or of all that there is."""
    return _one("max", expr, by)


def least(expr: str, by: str = "") -> str:
    """The least of all that have these labels in common, or of all that there is."""
    return _one("min", expr, by)


def last_look(selector: str) -> str:
    """Seconds since any daemon last read each target; it grows on when all daemons are gone.

    For a day, also where a target is no longer configured.
    """
    success = f"specwatch_last_scrape_success_timestamp_seconds{{{selector}}}"
    return f"time() - {most(f'max_over_time({success}[1d])', TARGET)}"


def _one(function: str, expr: str, by: str) -> str:
    return f"{function} by ({by}) ({expr})" if by else f"{function}({expr})"


def assumed_line() -> Query:
    """The break-even acceptance of the chosen model while none is measured."""
    name = "specwatch_assumed_break_even_acceptance_ratio"
    line = most(f'{name}{{target="$target", model_name="$model_name"}}')
    return Query(line, "break-even, assumed")

"""Alerts on how fast the error budget of an objective for latency burns.

Source: *The Site Reliability Workbook*, 2018, ch. 5, "Multiwindow, Multi-Burn-Rate Alerts".
"""

from __future__ import annotations

from typing import NamedTuple

from specwatch.config.rules import Slo
from specwatch.generate.alerts.gates import KEPT, asked, joined, said, servers
from specwatch.generate.alerts.rule import Alert, Group, Severity


class Burn(NamedTuple):
    """A rate of burning that is told: ``factor`` times as fast as evenly, over both windows."""

    factor: float
    long: str
    short: str
    for_: str
    severity: Severity


BURNS = (
    Burn(14.4, "1h", "5m", "2m", "critical"),
    Burn(6, "6h", "30m", "15m", "critical"),
    Burn(3, "1d", "2h", "1h", "warning"),
    Burn(1, "3d", "6h", "3h", "warning"),
)
LEAST_COVERED = 0.75
"""Share of the long window that has to have been watched: 4 minutes after a start nobody can say
what an hour was like."""
LEAST_LONG, LEAST_SHORT = 100, 10
"""Requests in the long and in the short window, below which a share of them says little."""

SAMPLE_SLOS = (
    Slo(name="first-token", metric="ttft", threshold="500ms", objective="99%"),
    Slo(name="per-token", metric="tpot", threshold="50ms", objective="99%"),
)
"""What is taken where the configuration has no objectives."""

_SCOPE = "slo, target, model_name"


def group() -> Group:
    """The alerts, for all objectives that the daemon has."""
    return Group("specwatch-slo", tuple(map(_alert, BURNS)))


def _alert(burn: Burn) -> Alert:
    of = ("slo", "target", "model_name")
    one = "{slo=%q,target=%q,model_name=%q}"
    objective, slow = (
        asked(f"specwatch_slo_{each}_ratio{one}", *of, shown="humanizePercentage")
        for each in ("objective", "error")
    )
    left = f"specwatch_slo_budget_left_ratio{one}"
    budget = asked(
        f"{left} >= 0", *of, nothing="",
        shown='humanizePercentage | printf ", %s of the budget is left"',
    ) + asked(
        f"clamp_max(1 - ({left} < 0), 99)", *of, nothing="",
        shown='printf ", the budget is spent %.2g times over"',
    )  # fmt: skip
    return Alert(
        name="LatencySloBurn",
        expr=joined(
            f"{_over('burn_rate', burn.long)} > {burn.factor}",
            f"and on ({_SCOPE})",
            f"  {_over('burn_rate', burn.short)} > {burn.factor}",
            f"and on ({_SCOPE})",
            f"  {_over('requests', burn.long)} >= {LEAST_LONG}",
            f"and on ({_SCOPE})",
            f"  {_over('requests', burn.short)} >= {LEAST_SHORT}",
            f"and on ({_SCOPE})",
            f"  {_over('watched_ratio', burn.long)} >= {LEAST_COVERED}",
        ),
        for_=burn.for_,
        keep_firing_for=KEPT,
        severity=burn.severity,
        labels={
            "long": burn.long,
            "short": burn.short,
            "servers": servers("specwatch_slo_burn_rate", "target"),
        },
        summary="{{ $labels.target }}: the error budget of {{ $labels.slo }} burns too fast",
        description=(
            f"{{{{ $labels.model_name }}}}: over {burn.long} it burns {said()} times as fast as"
            f" evenly, and over {burn.short} too (line: {burn.factor:g}). Objective {objective};"
            f" {slow} of the requests of its window were too slow{budget}."
        ),
        meaning=(
            "More requests are slower than the threshold of an objective for latency than it"
            " allows. At 14.4 times, an hour uses 2 % of a 30 days' budget; at 6 times, six hours"
            " use 5 %; at 3 times, a day uses 10 %; at 1 it is used up just at the end. An"
            " objective counts whether speculation is on or off: users feel it either way."
        ),
        look=(
            'The dashboard "Speculation overview": "SLO burn rate", "Running and waiting requests",'
            ' "Preemptions", "Speedup and its 95 % interval", "Rules in breach". They tell load (a'
            " queue) from memory (preemptions) and speculation (speedup below 1)."
        ),
        do=(
            "Load: send less, or add servers. Speculation: see the alert of the rule that is in"
            " breach; `specwatch guard disable TARGET` takes it off. A burn of warning severity"
            " can wait for the day, unless little of the budget is left."
        ),
    )


def _over(family: str, window: str) -> str:
    return f'max by ({_SCOPE}) (specwatch_slo_{family}{{window="{window}"}})'

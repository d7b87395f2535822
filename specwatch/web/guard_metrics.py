"""The families of the guard on our own metrics page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.guard.state import Cause, GuardState, Phase
from specwatch.status import PagerStatus, TargetStatus
from specwatch.web.labels import add


def of_guards(targets: Iterable[TargetStatus], now: float) -> Iterator[Metric]:
    """Yield the families; ``now`` is a Unix time."""
    state = GaugeMetricFamily(
        "specwatch_guard_state",
        "Which state the guard of the target is in: 1 for it, 0 for all others.",
        labels=("target", "state"),
    )
    since = GaugeMetricFamily(
        "specwatch_guard_state_since_timestamp_seconds",
        "Since when, in Unix time.",
        labels=["target"],
    )
    acts = GaugeMetricFamily(
        "specwatch_guard_acts", "Whether guard.mode lets the guard act.", labels=["target"]
    )
    paused = GaugeMetricFamily(
        "specwatch_guard_paused", "Whether a person has paused the guard.", labels=["target"]
    )
    waiting = GaugeMetricFamily(
        "specwatch_guard_waiting",
        "Whether a breach is confirmed, and something keeps the guard from acting on it.",
        labels=["target"],
    )
    incident = GaugeMetricFamily(
        "specwatch_guard_incident",
        "Cause of what is going on, or for which speculation is off: 1 for it, 0 for all others.",
        labels=("target", "cause"),
    )
    today = GaugeMetricFamily(
        "specwatch_guard_actions_today", "Actions of the guard in the last day.", labels=["target"]
    )
    limit = GaugeMetricFamily(
        "specwatch_guard_actions_limit",
        "Actions of the guard that guard.max_actions_per_day allows.",
        labels=["target"],
    )
    actions = CounterMetricFamily(
        "specwatch_actions",
        "What this daemon did, by result.",
        labels=("target", "action", "result"),
    )
    for target in targets:
        guard = target.guard
        if guard is None:
            continue
        acts.add_metric([target.name], guard.mode == "act")
        add(limit, (target.name,), guard.max_actions_per_day)
        for (action, result), count in sorted(guard.actions.items()):
            actions.add_metric([target.name, action, result], count)
        if guard.state is not None:
            _of_phase(target.name, guard.state, state, since)
            _of_incident(target.name, guard.state, waiting, incident)
            paused.add_metric([target.name], guard.state.pause is not None)
            today.add_metric([target.name], len(guard.state.acted(now)))
    yield from (state, since, acts, paused, waiting, incident, today, limit, actions)


def of_pagers(pagers: Iterable[PagerStatus]) -> Iterator[Metric]:
    """Yield the families of paging."""
    up = GaugeMetricFamily(
        "specwatch_alertmanager_up",
        "Whether the last attempt to tell the Alertmanager succeeded.",
        labels=["url"],
    )
    failures = CounterMetricFamily(
        "specwatch_alertmanager_failures",
        "Attempts to tell an Alertmanager that failed.",
        labels=("url", "reason"),
    )
    for pager in pagers:
        up.add_metric([pager.url], pager.error is None)
        for reason, count in sorted(pager.failures.items()):
            failures.add_metric([pager.url, reason], count)
    yield from (up, failures)


def _of_phase(
    target: str, guard: GuardState, state: GaugeMetricFamily, since: GaugeMetricFamily
) -> None:
    for phase in Phase:
        state.add_metric([target, str(phase)], phase is guard.phase)
    since.add_metric([target], guard.since)


def _of_incident(
    target: str, guard: GuardState, waiting: GaugeMetricFamily, incident: GaugeMetricFamily
) -> None:
    waiting.add_metric([target], guard.phase is Phase.CONFIRMED and guard.waiting != "")
    for cause in Cause:
        going_on = guard.incident is not None and guard.incident.cause is cause
        incident.add_metric([target, str(cause)], going_on)

"""What is marked on every panel of a dashboard: what the guard did, and restarts."""

from __future__ import annotations

from typing import Any

from specwatch.generate.dashboards.once import TARGET, most
from specwatch.generate.dashboards.panels import Query


def of_guard(selector: str = 'target="$target"') -> list[dict[str, Any]]:
    """Every action and every change of state of the guard, and restarts of the engine."""
    return [_actions(selector), _transitions(selector), _restarts(selector)]


def _actions(selector: str) -> dict[str, Any]:
    counted = f"increase(specwatch_actions_total{{{selector}}}[$__rate_interval])"
    return _annotation(
        "Guard actions",
        f"sum by (target, action, result) ({counted}) > 0",
        color="orange",
        title="Guard: {{action}} {{target}}",
        text="Result: {{result}}",
        tags="action,result",
    )


def _transitions(selector: str) -> dict[str, Any]:
    # Grafana takes a value for a time in milliseconds.
    since = f"{most(f'specwatch_guard_state_since_timestamp_seconds{{{selector}}}', TARGET)} * 1000"
    states = most(f"specwatch_guard_state{{{selector}}} == 1", "target, state")
    return _annotation(
        "Guard states",
        f"{states} * on (target) group_left () ({since})",
        color="blue",
        title="Guard of {{target}}: {{state}}",
        text="The guard went into this state.",
        tags="state",
        useValueForTime=True,
    )


def _restarts(selector: str) -> dict[str, Any]:
    counted = f"increase(specwatch_engine_restarts_total{{{selector}}}[$__rate_interval])"
    return _annotation(
        "Engine restarts",
        f"{most(counted, TARGET)} > 0",
        color="purple",
        title="Restart of {{target}}",
        text="The engine was restarted, by whomever.",
        tags="target",
    )


def _annotation(
    name: str, expr: str, *, color: str, title: str, text: str, tags: str, **more: Any
) -> dict[str, Any]:
    target = Query(expr, title).target("Anno")
    # Grafana 10 and 11 read the query here, later releases in the target.
    return {
        "name": name,
        "datasource": target["datasource"],
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "target": target,
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": tags,
        **more,
    }

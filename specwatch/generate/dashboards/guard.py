"""Guard and specwatch itself: what was decided and done, and whether the watchman is awake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.generate.dashboards import frame, itself, variables
from specwatch.generate.dashboards.annotations import of_guard
from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.links import GUARD
from specwatch.generate.dashboards.once import FINDING, OBJECTIVE, TARGET, least, most
from specwatch.generate.dashboards.panels import (
    Column,
    Panel,
    Query,
    ShownAs,
    stat,
    state_timeline,
    style,
    table,
    timeseries,
)
from specwatch.generate.dashboards.phases import GUARD_STATES, VERDICTS, guard_state

_TARGETS = 'target=~"$target"'
_LINE_AT_NOTHING = ((None, "transparent"), (0.0, "red"))
_MODES = (
    ShownAs(0, "observes", "blue"),
    ShownAs(1, "acts", "green"),
    ShownAs(2, "paused", "orange"),
)
_WAITING = (ShownAs(0, "no", "green"), ShownAs(1, "waits", "orange"))
_GOING_ON = (ShownAs(0, "no", "gray"), ShownAs(1, "yes", "orange"))


def build(links: Sequence[Any]) -> str:
    """JSON of the dashboard."""
    return frame.dashboard(
        GUARD.uid,
        GUARD.title,
        "What the guards decided and did, what they wait for, how the objectives stand, and whether"
        " specwatch itself scrapes, stores, judges and pages as it should.",
        bands=[*_guards(), *_decisions(), *_objectives(), *itself.bands(_TARGETS)],
        variables=[variables.data_source(), variables.target(multi=True)],
        annotations=of_guard(_TARGETS),
        links=links,
        since="now-24h",
    )


def _guards() -> list[Band]:
    return [
        Band("Guard", 7, [(18, _states()), (6, _actions_left())]),
        Band(None, 6, [(8, _modes()), (8, _waiting()), (8, _causes())]),
        Band(None, 8, [(12, _actions()), (12, _actions_over_time())]),
    ]


def _decisions() -> list[Band]:
    return [
        Band("Decisions", 11, [(24, _verdicts())]),
        Band(None, 9, [(24, _findings())]),
    ]


def _objectives() -> list[Band]:
    return [
        Band("Objectives", 8, [(8, _budget()), (16, _burn_rates())]),
        Band(None, 8, [(12, _errors()), (12, _requests())]),
    ]


def _states() -> Panel:
    return state_timeline(
        "State of each guard",
        "Observing is calm; suspect and confirmed: a rule that disables is in breach; draining to"
        " verifying: a restart is under way; disabled: speculation is off; trial: it is on again to"
        " be measured; held: something failed and a person has to resume the guard.",
        [Query(guard_state(_TARGETS), "{{target}}")],
        mappings=GUARD_STATES,
    )


def _actions_left() -> Panel:
    limit = least(f"specwatch_guard_actions_limit{{{_TARGETS}}}", TARGET)
    today = most(f"specwatch_guard_actions_today{{{_TARGETS}}}", TARGET)
    return stat(
        "Actions left today",
        "How often each guard may still switch speculation of its own accord within a day:"
        " guard.max_actions_per_day less the actions of the last 24 hours. At 0 it only watches.",
        [Query(f"{limit} - on (target) {today}", "{{target}}")],
        unit="none",
        thresholds=((None, "red"), (1.0, "orange"), (2.0, "green")),
        text_mode="value_and_name",
    )


def _modes() -> Panel:
    acts = most(f"specwatch_guard_acts{{{_TARGETS}}}", TARGET)
    paused = most(f"specwatch_guard_paused{{{_TARGETS}}}", TARGET)
    return state_timeline(
        "May it act",
        "Whether guard.mode lets each guard act, or it only records what it would have done; and"
        " whether a person paused it.",
        [Query(f"2 * ({paused} == 1) or {acts}", "{{target}}")],
        mappings=_MODES,
    )


def _waiting() -> Panel:
    return state_timeline(
        "Does a breach wait",
        "Whether a breach is confirmed and something keeps the guard from acting on it: its mode, a"
        " pause, the budget, the cooldown, a maintenance window, or a restart that would cost more"
        " than it gains. `specwatch guard status` says which.",
        [Query(most(f"specwatch_guard_waiting{{{_TARGETS}}}", TARGET), "{{target}}")],
        mappings=_WAITING,
    )


def _causes() -> Panel:
    incident = f"specwatch_guard_incident{{{_TARGETS}}}"
    now = most(incident, "target, cause")
    happened = most(f"max_over_time({incident}[$__range])", "target, cause")
    return state_timeline(
        "Why it acts",
        "Cause of the incident that is going on or for which speculation is off: a rule, a trial or"
        " a lost one, a person, or the end of a person's order. Causes that never were within the"
        " time shown are left out, so that empty is calm.",
        [
            Query(
                f"{now} and on (target, cause) ({happened} == 1)",
                "{{target}} {{cause}}",
            )
        ],
        mappings=_GOING_ON,
    )


def _actions() -> Panel:
    counted = f"increase(specwatch_actions_total{{{_TARGETS}}}[$__range])"
    return table(
        "Actions and their results",
        "What each guard did within the time shown, by result: switches of speculation and the"
        " hooks around them. Failed and held are to be looked into: `specwatch guard history`.",
        [Query(f"round(sum by (target, action, result) ({counted})) > 0")],
        columns=[
            Column("Target", "target"),
            Column("Action", "action"),
            Column("Result", "result"),
            Column("Count", "A", "none", ((None, "text"), (1.0, "orange")), decimals=0),
        ],
        sort_by="Count",
        sort_descending=True,
    )


def _actions_over_time() -> Panel:
    counted = f"increase(specwatch_actions_total{{{_TARGETS}}}[1h])"
    return timeseries(
        "Actions within an hour",
        "How much each guard did in the hour before each point, by action and result. A guard that"
        " switches again and again needs other rules, or a longer cooldown.",
        [
            Query(
                f"round(sum by (target, action, result) ({counted})) > 0",
                "{{target}} {{action}} {{result}}",
            )
        ],
        unit="none",
        minimum=0,
        decimals=0,
        legend_values=("max",),
        points=True,
    )


def _verdicts() -> Panel:
    labels = "target, model_name, rule"
    return state_timeline(
        "Verdicts of rules",
        "What each rule says of each model, the worst of its temperatures: breaches are confirmed"
        " ones; no data neither fires nor clears, and comes with little traffic.",
        [
            Query(
                most(f"specwatch_rule_verdict{{{_TARGETS}}}", labels),
                "{{target}} {{model_name}} {{rule}}",
            )
        ],
        mappings=VERDICTS,
    )


def _findings() -> Panel:
    labels = f"{FINDING}, metric"
    verdict = most(f"specwatch_rule_verdict{{{_TARGETS}}}", FINDING)
    value = most(f"specwatch_rule_value{{{_TARGETS}}}", labels)
    return table(
        "What the rules read",
        "Each rule's leading reading and what it is compared with, confirmed breaches first. A rule"
        " with too little traffic can have a value and still no data; one without a value is left"
        " out.",
        [
            Query(f"0 * clamp({value}, 0, 1) + on ({FINDING}) group_left () {verdict}"),
            Query(value),
            Query(most(f"specwatch_rule_threshold{{{_TARGETS}}}", labels)),
        ],
        columns=[
            Column("Verdict", "A", "none", mappings=VERDICTS),
            Column("Rule", "rule"),
            Column("Target", "target"),
            Column("Model", "model_name"),
            Column("Temperature", "temperature"),
            Column("Metric", "metric"),
            Column("Value", "B", "none", decimals=3),
            Column("Threshold", "C", "none", decimals=3),
        ],
        sort_by="Verdict",
        sort_descending=True,
    )


def _budget() -> Panel:
    return timeseries(
        "Error budget left",
        "100 % is untouched; below the line at 0 the objective is missed in its window. The panel"
        " ends at -100 %, where the budget is spent twice over.",
        [
            Query(
                f"clamp_min({least(f'specwatch_slo_budget_left_ratio{{{_TARGETS}}}', OBJECTIVE)},"
                " -1)",
                "{{target}} {{model_name}} {{slo}}",
            )
        ],
        unit="percentunit",
        thresholds=_LINE_AT_NOTHING,
        maximum=1,
        legend_values=("lastNotNull", "min"),
    )


def _burn_rates() -> Panel:
    return timeseries(
        "Burn rate by window",
        "How many times faster than evenly each budget burns. The lines are where alerts begin, if"
        " a long and a short window are both above: 14.4 (1h and 5m) and 6 (6h and 30m) wake, 3 (1d"
        " and 2h) and 1 (3d and 6h) can wait for the morning.",
        [
            Query(
                most(f"specwatch_slo_burn_rate{{{_TARGETS}}}", f"{OBJECTIVE}, window"),
                "{{target}} {{model_name}} {{slo}} {{window}}",
            )
        ],
        unit="none",
        thresholds=(
            (None, "transparent"),
            (1.0, "blue"),
            (3.0, "yellow"),
            (6.0, "orange"),
            (14.4, "red"),
        ),
        minimum=0,
        decimals=1,
        legend_values=("lastNotNull", "max"),
    )


def _errors() -> Panel:
    errors = most(f"specwatch_slo_error_ratio{{{_TARGETS}}}", OBJECTIVE)
    objective = most(f"specwatch_slo_objective_ratio{{{_TARGETS}}}", OBJECTIVE)
    legend = "{{target}} {{model_name}} {{slo}}"
    return timeseries(
        "Too slow, against what is allowed",
        "Share of the requests in the window of each objective that were too slow, and the share"
        " that the objective allows.",
        [
            Query(errors, legend),
            Query(f"1 - {objective}", f"{legend} allowed"),
        ],
        unit="percentunit",
        minimum=0,
        overrides=[style("/allowed$/", regex=True, dashed=True, width=1)],
    )


def _requests() -> Panel:
    return timeseries(
        "Requests behind the burn rates",
        "How many requests each window has: with few of them a burn rate says little, and its"
        " alerts stay silent.",
        [
            Query(
                most(f"specwatch_slo_requests{{{_TARGETS}}}", f"{OBJECTIVE}, window"),
                "{{target}} {{model_name}} {{slo}} {{window}}",
            )
        ],
        unit="short",
        minimum=0,
    )

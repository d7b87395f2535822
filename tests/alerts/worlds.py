"""What Prometheus knows of a daemon that watches one server, well and otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from specwatch.config.rules import DEFAULT_RULES, Rule
from specwatch.guard.state import Cause, Phase
from tests.alerts.promtool import Value, World, name_of, series

MODEL = {"target": "chat", "model_name": "llama"}
TARGET = {"target": "chat"}
SLO = {"slo": "first-token", **MODEL}
BUCKETS = ("0", "(0.3,0.7]")
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
DAYS = 75 * 60
"""Minutes of a world of more than three days."""


def of(name: str, **labels: str) -> str:
    """A series of the daemon, as Prometheus stores it."""
    return series(name, **{"job": "specwatch", "instance": "watch:9469", **labels})


def watched(
    url: str = "http://10.0.0.7:8000", *, target: str = "chat", instance: str = "watch:9469"
) -> str:
    """The series by which a daemon says that it watches a server."""
    info = "specwatch_target_info"
    return of(info, target=target, url=url, engine_version="0.32.0", instance=instance)


@dataclass
class _Making:
    """A world that is being put together."""

    found: dict[str, Value] = field(default_factory=dict)

    def add(self, name: str, value: Value, **labels: str) -> None:
        self.found[of(name, **labels)] = value


def healthy(last: int = 240) -> dict[str, Value]:
    """Speculation pays, traffic flows, the guard watches and may act; up to minute ``last``."""
    made = _Making()
    made.add("up", 1)
    made.add("specwatch_build_info", 1, version="0.1.0", daemon="left")
    _speculation(made)
    _rules(made)
    for window in WINDOWS:
        made.add("specwatch_slo_burn_rate", 0.5, window=window, **SLO)
        made.add("specwatch_slo_requests", 5000, window=window, **SLO)
        made.add("specwatch_slo_watched_ratio", 1, window=window, **SLO)
    made.add("specwatch_slo_objective_ratio", 0.99, **SLO)
    made.add("specwatch_slo_error_ratio", 0.005, **SLO)
    made.add("specwatch_slo_budget_left_ratio", 0.5, **SLO)
    _guard(made)
    _itself(made, last)
    return made.found


def without(world: World, *names: str) -> dict[str, Value]:
    """A world without any series of these metrics."""
    return {each: value for each, value in world.items() if name_of(each) not in names}


def idle(world: World) -> dict[str, Value]:
    """The same without traffic, all else as it is."""
    rates = ("specwatch_drafts_per_second", "specwatch_requests_per_second")
    return {each: 0 if name_of(each) in rates else value for each, value in world.items()}


def off(world: World) -> dict[str, Value]:
    """The same with speculation off; what was measured of it stays for a while."""
    changed = without(world, "specwatch_drafts_per_second", "specwatch_acceptance_ratio")
    return {**changed, of("specwatch_speculation_enabled", **MODEL): 0}


def ordered_off(world: World) -> dict[str, Value]:
    """The same, off by order of a person."""
    person = of("specwatch_guard_incident", cause=Cause.PERSON, **TARGET)
    return {**off(world), **in_phase(Phase.DISABLED), **incident(None), person: 1}


def unguarded(world: World) -> dict[str, Value]:
    """The same with no guard at all."""
    guards = {name_of(each) for each in world if name_of(each).startswith("specwatch_guard_")}
    return without(world, *guards, "specwatch_actions_total")


def gone(world: World, since: int, until: int) -> dict[str, Value]:
    """The same, with nothing scraped between two minutes; counters begin anew after that."""
    before, between = since - 1, until - since - 1
    found: dict[str, Value] = {}
    for each, value in world.items():
        if name_of(each) == "up":
            found[each] = f"1x{before} 0x{between} 1x300"
        elif isinstance(value, str):
            found[each] = f"{value.partition('x')[0]}x{before} stale _x{between - 1} 0+0x300"
        elif value is not None:
            found[each] = f"{value:g}x{before} stale _x{between - 1} {value:g}x300"
    return found


def restarted(world: World, at: int) -> dict[str, Value]:
    """vLLM is restarted: five minutes of failing scrapes, in which nothing is known of it."""
    of_traffic = ("_per_second", "_acceptance_ratio", "_coverage_ratio", "_rule_value")
    failures = of("specwatch_scrape_failures_total", reason="refused", **TARGET)
    found: dict[str, Value] = {
        each: f"{value:g}x{at - 1} stale _x5 {value:g}x200"
        if name_of(each).endswith(of_traffic) and not isinstance(value, str)
        else value
        for each, value in world.items()
    }
    for each in ("specwatch_target_up", "specwatch_tap_up"):
        found[of(each, **TARGET)] = f"1x{at} 0x4 1x200"
    return {**found, failures: f"_x{at} 12+12x4 60x200"}


def in_phase(phase: Phase, since: Value = 0) -> dict[str, Value]:
    """What the guard says that is in this phase, since a Unix time."""
    return {
        **{of("specwatch_guard_state", state=p, **TARGET): int(p is phase) for p in Phase},
        of("specwatch_guard_state_since_timestamp_seconds", **TARGET): since,
    }


def incident(cause: Cause | None) -> dict[str, Value]:
    """What it says of the incident that goes on."""
    return {of("specwatch_guard_incident", cause=c, **TARGET): int(c is cause) for c in Cause}


def breach(rule: str, value: float, threshold: float, **labels: str) -> dict[str, Value]:
    """What a rule says that is in breach."""
    scope = {"rule": rule, **MODEL, "temperature": "all", **labels}
    metric = scope.pop("metric")
    return {
        of("specwatch_rule_verdict", **scope): 1,
        of("specwatch_rule_value", metric=metric, **scope): value,
        of("specwatch_rule_threshold", metric=metric, **scope): threshold,
    }


def _speculation(made: _Making) -> None:
    made.add("specwatch_speculation_enabled", 1, **MODEL)
    made.add("specwatch_speedup_measured", 1, **MODEL)
    for bucket in ("all", *BUCKETS):
        scope: Mapping[str, str] = {**MODEL, "temperature": bucket}
        made.add("specwatch_drafts_per_second", 40 if bucket == "all" else 20, **scope)
        made.add("specwatch_requests_per_second", 1, **scope)
        made.add("specwatch_acceptance_ratio", 0.7, **scope)
        made.add("specwatch_speedup_ratio", 1.4, **scope)
        made.add("specwatch_speedup_ratio_lower", 1.3, **scope)
        made.add("specwatch_speedup_ratio_upper", 1.5, **scope)
    made.add("specwatch_coverage_ratio", 0.95, temperature="all", source="tap", **MODEL)


def _rules(made: _Making) -> None:
    for rule, temperature in _judged():
        condition = rule.conditions[0]
        scope = {"rule": rule.name, **MODEL, "temperature": temperature}
        made.add("specwatch_rule_verdict", 0, **scope)
        made.add("specwatch_rule_value", 1, metric=condition.metric, **scope)
        made.add("specwatch_rule_threshold", 2, metric=condition.metric, **scope)


def _judged() -> Iterator[tuple[Rule, str]]:
    for rule in DEFAULT_RULES:
        yield rule, BUCKETS[1] if rule.name == "garbage" else "all"


def _guard(made: _Making) -> None:
    made.found |= in_phase(Phase.OBSERVING) | incident(None)
    made.add("specwatch_guard_acts", 1, **TARGET)
    made.add("specwatch_guard_paused", 0, **TARGET)
    made.add("specwatch_guard_waiting", 0, **TARGET)
    made.add("specwatch_guard_actions_today", 0, **TARGET)
    made.add("specwatch_guard_actions_limit", 4, **TARGET)
    for action in ("disable", "enable"):
        for result in ("done", "failed", "held"):
            made.add("specwatch_actions_total", 0, action=action, result=result, **TARGET)


def _itself(made: _Making, last: int) -> None:
    made.found[watched()] = 1
    made.add("specwatch_target_up", 1, **TARGET)
    made.add("specwatch_tap_up", 1, **TARGET)
    made.add("specwatch_target_stuck", 0, **TARGET)
    made.add("specwatch_last_scrape_success_timestamp_seconds", f"0+60x{last}", **TARGET)
    made.add("specwatch_scrapes_total", f"0+12x{last}", **TARGET)
    made.add("specwatch_store_behind_seconds", 0)
    made.add("specwatch_store_windows_dropped_total", 0)
    made.add("specwatch_store_verdicts_dropped_total", 0)
    made.add("specwatch_judging_failures_total", 0)
    made.add("specwatch_alertmanager_up", 1, url="http://127.0.0.1:9093")
    made.add("specwatch_report_undelivered", 0, channel="email")
    made.add("specwatch_report_last_delivery_timestamp_seconds", 0, channel="email")

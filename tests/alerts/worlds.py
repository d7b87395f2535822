"""What Prometheus knows of a daemon that watches one server, well and otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.config.rules import DEFAULT_RULES
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


def healthy(last: int = 240) -> dict[str, Value]:
    """Speculation pays, traffic flows, the guard watches and may act; up to minute ``last``."""
    world: dict[str, Value] = {
        of("up"): 1,
        of("specwatch_build_info", version="0.1.0", daemon="left"): 1,
        of("specwatch_speculation_enabled", **MODEL): 1,
        of("specwatch_speedup_measured", **MODEL): 1,
    }
    for bucket in ("all", *BUCKETS):
        world |= _values(
            {**MODEL, **at(bucket)},
            drafts_per_second=40 if bucket == "all" else 20,
            requests_per_second=1,
            acceptance_ratio=0.7,
            speedup_ratio=1.4,
            speedup_ratio_lower=1.3,
            speedup_ratio_upper=1.5,
        )
    world[of("specwatch_mean_break_even_acceptance_ratio", **MODEL)] = 0.3
    world[of("specwatch_coverage_ratio", dimension="all", source="tap", **MODEL)] = 0.95
    for rule in DEFAULT_RULES:
        bucket = BUCKETS[1] if rule.name == "garbage" else "all"
        scope = {"rule": rule.name, **MODEL, **at(bucket)}
        metric = {**scope, "metric": rule.conditions[0].metric}
        world |= {**_values(scope, rule_verdict=0), **_values(metric, rule_value=1)}
        world |= _values(metric, rule_threshold=2)
    for window in WINDOWS:
        world |= _values(
            {**SLO, "window": window}, slo_burn_rate=0.5, slo_requests=5000, slo_watched_ratio=1
        )
    world |= _values(
        SLO, slo_objective_ratio=0.99, slo_error_ratio=0.005, slo_budget_left_ratio=0.5
    )
    world |= in_phase(Phase.OBSERVING) | incident(None)
    world |= _values(
        TARGET,
        guard_acts=1,
        guard_paused=0,
        guard_waiting=0,
        guard_actions_today=0,
        guard_actions_limit=4,
    )
    for action in ("disable", "enable"):
        for result in ("done", "failed", "held"):
            world |= _values({**TARGET, "action": action, "result": result}, actions_total=0)
    world[watched()] = 1
    world |= _values(
        TARGET,
        target_up=1,
        tap_up=1,
        target_stuck=0,
        last_scrape_success_timestamp_seconds=f"0+60x{last}",
        scrapes_total=f"0+12x{last}",
    )
    world |= _values(
        {},
        store_behind_seconds=0,
        store_windows_dropped_total=0,
        store_verdicts_dropped_total=0,
        judging_failures_total=0,
    )
    world[of("specwatch_alertmanager_up", url="http://127.0.0.1:9093")] = 1
    world[of("specwatch_discovery_up", source="file_sd a.json")] = 1
    email = {"channel": "email"}
    return world | _values(email, report_undelivered=0, report_last_delivery_timestamp_seconds=0)


def _values(labels: Mapping[str, str], **values: Value) -> dict[str, Value]:
    """Series with these labels, by name without ``specwatch_``."""
    return {of(f"specwatch_{name}", **labels): value for name, value in values.items()}


def without(world: World, *names: str) -> dict[str, Value]:
    """A world without any series of these metrics."""
    return {key: value for key, value in world.items() if name_of(key) not in names}


def idle(world: World) -> dict[str, Value]:
    """The same without traffic, all else as it is."""
    rates = ("specwatch_drafts_per_second", "specwatch_requests_per_second")
    return {key: 0 if name_of(key) in rates else value for key, value in world.items()}


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
    guards = {name_of(key) for key in world if name_of(key).startswith("specwatch_guard_")}
    return without(world, *guards, "specwatch_actions_total")


def gone(world: World, since: int, until: int) -> dict[str, Value]:
    """The same, with nothing scraped between two minutes; counters begin anew after that."""
    before, between = since - 1, until - since - 1
    changed: dict[str, Value] = {}
    for key, value in world.items():
        if name_of(key) == "up":
            changed[key] = f"1x{before} 0x{between} 1x300"
        elif isinstance(value, str):
            changed[key] = f"{value.partition('x')[0]}x{before} stale _x{between - 1} 0+0x300"
        elif value is not None:
            changed[key] = f"{value:g}x{before} stale _x{between - 1} {value:g}x300"
    return changed


def restarted(world: World, minute: int) -> dict[str, Value]:
    """vLLM is restarted: five minutes of failing scrapes, in which nothing is known of it."""
    of_traffic = ("_per_second", "_acceptance_ratio", "_coverage_ratio", "_rule_value")
    failures = of("specwatch_scrape_failures_total", reason="refused", **TARGET)
    changed: dict[str, Value] = {
        key: f"{value:g}x{minute - 1} stale _x5 {value:g}x200"
        if name_of(key).endswith(of_traffic) and not isinstance(value, str)
        else value
        for key, value in world.items()
    }
    for key in ("specwatch_target_up", "specwatch_tap_up"):
        changed[of(key, **TARGET)] = f"1x{minute} 0x4 1x200"
    return {**changed, failures: f"_x{minute} 12+12x4 60x200"}


def in_phase(phase: Phase, since: Value = 0) -> dict[str, Value]:
    """What the guard says that is in this phase, since a Unix time."""
    return {
        **{of("specwatch_guard_state", state=p, **TARGET): int(p is phase) for p in Phase},
        of("specwatch_guard_state_since_timestamp_seconds", **TARGET): since,
    }


def incident(cause: Cause | None) -> dict[str, Value]:
    """What it says of the incident that goes on."""
    return {of("specwatch_guard_incident", cause=c, **TARGET): int(c is cause) for c in Cause}


def at(bucket: str) -> dict[str, str]:
    """The labels of a temperature bucket, or of ``all`` requests."""
    return {"dimension": "all" if bucket == "all" else "temperature", "value": bucket}


def breach(
    rule: str, value: float, threshold: float, *, metric: str, bucket: str = "all"
) -> dict[str, Value]:
    """What a rule says that is in breach."""
    scope = {"rule": rule, **MODEL, **at(bucket)}
    return {
        of("specwatch_rule_verdict", **scope): 1,
        of("specwatch_rule_value", metric=metric, **scope): value,
        of("specwatch_rule_threshold", metric=metric, **scope): threshold,
    }

"""Samples of a target: its identity, its scrapes, its tap and its guard."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.domain.model import ALL_TEMPERATURES, UNCOVERED, Mode, Source
from specwatch.guard.state import Cause, Phase
from specwatch.scrape.taps import LEAVES_OUT
from specwatch.status import TargetStatus
from specwatch.web.decision_metrics import decisions_left_out
from specwatch.web.exported_metrics import ExportedSample, label


def of_target(target: TargetStatus, share: int, *, stuck: bool) -> Iterator[ExportedSample]:
    """Yield the samples of a target and of up to ``share`` of its models."""
    labels = (target.name,)
    identity = (target.name, label(target.url), label(target.engine_version or ""))
    yield ExportedSample("specwatch_target_info", identity, 1)
    for model, mode in list(target.models.items())[:share]:
        if mode is not Mode.UNKNOWN:
            enabled = mode is not Mode.OFF
            yield ExportedSample(
                "specwatch_speculation_enabled", (target.name, label(model)), enabled
            )
    up = None if target.last_scrape is None else not target.failure
    beyond = (len(target.models), len(target.recent))
    left_out = sum(max(0, count - share) for count in beyond) + decisions_left_out(target, share)
    for name, value in (
        ("specwatch_target_up", up),
        ("specwatch_target_stuck", stuck),
        ("specwatch_scrape_interval_seconds", target.interval),
        ("specwatch_scrape_duration_seconds", target.scrape_seconds),
        ("specwatch_last_scrape_success_timestamp_seconds", target.last_success),
        ("specwatch_last_window_timestamp_seconds", target.last_window),
        ("specwatch_scrapes", target.scrapes),
        ("specwatch_scrapes_skipped", target.skipped),
        ("specwatch_engine_restarts", target.restarts),
        ("specwatch_series_left_out", left_out),
    ):
        yield ExportedSample(name, labels, value)
    for reason, count in target.failures.items():
        yield ExportedSample("specwatch_scrape_failures", (target.name, reason), count)


def of_tap(target: TargetStatus, share: int) -> Iterator[ExportedSample]:
    """Yield the samples of a target's tap, of up to ``share`` models."""
    tap = target.tap
    if target.last_scrape is not None:
        failing = tap.source is Source.PROXY and tap.proxy is not None and tap.proxy.failure
        doubted = any(trouble.kind in LEAVES_OUT for trouble in tap.trouble)
        up = not (tap.source is None or failing or doubted)
        yield ExportedSample("specwatch_tap_up", (target.name,), up)
    for model, seen in list(tap.models.items())[:share]:
        labels = (target.name, label(model))
        place = (*labels, ALL_TEMPERATURES, str(seen.source))
        yield ExportedSample("specwatch_coverage_ratio", place, seen.coverage)
        for reason in UNCOVERED:
            count = seen.uncovered.get(reason)
            yield ExportedSample("specwatch_uncovered_requests", (*labels, reason), count)


def of_guard(target: TargetStatus, now: float) -> Iterator[ExportedSample]:
    """Yield the samples of a target's guard; ``now`` is a Unix time."""
    guard, labels = target.guard, (target.name,)
    if guard is None:
        return
    yield ExportedSample("specwatch_guard_acts", labels, guard.mode == "act")
    yield ExportedSample("specwatch_guard_actions_limit", labels, guard.max_actions_per_day)
    for (action, result), count in sorted(guard.actions.items()):
        yield ExportedSample("specwatch_actions", (target.name, action, result), count)
    state = guard.state
    if state is None:
        return
    for phase in Phase:
        place = (target.name, str(phase))
        yield ExportedSample("specwatch_guard_state", place, phase is state.phase)
    for cause in Cause:
        current = state.incident is not None and state.incident.cause is cause
        yield ExportedSample("specwatch_guard_incident", (target.name, str(cause)), current)
    waiting = state.phase is Phase.CONFIRMED and state.waiting != ""
    for name, value in (
        ("specwatch_guard_state_since_timestamp_seconds", state.since),
        ("specwatch_guard_waiting", waiting),
        ("specwatch_guard_paused", state.pause is not None),
        ("specwatch_guard_actions_today", len(state.acted(now))),
    ):
        yield ExportedSample(name, labels, value)

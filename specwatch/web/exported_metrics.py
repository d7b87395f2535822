"""The exported metrics: one table, from which ``/metrics`` and its reference page are made.

Nothing that is assumed bears the name of something measured. Values are of the last minutes unless
their text says otherwise. A quantile beyond the last bound of its histogram is shown as +Inf: the
real value is greater than any known bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from specwatch.domain import acceptance, histogram
from specwatch.domain.model import ALL_TEMPERATURES, UNCOVERED, Histogram, Mode, Source, Tally
from specwatch.domain.units import format_duration
from specwatch.guard.state import Cause, GuardState, Phase
from specwatch.rules.objectives import Goodput
from specwatch.rules.summary import ACCEPTANCE_QUANTILES, LATENCIES
from specwatch.rules.verdicts import Verdict
from specwatch.scrape.taps import LEAVES_OUT
from specwatch.status import DaemonStatus
from specwatch.web.metric_subjects import (
    ACTIONS_TODAY,
    ALERTMANAGER,
    ARM,
    ARM_OF_GROUP,
    BASELINE_AGE,
    BREAK_EVEN,
    COMPARISON,
    COVERAGE,
    DAEMON,
    DECISION,
    EXPERIMENT,
    FINDING,
    GOODPUT,
    GUARD,
    GUARD_STATE,
    LOAD,
    MODEL,
    REPORT,
    SERIES,
    SLO,
    SPEEDUP,
    TARGET,
    Item,
    RecentSeries,
    Subject,
    WatchedTarget,
)

_VERDICTS = {Verdict.PASS: 0, Verdict.BREACH: 1, Verdict.NO_DATA: -1}
_MOST_LENGTHS = 65
"""Accepted lengths of one series, 0 included: no drafter proposes more than 64 tokens."""

Values = float | None | Mapping[Any, float | None]
"""A number, or numbers by the value of a further label (by values, if there are several).
None is not exported."""


@dataclass(frozen=True)
class ExportedMetric(Generic[Item]):
    """A family of ``/metrics``: its Prometheus type, its name (of a counter without ``_total``),
    what it is about, its meaning, its reader, and the labels besides those of its subject.

    A ``summary`` has quantiles as samples, and neither sum nor count.
    """

    kind: str
    name: str
    subject: Subject[Item]
    help: str
    read: Callable[[Item], Values]
    labels: tuple[str, ...] = ()


def _accepted_lengths(counted: Tally) -> tuple[int, ...]:
    lengths = acceptance.accepted_length_histogram(
        counted.drafts, counted.accepted_per_position, counted.accepted_tokens
    )
    return () if lengths is None or len(lengths) > _MOST_LENGTHS else tuple(lengths)


def _position_ratios(series: RecentSeries) -> Values:
    counted = series.tally
    if not counted.drafts or not _accepted_lengths(counted):
        return None
    return {
        str(position): accepted / counted.drafts
        for position, accepted in enumerate(counted.accepted_per_position or ())
    }


def _request_acceptance(series: RecentSeries) -> Values:
    observed = series.tally.request_acceptance
    values: dict[str, float | None] = {}
    for q in ACCEPTANCE_QUANTILES.values():
        quantile = None if observed is None else histogram.quantile(observed, q)
        values[str(q)] = None if quantile is None else quantile.value
    return values


def _quantiles(latencies: Mapping[str, Histogram | None], quantiles: Iterable[float]) -> Values:
    """By metric and quantile: infinite beyond the last bound, None without any bound."""
    values: dict[tuple[str, str], float | None] = {}
    for metric, observed in latencies.items():
        for q in quantiles:
            quantile = None if observed is None else histogram.quantile(observed, q)
            if quantile is not None and quantile.value is not None:
                values[metric, str(q)] = math.inf if quantile.open_ended else quantile.value
    return values


def _latencies(series: RecentSeries) -> Values:
    observed = {metric: getattr(series.tally, metric) for metric in LATENCIES}
    return _quantiles(observed, (0.5, 0.9, 0.95, 0.99))


def _tap_up(target: WatchedTarget) -> bool | None:
    if target.status.last_scrape is None:
        return None
    tap = target.status.tap
    failing = tap.source is Source.PROXY and tap.proxy is not None and tap.proxy.failure
    doubted = any(trouble.kind in LEAVES_OUT for trouble in tap.trouble)
    return not (tap.source is None or failing or doubted)


def _by_window(values: Mapping[int, float | None]) -> Values:
    return {format_duration(seconds): value for seconds, value in values.items()}


def _goodput(by_window: Mapping[int, Goodput]) -> Values:
    return {
        (format_duration(seconds), bound): goodput.rate(requests)
        for seconds, goodput in by_window.items()
        for bound, requests in (("lower", goodput.lower), ("upper", goodput.upper))
    }


def _incident_cause(state: GuardState) -> Values:
    current = None if state.incident is None else state.incident.cause
    return {cause: cause is current for cause in Cause}


def _store_behind(daemon: DaemonStatus) -> float:
    since = daemon.store.behind_since
    return 0.0 if since is None else max(0.0, daemon.now - since)


EXPORTED: tuple[ExportedMetric[Any], ...] = (
    ExportedMetric("gauge", "specwatch_build_info", DAEMON, "Version of specwatch; always 1.",
        lambda daemon: {(daemon.version, daemon.daemon): 1}, ("version", "daemon")),
    ExportedMetric("gauge", "specwatch_acceptance_ratio", SERIES,
        "Accepted tokens / draft tokens over the last minutes.",
        lambda series: acceptance.acceptance_rate(series.tally)),
    ExportedMetric("gauge", "specwatch_acceptance_length", SERIES,
        "Mean acceptance length over the last minutes, in tokens per step with the bonus token.",
        lambda series: acceptance.mean_acceptance_length(series.tally)),
    ExportedMetric("summary", "specwatch_request_acceptance_quantile_ratio", SERIES,
        "Quantiles of single requests' acceptance rates over the last minutes.",
        _request_acceptance, ("quantile",)),
    ExportedMetric("gauge", "specwatch_accepted_length_drafts", SERIES,
        "Drafts of the last minutes by how many of their tokens were accepted.",
        lambda series: dict(enumerate(_accepted_lengths(series.tally))), ("accepted",)),
    ExportedMetric("gauge", "specwatch_position_acceptance_ratio", SERIES,
        "Share of the drafts of the last minutes whose token at a position, from 0, was accepted.",
        _position_ratios, ("position",)),
    ExportedMetric("gauge", "specwatch_drafts_per_second", SERIES,
        "Drafts a second over the last minutes.", lambda series: series.rate(series.tally.drafts)),
    ExportedMetric("gauge", "specwatch_requests_per_second", SERIES,
        "Requests that finished, a second, over the last minutes.",
        lambda series: series.rate(series.finished)),
    ExportedMetric("gauge", "specwatch_generation_tokens_per_second", SERIES,
        "Tokens generated a second over the last minutes.",
        lambda series: series.rate(series.tally.generation_tokens)),
    ExportedMetric("summary", "specwatch_latency_seconds", SERIES,
        "Latency quantiles over the last minutes; +Inf beyond the last bound of the histogram.",
        _latencies, ("metric", "quantile")),
    ExportedMetric("gauge", "specwatch_prompt_tokens_per_second", LOAD,
        "Tokens of prompts a second over the last minutes.",
        lambda load: load.rate(load.tally.prompt_tokens)),
    ExportedMetric("gauge", "specwatch_preemptions_per_second", LOAD,
        "Preempted requests a second over the last minutes.",
        lambda load: load.rate(load.tally.preemptions)),
    ExportedMetric("gauge", "specwatch_running_requests", LOAD,
        "Mean of the running requests over the last minutes.",
        lambda load: load.gauges.running_mean),
    ExportedMetric("gauge", "specwatch_running_requests_max", LOAD,
        "Most requests that ran at once in the last minutes.",
        lambda load: None if load.gauges.running_mean is None else load.gauges.running_max),
    ExportedMetric("gauge", "specwatch_waiting_requests", LOAD,
        "Mean of the waiting requests over the last minutes.",
        lambda load: load.gauges.waiting_mean),
    ExportedMetric("gauge", "specwatch_kv_cache_usage_ratio", LOAD,
        "Highest use of the KV cache in the last minutes, of one engine.",
        lambda load: load.gauges.kv_cache_usage_max),
    ExportedMetric("gauge", "specwatch_prefix_cache_hit_ratio", LOAD,
        "Tokens of the last minutes found in the prefix cache / asked.",
        lambda load: load.hit_ratio),
    ExportedMetric("gauge", "specwatch_tap_up", TARGET,
        "Whether a tap, on the target's page or a proxy's, counts what can be taken as it is.",
        _tap_up),
    ExportedMetric("gauge", "specwatch_coverage_ratio", COVERAGE,
        "Share of the server's drafts of the last minutes that its tap saw, and which tap.",
        lambda seen: {(ALL_TEMPERATURES, str(seen.source)): seen.coverage},
        ("temperature", "source")),
    ExportedMetric("gauge", "specwatch_uncovered_requests", COVERAGE,
        "Requests of the last minutes whose acceptance the tap does not know, by why.",
        lambda seen: {reason: seen.uncovered.get(reason) for reason in UNCOVERED}, ("reason",)),
    ExportedMetric("gauge", "specwatch_target_info", TARGET,
        "Where the target is and what it runs, as far as is known; always 1.",
        lambda target: target.info,
        ("url", "engine_version")),
    ExportedMetric("gauge", "specwatch_speculation_enabled", MODEL,
        "Whether the engine serves the model with speculation; absent where that is not known.",
        lambda mode: None if mode is Mode.UNKNOWN else mode in (Mode.ON, Mode.MIXED)),
    ExportedMetric("gauge", "specwatch_switch_draft_tokens", TARGET,
        "Draft tokens of each step that the switch of the target allows: those that are ordered,"
        " or the k of the launch. Absent without a switch.",
        lambda target: target.status.switch and target.status.switch.draft_tokens),
    ExportedMetric("gauge", "specwatch_switch_ordered", TARGET,
        "Whether the switch of the target follows an order; absent without a switch.",
        lambda target: target.status.switch and target.status.switch.ordered),
    ExportedMetric("gauge", "specwatch_experiment_speedup_ratio", ARM,
        "Speedup of a number of draft tokens against the launch, by experiment.",
        lambda speedup: speedup.value),
    ExportedMetric("gauge", "specwatch_experiment_speedup_ratio_lower", ARM,
        "Lower end of the 95 % interval of specwatch_experiment_speedup_ratio.",
        lambda speedup: speedup.lower),
    ExportedMetric("gauge", "specwatch_experiment_speedup_ratio_upper", ARM,
        "Upper end of the 95 % interval of specwatch_experiment_speedup_ratio.",
        lambda speedup: speedup.upper),
    ExportedMetric("gauge", "specwatch_experiment_group_speedup_ratio", ARM_OF_GROUP,
        "The same at a load, a temperature or a prompt length, which the group names.",
        lambda speedup: speedup.value),
    ExportedMetric("gauge", "specwatch_experiment_group_speedup_ratio_lower", ARM_OF_GROUP,
        "Lower end of the 95 % interval of specwatch_experiment_group_speedup_ratio.",
        lambda speedup: speedup.lower),
    ExportedMetric("gauge", "specwatch_experiment_group_speedup_ratio_upper", ARM_OF_GROUP,
        "Upper end of the 95 % interval of specwatch_experiment_group_speedup_ratio.",
        lambda speedup: speedup.upper),
    ExportedMetric("gauge", "specwatch_experiment_episodes", EXPERIMENT,
        "Episodes that count in the experiment of the target.",
        lambda experiment: experiment.episodes),
    ExportedMetric("gauge", "specwatch_target_up", TARGET,
        "Whether the last scrape of the target succeeded.",
        lambda target: None if target.status.last_scrape is None else not target.status.failure),
    ExportedMetric("gauge", "specwatch_target_stuck", TARGET,
        "Whether no scrape of the target ended, well or not, within three intervals.",
        lambda target: target.stuck),
    ExportedMetric("gauge", "specwatch_scrape_interval_seconds", TARGET,
        "How often the target is scraped.", lambda target: target.status.interval),
    ExportedMetric("gauge", "specwatch_scrape_duration_seconds", TARGET,
        "Duration of the last scrape.", lambda target: target.status.scrape_seconds),
    ExportedMetric("gauge", "specwatch_last_scrape_success_timestamp_seconds", TARGET,
        "When the target was last scraped with success, in Unix time.",
        lambda target: target.status.last_success),
    ExportedMetric("gauge", "specwatch_last_window_timestamp_seconds", TARGET,
        "End of the newest minute of the target that is closed, in Unix time.",
        lambda target: target.status.last_window),
    ExportedMetric("counter", "specwatch_scrapes", TARGET, "Scrapes, failed or not.",
        lambda target: target.status.scrapes),
    ExportedMetric("counter", "specwatch_scrapes_skipped", TARGET,
        "Scrapes not begun because the one before was still under way.",
        lambda target: target.status.skipped),
    ExportedMetric("counter", "specwatch_scrape_failures", TARGET, "Failed scrapes.",
        lambda target: target.status.failures, ("reason",)),
    ExportedMetric("counter", "specwatch_engine_restarts", TARGET,
        "Restarts of the engine that were seen.", lambda target: target.status.restarts),
    ExportedMetric("gauge", "specwatch_series_left_out", TARGET,
        "Models, series, verdicts and objectives of the target that are too many to be exported.",
        lambda target: target.left_out),
    ExportedMetric("gauge", "specwatch_speedup_ratio", SPEEDUP,
        "Speedup by speculation over the last hour, measured against the baseline at equal load.",
        lambda speedup: speedup.value),
    ExportedMetric("gauge", "specwatch_speedup_ratio_lower", SPEEDUP,
        "Lower end of the 95 % confidence interval of specwatch_speedup_ratio.",
        lambda speedup: speedup.lower),
    ExportedMetric("gauge", "specwatch_speedup_ratio_upper", SPEEDUP,
        "Upper end of the 95 % confidence interval of specwatch_speedup_ratio.",
        lambda speedup: speedup.upper),
    ExportedMetric("gauge", "specwatch_speedup_measured", DECISION,
        "Whether the speedup over the last hour is measured.",
        lambda model: model.assessment.measured),
    ExportedMetric("gauge", "specwatch_assumed_speedup_ratio", DECISION,
        "Speedup suggested by the acceptance and an assumed draft cost, without a baseline.",
        lambda model: model.prior),
    ExportedMetric("gauge", "specwatch_assumed_break_even_acceptance_ratio", DECISION,
        "Acceptance rate at which specwatch_assumed_speedup_ratio is 1, by the same draft cost.",
        lambda model: None if model.prior is None else model.draft_cost_ratio),
    ExportedMetric("gauge", "specwatch_break_even_acceptance_ratio", BREAK_EVEN,
        "Acceptance rate below which speculation loses at a load, as measured.",
        lambda load: load.acceptance.value),
    ExportedMetric("gauge", "specwatch_step_cost_ratio", BREAK_EVEN,
        "Time of a speculative step over that of a plain one at a load, as measured.",
        lambda load: load.step_cost.value),
    ExportedMetric("gauge", "specwatch_baseline_age_seconds", BASELINE_AGE,
        "Time since the oldest part of the baseline in use was measured.", lambda age: age),
    ExportedMetric("summary", "specwatch_baseline_latency_seconds", DECISION,
        "Latency quantiles of the model's own traffic without speculation, at the loads of the"
        " last hour with it: what rules compare latencies with.",
        lambda model: _quantiles(model.baseline_latencies, (0.5, 0.95, 0.99)),
        ("metric", "quantile")),
    ExportedMetric("gauge", "specwatch_rule_verdict", FINDING,
        "What a rule says: 0 pass, 1 breach, -1 no data; breaches are confirmed ones.",
        lambda finding: _VERDICTS[finding.verdict]),
    ExportedMetric("gauge", "specwatch_rule_value", COMPARISON,
        "The metric that represents a rule best, as the rule sees it and in its own unit.",
        lambda comparison: comparison[0]),
    ExportedMetric("gauge", "specwatch_rule_threshold", COMPARISON,
        "What specwatch_rule_value is compared with.", lambda comparison: comparison[1]),
    ExportedMetric("counter", "specwatch_judging_failures", DAEMON,
        "Defects of specwatch itself in judging, or in showing what was judged.",
        lambda daemon: daemon.judging.defects),
    ExportedMetric("counter", "specwatch_store_verdicts_dropped", DAEMON,
        "Changes of verdicts given up because too many waited for the database.",
        lambda daemon: daemon.judging.dropped),
    ExportedMetric("gauge", "specwatch_store_verdicts_queued", DAEMON,
        "Changes of verdicts that wait for the database.", lambda daemon: daemon.judging.queued),
    ExportedMetric("gauge", "specwatch_slo_objective_ratio", SLO,
        "Share of the requests that the objective wants to be fast enough.",
        lambda slo: slo.slo.objective),
    ExportedMetric("gauge", "specwatch_slo_error_ratio", SLO,
        "Share of the requests in the window of the objective that were too slow.",
        lambda slo: slo.error_ratio),
    ExportedMetric("gauge", "specwatch_slo_budget_left_ratio", SLO,
        "Share of the error budget that is left: 1 untouched, below 0 overspent.",
        lambda slo: slo.budget_left),
    ExportedMetric("gauge", "specwatch_slo_burn_rate", SLO,
        "How many times faster than evenly the error budget burned over a window.",
        lambda slo: _by_window(slo.burn_rates), ("window",)),
    ExportedMetric("gauge", "specwatch_slo_requests", SLO,
        "Requests of a window that the objective was held against.",
        lambda slo: _by_window(slo.requests),
        ("window",)),
    ExportedMetric("gauge", "specwatch_slo_watched_ratio", SLO,
        "Share of a window in which the requests of an objective were counted.",
        lambda slo: _by_window({s: min(watched / s, 1.0) for s, watched in slo.watched.items()}),
        ("window",)),
    ExportedMetric("gauge", "specwatch_goodput_requests_per_second", GOODPUT,
        "Requests a second of a window that met all objectives: a lower and an upper bound, as"
        " latency histograms do not say which request missed which objective.",
        _goodput, ("window", "bound")),
    ExportedMetric("gauge", "specwatch_offered_requests_per_second", GOODPUT,
        "Requests a second of a window that the objectives were held against, met or not.",
        lambda goodput: _by_window({s: g.rate(g.requests) for s, g in goodput.items()}),
        ("window",)),
    ExportedMetric("gauge", "specwatch_guard_state", GUARD_STATE,
        "Which state the guard of the target is in: 1 for it, 0 for all others.",
        lambda state: {phase: phase is state.phase for phase in Phase}, ("state",)),
    ExportedMetric("gauge", "specwatch_guard_state_since_timestamp_seconds", GUARD_STATE,
        "Since when, in Unix time.", lambda state: state.since),
    ExportedMetric("gauge", "specwatch_guard_acts", GUARD, "Whether guard.mode lets the guard act.",
        lambda guard: guard.mode == "act"),
    ExportedMetric("gauge", "specwatch_guard_paused", GUARD_STATE,
        "Whether a person has paused the guard.", lambda state: state.pause is not None),
    ExportedMetric("gauge", "specwatch_guard_waiting", GUARD_STATE,
        "Whether a breach is confirmed, and something keeps the guard from acting on it.",
        lambda state: state.phase is Phase.CONFIRMED and state.waiting != ""),
    ExportedMetric("gauge", "specwatch_guard_incident", GUARD_STATE,
        "Cause of what is going on, or for which speculation is off: 1 for it, 0 for all others.",
        _incident_cause, ("cause",)),
    ExportedMetric("gauge", "specwatch_guard_actions_today", ACTIONS_TODAY,
        "Actions of the guard in the last day.", lambda actions: actions),
    ExportedMetric("gauge", "specwatch_guard_actions_limit", GUARD,
        "Actions of the guard that guard.max_actions_per_day allows.",
        lambda guard: guard.max_actions_per_day),
    ExportedMetric("counter", "specwatch_actions", GUARD, "What this daemon did, by result.",
        lambda guard: dict(sorted(guard.actions.items())), ("action", "result")),
    ExportedMetric("gauge", "specwatch_alertmanager_up", ALERTMANAGER,
        "Whether the last attempt to tell the Alertmanager succeeded.",
        lambda manager: manager.error is None),
    ExportedMetric("counter", "specwatch_alertmanager_failures", ALERTMANAGER,
        "Attempts to tell an Alertmanager that failed.",
        lambda manager: dict(sorted(manager.failures.items())), ("reason",)),
    ExportedMetric("counter", "specwatch_store_write_failures", DAEMON,
        "Writes to the database that failed.", lambda daemon: daemon.store.failures),
    ExportedMetric("counter", "specwatch_store_windows_written", DAEMON,
        "Windows written to the database.", lambda daemon: daemon.store.written),
    ExportedMetric("counter", "specwatch_store_windows_dropped", DAEMON,
        "Windows given up because too many waited for the database.",
        lambda daemon: daemon.store.dropped),
    ExportedMetric("gauge", "specwatch_store_windows_queued", DAEMON,
        "Windows that wait for the database.", lambda daemon: daemon.store.queued),
    ExportedMetric("counter", "specwatch_store_damaged_rows", DAEMON,
        "Stored rows found that cannot be decoded; `specwatch db check` lists them.",
        lambda daemon: daemon.store.damaged),
    ExportedMetric("gauge", "specwatch_store_behind_seconds", DAEMON,
        "For how long the database has failed; 0 while it works.", _store_behind),
    ExportedMetric("gauge", "specwatch_report_last_delivery_timestamp_seconds", REPORT,
        "When a report was delivered last.", lambda delivery: delivery.last_delivery),
    ExportedMetric("gauge", "specwatch_report_undelivered", REPORT,
        "Whether the last report has not reached all that it is for.",
        lambda delivery: delivery.undelivered),
)  # fmt: skip
"""The page has them in this order."""

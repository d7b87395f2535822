"""The exported metrics: one table, from which ``/metrics`` and its reference page are made.

Nothing that is assumed bears the name of something measured. Values are of the last minutes unless
their text says otherwise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from specwatch.domain.histogram import Quantile
from specwatch.wording.text import clean

_LONGEST_LABEL = 200
_TARGET = ("target",)
_MODEL = (*_TARGET, "model_name")
_SERIES = (*_MODEL, "temperature")
_SLO = ("slo", *_MODEL)


class ExportedMetric(NamedTuple):
    """A family of ``/metrics``: its Prometheus type, labels and meaning.

    A ``summary`` has quantiles as samples, and neither sum nor count.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


class ExportedSample(NamedTuple):
    """A value of an exported metric, by the values of its labels; None is not exported."""

    metric: str
    labels: tuple[str, ...]
    value: float | None


EXPORTED = {
    "specwatch_build_info": ExportedMetric(
        "gauge", ("version", "daemon"), "Version of specwatch; always 1."
    ),
    "specwatch_acceptance_ratio": ExportedMetric(
        "gauge", _SERIES, "Accepted tokens / draft tokens over the last minutes."
    ),
    "specwatch_acceptance_length": ExportedMetric(
        "gauge",
        _SERIES,
        "Mean acceptance length over the last minutes, in tokens per step with the bonus token.",
    ),
    "specwatch_request_acceptance_quantile_ratio": ExportedMetric(
        "summary",
        (*_SERIES, "quantile"),
        "Quantiles of single requests' acceptance rates over the last minutes.",
    ),
    "specwatch_accepted_length_drafts": ExportedMetric(
        "gauge",
        (*_SERIES, "accepted"),
        "Drafts of the last minutes by how many of their tokens were accepted.",
    ),
    "specwatch_position_acceptance_ratio": ExportedMetric(
        "gauge",
        (*_SERIES, "position"),
        "Share of the drafts of the last minutes whose token at a position, from 0, was accepted.",
    ),
    "specwatch_drafts_per_second": ExportedMetric(
        "gauge", _SERIES, "Drafts a second over the last minutes."
    ),
    "specwatch_requests_per_second": ExportedMetric(
        "gauge", _SERIES, "Requests that finished, a second, over the last minutes."
    ),
    "specwatch_generation_tokens_per_second": ExportedMetric(
        "gauge", _SERIES, "Tokens generated a second over the last minutes."
    ),
    "specwatch_latency_seconds": ExportedMetric(
        "summary",
        (*_SERIES, "metric", "quantile"),
        "Latency quantiles over the last minutes; +Inf beyond the last bound of the histogram.",
    ),
    "specwatch_prompt_tokens_per_second": ExportedMetric(
        "gauge", _MODEL, "Tokens of prompts a second over the last minutes."
    ),
    "specwatch_preemptions_per_second": ExportedMetric(
        "gauge", _MODEL, "Preempted requests a second over the last minutes."
    ),
    "specwatch_running_requests": ExportedMetric(
        "gauge", _MODEL, "Mean of the running requests over the last minutes."
    ),
    "specwatch_running_requests_max": ExportedMetric(
        "gauge", _MODEL, "Most requests that ran at once in the last minutes."
    ),
    "specwatch_waiting_requests": ExportedMetric(
        "gauge", _MODEL, "Mean of the waiting requests over the last minutes."
    ),
    "specwatch_kv_cache_usage_ratio": ExportedMetric(
        "gauge", _MODEL, "Highest use of the KV cache in the last minutes, of one engine."
    ),
    "specwatch_prefix_cache_hit_ratio": ExportedMetric(
        "gauge", _MODEL, "Tokens of the last minutes found in the prefix cache / asked."
    ),
    "specwatch_tap_up": ExportedMetric(
        "gauge",
        _TARGET,
        "Whether a tap, on the target's page or a proxy's, counts what can be taken as it is.",
    ),
    "specwatch_coverage_ratio": ExportedMetric(
        "gauge",
        (*_SERIES, "source"),
        "Share of the server's drafts of the last minutes that its tap saw, and which tap.",
    ),
    "specwatch_uncovered_requests": ExportedMetric(
        "gauge",
        (*_MODEL, "reason"),
        "Requests of the last minutes whose acceptance the tap does not know, by why.",
    ),
    "specwatch_target_info": ExportedMetric(
        "gauge",
        (*_TARGET, "url", "engine_version"),
        "Where the target is and what it runs, as far as is known; always 1.",
    ),
    "specwatch_speculation_enabled": ExportedMetric(
        "gauge",
        _MODEL,
        "Whether the engine serves the model with speculation; absent where that is not known.",
    ),
    "specwatch_target_up": ExportedMetric(
        "gauge", _TARGET, "Whether the last scrape of the target succeeded."
    ),
    "specwatch_target_stuck": ExportedMetric(
        "gauge",
        _TARGET,
        "Whether no scrape of the target ended, well or not, within three intervals.",
    ),
    "specwatch_scrape_interval_seconds": ExportedMetric(
        "gauge", _TARGET, "How often the target is scraped."
    ),
    "specwatch_scrape_duration_seconds": ExportedMetric(
        "gauge", _TARGET, "Duration of the last scrape."
    ),
    "specwatch_last_scrape_success_timestamp_seconds": ExportedMetric(
        "gauge", _TARGET, "When the target was last scraped with success, in Unix time."
    ),
    "specwatch_last_window_timestamp_seconds": ExportedMetric(
        "gauge", _TARGET, "End of the newest minute of the target that is closed, in Unix time."
    ),
    "specwatch_scrapes": ExportedMetric("counter", _TARGET, "Scrapes, failed or not."),
    "specwatch_scrapes_skipped": ExportedMetric(
        "counter", _TARGET, "Scrapes not begun because the one before was still under way."
    ),
    "specwatch_scrape_failures": ExportedMetric("counter", (*_TARGET, "reason"), "Failed scrapes."),
    "specwatch_engine_restarts": ExportedMetric(
        "counter", _TARGET, "Restarts of the engine that were seen."
    ),
    "specwatch_series_left_out": ExportedMetric(
        "gauge",
        _TARGET,
        "Models, series, verdicts and objectives of the target that are too many to be exported.",
    ),
    "specwatch_speedup_ratio": ExportedMetric(
        "gauge",
        _SERIES,
        "Speedup by speculation over the last hour, measured against the baseline at equal load.",
    ),
    "specwatch_speedup_ratio_lower": ExportedMetric(
        "gauge", _SERIES, "Lower end of the 95 % confidence interval of specwatch_speedup_ratio."
    ),
    "specwatch_speedup_ratio_upper": ExportedMetric(
        "gauge", _SERIES, "Upper end of the 95 % confidence interval of specwatch_speedup_ratio."
    ),
    "specwatch_speedup_measured": ExportedMetric(
        "gauge", _MODEL, "Whether the speedup over the last hour is measured."
    ),
    "specwatch_assumed_speedup_ratio": ExportedMetric(
        "gauge",
        _MODEL,
        "Speedup suggested by the acceptance and an assumed draft cost, without a baseline.",
    ),
    "specwatch_assumed_break_even_acceptance_ratio": ExportedMetric(
        "gauge",
        _MODEL,
        "Acceptance rate at which specwatch_assumed_speedup_ratio is 1, by the same draft cost.",
    ),
    "specwatch_break_even_acceptance_ratio": ExportedMetric(
        "gauge",
        (*_MODEL, "load_bin"),
        "Acceptance rate below which speculation loses at a load, as measured.",
    ),
    "specwatch_step_cost_ratio": ExportedMetric(
        "gauge",
        (*_MODEL, "load_bin"),
        "Time of a speculative step over that of a plain one at a load, as measured.",
    ),
    "specwatch_baseline_age_seconds": ExportedMetric(
        "gauge", _MODEL, "Time since the oldest part of the baseline in use was measured."
    ),
    "specwatch_baseline_latency_seconds": ExportedMetric(
        "summary",
        (*_MODEL, "metric", "quantile"),
        "Latency quantiles of the model's own traffic without speculation, at the loads of the"
        " last hour with it: what rules compare latencies with.",
    ),
    "specwatch_rule_verdict": ExportedMetric(
        "gauge",
        ("rule", *_SERIES),
        "What a rule says: 0 pass, 1 breach, -1 no data; breaches are confirmed ones.",
    ),
    "specwatch_rule_value": ExportedMetric(
        "gauge",
        ("rule", *_SERIES, "metric"),
        "The metric that represents a rule best, as the rule sees it and in its own unit.",
    ),
    "specwatch_rule_threshold": ExportedMetric(
        "gauge", ("rule", *_SERIES, "metric"), "What specwatch_rule_value is compared with."
    ),
    "specwatch_judging_failures": ExportedMetric(
        "counter", (), "Defects of specwatch itself in judging, or in showing what was judged."
    ),
    "specwatch_store_verdicts_dropped": ExportedMetric(
        "counter", (), "Changes of verdicts given up because too many waited for the database."
    ),
    "specwatch_store_verdicts_queued": ExportedMetric(
        "gauge", (), "Changes of verdicts that wait for the database."
    ),
    "specwatch_slo_objective_ratio": ExportedMetric(
        "gauge", _SLO, "Share of the requests that the objective wants to be fast enough."
    ),
    "specwatch_slo_error_ratio": ExportedMetric(
        "gauge", _SLO, "Share of the requests in the window of the objective that were too slow."
    ),
    "specwatch_slo_budget_left_ratio": ExportedMetric(
        "gauge", _SLO, "Share of the error budget that is left: 1 untouched, below 0 overspent."
    ),
    "specwatch_slo_burn_rate": ExportedMetric(
        "gauge",
        (*_SLO, "window"),
        "How many times faster than evenly the error budget burned over a window.",
    ),
    "specwatch_slo_requests": ExportedMetric(
        "gauge", (*_SLO, "window"), "Requests of a window that the objective was held against."
    ),
    "specwatch_slo_watched_ratio": ExportedMetric(
        "gauge",
        (*_SLO, "window"),
        "Share of a window in which the requests of an objective were counted.",
    ),
    "specwatch_goodput_requests_per_second": ExportedMetric(
        "gauge",
        (*_MODEL, "window", "bound"),
        "Requests a second of a window that met all objectives: a lower and an upper bound, as"
        " latency histograms do not say which request missed which objective.",
    ),
    "specwatch_offered_requests_per_second": ExportedMetric(
        "gauge",
        (*_MODEL, "window"),
        "Requests a second of a window that the objectives were held against, met or not.",
    ),
    "specwatch_guard_state": ExportedMetric(
        "gauge",
        (*_TARGET, "state"),
        "Which state the guard of the target is in: 1 for it, 0 for all others.",
    ),
    "specwatch_guard_state_since_timestamp_seconds": ExportedMetric(
        "gauge", _TARGET, "Since when, in Unix time."
    ),
    "specwatch_guard_acts": ExportedMetric(
        "gauge", _TARGET, "Whether guard.mode lets the guard act."
    ),
    "specwatch_guard_paused": ExportedMetric(
        "gauge", _TARGET, "Whether a person has paused the guard."
    ),
    "specwatch_guard_waiting": ExportedMetric(
        "gauge",
        _TARGET,
        "Whether a breach is confirmed, and something keeps the guard from acting on it.",
    ),
    "specwatch_guard_incident": ExportedMetric(
        "gauge",
        (*_TARGET, "cause"),
        "Cause of what is going on, or for which speculation is off: 1 for it, 0 for all others.",
    ),
    "specwatch_guard_actions_today": ExportedMetric(
        "gauge", _TARGET, "Actions of the guard in the last day."
    ),
    "specwatch_guard_actions_limit": ExportedMetric(
        "gauge", _TARGET, "Actions of the guard that guard.max_actions_per_day allows."
    ),
    "specwatch_actions": ExportedMetric(
        "counter", (*_TARGET, "action", "result"), "What this daemon did, by result."
    ),
    "specwatch_alertmanager_up": ExportedMetric(
        "gauge", ("url",), "Whether the last attempt to tell the Alertmanager succeeded."
    ),
    "specwatch_alertmanager_failures": ExportedMetric(
        "counter", ("url", "reason"), "Attempts to tell an Alertmanager that failed."
    ),
    "specwatch_store_write_failures": ExportedMetric(
        "counter", (), "Writes to the database that failed."
    ),
    "specwatch_store_windows_written": ExportedMetric(
        "counter", (), "Windows written to the database."
    ),
    "specwatch_store_windows_dropped": ExportedMetric(
        "counter", (), "Windows given up because too many waited for the database."
    ),
    "specwatch_store_windows_queued": ExportedMetric(
        "gauge", (), "Windows that wait for the database."
    ),
    "specwatch_store_damaged_rows": ExportedMetric(
        "counter", (), "Stored rows found that cannot be decoded; `specwatch db check` lists them."
    ),
    "specwatch_store_behind_seconds": ExportedMetric(
        "gauge", (), "For how long the database has failed; 0 while it works."
    ),
    "specwatch_report_last_delivery_timestamp_seconds": ExportedMetric(
        "gauge", ("channel",), "When a report was delivered last."
    ),
    "specwatch_report_undelivered": ExportedMetric(
        "gauge", ("channel",), "Whether the last report has not reached all that it is for."
    ),
}
"""By name; of counters without ``_total``. The page has them in this order."""


def families(samples: Iterable[ExportedSample]) -> Iterator[Metric]:
    """Yield every family of the table, with its samples."""
    made: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, metric in EXPORTED.items():
        family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        made[name] = family(name, metric.help, labels=metric.labels)
        made[name].type = metric.kind
    for sample in samples:
        if sample.value is not None:
            made[sample.metric].add_metric(sample.labels, sample.value)
    yield from made.values()


def label(text: str) -> str:
    """A server's text as a label: clean and short; a digest marks one that was changed."""
    if len(text) <= _LONGEST_LABEL and text.isprintable():
        return text
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return f"{clean(text[:_LONGEST_LABEL])[: _LONGEST_LABEL - 9]}~{digest}"


def shown_quantile(quantile: Quantile | None) -> float | None:
    """A quantile as a sample: infinite beyond the last bound, None without any bound."""
    if quantile is None or quantile.value is None:
        return None
    return math.inf if quantile.open_ended else quantile.value

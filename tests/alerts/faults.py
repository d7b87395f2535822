"""For each alert on what specwatch exports: what makes it fire, and what it then says."""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.guard.state import Cause, Phase
from tests.alerts.promtool import Fault
from tests.alerts.worlds import (
    BUCKETS,
    DAYS,
    MODEL,
    SLO,
    TARGET,
    at,
    breach,
    in_phase,
    incident,
    of,
    watched,
)

GREEDY, WARM = BUCKETS
_ALL = {**MODEL, "dimension": "all", "value": "all"}
_WARM = {**MODEL, "dimension": "temperature", "value": WARM}


_BREACHES: Sequence[tuple[str, str, str, float, float, str]] = [
    (
        "SpeculationTtftRegression",
        "ttft-regression",
        "ttft_p99_ratio",
        1.31,
        1.1,
        "llama: 1.31 times the P99 of TTFT in own minutes without speculation at the same load; the"
        " threshold is 1.10.",
    ),
    (
        "SpeculationTpotRegression",
        "tpot-regression",
        "tpot_p99_ratio",
        1.2,
        1.1,
        "llama: 1.20 times the P99 of TPOT in own minutes without speculation at the same load; the"
        " threshold is 1.10.",
    ),
    (
        "SpeculationTailWidening",
        "tail-widening",
        "tpot_tail_ratio",
        1.7,
        1.5,
        "llama: 1.70 times the P99 over P50 of TPOT in own minutes without speculation; the"
        " threshold is 1.50.",
    ),
    (
        "SpeculationAcceptanceShift",
        "acceptance-shift",
        "acceptance_change",
        -0.08,
        -0.05,
        "llama: -8% against the day before, at the same temperatures; the threshold is -5%.",
    ),
    (
        "SpeculationNetNegativeUnexplained",
        "net-negative-unexplained",
        "speedup_ratio_unadjusted",
        0.93,
        1,
        "llama: 0.93 times the speed that was measured without speculation; the threshold is 1.00.",
    ),
    (
        "SpeculationUnjudged",
        "unjudged",
        "unjudged",
        2400,
        1800,
        "llama: 40m 0s have passed without a baseline for most of the traffic; the threshold is 30m"
        " 0s.",
    ),
    (
        "SpeculationKvSqueeze",
        "kv-squeeze",
        "kv_cache_usage",
        0.97,
        0.9,
        "llama: 97% of the KV cache was in use, and running requests were preempted; the threshold"
        " is 90%.",
    ),
    (
        "SpeculationGarbage",
        "garbage",
        "acceptance_ratio",
        0.004,
        0.02,
        "llama at temperature (0.3,0.7]: 0.4% of the draft tokens were accepted; the threshold is"
        " 2%.",
    ),
    (
        "SpeculationSuspiciousOutput",
        "suspicious-output",
        "loop_share",
        0.23,
        0.1,
        "llama: 23% is the reading: requests that look like a loop, or how many more of all"
        " requests end at their limit of length, or fewer with a tool call, than without"
        " speculation; the threshold is 10%.",
    ),
    (
        "SpeculationRankOutlier",
        "rank-outlier",
        "outlier_ranks",
        2,
        0,
        "llama: 2 data-parallel ranks stand out; the threshold is 0.",
    ),
    (
        "SpeculationShortOutputs",
        "short-outputs",
        "short_output_share",
        0.8,
        0.5,
        "llama: 80% of the requests ended within 20 tokens; the threshold is 50%.",
    ),
    (
        "SpeculationNotWorthIt",
        "not-worth-it",
        "speedup_ratio",
        1.14,
        1.3,
        "llama: 1.14 times the speed without speculation, for a day; the threshold is 1.30.",
    ),
    (
        "SpeculationLosingBucket",
        "losing-bucket",
        "losing_draft_share",
        0.61,
        0.4,
        "llama: 0.61 is the reading: share of drafts that lose, or without a baseline the speedup"
        " assumed at P10 of the requests; the threshold is 0.40.",
    ),
]
"""Alert, rule, its metric, the value and the threshold, and the description."""


def _breached(
    alert: str, rule: str, metric: str, value: float, threshold: float, description: str
) -> Fault:
    bucket = WARM if rule == "garbage" else "all"
    return Fault(
        alert,
        breach(rule, value, threshold, metric=metric, bucket=bucket),
        {**MODEL, **at(bucket)},
        description,
        traffic=True,
        speculation=True,
    )


_CUSTOM = Fault(
    "SpeculationCustomRule",
    breach("slow-start", 0.7, 0.5, metric="ttft_p99"),
    {**MODEL, **at("all"), "rule": "slow-start", "metric": "ttft_p99"},
    "llama: ttft p99 is 0.7; the threshold is 0.5.",
    traffic=True,
)

_SPEEDS = (
    Fault(
        "SpeculationNetNegative",
        {
            of("specwatch_speedup_ratio", **_ALL): 0.8,
            of("specwatch_speedup_ratio_upper", **_ALL): 0.91,
        },
        MODEL,
        "Over the last hour, at equal load, it ran at 0.80 times the speed it has without"
        " speculation, at 0.91 times at most by a 95 % interval. The rule net-negative reads 1.00,"
        " and its threshold is 2.00. Nothing has switched speculation off within 15 minutes.",
        traffic=True,
        speculation=True,
        spare=frozenset({"specwatch_rule_verdict"}),
    ),
    Fault(
        "SpeculationBucketLoses",
        {
            of("specwatch_speedup_ratio", **_WARM): 0.8,
            of("specwatch_speedup_ratio_upper", **_WARM): 0.91,
            of("specwatch_acceptance_ratio", **_WARM): 0.12,
        },
        _WARM,
        "llama: speedup 0.80; all of its interval is below the threshold, 1. Acceptance is 12%"
        " there, and 30% is needed.",
        traffic=True,
        speculation=True,
    ),
    Fault(
        "SpeculationLowAcceptance",
        {
            of("specwatch_acceptance_ratio", **_WARM): 0.31,
            of("specwatch_speedup_measured", **MODEL): 0,
            of("specwatch_assumed_break_even_acceptance_ratio", **MODEL): 0.4,
        },
        _WARM,
        "llama accepts 31% of them. Whether that pays is not measured; about 40% is needed by the"
        " assumed draft cost, unless the rule low-acceptance has another threshold.",
        traffic=True,
        speculation=True,
        spare=frozenset({"specwatch_coverage_ratio", "specwatch_rule_verdict"}),
    ),
)


def _burn(factor: float, line: float, long: str, short: str, at: int) -> Fault:
    return Fault(
        "LatencySloBurn",
        {
            **{
                of("specwatch_slo_burn_rate", window=window, **SLO): factor
                for window in (long, short)
            },
            of("specwatch_slo_error_ratio", **SLO): 0.008,
            of("specwatch_slo_budget_left_ratio", **SLO): 0.2,
        },
        {**SLO, "long": long, "short": short, "servers": "one"},
        f"llama: over {long} it burns {factor:g} times as fast as evenly, and over {short}"
        f" too (line: {line:g}). Objective 99%; 0.8% of the requests of its window were too"
        " slow, 20% of the budget is left. No rule is in breach.",
        at,
    )


_BURNS = (
    _burn(20, 14.4, "1h", "5m", 60),
    _burn(7, 6, "6h", "30m", 60),
    _burn(3.5, 3, "1d", "2h", 90),
    _burn(1.5, 1, "3d", "6h", 200),
)

_DONE = of("specwatch_actions_total", action="disable", result="done", **TARGET)
_DISABLED = {**in_phase(Phase.DISABLED), **incident(Cause.RULE)}

_GUARD = (
    Fault(
        "SpeculationGuardActed",
        {_DONE: "0x55 1x200", of("specwatch_guard_actions_today", **TARGET): "0x55 1x200"},
        {**TARGET, "action": "disable"},
        "Within the last 15 minutes it did: disable speculation. Actions in the last day: 1 of 4.",
        60,
        begins=56,
        ordered=True,
        spare=frozenset({"specwatch_guard_incident"}),
    ),
    Fault(
        "SpeculationGuardHeld",
        in_phase(Phase.HELD),
        TARGET,
        "Held, or still putting the old command line back, for 1h 0m 0s; `specwatch "
        "guard status chat` says which. vLLM may not be serving. The guard does "
        "nothing else by itself until a person resumes it.",
    ),
    Fault(
        "SpeculationGuardBudgetExhausted",
        {of("specwatch_guard_actions_today", **TARGET): 4, **_DISABLED},
        TARGET,
        "4 actions within a day, and no more are allowed. Until the oldest is a day "
        "old, it neither switches speculation off nor tries it again.",
        ordered=True,
        spare=frozenset({"specwatch_guard_incident"}),
    ),
    Fault(
        "SpeculationGuardWaiting",
        {
            **in_phase(Phase.CONFIRMED),
            **incident(Cause.RULE),
            of("specwatch_guard_waiting", **TARGET): 1,
        },
        TARGET,
        "A breach is confirmed for 1h 0m 0s, and something keeps the guard from "
        "acting. `specwatch guard status chat` says what.",
        ordered=True,
        spare=frozenset({"specwatch_guard_incident", "specwatch_guard_paused"}),
    ),
    Fault(
        "SpeculationTrialFailed",
        {**in_phase(Phase.DISABLED, 600), **incident(Cause.TRIAL_LOST)},
        TARGET,
        "It was switched off again about 30m 0s ago. `specwatch guard status` says "
        "when the next trial is due.",
        40,
        ordered=True,
    ),
    Fault(
        "SpeculationOffForDays",
        {**_DISABLED, of("specwatch_speculation_enabled", **MODEL): 0},
        MODEL,
        "llama: off for 100% of the last three days, by the guard. Its trials were "
        "lost or did not take place.",
        DAYS,
        traffic=True,
        begins=70 * 60,
        ordered=True,
    ),
)

WHERE = {"job": "specwatch", "instance": "watch:9469"}

_ITSELF = (
    Fault(
        "SpecwatchDown",
        {of("up"): "1x9 0x300", watched(): "1x9 stale"},
        {**WHERE, **TARGET},
        "Prometheus reads nothing of specwatch from watch:9469 (up: 0). The guard of "
        "chat does nothing meanwhile, and the other alerts on chat are silent.",
        spare=frozenset({"specwatch_build_info", "specwatch_target_info"}),
        begins=10,
    ),
    Fault(
        "SpecwatchStuck",
        {of("specwatch_target_stuck", **TARGET): 1},
        TARGET,
        "The loop of chat made no pass within three intervals; the last good scrape was 0s ago.",
    ),
    Fault(
        "SpecwatchTargetDown",
        {
            of("specwatch_target_up", **TARGET): "1x9 0x300",
            of("specwatch_scrape_failures_total", reason="refused", **TARGET): "0x9 12+12x240",
            of("specwatch_last_scrape_success_timestamp_seconds", **TARGET): "0+60x9 540x300",
        },
        TARGET,
        "No scrape has succeeded for 5 minutes (up: 0); the last good one was 51m 0s ago.",
        begins=10,
        spare=frozenset({"specwatch_guard_state"}),
    ),
    Fault(
        "SpecwatchScrapeFailing",
        {
            of("specwatch_scrape_failures_total", reason="refused", **TARGET): "0+9x240",
            of("specwatch_last_scrape_success_timestamp_seconds", **TARGET): 60,
        },
        TARGET,
        "75% of the scrapes of the last 10 minutes failed; the last good scrape was 59m 0s ago.",
        begins=1,
        spare=frozenset({"specwatch_guard_state"}),
    ),
    Fault(
        "SpecwatchTargetNameTwice",
        {watched("http://10.0.0.8:8000", instance="other:9469"): 1},
        TARGET,
        "Daemons watch 2 addresses under the name chat. Alerts and dashboards take "
        "them for one server, and may show the healthier one.",
    ),
    Fault(
        "SpecwatchTapLost",
        {of("specwatch_tap_up", **TARGET): "1x9 0x300"},
        TARGET,
        "The tap of chat counted within the last day, and does not now (tap up: 0): "
        "nothing is known by temperature.",
        begins=10,
        traffic=True,
        speculation=True,
    ),
    Fault(
        "SpecwatchCoverageLow",
        {of("specwatch_coverage_ratio", dimension="all", source="tap", **MODEL): 0.3},
        MODEL,
        "The tap saw 30% of the drafts of llama; numbers by temperature are about those only.",
        traffic=True,
        speculation=True,
    ),
    Fault(
        "SpecwatchStoreBehind",
        {of("specwatch_store_behind_seconds"): "0+60x240"},
        WHERE,
        "For 1h 0m 0s. It keeps its data in memory, and the guard begins nothing: it "
        "never acts without a stored claim.",
        begins=6,
    ),
    Fault(
        "SpecwatchDatabaseDamaged",
        {of("specwatch_store_damaged_files"): "0x50 1x200"},
        WHERE,
        "Damaged files that were put aside: 1. History, baselines and the state of guards from"
        " before are lost.",
        begins=51,
    ),
    Fault(
        "SpecwatchWindowsLost",
        {of("specwatch_store_windows_dropped_total"): "0x50 3x200"},
        WHERE,
        "About 3 windows and verdicts of the last 30 minutes were dropped, because "
        "too many waited for the database.",
        begins=51,
    ),
    Fault(
        "SpecwatchAlertmanagerUnreachable",
        {of("specwatch_alertmanager_up", url="http://127.0.0.1:9093"): 0},
        {**WHERE, "url": "http://127.0.0.1:9093"},
        "http://127.0.0.1:9093 has not accepted alerts from specwatch for 10 minutes "
        "(up: 0). Alerts from Prometheus are not affected.",
    ),
    Fault(
        "SpecwatchDiscoveryFailing",
        {of("specwatch_discovery_up", source="file_sd a.json"): 0},
        {**WHERE, "source": "file_sd a.json"},
        "file_sd a.json has failed for 10 minutes (up: 0). Its last known targets are watched on;"
        " new ones are not seen.",
    ),
    Fault(
        "SpecwatchJudgingFails",
        {of("specwatch_judging_failures_total"): "0+1x240"},
        WHERE,
        "About 15 times in the last 15 minutes. That is a defect of specwatch.",
        begins=1,
    ),
    Fault(
        "SpecwatchReportUndelivered",
        {of("specwatch_report_undelivered", channel="email"): 1},
        {"channel": "email"},
        "For an hour the last report has not reached all recipients by email (undelivered: 1).",
    ),
    Fault(
        "SpecwatchReportOverdue",
        # The clock of these worlds begins at zero.
        {of("specwatch_report_last_delivery_timestamp_seconds", channel="email"): -9 * 86400},
        {"channel": "email"},
        "The last one that is known to have arrived by email did so 9d 1h 0m 0s ago; "
        "there is one each week.",
    ),
)

FAULTS: tuple[Fault, ...] = (
    *_SPEEDS,
    *(_breached(*row) for row in _BREACHES),
    _CUSTOM,
    *_BURNS,
    *_GUARD,
    *_ITSELF,
)

"""For each alert on specwatch itself: what makes it fire, and what it then says."""

from __future__ import annotations

from tests.alerts.promtool import Fault
from tests.alerts.worlds import MODEL, TARGET, of, watched

WHERE = {"job": "specwatch", "instance": "watch:9469"}

SELF_MONITORING = (
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
        {of("specwatch_coverage_ratio", temperature="all", source="tap", **MODEL): 0.3},
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

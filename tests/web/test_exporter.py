"""The daemon's own metrics page."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from specwatch.domain.model import Histogram, Mode, Source
from specwatch.errors import ScrapeReason
from specwatch.guard.state import GuardState
from specwatch.guard.status import GuardStatus
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.taps import ACCEPTS_TOO_MUCH, COUNTS_TWICE, Trouble
from specwatch.status import (
    DaemonStatus,
    DeliveryStatus,
    Failure,
    JudgingStatus,
    PagerStatus,
    ProxyStatus,
    StoreStatus,
    TapStatus,
)
from specwatch.web import exporter
from specwatch.web.metric_subjects import MOST_SERIES
from tests.web.decided import decided
from tests.web.exported import page, samples
from tests.web.statuses import HOSTILE, NOW, daemon, minute, of_tap, target, whole

START = 1_699_999_980


FULL = daemon(
    target(
        recent=(whole(), of_tap(START, "(0,0.3]", drafts=80, of=80, server=100)),
        tap=TapStatus(
            Source.TAP,
            models={"llama": Coverage(Source.TAP, 80, 100, {"record": 5}, {"several": 2})},
        ),
        decision=decided(),
        guard=GuardStatus("act", GuardState("chat"), max_actions_per_day=4),
    ),
    target("guessed", decision=decided(measured=False, target="guessed")),
    target(
        "down",
        models={},
        recent=(),
        failure=Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 60),
        failures={ScrapeReason.REFUSED: 12, ScrapeReason.TIMEOUT: 1},
        restarts=2,
        skipped=3,
    ),
    target(HOSTILE, models={HOSTILE: Mode.OFF}, recent=(minute(START, model_name=HOSTILE),)),
    pagers=(PagerStatus("http://127.0.0.1:9093", failures={"refused": 1}),),
    deliveries=(DeliveryStatus("email", False, NOW - 60),),
)
"""A status in which every family has samples."""


def test_it_has_the_names_and_labels_of_the_contract() -> None:
    """Dashboards and alert rules of users are written against these."""
    labels = {
        sample.name: set(sample.labels)
        for family in text_format(page(FULL))
        for sample in family.samples
    }
    model = {"target", "model_name"}
    series = {*model, "temperature"}
    assert labels == {
        "specwatch_build_info": {"version", "daemon"},
        "specwatch_acceptance_ratio": series,
        "specwatch_acceptance_length": series,
        "specwatch_position_acceptance_ratio": {*series, "position"},
        "specwatch_drafts_per_second": series,
        "specwatch_requests_per_second": series,
        "specwatch_generation_tokens_per_second": series,
        "specwatch_prompt_tokens_per_second": model,
        "specwatch_preemptions_per_second": model,
        "specwatch_running_requests": model,
        "specwatch_running_requests_max": model,
        "specwatch_waiting_requests": model,
        "specwatch_kv_cache_usage_ratio": model,
        "specwatch_prefix_cache_hit_ratio": model,
        "specwatch_request_acceptance_quantile_ratio": {*series, "quantile"},
        "specwatch_accepted_length_drafts": {*series, "accepted"},
        "specwatch_tap_up": {"target"},
        "specwatch_coverage_ratio": {*series, "source"},
        "specwatch_uncovered_requests": {*model, "reason"},
        "specwatch_latency_seconds": {*series, "metric", "quantile"},
        "specwatch_target_up": {"target"},
        "specwatch_target_info": {"target", "url", "engine_version"},
        "specwatch_target_stuck": {"target"},
        "specwatch_scrape_interval_seconds": {"target"},
        "specwatch_last_window_timestamp_seconds": {"target"},
        "specwatch_speculation_enabled": model,
        "specwatch_scrape_duration_seconds": {"target"},
        "specwatch_last_scrape_success_timestamp_seconds": {"target"},
        "specwatch_scrapes_total": {"target"},
        "specwatch_scrapes_skipped_total": {"target"},
        "specwatch_scrape_failures_total": {"target", "reason"},
        "specwatch_engine_restarts_total": {"target"},
        "specwatch_series_left_out": {"target"},
        "specwatch_store_write_failures_total": set(),
        "specwatch_store_windows_written_total": set(),
        "specwatch_store_windows_dropped_total": set(),
        "specwatch_store_windows_queued": set(),
        "specwatch_store_damaged_rows_total": set(),
        "specwatch_store_behind_seconds": set(),
        "specwatch_speedup_ratio": series,
        "specwatch_speedup_ratio_lower": series,
        "specwatch_speedup_ratio_upper": series,
        "specwatch_speedup_measured": model,
        "specwatch_assumed_speedup_ratio": model,
        "specwatch_assumed_break_even_acceptance_ratio": model,
        "specwatch_break_even_acceptance_ratio": {*model, "load_bin"},
        "specwatch_step_cost_ratio": {*model, "load_bin"},
        "specwatch_baseline_age_seconds": model,
        "specwatch_baseline_latency_seconds": {*model, "metric", "quantile"},
        "specwatch_rule_verdict": {*series, "rule"},
        "specwatch_rule_value": {*series, "rule", "metric"},
        "specwatch_rule_threshold": {*series, "rule", "metric"},
        "specwatch_slo_error_ratio": {*model, "slo"},
        "specwatch_slo_budget_left_ratio": {*model, "slo"},
        "specwatch_slo_burn_rate": {*model, "slo", "window"},
        "specwatch_slo_requests": {*model, "slo", "window"},
        "specwatch_slo_watched_ratio": {*model, "slo", "window"},
        "specwatch_slo_objective_ratio": {*model, "slo"},
        "specwatch_goodput_requests_per_second": {*model, "window", "bound"},
        "specwatch_offered_requests_per_second": {*model, "window"},
        "specwatch_judging_failures_total": set(),
        "specwatch_store_verdicts_dropped_total": set(),
        "specwatch_store_verdicts_queued": set(),
        "specwatch_guard_state": {"target", "state"},
        "specwatch_guard_state_since_timestamp_seconds": {"target"},
        "specwatch_guard_acts": {"target"},
        "specwatch_guard_paused": {"target"},
        "specwatch_guard_waiting": {"target"},
        "specwatch_guard_incident": {"target", "cause"},
        "specwatch_guard_actions_today": {"target"},
        "specwatch_guard_actions_limit": {"target"},
        "specwatch_actions_total": {"target", "action", "result"},
        "specwatch_alertmanager_up": {"url"},
        "specwatch_alertmanager_failures_total": {"url", "reason"},
        "specwatch_report_last_delivery_timestamp_seconds": {"channel"},
        "specwatch_report_undelivered": {"channel"},
    }


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (of Prometheus) is missing")
@pytest.mark.parametrize("status", [FULL, daemon(), daemon(targets=())])
def test_promtool_finds_nothing_to_say(status: DaemonStatus) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page(status), text=True, capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("status", [FULL, daemon(), daemon(targets=())])
def test_openmetrics_is_read_by_a_strict_parser_and_says_the_same(status: DaemonStatus) -> None:
    found = generate_openmetrics(exporter.registry(lambda: status)).decode()
    assert found.endswith("# EOF\n")
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in openmetrics(found)
        for sample in family.samples
    }
    assert read == {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_format(page(status))
        for sample in family.samples
    }


def test_figures_are_those_of_the_last_minutes() -> None:
    assert samples(FULL, "specwatch_acceptance_ratio")[("llama", "chat", "all")] == 0.5
    assert samples(FULL, "specwatch_acceptance_length")[("llama", "chat", "all")] == 3.0
    assert samples(FULL, "specwatch_accepted_length_drafts") | {
        ("0", "llama", "chat", "all"): 0.0,
        ("2", "llama", "chat", "all"): 100.0,
        ("4", "llama", "chat", "all"): 0.0,
    } == samples(FULL, "specwatch_accepted_length_drafts")
    latency = samples(FULL, "specwatch_latency_seconds")
    assert latency[("ttft", "llama", "0.5", "chat", "all")] == 0.1


def test_coverage_is_that_of_the_tap_once_for_each_model() -> None:
    """That a server saw all of its own drafts says nothing, and is not there."""
    assert samples(FULL, "specwatch_coverage_ratio") == {("llama", "tap", "chat", "all"): 0.8}
    assert samples(FULL, "specwatch_uncovered_requests") == {("llama", "several", "chat"): 2}


def test_how_the_acceptance_of_requests_spreads_is_there_by_bucket() -> None:
    found = samples(FULL, "specwatch_request_acceptance_quantile_ratio")
    assert found == {
        ("llama", "0.1", "chat", "(0,0.3]"): 0.25,
        ("llama", "0.5", "chat", "(0,0.3]"): 0.6875,
        ("llama", "0.9", "chat", "(0,0.3]"): 0.9375,
    }


@pytest.mark.parametrize(
    ("tap", "up"),
    [
        (TapStatus(), 0),
        (TapStatus(Source.TAP), 1),
        (TapStatus(Source.PROXY, proxy=ProxyStatus("http://p")), 1),
        (TapStatus(Source.PROXY, proxy=ProxyStatus("http://p", Failure("timeout", "x", 1.0))), 0),
        (TapStatus(Source.TAP, proxy=ProxyStatus("http://p", Failure("timeout", "x", 1.0))), 1),
        (TapStatus(Source.TAP, (Trouble(COUNTS_TWICE, "twice", "llama"),)), 0),
        (TapStatus(Source.TAP, (Trouble(ACCEPTS_TOO_MUCH, "joined", "llama"),)), 0),
        (TapStatus(Source.TAP, (Trouble("derived_off", "off", "llama"),)), 1),
    ],
)
def test_a_tap_is_up_where_its_numbers_are_taken(tap: TapStatus, up: int) -> None:
    assert samples(daemon(target(tap=tap)), "specwatch_tap_up") == {("chat",): up}


def test_a_page_that_makes_positions_up_does_not_fill_ours() -> None:
    one = minute(START)
    tally = replace(one.tally, accepted_per_position=(100, 100, *([0] * 900)))
    found = samples(
        daemon(target(recent=(replace(one, tally=tally),))), "specwatch_accepted_length_drafts"
    )
    assert found == {}


def test_a_quantile_beyond_the_last_bound_is_infinite() -> None:
    beyond = minute(START, ttft=Histogram((0.1,), (1, 9), 99.0))
    latency = samples(daemon(target(recent=(beyond,))), "specwatch_latency_seconds")
    assert latency[("ttft", "llama", "0.99", "chat", "all")] == math.inf


def test_a_mean_without_bounds_has_no_quantile() -> None:
    """It is no quantile beyond the last bound either: nothing is known of it."""
    mean = minute(START, ttft=Histogram((), (60,), 2.0))
    latency = samples(daemon(target(recent=(mean,))), "specwatch_latency_seconds")
    assert {labels[0] for labels in latency} == {"tpot"}


def test_what_is_unknown_is_absent_and_not_zero() -> None:
    fresh = target(
        last_scrape=None, last_success=None, scrape_seconds=None, models={}, recent=(), scrapes=0
    )
    idle = daemon(fresh)
    for name in ("target_up", "scrape_duration_seconds", "acceptance_ratio"):
        assert samples(idle, f"specwatch_{name}") == {}
    assert samples(idle, "specwatch_scrapes_total") == {("chat",): 0}
    quiet = daemon(target(recent=(minute(START, drafts=0),)))
    assert samples(quiet, "specwatch_acceptance_ratio") == {}


def test_targets_that_fail_say_so_and_why() -> None:
    assert samples(FULL, "specwatch_target_up")[("down",)] == 0
    assert samples(FULL, "specwatch_target_up")[("chat",)] == 1
    failures = samples(FULL, "specwatch_scrape_failures_total")
    assert failures == {("refused", "down"): 12, ("timeout", "down"): 1}
    assert samples(FULL, "specwatch_engine_restarts_total")[("down",)] == 2
    assert samples(FULL, "specwatch_scrapes_skipped_total")[("down",)] == 3


@pytest.mark.parametrize(("mode", "value"), [(Mode.ON, 1), (Mode.OFF, 0), (Mode.MIXED, 1)])
def test_speculation_is_one_or_zero(mode: Mode, value: int) -> None:
    status = daemon(target(models={"llama": mode}))
    assert samples(status, "specwatch_speculation_enabled") == {("llama", "chat"): value}


def test_speculation_that_is_not_known_is_neither() -> None:
    status = daemon(target(models={"llama": Mode.UNKNOWN}))
    assert samples(status, "specwatch_speculation_enabled") == {}


def test_a_target_says_what_it_is_as_far_as_is_known() -> None:
    status = daemon(target(), target("new", engine_version=None))
    url = "http://127.0.0.1:8000"
    assert samples(status, "specwatch_target_info") == {
        ("0.32.0", "chat", url): 1, ("", "new", url): 1,
    }  # fmt: skip
    assert samples(status, "specwatch_scrape_interval_seconds") == {("chat",): 5, ("new",): 5}


def test_a_version_that_is_a_novel_is_cut() -> None:
    (labels,) = samples(daemon(target(engine_version="v" * 10_000)), "specwatch_target_info")
    assert len(labels[0]) == 200


def test_a_target_is_stuck_where_the_daemon_says_so() -> None:
    status = daemon(target(), target("hung"), stuck=("hung",))
    assert samples(status, "specwatch_target_stuck") == {("chat",): 0, ("hung",): 1}


def test_the_newest_minute_is_that_of_any_series() -> None:
    """Another model may have been served since."""
    recent = (minute(START), minute(START + 60, model_name="other"))
    status = daemon(target(recent=recent), target("new", recent=()))
    assert samples(status, "specwatch_last_window_timestamp_seconds") == {("chat",): START + 120}


@pytest.mark.parametrize(("since", "seconds"), [(None, 0), (NOW - 30, 30), (NOW + 5, 0)])
def test_the_store_is_behind_since_it_failed(since: float | None, seconds: float) -> None:
    """Never less than not at all: the clock may have been set back."""
    status = daemon(store=StoreStatus("x", behind_since=since))
    assert samples(status, "specwatch_store_behind_seconds") == {(): seconds}


def test_what_the_daemon_costs_is_there_where_it_is_asked_for(tmp_path: Path) -> None:
    """Under the names that every process has, and in no page of a test otherwise."""
    own = tmp_path / "self"
    (own / "fd").mkdir(parents=True)
    for number in range(3):
        (own / "fd" / str(number)).touch()
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    fields = [0] * 50
    fields[11:13], fields[19:22] = (150, 50), (1000, 4096, 10)
    (own / "stat").write_text(f"1 (specwatch) {' '.join(['S', *map(str, fields[1:])])}\n")
    (own / "limits").write_text("Max open files  1024  4096  files\n")
    found = generate_latest(exporter.registry(daemon, proc=str(tmp_path))).decode()
    values = {
        sample.name: sample.value
        for family in text_format(found)
        for sample in family.samples
        if sample.name.startswith("process_")
    }
    ticks = os.sysconf("SC_CLK_TCK")
    assert values == {
        "process_virtual_memory_bytes": 4096,
        "process_resident_memory_bytes": 10 * os.sysconf("SC_PAGESIZE"),
        "process_start_time_seconds": 1_700_000_000 + 1000 / ticks,
        "process_cpu_seconds_total": 200 / ticks,
        "process_open_fds": 3,
        "process_max_fds": 1024,
    }
    assert "process_" not in page(daemon())


def test_the_store_counts() -> None:
    store = StoreStatus("x", written=1, queued=2, dropped=3, failures=4, damaged=5)
    status = daemon(store=store)
    for name, value in (
        ("windows_written_total", 1), ("windows_queued", 2), ("windows_dropped_total", 3),
        ("write_failures_total", 4), ("damaged_rows_total", 5),
    ):  # fmt: skip
        assert samples(status, f"specwatch_store_{name}") == {(): value}


def test_judging_counts_what_went_wrong() -> None:
    status = daemon(judging=JudgingStatus(defects=1, queued=2, dropped=3))
    for name, value in (
        ("judging_failures_total", 1), ("store_verdicts_queued", 2),
        ("store_verdicts_dropped_total", 3),
    ):  # fmt: skip
        assert samples(status, f"specwatch_{name}") == {(): value}


def test_ten_thousand_models_of_one_target_leave_room_for_the_others() -> None:
    names = [f"model-{number}" for number in range(10_000)]
    crowd = target(
        "crowd",
        models=dict.fromkeys(names, Mode.ON),
        recent=tuple(minute(START, target="crowd", model_name=name) for name in names),
    )
    status = daemon(crowd, target())
    share = MOST_SERIES // 2
    rates = samples(status, "specwatch_acceptance_ratio")
    assert len(rates) == share + 1
    assert ("llama", "chat", "all") in rates
    assert len(samples(status, "specwatch_speculation_enabled")) == share + 1
    for name in ("running_requests", "drafts_per_second"):
        assert len(samples(status, f"specwatch_{name}")) == share + 1
    left_out = samples(status, "specwatch_series_left_out")
    assert left_out == {("crowd",): 2 * (10_000 - share), ("chat",): 0}


def test_long_names_are_cut_and_stay_apart() -> None:
    names = ["m" * 10_000 + end for end in "ab"]
    status = daemon(
        target(
            models=dict.fromkeys(names, Mode.ON),
            recent=tuple(minute(START, model_name=name) for name in names),
        )
    )
    rates = samples(status, "specwatch_acceptance_ratio")
    assert len(rates) == 2
    assert all(len(labels[0]) == 200 for labels in rates)
    enabled = samples(status, "specwatch_speculation_enabled")
    assert {labels[0] for labels in enabled} == {labels[0] for labels in rates}


def test_a_fleet_of_two_hundred_targets_is_shown_whole() -> None:
    buckets = ("all", "0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")
    fleet = [
        target(
            f"t{number}",
            recent=tuple(minute(START, target=f"t{number}", temperature=b) for b in buckets),
        )
        for number in range(200)
    ]
    assert len(samples(daemon(*fleet), "specwatch_acceptance_ratio")) == 200 * len(buckets)

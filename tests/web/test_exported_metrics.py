"""The exported metrics of targets, their windows, taps and guards, and of the daemon."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families as text_format

from specwatch.domain.interval import Interval
from specwatch.domain.model import Gauges, Histogram, Mode, Source
from specwatch.domain.switchback import Grouping
from specwatch.domain.switchback_results import ExperimentStatus, GroupResults
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import ACTIONS, ActionCount, GuardStatus, guard_view, no_actions
from specwatch.scrape.taps import ACCEPTS_TOO_MUCH, COUNTS_TWICE, Trouble
from specwatch.status import (
    DaemonStatus,
    Failure,
    JudgingStatus,
    PagerStatus,
    ProxyStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
)
from tests.web.exported import page, samples
from tests.web.statuses import FLEET, NOW, daemon, minute, of_tap, target, whole
from tests.web.test_exporter import FULL

START = 1_699_999_980
SERIES, MODEL, TARGET = ("llama", "chat", "all"), ("llama", "chat"), ("chat",)


def shown(*windows: Any, **changes: Any) -> DaemonStatus:
    """A daemon with a target of which those are the last minutes."""
    return daemon(target(recent=windows, **changes))


def counted(**changes: Any) -> DaemonStatus:
    return shown(whole(**changes))


def guarded(state: GuardState | None = None, **changes: Any) -> DaemonStatus:
    return daemon(target(guard=GuardStatus("act", state, **changes)))


UNREAD = daemon(
    target(last_scrape=None, last_success=None, scrape_seconds=None, models={}, recent=())
)
BUCKET = of_tap(START, "0", drafts=60, of=60, server=100)
BOTH = shown(whole(), msgspec.structs.replace(BUCKET, observed_seconds=60.0))
NOTHING = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "accepted_per_position": (0,) * 4}
IDLE = counted(**NOTHING, requests={"stop": 0})
SILENT = whole(drafts=None, requests={}, accepted_per_position=None)
UNCOUNTED = {
    "generation_tokens": None, "prompt_tokens": None, "preemptions": None,
    "prefix_cache_queries": 0,
}  # fmt: skip
UNKNOWN = shown(
    msgspec.structs.replace(
        SILENT, tally=msgspec.structs.replace(SILENT.tally, **UNCOUNTED), gauges=Gauges()
    )
)
STORE = daemon(store=StoreStatus("x", written=1, queued=2, dropped=3, failures=4, damaged=5))
JUDGING = daemon(judging=JudgingStatus(defects=1, queued=2, dropped=3))
UNREACHED = daemon(
    pagers=(PagerStatus("http://127.0.0.1:9093", error="refused", failures={"refused": 3}),)
)
REFUSING = daemon(
    discovery=(
        SourceStatus(
            "dns SRV a.example", 3, NOW - 60, {"timeout": 2}, Failure("timeout", "-", NOW)
        ),
        SourceStatus("file_sd a.json"),
    )
)
BUDGET = guarded(
    GuardState("chat", actions=(NOW - 90_000, NOW - 60, NOW - 30)), max_actions_per_day=4
)


@pytest.mark.parametrize(
    ("status", "values"),
    [
        pytest.param(
            FULL,
            {
                "request_acceptance_quantile_ratio": {
                    ("llama", "0.1", "chat", "(0,0.3]"): 0.25,
                    ("llama", "0.5", "chat", "(0,0.3]"): 0.6875,
                    ("llama", "0.9", "chat", "(0,0.3]"): 0.9375,
                },
                "coverage_ratio": {("llama", "tap", "chat", "all"): 0.8},
                "uncovered_requests": {("llama", "several", "chat"): 2},
                "scrape_failures_total": {("refused", "down"): 12, ("timeout", "down"): 1},
            },
            id="a full status",
        ),
        pytest.param(
            counted(accepted_per_position=(100, 75, 25, 0)),
            {
                "prompt_tokens_per_second": {MODEL: 20.0},
                "preemptions_per_second": {MODEL: 0.05},
                "running_requests": {MODEL: 2.5},
                "running_requests_max": {MODEL: 7.0},
                "waiting_requests": {MODEL: 0.5},
                "kv_cache_usage_ratio": {MODEL: 0.25},
                "prefix_cache_hit_ratio": {MODEL: 0.25},
                "acceptance_ratio": {SERIES: 0.5},
                "acceptance_length": {SERIES: 3.0},
                "position_acceptance_ratio": {
                    ("llama", str(position), "chat", "all"): ratio
                    for position, ratio in enumerate((1.0, 0.75, 0.25, 0.0))
                },
                "accepted_length_drafts": {
                    ("0", *SERIES): 0, ("1", *SERIES): 25, ("2", *SERIES): 50, ("3", *SERIES): 25,
                    ("4", *SERIES): 0,
                },
            },
            id="the last minutes of a series",
        ),
        pytest.param(
            BOTH,
            {
                "drafts_per_second": {SERIES: pytest.approx(100 / 120), (*MODEL, "0"): 0.5},
                "requests_per_second": {
                    SERIES: pytest.approx(9 / 120), (*MODEL, "0"): pytest.approx(9 / 120),
                },
                "generation_tokens_per_second": {SERIES: 3.0},
                "running_requests": {MODEL: 2.5},
            },
            id="rates of temperatures are over the time of all, and the load is of all",
        ),
        pytest.param(
            shown(msgspec.structs.replace(whole(), observed_seconds=40.0, down_seconds=60.0)),
            {"drafts_per_second": {SERIES: 1.0}},
            id="rates are over downtime too",
        ),
        pytest.param(
            IDLE,
            {
                "drafts_per_second": {SERIES: 0}, "requests_per_second": {SERIES: 0},
                "position_acceptance_ratio": {}, "acceptance_ratio": {},
            },
            id="an idle server has rates of zero, but no share of nothing",
        ),
        pytest.param(
            REFUSING,
            {
                "discovery_up": {("dns SRV a.example",): 0, ("file_sd a.json",): 1},
                "discovery_targets": {("dns SRV a.example",): 3, ("file_sd a.json",): 0},
                "discovery_last_success_timestamp_seconds": {("dns SRV a.example",): NOW - 60},
                "discovery_failures_total": {("timeout", "dns SRV a.example"): 2},
            },
            id="a source of discovery that fails",
        ),
        pytest.param(
            daemon(target(), target("new", engine_version=None)),
            {
                "target_info": {
                    ("0.32.0", "llama", "chat", "http://127.0.0.1:8000"): 1,
                    ("", "llama", "new", "http://127.0.0.1:8000"): 1,
                },
                "scrape_interval_seconds": {("chat",): 5, ("new",): 5},
            },
            id="an engine of which the version is unknown",
        ),
        pytest.param(
            daemon(target(), target("hung", failure=Failure("x", "y", NOW)), stuck=("hung",)),
            {
                "target_stuck": {("chat",): 0, ("hung",): 1},
                "target_up": {("chat",): 1, ("hung",): 0},
            },
            id="a target that is stuck and one that is not",
        ),
        pytest.param(
            daemon(target(restarts=2, skipped=3)),
            {"engine_restarts_total": {TARGET: 2}, "scrapes_skipped_total": {TARGET: 3}},
            id="restarts and skipped scrapes",
        ),
        pytest.param(
            shown(minute(START), minute(START + 60, model_name="other")),
            {"last_window_timestamp_seconds": {TARGET: START + 120}},
            id="the newest minute is that of any series",
        ),
        pytest.param(
            STORE,
            {
                "store_windows_written_total": {(): 1}, "store_windows_queued": {(): 2},
                "store_windows_dropped_total": {(): 3}, "store_write_failures_total": {(): 4},
                "store_damaged_rows_total": {(): 5}, "store_behind_seconds": {(): 0},
            },
            id="the store",
        ),
        pytest.param(
            daemon(store=StoreStatus("x", behind_since=NOW - 30)),
            {"store_behind_seconds": {(): 30}},
            id="the store has failed for 30 s",
        ),
        pytest.param(
            daemon(store=StoreStatus("x", behind_since=NOW + 5)),
            {"store_behind_seconds": {(): 0}},
            id="the clock was set back after the store failed",
        ),
        pytest.param(
            daemon(fleet=FLEET),
            {
                "fleet_members": {(): 2},
                "fleet_targets": {("here",): 1, ("elsewhere",): 2, ("nowhere",): 1},
            },
            id="a fleet",
        ),
        pytest.param(
            JUDGING,
            {
                "judging_failures_total": {(): 1}, "store_verdicts_queued": {(): 2},
                "store_verdicts_dropped_total": {(): 3},
            },
            id="judging",
        ),
        pytest.param(
            BUDGET,
            {"guard_actions_today": {TARGET: 2}, "guard_actions_limit": {TARGET: 4}},
            id="actions of the guard and their limit",
        ),
        pytest.param(
            guarded(GuardState("chat", Phase.TRIAL, since=NOW - 60)),
            {
                "guard_state": {
                    (str(phase), "chat"): int(phase is Phase.TRIAL) for phase in Phase
                },
                "guard_state_since_timestamp_seconds": {TARGET: NOW - 60},
            },
            id="one state of the guard at a time",
        ),
        pytest.param(
            UNREACHED,
            {
                "alertmanager_up": {("http://127.0.0.1:9093",): 0},
                "alertmanager_failures_total": {("refused", "http://127.0.0.1:9093"): 3},
            },
            id="an Alertmanager that is not reached",
        ),
    ],
)  # fmt: skip
def test_the_page_has_exactly_these_samples(
    status: DaemonStatus, values: dict[str, dict[tuple[str, ...], float]]
) -> None:
    assert {name: samples(status, f"specwatch_{name}") for name in values} == values


RATES = ("drafts_per_second", "requests_per_second", "generation_tokens_per_second")
LENGTHS = ("position_acceptance_ratio", "accepted_length_drafts")
GUARD = ("guard_state", "guard_waiting", "guard_incident", "guard_actions_today")


@pytest.mark.parametrize(
    ("status", "names"),
    [
        pytest.param(
            UNREAD,
            ("target_up", "scrape_duration_seconds", "acceptance_ratio", "tap_up"),
            id="a target that was not scraped yet",
        ),
        pytest.param(
            UNKNOWN,
            (
                *RATES, "position_acceptance_ratio", "prompt_tokens_per_second",
                "preemptions_per_second", "running_requests", "running_requests_max",
                "waiting_requests", "kv_cache_usage_ratio", "prefix_cache_hit_ratio",
            ),
            id="what a server does not count",
        ),
        pytest.param(
            shown(msgspec.structs.replace(whole(), observed_seconds=0.0)),
            (*RATES, "prompt_tokens_per_second", "preemptions_per_second"),
            id="rates over no time",
        ),
        pytest.param(
            counted(accepted_per_position=(100, 75, 50, 0)),
            LENGTHS,
            id="positions that contradict the accepted tokens",
        ),
        pytest.param(
            counted(accepted_per_position=(100, 100, *([0] * 900))),
            LENGTHS,
            id="more positions than any drafter has",
        ),
        pytest.param(daemon(), ("guard_acts", *GUARD, "guard_actions_limit"), id="no guard"),
        pytest.param(guarded(), (*GUARD, "guard_actions_limit"), id="an unread guard"),
        pytest.param(
            daemon(target(models={"llama": Mode.UNKNOWN})),
            ("speculation_enabled",),
            id="an unknown mode",
        ),
    ],
)  # fmt: skip
def test_what_is_unknown_is_absent_and_not_zero(
    status: DaemonStatus, names: tuple[str, ...]
) -> None:
    assert not {name for name in names if samples(status, f"specwatch_{name}")}


PROXY = ProxyStatus("http://p")
DEAF_PROXY = ProxyStatus("http://p", Failure("timeout", "x", 1.0))


@pytest.mark.parametrize(
    ("tap", "up"),
    [
        (TapStatus(), 0),
        (TapStatus(Source.TAP), 1),
        (TapStatus(Source.PROXY, proxy=PROXY), 1),
        (TapStatus(Source.PROXY, proxy=DEAF_PROXY), 0),
        (TapStatus(Source.TAP, proxy=DEAF_PROXY), 1),
        (TapStatus(Source.TAP, (Trouble(COUNTS_TWICE, "twice", "llama"),)), 0),
        (TapStatus(Source.TAP, (Trouble(ACCEPTS_TOO_MUCH, "joined", "llama"),)), 0),
        (TapStatus(Source.TAP, (Trouble("derived_off", "off", "llama"),)), 1),
    ],
)
def test_a_tap_is_up_if_its_numbers_are_used(tap: TapStatus, up: int) -> None:
    assert samples(daemon(target(tap=tap)), "specwatch_tap_up") == {TARGET: up}


@pytest.mark.parametrize(("mode", "value"), [(Mode.ON, 1), (Mode.OFF, 0), (Mode.MIXED, 1)])
def test_speculation_is_one_or_zero(mode: Mode, value: int) -> None:
    status = daemon(target(models={"llama": mode}))
    assert samples(status, "specwatch_speculation_enabled") == {MODEL: value}


def test_a_quantile_beyond_the_last_bound_is_infinite_and_without_bounds_unknown() -> None:
    beyond = shown(minute(START, ttft=Histogram((0.1,), (1, 9), 99.0)))
    latency = samples(beyond, "specwatch_latency_seconds")
    assert latency["ttft", "llama", "0.99", "chat", "all"] == math.inf
    mean = shown(minute(START, ttft=Histogram((), (60,), 2.0)))
    assert {labels[0] for labels in samples(mean, "specwatch_latency_seconds")} == {"tpot"}


def test_labels_of_a_target_are_on_its_info_alone() -> None:
    labels = {"zone": "a", "app.kubernetes.io/name": "vllm", "target": "x"}
    status = daemon(target(labels=labels, configured_group="chat"), target("other"))
    families = text_format(page(status))
    first, second = next(
        [sample.labels for sample in family.samples]
        for family in families
        if family.name == "specwatch_target_info"
    )
    assert first == {
        "target": "chat", "url": "http://127.0.0.1:8000", "engine_version": "0.32.0",
        "group": "chat", "label_zone": "a", "label_app_kubernetes_io_name": "vllm",
        "label_target": "x",
    }  # fmt: skip
    assert second["group"] == "llama"
    assert not any(name.startswith("label_") for name in second)
    assert samples(status, "specwatch_target_up") == {("chat",): 1, ("other",): 1}


def test_a_long_version_is_cut() -> None:
    (labels,) = samples(daemon(target(engine_version="v" * 10_000)), "specwatch_target_info")
    assert len(labels[0]) == 200


def test_every_action_counts_from_zero_on() -> None:
    """A counter that begins at 1 has no increase."""
    status = guarded(actions=no_actions() | {("disable", "done"): 2})
    assert samples(status, "specwatch_actions_total") == {
        (action, result, "chat"): 2 if (action, result) == ("disable", "done") else 0
        for action, result in ACTIONS
    }


def test_the_api_leaves_out_actions_that_were_not_done() -> None:
    status = GuardStatus("act", actions=no_actions() | {("enable", "held"): 1})
    assert guard_view(status).actions == [ActionCount("enable", "held", 1)]


@pytest.mark.parametrize(
    ("phase", "waiting", "value"),
    [
        (Phase.CONFIRMED, "cooling down for 30m", 1),
        (Phase.CONFIRMED, "", 0),
        (Phase.DISABLED, "a trial is due; paused by ann", 0),
        (Phase.OBSERVING, "", 0),
    ],
)
def test_a_guard_waits_only_with_a_confirmed_breach(phase: Phase, waiting: str, value: int) -> None:
    status = guarded(GuardState("chat", phase, waiting=waiting))
    assert samples(status, "specwatch_guard_waiting") == {TARGET: value}


@pytest.mark.parametrize("cause", [None, *Cause])
def test_the_incident_has_one_cause_at_most(cause: Cause | None) -> None:
    incident = None if cause is None else Incident("i", cause, NOW)
    status = guarded(GuardState("chat", Phase.DISABLED, incident=incident))
    assert samples(status, "specwatch_guard_incident") == {
        (str(other), "chat"): int(other is cause) for other in Cause
    }


def test_a_segment_is_exported_by_kind_and_value() -> None:
    window = of_tap(1_699_999_980, "output=tool_call", drafts=100, of=200, server=300)
    timed = msgspec.structs.replace(window.tally, tpot=Histogram((), (40,), 0.8))
    status = daemon(target(segments=(msgspec.structs.replace(window, tally=timed),)))
    labels = ("llama", "output", "chat", "tool_call")
    for name, value in (("drafts_per_second", 100 / 60), ("mean_tpot_seconds", 0.02)):
        assert samples(status, f"specwatch_segment_{name}") == {labels: pytest.approx(value)}
    for at in samples(status, "specwatch_drafts_per_second"):
        assert "output=tool_call" not in at


def test_an_experiment_is_exported_by_arm_where_it_is_known() -> None:
    values = [
        samples(FULL, f"specwatch_experiment_{name}")
        for name in ("speedup_ratio", "speedup_ratio_lower", "speedup_ratio_upper", "episodes")
    ]
    assert values == [{("2", "chat"): 1.1}, {("2", "chat"): 1.05}, {("2", "chat"): 1.16},
                      {("chat",): 7}]  # fmt: skip


def test_an_experiment_is_exported_by_group_where_it_is_known() -> None:
    values = [
        samples(FULL, f"specwatch_experiment_group_speedup_ratio{end}")
        for end in ("", "_lower", "_upper")
    ]
    labels = ("2", "temperature >1", "chat")
    assert values == [{labels: 0.9}, {labels: 0.8}, {labels: 0.97}]


def test_of_many_groups_of_an_experiment_the_first_are_exported() -> None:
    speedup = Interval(1.1, 1.05, 1.16, 7)
    temperatures = {f"<{n}": GroupResults({"2": speedup}, 0.01) for n in range(40)}
    experiment = ExperimentStatus(arm="launch", groups={Grouping.TEMPERATURE: temperatures})
    exported = samples(
        daemon(target(experiment=experiment)), "specwatch_experiment_group_speedup_ratio"
    )
    assert [group for _, group, _ in exported] == [f"temperature <{n}" for n in range(12)]

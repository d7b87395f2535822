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
from specwatch.guard.status import ActionCount, GuardStatus, guard_view, no_actions
from specwatch.scrape.taps import ACCEPTS_TOO_MUCH, COUNTS_TWICE, Trouble
from specwatch.status import (
    DaemonStatus,
    Failure,
    ProxyStatus,
    StoreStatus,
    TapStatus,
)
from tests.web.exported import page, samples
from tests.web.statuses import NOW, daemon, minute, of_tap, target, whole

START = 1_699_999_980
SERIES, MODEL, TARGET = ("all", "llama", "chat", "all"), ("llama", "chat"), ("chat",)
COLD = ("temperature", *MODEL, "0")


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
    "generation_tokens": None,
    "prompt_tokens": None,
    "preemptions": None,
    "prefix_cache_queries": 0,
}
UNKNOWN = shown(
    msgspec.structs.replace(
        SILENT, tally=msgspec.structs.replace(SILENT.tally, **UNCOUNTED), gauges=Gauges()
    )
)


@pytest.mark.parametrize(
    ("status", "values"),
    [
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
                    ("all", "llama", str(position), "chat", "all"): ratio
                    for position, ratio in enumerate((1.0, 0.75, 0.25, 0.0))
                },
                "accepted_length_drafts": {
                    ("0", *SERIES): 0,
                    ("1", *SERIES): 25,
                    ("2", *SERIES): 50,
                    ("3", *SERIES): 25,
                    ("4", *SERIES): 0,
                },
            },
            id="the last minutes of a series",
        ),
        pytest.param(
            BOTH,
            {
                "drafts_per_second": {SERIES: pytest.approx(100 / 120), COLD: 0.5},
                "requests_per_second": {
                    SERIES: pytest.approx(9 / 120),
                    COLD: pytest.approx(9 / 120),
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
                "drafts_per_second": {SERIES: 0},
                "requests_per_second": {SERIES: 0},
                "position_acceptance_ratio": {},
                "acceptance_ratio": {},
            },
            id="an idle server has rates of zero, but no share of nothing",
        ),
        pytest.param(
            shown(minute(START), minute(START + 60, model_name="other")),
            {"last_window_timestamp_seconds": {TARGET: START + 120}},
            id="the newest minute is that of any series",
        ),
        pytest.param(
            daemon(store=StoreStatus("x", behind_since=NOW + 5)),
            {"store_behind_seconds": {(): 0}},
            id="the clock was set back after the store failed",
        ),
    ],
)
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
                *RATES,
                "position_acceptance_ratio",
                "prompt_tokens_per_second",
                "preemptions_per_second",
                "running_requests",
                "running_requests_max",
                "waiting_requests",
                "kv_cache_usage_ratio",
                "prefix_cache_hit_ratio",
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
)
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
    assert latency["all", "ttft", "llama", "0.99", "chat", "all"] == math.inf
    mean = shown(minute(START, ttft=Histogram((), (60,), 2.0)))
    assert {labels[1] for labels in samples(mean, "specwatch_latency_seconds")} == {"tpot"}


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
        "target": "chat",
        "url": "http://127.0.0.1:8000",
        "engine_version": "0.32.0",
        "group": "chat",
        "label_zone": "a",
        "label_app_kubernetes_io_name": "vllm",
        "label_target": "x",
        "workload": "",
    }
    assert second["group"] == "llama"
    assert not any(name.startswith("label_") for name in second)
    assert samples(status, "specwatch_target_up") == {("chat",): 1, ("other",): 1}


def test_a_workload_is_a_target_of_its_own_that_its_pods_point_to() -> None:
    """Its guard is exported once, under its name: pods come and go. Nothing scrapes it."""
    name = "serving/deployment/chat"
    guard = GuardStatus("act", GuardState(name, Phase.DISABLED))
    pods = [target(pod, guard=guard, workload=name) for pod in ("serving/a", "serving/b")]
    whole = target(name, guard=guard, pods=("serving/a", "serving/b"))
    status = daemon(*pods, whole)
    assert samples(status, "specwatch_guard_acts") == {(name,): 1}
    assert samples(status, "specwatch_workload_pods") == {(name,): 2}
    assert samples(status, "specwatch_target_up") == {("serving/a",): 1, ("serving/b",): 1}
    assert {labels[-1] for labels in samples(status, "specwatch_target_info")} == {name}
    assert ("llama", "serving/a") in samples(status, "specwatch_speculation_enabled")
    assert ("llama", name) in samples(status, "specwatch_speculation_enabled")
    (group,) = status.groups
    assert group.members == 2


def test_a_long_version_is_cut() -> None:
    (labels,) = samples(daemon(target(engine_version="v" * 10_000)), "specwatch_target_info")
    assert len(labels[0]) == 200


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


def test_of_many_groups_of_an_experiment_the_first_are_exported() -> None:
    speedup = Interval(1.1, 1.05, 1.16, 7)
    temperatures = {f"<{n}": GroupResults({"2": speedup}, 0.01) for n in range(40)}
    experiment = ExperimentStatus(arm="launch", groups={Grouping.TEMPERATURE: temperatures})
    exported = samples(
        daemon(target(experiment=experiment)), "specwatch_experiment_group_speedup_ratio"
    )
    assert [group for _, group, _ in exported] == [f"temperature <{n}" for n in range(12)]

"""The daemon's own metrics page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from specwatch.config.rules import Slo
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Histogram, Mode, Source
from specwatch.domain.ranks import Rank
from specwatch.domain.switchback import Grouping
from specwatch.domain.switchback_results import ExperimentStatus, GroupResults
from specwatch.errors import ScrapeReason
from specwatch.guard.state import GuardState, Phase
from specwatch.guard.status import GuardStatus, no_actions
from specwatch.rules.attribution import ChangeCause, Factor
from specwatch.rules.decisions import TargetDecision
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.switch import SwitchSetting
from specwatch.scrape.taps import Trouble
from specwatch.status import (
    DaemonStatus,
    DeliveryStatus,
    Failure,
    JudgingStatus,
    PagerStatus,
    ProxyStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
)
from specwatch.web import exporter, metric_subjects
from tests.plugins.golden import Golden
from tests.segments import segment
from tests.web.decided import SLO, decided
from tests.web.exported import page, samples
from tests.web.statuses import HOSTILE, NOW, daemon, minute, of_tap, target, whole

START = 1_699_999_980
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


PACE = Slo(name="pace", metric="tpot", threshold="15ms", objective="99%", window="1d")
LIKELY = ChangeCause(Factor.LOAD, -0.5, -0.6, 0.97, "running requests rose from 3.0 to 9.1")
APART = Rank("3", 9000, Interval(0.12, 0.11, 0.13, 60), None, stands_out=True)


def varying(decision: TargetDecision) -> TargetDecision:
    """The same of a model whose drafts vary in length, on a server with ranks."""
    model = replace(
        decision.models["llama"],
        draft_lengths=DraftLengths.SCHEDULE,
        ranks=(APART, APART._replace(rank="0", stands_out=False)),
    )
    return replace(decision, models={"llama": model})


SEGMENT = segment("output=text")


def _decided_by_segment() -> TargetDecision:
    """What is decided of all is decided of a segment, too."""
    decision = decided(slos=(SLO, PACE))
    model = decision.models["llama"]
    by_segment = {SEGMENT: model.assessment.segments[segment("0")]}
    return replace(
        decision,
        models={"llama": replace(model, assessment=replace(model.assessment, segments=by_segment))},
        findings=(
            *decision.findings,
            *(replace(one, segment=SEGMENT) for one in decision.findings),
        ),
        causes={("too-slow", "llama", where): LIKELY for where in (ALL, SEGMENT)},
    )


TIMED = msgspec.structs.replace(whole().tally, tpot=Histogram((), (40,), 0.8))
FULL = daemon(
    target(
        recent=(
            whole(),
            of_tap(START, "(0,0.3]", drafts=80, of=80, server=100),
            msgspec.structs.replace(
                of_tap(START, "output=text", drafts=80, of=80, server=100), tally=TIMED
            ),
        ),
        tap=TapStatus(
            Source.TAP,
            models={"llama": Coverage(Source.TAP, 80, 100, {"record": 5}, {"several": 2})},
        ),
        decision=varying(_decided_by_segment()),
        guard=GuardStatus(
            "act",
            GuardState(
                "chat", Phase.TRIAL, since=NOW - 60, actions=(NOW - 90_000, NOW - 60, NOW - 30)
            ),
            max_actions_per_day=4,
            actions=no_actions() | {("disable", "done"): 2},
        ),
        switch=SwitchSetting(2, ordered=True),
        experiment=ExperimentStatus(
            arm="0",
            episodes=7,
            best="2",
            speedups={"2": Interval(1.1, 1.05, 1.16, 7), "0": None},
            groups={
                Grouping.LOAD: {"3-4": GroupResults({"2": None, "0": None}, 1.0)},
                Grouping.TEMPERATURE: {
                    ">1": GroupResults({"2": Interval(0.9, 0.8, 0.97, 6), "0": None}, 0.4)
                },
            },
        ),
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
    target(
        "hung",
        engine_version=None,
        configured_group="chat",
        failure=Failure(ScrapeReason.TIMEOUT, "late", NOW),
        tap=TapStatus(
            Source.PROXY,
            (Trouble("low_coverage", "little", "llama"),),
            failures=3,
            models={"llama": Coverage(Source.PROXY, 80, 100, {"timings": 5}, {"several": 2})},
            proxy=ProxyStatus(
                "http://p", Failure(ScrapeReason.TIMEOUT, "late", NOW), {"timeout": 2}, 1
            ),
        ),
    ),
    target("serving/deployment/chat", pods=("chat", "guessed"), recent=()),
    target(HOSTILE, models={HOSTILE: Mode.OFF}, recent=(minute(START, model_name=HOSTILE),)),
    stuck=("hung",),
    store=StoreStatus(
        "x",
        written=1,
        queued=2,
        dropped=3,
        failures=4,
        damaged_files=("a.db.damaged-1", "a.db.damaged-2"),
        behind_since=NOW - 30,
    ),
    judging=JudgingStatus(defects=1, queued=2, dropped=3),
    pagers=(
        PagerStatus("http://127.0.0.1:9093", error="refused", failures={"refused": 1}),
        PagerStatus("http://127.0.0.1:9094"),
    ),
    deliveries=(DeliveryStatus("email", False, NOW - 60),),
    discovery=(
        SourceStatus("file_sd a.json", 1, NOW, {"malformed": 1}),
        SourceStatus(
            "dns SRV a.example", 3, NOW - 60, {"timeout": 2}, Failure("timeout", "-", NOW)
        ),
        SourceStatus("file_sd b.json"),
    ),
)
"""A status in which every family has samples."""


def test_every_metric_of_the_reference_has_samples_with_its_labels() -> None:
    """Dashboards and alert rules of users are written against these names."""
    exported: dict[str, set[str]] = defaultdict(set)
    for family in text_format(page(FULL)):
        for sample in family.samples:
            exported[sample.name] |= {f"`{name}`" for name in sample.labels}
    daemon_part = REFERENCE.read_text().partition("## From the tap")[0]
    rows = re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", daemon_part, re.MULTILINE)
    assert len(rows) > 70
    assert exported == {name: set(labels.split(", ")) - {""} for name, labels in rows}


def named() -> DaemonStatus:
    """The full status without the target that has a hostile name."""
    return replace(FULL, targets=tuple(one for one in FULL.targets if one.name != HOSTILE))


@pytest.mark.golden
def test_the_page_has_exactly_these_samples(golden: Golden) -> None:
    text = page(named())
    golden("web/metrics.prom", re.sub("^specwatch.* (.+)$", _rounded, text, flags=re.MULTILINE))


def _rounded(sample: re.Match[str]) -> str:
    series, _, value = sample[0].rpartition(" ")
    return f"{series} {float(value):.12g}"


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (of Prometheus) is missing")
def test_promtool_accepts_the_page() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page(FULL),
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("status", [FULL, daemon(targets=())])
def test_openmetrics_has_the_same_samples_for_a_strict_parser(status: DaemonStatus) -> None:
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


def test_resources_of_the_process_are_exported_if_requested(tmp_path: Path) -> None:
    """Under the names that every process has."""
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


def test_a_target_of_many_models_leaves_room_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metric_subjects, "MOST_SERIES", 400)
    names = [f"model-{number}" for number in range(1000)]
    crowd = target(
        "crowd",
        models=dict.fromkeys(names, Mode.ON),
        recent=tuple(minute(START, target="crowd", model_name=name) for name in names),
    )
    status = daemon(crowd, target())
    share = 200
    rates = samples(status, "specwatch_acceptance_ratio")
    assert len(rates) == share + 1
    assert ("all", "llama", "chat", "all") in rates
    assert len(samples(status, "specwatch_speculation_enabled")) == share + 1
    for name in ("running_requests", "drafts_per_second"):
        assert len(samples(status, f"specwatch_{name}")) == share + 1
    left_out = samples(status, "specwatch_series_left_out")
    assert left_out == {("crowd",): 2 * (1000 - share), ("chat",): 0}


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
    assert all(len(labels[1]) == 200 for labels in rates)
    enabled = samples(status, "specwatch_speculation_enabled")
    assert {labels[0] for labels in enabled} == {labels[1] for labels in rates}


def test_each_of_many_targets_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small its share of all series would be."""
    monkeypatch.setattr(metric_subjects, "MOST_SERIES", 24)
    buckets = ("all", "0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")
    fleet = [
        target(
            f"t{number}",
            recent=tuple(minute(START, target=f"t{number}", temperature=b) for b in buckets),
        )
        for number in range(12)
    ]
    assert len(samples(daemon(*fleet), "specwatch_acceptance_ratio")) == 12 * len(buckets)

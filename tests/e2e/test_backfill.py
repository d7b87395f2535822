"""A backfill from a real Prometheus, against a daemon that watched the same real vLLM.

Prometheus and the daemon scrape a vLLM with the tap every second, each in its own phase. So
what they count of a span of minutes is equal where nothing happens at its edges. That a killed
backfill goes on without a gap is seen at a Prometheus with a longer history, which is written into
its blocks.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specwatch.domain.model import HOUR, MINUTE, Window
from tests.backfill.test_service import page
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.conftest import StartVllm, unavailable
from tests.e2e.monitoring import RunningPrometheus
from tests.e2e.processes import DaemonProcess, Specwatch, specwatch, windows_of
from tests.e2e.tap_traffic import covered, with_usage
from tests.e2e.waiting import eventually, next_minute, sleep_until
from tests.e2e.witness import Counts, stored
from tests.lab.traffic import Request
from tests.simulated_prometheus import Recording

TARGET, MODEL = "tiny", "tiny"
AT_ONCE = 4
IDLE_SECONDS = 5
"""From an edge to the traffic: no scrape is so late."""
HOURS = 12
EVERY = 30
"""Seconds between scrapes of the history that is written."""

Rows = dict[tuple[int, str, str], Window]
"""Windows by start, model and temperature."""


@dataclass
class Records:
    """Two records of the same, and from when to when they can be compared."""

    begun: int
    ended: int
    live: Rows
    filled: Rows
    again: Rows
    reports: list[dict[str, Any]]


def rows(windows: Sequence[Window]) -> Rows:
    found = {(w.start, w.series.model_name, w.series.segment.value): w for w in windows}
    assert len(found) == len(windows), "a window is there twice"
    return found


def backfilled(prometheus: str, database: str, *more: str) -> dict[str, Any]:
    done = specwatch(
        "backfill", "--prometheus", prometheus, "--database", database, "--json", *more
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_every_kind(user: int) -> Iterator[Request]:
    for number in itertools.count(user, AT_ONCE):
        yield from with_usage(covered(1, number, max_tokens=16))


@pytest.fixture(scope="module")
def records(
    start_vllm: StartVllm, tap: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Records:
    """Two minutes, with traffic over the edge between them."""
    folder = tmp_path_factory.mktemp("backfill")
    databases = [f"sqlite:///{folder}/{name}.db" for name in ("live", "filled")]
    with ExitStack() as stack:
        server = stack.enter_context(start_vllm(*tap, speculation="draft-good"))
        watched = {"name": TARGET, "url": server.url, "interval": "1s"}
        daemon = stack.enter_context(
            DaemonProcess.configured(
                folder / "live", databases[0], {"daemon": "live", "targets": [watched]}
            )
        )
        prometheus = stack.enter_context(
            RunningPrometheus(folder / "prometheus", {"vllm": [server.url]})
        )
        daemon.wait_scraped(time.time())
        eventually(
            lambda: prometheus.query("vllm:num_requests_running"),
            what="Prometheus scrapes vLLM",
            within=60,
        )
        begun = next_minute(time.time())
        ended = begun + 2 * MINUTE
        sleep_until(begun + IDLE_SECONDS)
        with Clients(server.url, AT_ONCE, of_every_kind, pause=0.2) as clients:
            sleep_until(begun + MINUTE + 25)
        assert clients.errors() == []
        settled(server.metrics, [daemon])
        assert time.time() < ended - IDLE_SECONDS, "the machine is too slow for this test"
        sleep_until(ended)
        daemon.wait_written(ended)
        span = ("--since", str(begun), "--until", str(ended), "--target", TARGET)
        reports = [backfilled(prometheus.url, databases[1], *span)]
        filled = rows(windows_of(databases[1]))
        reports.append(backfilled(prometheus.url, databases[1], *span))
        again = rows(windows_of(databases[1]))
        daemon.stop()
        # Into the daemon's own database; while it runs the last 15 minutes are left alone.
        reports.append(backfilled(prometheus.url, databases[0], *span, "--dry-run"))
        live = rows(daemon.windows())
    return Records(begun, ended, live, filled, again, reports)


def of_span(found: Rows, temperature: str, since: int, until: int) -> Counts:
    return stored(
        w for (start, _, t), w in found.items() if since <= start < until and t == temperature
    )


def test_counts_between_idle_edges_equal_those_of_the_daemon(records: Records) -> None:
    """Of every counter and every bucket of every histogram, at every temperature: exactly."""
    temperatures = {t for (start, _, t) in records.live if records.begun <= start < records.ended}
    assert temperatures > {"all", "0", ">1"}
    for temperature in temperatures:
        live = of_span(records.live, temperature, records.begun, records.ended)
        assert of_span(records.filled, temperature, records.begun, records.ended) == live
        assert sum(live.values()) > 0


def test_counts_at_an_edge_in_traffic_differ_by_one_scrape(records: Records) -> None:
    """One minute, with an edge in traffic: scrapes are a second apart, of sixty, and some late."""
    edge = records.begun + MINUTE
    live, filled = (
        of_span(found, "all", records.begun, edge) for found in (records.live, records.filled)
    )
    for name in ("drafts", "generation_tokens", "accepted_tokens"):
        assert filled[name] == pytest.approx(live[name], rel=0.25)


def test_windows_agree_in_everything_else(records: Records) -> None:
    for start in range(records.begun, records.ended, MINUTE):
        live, filled = (found[start, MODEL, "all"] for found in (records.live, records.filled))
        assert (filled.mode, filled.source, filled.restarts) == (live.mode, live.source, 0)
        assert filled.environment.fingerprint == live.environment.fingerprint
        # Who is late on a busy machine leaves a scrape out, or has it fail.
        assert filled.scrapes_ok == pytest.approx(live.scrapes_ok, abs=MINUTE / 3)
        assert filled.observed_seconds == pytest.approx(MINUTE, abs=10)
        # Requests of half a second, looked at once a second at other moments.
        assert filled.gauges.running_mean == pytest.approx(
            live.gauges.running_mean, abs=AT_ONCE / 3
        )
        assert 0 < filled.gauges.running_max <= AT_ONCE


def test_a_second_backfill_adds_nothing(records: Records) -> None:
    first, second, _ = (report["targets"][0] for report in records.reports)
    assert records.again == records.filled
    assert first["minutes_written"] >= 2
    assert (second["minutes_written"], second["minutes_kept"]) == (0, first["minutes_written"])


def test_minutes_that_a_daemon_has_are_not_written(records: Records) -> None:
    """What a daemon watched is in the store, under any name of the one that fills it in."""
    *_, beside = records.reports
    assert [target["minutes_written"] for target in beside["targets"]] == [0], beside


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, int]]:
    """A real Prometheus with twelve hours of two models in its blocks: URL, beginning and end."""
    folder = tmp_path_factory.mktemp("history")
    prometheus = RunningPrometheus(folder, {})
    end = int(time.time() // HOUR) * HOUR - HOUR
    since = end - HOURS * HOUR
    recording = Recording()
    for number, at in enumerate(range(since + 5, end, EVERY)):
        text = page(number % 500, process=number // 500)
        recording.scrape(text, at, instance="gpu-1:8000", job="vllm")
    written = folder / "history.om"
    written.write_text("\n".join([*exposition(recording), "# EOF", ""]))
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", written, folder / "data"],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        unavailable(f"promtool wrote no blocks: {made.stderr}")
    with prometheus:
        yield prometheus.url, since, end


def exposition(recording: Recording) -> Iterator[str]:
    """The samples of each name together, as OpenMetrics wants them."""
    by_name = sorted(recording.series.items(), key=lambda item: dict(item[0])["__name__"])
    for key, points in by_name:
        labels = {name: value for name, value in key if name != "__name__"}
        text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
        for at, value in points:
            yield f"{dict(key)['__name__']}{{{text}}} {value!r} {at}"


def test_killed_in_the_middle_it_goes_on_without_a_gap_or_a_double(
    history: tuple[str, int, int], tmp_path: Path
) -> None:
    """In the end the database is the one that an undisturbed backfill writes."""
    url, since, end = history
    whole, killed = (f"sqlite:///{tmp_path}/{name}.db" for name in ("whole", "killed"))
    span = ("--since", str(since), "--until", str(end))
    (target,) = backfilled(url, whole, *span)["targets"]
    assert target["minutes_written"] == HOURS * 60
    expected = rows(windows_of(whole))
    assert {start for start, *_ in expected} == set(range(since, end, MINUTE))
    arguments = ("backfill", "--prometheus", url, "--database", killed, *span)
    with Specwatch(tmp_path / "log", *arguments):
        eventually(
            lambda: hours_in(killed) >= HOURS // 4,
            what="a quarter of the hours is written",
            within=120,
            every=0.01,
        )
    hours = hours_in(killed)
    assert HOURS // 4 <= hours < HOURS
    found = rows(windows_of(killed))
    assert found == {key: expected[key] for key in found}
    assert {start for start, *_ in found} == set(range(since, since + hours * HOUR, MINUTE))
    (target,) = backfilled(url, killed, *span)["targets"]
    assert rows(windows_of(killed)) == expected
    assert target["skipped_hours"] == hours
    assert target["minutes_written"] + target["minutes_kept"] == HOURS * 60
    assert hours_of(killed) == hours_of(whole)


def hours_in(database: str) -> int:
    """How many hours have minutes: by the database itself, as a reader takes as long as an hour
    takes to be written."""
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30)) as connection:
        try:
            (count,) = connection.execute(
                "SELECT COUNT(DISTINCT start / ?) FROM minutes", (HOUR,)
            ).fetchone()
        except sqlite3.OperationalError:
            return 0  # its tables are being made
    return int(count)


def hours_of(database: str) -> dict[Any, Any]:
    windows = windows_of(database, length=HOUR)
    return {
        (w.start, w.series.model_name, w.series.segment.value, w.load_bin, w.mode): stored([w])
        for w in windows
    }

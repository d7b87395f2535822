"""The daemon and the tap of a real vLLM, and a proxy's: windows by temperature, and coverage.

One server in two lives: with the tap, and restarted without it, a proxy before it. The first daemon
watches both and knows no proxy; the second watches the second life, with the proxy.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specwatch.domain.model import ALL, Source, Window
from tests.e2e.api import settled
from tests.e2e.conftest import StartVllm
from tests.e2e.processes import DaemonProcess, TapProxy, specwatch
from tests.e2e.tap_page import (
    ACCEPTANCE,
    BUCKETS,
    Buckets,
    at_rest,
    chosen,
    everywhere,
    in_windows,
    of_records,
    tapped,
)
from tests.e2e.tap_traffic import covered, refused, several, with_usage
from tests.e2e.waiting import next_minute, sleep_until
from tests.e2e.witness import Counts, stored, total
from tests.lab.traffic import Outcome, send_all
from tests.lab.vllm_server import VllmServer

CONCURRENCY = 8


@dataclass
class Phase:
    """One phase of traffic, and what everybody said after it."""

    outcomes: list[Outcome] = field(default_factory=list)
    server: Counts = field(default_factory=dict)
    tap: Buckets = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    """Of the one target, by the daemon that knows the tap."""


@dataclass
class Story:
    """What happened."""

    covered_page: dict[str, Any]
    """The model on the page after nothing but requests that can be covered."""
    mixed: Phase
    mixed_page: dict[str, Any]
    proxied: Phase
    shown: str
    """What ``specwatch status`` prints."""
    page: str
    """The first daemon's own metrics."""
    without: dict[str, Any]
    """The target in the second life, by the daemon that knows no proxy."""
    windows: list[Window]
    proxy_windows: list[Window]


def watching(folder: Path, server: VllmServer, **more: str) -> DaemonProcess:
    target = {"name": "tiny", "url": server.url, "interval": "1s", **more}
    database = f"sqlite:///{folder}/specwatch.db"
    return DaemonProcess.configured(folder, database, {"targets": [target]})


def target_of(daemon: DaemonProcess) -> dict[str, Any]:
    (target,) = daemon.status()["targets"]
    assert isinstance(target, dict)
    return target


def after(
    server: VllmServer, daemon: DaemonProcess, outcomes: list[Outcome], proxied: TapProxy | None
) -> Phase:
    """What is seen once all have caught up and the minute is whole."""
    tap = tapped(at_rest((proxied or server).metrics))
    counts = settled(server.metrics, [daemon])
    minute = next_minute(time.time())
    sleep_until(minute)
    daemon.wait_written(minute)
    return Phase(outcomes, counts, tap, target_of(daemon))


def scraped(server: VllmServer) -> dict[str, Any]:
    """The one model of a page, as ``specwatch scrape`` sees it."""
    ran = specwatch("scrape", server.url, "--json")
    assert ran.returncode == 0, ran.stderr
    (model,) = json.loads(ran.stdout)["models"]
    assert isinstance(model, dict)
    return model


@pytest.fixture(scope="module")
def story(
    start_vllm: StartVllm, tap: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Story:
    folder = tmp_path_factory.mktemp("tap")
    with ExitStack() as stack:
        server = stack.enter_context(start_vllm(*tap, speculation="draft-good", k=4))
        daemon = stack.enter_context(watching(folder / "first", server))
        daemon.wait_scraped(0)
        outcomes = send_all(server.url, with_usage(covered(224)), CONCURRENCY)
        at_rest(server.metrics)
        covered_page = scraped(server)
        send_all(server.url, several(28) + refused(14), CONCURRENCY)
        mixed = after(server, daemon, outcomes, None)
        mixed_page = scraped(server)
        shown = specwatch("status", "--url", daemon.url)
        page = daemon.metrics()
        server.restart(speculation="draft-good", k=4)
        proxy = TapProxy(folder / "proxy.log", server.url, "--default-temperature", "1")
        stack.enter_context(proxy)
        proxy.wait_ready()
        second = stack.enter_context(watching(folder / "second", server, proxy=proxy.url))
        second.wait_scraped(0)
        outcomes = send_all(proxy.url, with_usage(covered(112)), CONCURRENCY)
        proxied = after(server, second, outcomes, proxy)
        settled(server.metrics, [daemon])
        without = target_of(daemon)
        daemon.stop()
        second.stop()
        return Story(
            covered_page,
            mixed,
            mixed_page,
            proxied,
            shown.stdout,
            page,
            without,
            daemon.windows(),
            second.windows(),
        )


def of_all(windows: list[Window]) -> list[Window]:
    return [window for window in windows if window.series.segment == ALL]


def test_windows_by_temperature_hold_what_the_tap_counted(story: Story) -> None:
    """Acceptance, requests, records, what is not covered and every histogram, in every bucket."""
    assert set(story.mixed.tap) >= set(BUCKETS)
    assert in_windows(story.windows) == {
        bucket: counts for bucket, counts in story.mixed.tap.items() if bucket
    }
    parts = [w for w in story.windows if w.series.segment != ALL]
    assert {window.source for window in parts} == {Source.TAP}


def test_windows_by_temperature_hold_the_clients_records(story: Story) -> None:
    assert chosen(in_windows(story.windows), *ACCEPTANCE) == of_records(story.mixed.outcomes)


def test_windows_of_all_temperatures_hold_what_vllm_counted(story: Story) -> None:
    """In both lives: that there is a tap, and then none, takes nothing away from them."""
    assert stored(of_all(story.windows)) == total([story.mixed.server, story.proxied.server])


def test_coverage_is_one_where_everything_is_covered(story: Story) -> None:
    tap, drafts = story.covered_page["tap"], story.covered_page["drafts"]
    assert (tap["coverage"], tap["drafts"], tap["uncovered"]) == (1.0, drafts, {})
    assert tap["records"] == {"record": len(story.mixed.outcomes)}


def test_coverage_is_the_share_of_the_servers_drafts(story: Story) -> None:
    seen = story.mixed.status["tap"]["models"]["tiny"]
    drafts = everywhere(story.mixed.tap)["drafts"]
    assert (seen["drafts"], seen["server_drafts"]) == (drafts, story.mixed.server["drafts"])
    assert seen["coverage"] == pytest.approx(drafts / story.mixed.server["drafts"])
    assert 0.5 < seen["coverage"] < 1
    assert seen["uncovered"] == {"several": 28, "refused": 14}


def test_windows_say_what_the_source_saw_of_the_servers_drafts(story: Story) -> None:
    parts = [w for w in story.windows if w.series.segment != ALL]
    minutes = {w.start: w for w in of_all(story.windows)}
    for window in parts:
        assert window.server_drafts == minutes[window.start].tally.drafts
        same = [w.tally.drafts or 0 for w in parts if w.start == window.start]
        assert window.source_drafts == sum(same)


def test_status_and_scrape_show_the_buckets(story: Story) -> None:
    model = story.mixed_page
    buckets = {shown["segment"]["value"]: shown for shown in model["segments"]}
    for bucket in BUCKETS:
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            assert buckets[bucket][name] == story.mixed.tap[bucket][name]
        assert bucket in story.shown
    drafts = everywhere(story.mixed.tap)["drafts"]
    assert model["tap"]["drafts"] == drafts
    assert model["tap"]["coverage"] == pytest.approx(drafts / story.mixed.server["drafts"])


def test_the_exporter_shows_the_buckets(story: Story) -> None:
    for bucket in BUCKETS:
        of = story.mixed.tap[bucket]
        rate = of["accepted_tokens"] / of["draft_tokens"]
        shown = exported(story.page, "specwatch_acceptance_ratio", f'value="{bucket}"')
        assert shown == pytest.approx(rate)
    coverage = exported(story.page, "specwatch_coverage_ratio", 'source="tap"')
    assert coverage == story.mixed.status["tap"]["models"]["tiny"]["coverage"]
    assert exported(story.page, "specwatch_tap_up", 'target="tiny"') == 1


def exported(page: str, name: str, label: str) -> float:
    (line,) = [li for li in page.splitlines() if li.startswith(name + "{") and label in li]
    return float(line.rpartition(" ")[2])


def test_a_missing_tap_is_reported(story: Story) -> None:
    tap = story.without["tap"]
    assert tap["source"] is None
    assert len(tap["trouble"]) == 1
    assert "specwatch tap flags" in tap["trouble"][0]["text"]
    last = max(window.start for window in story.windows)
    assert everywhere(in_windows(w for w in story.windows if w.start == last)).keys() <= set(
        everywhere(story.mixed.tap)
    )


def test_a_proxys_windows_hold_what_it_counted(story: Story) -> None:
    parts = [w for w in story.proxy_windows if w.series.segment != ALL]
    assert {window.source for window in parts} == {Source.PROXY}
    assert in_windows(parts) == {b: counts for b, counts in story.proxied.tap.items() if b}
    assert chosen(in_windows(parts), *ACCEPTANCE) == of_records(story.proxied.outcomes)
    assert stored(of_all(story.proxy_windows)) == story.proxied.server


def test_a_proxy_covers_all_that_went_through_it(story: Story) -> None:
    tap = story.proxied.status["tap"]
    assert (tap["source"], tap["trouble"]) == ("proxy", [])
    assert tap["models"]["tiny"]["coverage"] == 1.0

"""The status page at ``/``: what it tells, that it is safe, and that it costs little."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from specwatch.domain.model import Histogram, Mode, Source, Window
from specwatch.errors import ScrapeReason, StoreUnavailable
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.pages.status_table import Selection
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.taps import Trouble
from specwatch.status import (
    DaemonStatus,
    DeliveryStatus,
    Failure,
    JudgingStatus,
    PagerStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
)
from specwatch.store.guard_records import StepRecord
from specwatch.web import status_route
from tests.report import page, sample
from tests.report.page import Element
from tests.web.decided import UNLIKE, change, decided, unlike
from tests.web.statuses import (
    FLEET,
    NOW,
    Surface,
    daemon,
    minute,
    of_tap,
    serving,
    target,
)

START = 1_699_999_980
STOPPED: dict[str, Any] = {
    "models": {"llama": Mode.STOPPED}, "stops": {"llama": EngineStop(NOW - 780, False, 0.1, 2000)},
}  # fmt: skip
HTML = "<script>alert(1)</script>\n\"'><img src=x onerror=alert(1)>\u202e😀&amp;"


@pytest.fixture(scope="module")
def server() -> Iterator[Surface]:
    """One that makes every page anew."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            for name in ("_STATUS_SECONDS", "_PAGE_SECONDS", "_HISTORY_SECONDS"):
                patched.setattr(status_route, name, -1.0)
            result = stack.enter_context(serving())
        yield result


@pytest.fixture
def surface(server: Surface) -> Surface:
    """As at first, whatever the test before did."""
    server.status = daemon()
    server.windows = lambda **_: iter(())
    server.verdicts = server.steps = lambda **_: []
    return server


def read(surface: Surface, path: str = "/", status: int = 200) -> Element:
    answer = surface.get(path)
    assert answer.status == status
    return page.read(answer.body.decode())


def hour(**selection: Any) -> Iterator[Window]:
    """Minutes of a tap's two temperatures and of all, which accept half."""
    for number in range(30):
        start = START - 60 * (29 - number)
        whole = {"target": selection["target"], "model_name": selection.get("model_name", "llama")}
        yield minute(start, **whole)
        for label, drafts in (("0", 60), ("(0.7,1]", 30)):
            yield of_tap(start, label, drafts=drafts, of=90, server=100, **whole)


def with_all(surface: Surface) -> None:
    """A measured target with a history, a guard and decisions."""
    state = GuardState("chat", phase=Phase.DISABLED, since=NOW - 3600, goal=Mode.OFF,
                       rearm_at=NOW + 7200, incident=Incident("i-1", Cause.RULE, 0))  # fmt: skip
    guarded = GuardStatus("act", state, ours=True)
    surface.status = daemon(target(decision=decided(), guard=guarded))
    surface.windows = hour
    surface.verdicts = lambda **_: [change()]
    surface.steps = lambda **_: [
        StepRecord("chat", 3, NOW - 30, "left", "i-1", "suspect", "confirmed", "it lasts", {})
    ]


def test_the_answer_comes_first_and_says_what_it_rests_on(surface: Surface) -> None:
    with_all(surface)
    root = read(surface)
    answer = (
        "Speculation pays: speedup 2.00 (1.95 to 2.05) per token over the last hour, measured"
        " against a baseline 12 min old."
    )
    assert answer in root.words
    assert root.words.index(answer) < root.words.index("By temperature")
    assert root.count("h1") == 1
    assert "Break-even at 3-4 running: 12.5% acceptance" in root.words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decision": decided(measured=False)}, "not measured: speedup about 2.1, assumed"),
        (
            {"decision": unlike()},
            f"is not measured: the speedup is not known yet: {UNLIKE}; run specwatch calibrate.",
        ),
        (
            {"decision": unlike(since=NOW - 900)},
            f"is not measured: the speedup is not known now: {UNLIKE};"
            " run specwatch calibrate; until 2023-11-14 21:59 UTC it was 2.00 (1.95 to 2.05)",
        ),
        ({"models": {"llama": Mode.OFF}, "decision": decided()}, "Speculation is off."),
        ({}, "Nothing was generated with speculation in the last hour"),
        ({"models": {"llama": Mode.UNKNOWN}}, "It is not known whether the server speculates."),
        ({"models": {"llama": Mode.UNKNOWN}}, "speculation is unknown for 1 model"),
        (STOPPED, "Speculation is switched off by the engine since 2023-11-14 22:01 UTC (inferred"),
        (STOPPED, "speculation is switched off by the engine for 1 model"),
        (STOPPED, "Speculation of chat is switched off by the engine since"),
        ({"last_success": None, "recent": (), "models": {}}, "Speculation is not known yet for"),
    ],
)
def test_it_says_plainly_what_is_not_known(
    surface: Surface, changes: dict[str, Any], words: str
) -> None:
    surface.status = daemon(target(**changes))
    assert words in read(surface).words


def test_temperatures_come_with_their_numbers_and_a_small_chart(surface: Surface) -> None:
    with_all(surface)
    root = read(surface)
    # Share of drafts; of 1 in 5 requests at most half was accepted: P10 lies there.
    assert "(0.7,1] Acceptance at (0.7,1] by the minute: 50.0% to 50.0%, last 50.0%" in root.words
    assert "50.0% 33% 25 / 69 / 94 270" in root.words
    assert root.count("svg") == 3
    assert "covers 90.0% of drafts; not covered: 120 requests (more than one" in root.words
    assert "last 30 min" in root.words


def test_latency_stands_beside_that_without_speculation(surface: Surface) -> None:
    with_all(surface)
    text = read(surface).words
    assert "TPOT mean 10.0 ms 20.0 ms 50% faster" in text
    assert "TPOT P50 up to 10 ms 10 to 30 ms -" in text
    surface.status = daemon(target("b", decision=decided(measured=False)))
    text = read(surface, "/?target=b").words
    assert "is not known yet" in text
    assert "TPOT P50 up to 10 ms" in text


def test_rules_objectives_guard_and_decisions_are_explained(surface: Surface) -> None:
    with_all(surface)
    text = read(surface).words
    assert "breach too-slow: speedup_ratio 2 (1.75 to 2.27), below 2.5, for" in text
    assert "pending soon: acceptance_ratio 0.5, below 0.9" in text
    assert "Rules: 1 in breach, 1 pass, 2 without data." in text
    assert "Objective first-token: overspent the error budget spent 50 times over" in text
    assert "Goodput: 0.83 of 1.67 requests/s met all objectives in the 18 min watched" in text
    assert "Guard: disabled for 60 min, a trial in 2 h." in text
    newest, older = text.index("guard: confirmed it lasts [i-1]"), text.index("in breach too-slow")
    assert newest < older


def test_a_measured_model_without_bins_has_a_break_even_that_is_not_known(
    surface: Surface,
) -> None:
    """As there is right after a calibration."""
    result = decided()
    known = result.models["llama"]
    known = replace(known, assessment=replace(known.assessment, bins=()))
    surface.status = daemon(target(decision=replace(result, models={"llama": known})))
    assert "Break-even not known, now 50.0%." in read(surface).words


@pytest.mark.parametrize("broken", ["model", "target"])
def test_one_target_or_model_that_cannot_be_shown_takes_down_nothing(
    surface: Surface, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    sound = decided()
    both = replace(sound, models={**sound.models, "other": replace(sound.models["llama"])})
    odd = replace(both.models["other"], assessment=None)  # type: ignore[arg-type]
    if broken == "model":
        bad = target(
            "bad", models={"llama": Mode.ON, "other": Mode.ON},
            decision=replace(both, models={**both.models, "other": odd}),
        )  # fmt: skip
    else:
        bad = target("bad", guard=object())
    reported: list[str] = []
    surface.status = daemon(
        target("good", decision=sound), bad, not_shown=lambda name, _: reported.append(name)
    )
    text = read(surface).words
    assert "Speculation pays: speedup 2.00" in text
    assert "It cannot be shown, for a defect of specwatch: see its log." in text
    assert set(reported) == {"bad"}
    known = surface.get("/api/v1/targets").json["targets"]
    assert [item["name"] for item in known] == ["good", "bad"]
    assert [entry["not_shown"] for entry in known] == [[], ["other" if broken == "model" else ""]]
    assert known[0]["decision"]["models"]["llama"]["speedup"]["basis"] == "measured"
    if broken == "model":
        assert set(known[1]["decision"]["models"]) == {"llama"}
        assert text.count("Speculation pays: speedup 2.00") == 2, "the other model is shown"


def test_what_is_wrong_is_told_at_the_top_and_with_its_target(surface: Surface) -> None:
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 600)
    surface.status = daemon(
        target("good"),
        target("down", failure=failure, failures={ScrapeReason.REFUSED: 300}),
        target("odd", tap=TapStatus(trouble=(Trouble("x", "it counts twice", "llama"),))),
        stuck=("odd",),
        store=StoreStatus(
            "SQLite",
            error="disk full",
            behind_since=NOW - 300,
            queued=7,
            damaged=2,
            last_damaged="minutes (start=60): no msgpack",
        ),
        judging=JudgingStatus(defects=2),
        pagers=(PagerStatus("http://a:9093", failing_since=NOW - 60, error="no route"),),
        discovery=(
            SourceStatus("dns A a.example:1", 3, failure=Failure("timeout", "no answer", NOW - 60)),
            SourceStatus("file_sd b.json", 2, NOW - 5, refused=("'a/b' is not an address",)),
            SourceStatus("file_sd c.json", 1, NOW - 5),
        ),
        deliveries=(
            DeliveryStatus("mail", undelivered=True, error="it was refused"),
            DeliveryStatus("webhook", undelivered=False, last_delivery=NOW - 60),
        ),
    )
    text = read(surface).words
    top = text[: text.index("All targets, problem first")]
    for words in ("down cannot be read since 22:04 UTC (10 min): nothing listens.",
                  "odd is stuck: no scrape ended", "disk full", "2 failures of",
                 "2 stored rows damaged and left out, the last minutes (start=60): no msgpack;",
                 "Report by mail: not delivered: it was refused",
                 "Discovery by dns A a.example:1: failing for 60 s, 3 targets kept: no answer",
                 "2 targets, read 5 s ago; listed, and not watched: 'a/b' is not an address",
                 "Alertmanager http://a:9093: failing for 60 s: no route"):  # fmt: skip
        assert words in top
    assert text.index(" odd ", len(top)) < text.index(" good ", len(top))
    assert "failing for 10 min: nothing listens" in text
    assert "300 refused" in text
    assert "Report by webhook: delivered 60 s ago" in text
    assert "Discovery by file_sd c.json: 1 target, read 5 s ago" in text
    assert "tap of llama: it counts twice" in text


def dead(name: str = "chat", **changes: Any) -> Any:
    """A target that was read last 10 minutes ago, when it was busy and speculation paid."""
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 595)
    known = {"failure": failure, "last_success": NOW - 600, "load": 8, "decision": decided()}
    return target(name, **{**known, **changes})


@pytest.mark.parametrize("stuck", [False, True])
def test_a_target_that_cannot_be_read_does_not_look_alive(surface: Surface, stuck: bool) -> None:
    """Nor does one whose loop is stuck: what is known of either is of before."""
    alone = dead(failure=None) if stuck else dead()
    surface.status = daemon(alone, stuck=("chat",) if stuck else ())
    surface.windows = hour
    text = read(surface).words
    assert "Watching 1 target: 1 is not read." in text
    assert text.count("not read for 10 min") == 2
    row = text[text.index("chat llama not read") : text.index("By temperature")]
    assert " - - not measured - - - - none" in row
    assert "speculation loses" not in text
    for stale in ("pays:", "speculation on", "1.5 running", "running or waiting", "Break-even at"):
        assert stale not in text
    assert "; of before the target could not be read." in text
    assert "50.0% 33% 25 / 69 / 94 270" in text
    assert "2.00" not in text


def test_what_is_not_read_is_not_counted_as_on(surface: Surface) -> None:
    surface.status = daemon(target("a"), dead("b"), target("c", last_success=None), target("d"))
    assert "Watching 4 targets: speculation is on for 2 models; 2 are not read." in read(
        surface
    ).words  # fmt: skip


def test_temperatures_seen_of_a_dead_target_are_not_of_now(surface: Surface) -> None:
    seen = TapStatus(source=Source.TAP, models={"llama": Coverage(Source.TAP, 90, 100, {}, {})})
    surface.status = daemon(target(tap=seen))
    assert "90.0%" in read(surface).words
    surface.status = daemon(dead(tap=seen))
    assert "90.0%" not in read(surface).words


@pytest.mark.parametrize("models", [{}, {"llama": Mode.ON}])
def test_a_target_that_was_never_read_is_not_one_without_traffic(
    surface: Surface, models: dict[str, Mode]
) -> None:
    surface.status = daemon(target(last_success=None, recent=(), models=models))
    text = read(surface).words
    assert "Speculation is not known yet for 1 model" in text
    assert "no traffic" not in text


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        ((0, 1, 2), "By temperature, last 3 min with speculation. "),
        ((0, 1, 10, 29), "By temperature, 4 min with speculation within 30 min. "),
        ((28, 29), "By temperature, 2 min with speculation, which ended 29 min ago. "),
        ((20, 29), "By temperature, 2 min with speculation within 10 min, which ended 21 min ago."),
    ],
)
def test_it_says_over_how_many_minutes_its_figures_are(
    surface: Surface, minutes: tuple[int, ...], words: str
) -> None:
    """The minutes that there were, and when they ended if that was not just now."""
    surface.windows = lambda **_: (minute(START - 60 * (1 + ago)) for ago in minutes)
    assert words in read(surface).words


def test_the_table_of_temperatures_says_who_counted_what(surface: Surface) -> None:
    with_all(surface)
    text = read(surface).words
    assert (
        "Row all is counted by the engine, but per request the others together; its latencies lie"
        " in the engine's buckets, which are coarser. Rows of temperatures are counted by the tap."
    ) in text
    # Per request the row of all temperatures is the sum of the others.
    assert "last 50.0% 50.0% 100% 25 / 69 / 94 270" in text
    surface.windows = lambda **_: iter([minute(START)])
    assert "Counted by the engine." in read(surface).words


def test_without_targets_it_says_so(surface: Surface) -> None:
    surface.status = daemon()
    surface.status = DaemonStatus(**{**_fields(surface.status), "targets": ()})
    assert "No target is watched" in read(surface).words


def test_the_members_of_a_fleet_are_linked(surface: Surface) -> None:
    surface.status = daemon(fleet=FLEET)
    read_page = read(surface)
    assert "3 members, 2 of them live, share 4 targets" in read_page.words
    assert "1 target is watched by nobody: code" in read_page.words
    assert "Members with other targets than the rest: birch" in read_page.words
    assert "cedar dead, seen 3 min ago 0" in read_page.words
    links = [link for link in read_page.links.values() if link.startswith("http://")]
    assert links == ["http://birch:9469"], "neither this one nor a dead one"
    hostile = replace(FLEET.members[1], member=HTML, address="javascript:alert(1)")
    surface.status = daemon(fleet=replace(FLEET, members=(hostile,)))
    assert not any("javascript" in link for link in read(surface).links.values())


def _fields(status: DaemonStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__dataclass_fields__}


def _away(**_: object) -> Any:
    raise StoreUnavailable("the database is locked")


@pytest.mark.parametrize("reader", ["windows", "verdicts", "steps"])
def test_without_its_store_it_shows_what_memory_has(surface: Surface, reader: str) -> None:
    with_all(surface)
    setattr(surface, reader, _away)
    text = read(surface).words
    assert "from memory The store cannot be read: the database is locked." in text
    assert "Speculation pays" in text
    assert "last 60 s" in text


def test_a_store_that_hangs_holds_no_page_for_long(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_route, "_PATIENCE_SECONDS", 0.05)
    over = threading.Event()

    def hangs(**_: object) -> Iterator[Window]:
        over.wait(30)
        return iter(())

    surface.windows = hangs
    try:
        assert "The store did not answer within" in read(surface).words
    finally:
        over.set()


def test_many_viewers_cost_one_reading() -> None:
    asked: list[Any] = []
    with serving() as fresh:
        with_all(fresh)
        fresh.windows = lambda **selection: asked.append(selection) or hour(**selection)
        viewers = [threading.Thread(target=fresh.get, args=("/",)) for _ in range(8)]
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join()
        read(fresh, "/?refresh=0")
    assert asked == [{"since": NOW - 3600, "until": NOW, "target": "chat"}]


def making(monkeypatch: pytest.MonkeyPatch, over: threading.Event) -> list[list[Any]]:
    """Rendering that lasts until ``over``: lists of what was begun, and of how many ran at once."""
    rendered, begun, at_once = status_route._rendered, [], [0]
    lock = threading.Lock()

    def waits(*values: Any) -> Any:
        with lock:
            begun.append(values[2:])
            at_once.append(at_once[-1] + 1)
        over.wait(30)
        with lock:
            at_once.append(at_once[-1] - 1)
        return rendered(*values)

    monkeypatch.setattr(status_route, "_rendered", waits)
    return [begun, at_once]


def asking(surface: Surface, paths: list[str]) -> tuple[list[threading.Thread], list[int]]:
    """Threads that each ask for one of the paths, and the codes that were answered."""
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda path=path: codes.append(surface.get(path).status))
        for path in paths
    ]
    for thread in threads:
        thread.start()
    return threads, codes


def test_equal_questions_are_one_page_however_they_are_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    over.set()
    begun, _ = making(monkeypatch, over)
    with serving() as fresh:
        for query in ("target=chat&refresh=60", "refresh=60&target=chat", "refresh=060&target=chat",
                      "target=x&target=chat&refresh=60&state=&page=0"):  # fmt: skip
            assert fresh.get(f"/?{query}").status == 200
    assert begun == [(Selection(target="chat", refresh=60),)]


def test_only_a_few_pages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different ones are asked for; beyond some more, who asks is told to wait."""
    over = threading.Event()
    _, at_once = making(monkeypatch, over)
    with serving() as fresh:
        most = status_route._MOST_MAKING
        threads, codes = asking(fresh, [f"/?refresh={n}" for n in range(10, 10 + most + 4)])
        try:
            until = time.monotonic() + 10
            while time.monotonic() < until and (len(codes) < 4 or max(at_once) < 2):
                time.sleep(0.01)
            assert codes == [503] * 4
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert sorted(codes) == [200] * most + [503] * 4
    assert max(at_once) == status_route._MOST_RENDERED


def test_what_cannot_be_asked_takes_no_place_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, _ = making(monkeypatch, over := threading.Event())
    over.set()
    with serving() as fresh:
        assert fresh.get("/").status == 200
        for n in range(12):
            assert fresh.get(f"/?x{n}=1").status == 400
            assert fresh.get(f"/?target=x{n}").status == 404
        assert fresh.get("/").status == 200
    assert len(begun) == 1


def test_a_page_is_as_old_as_the_time_since_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What took long to make is not old at once."""
    now = 0.0
    monkeypatch.setattr(status_route, "monotonic", lambda: now)

    async def look() -> None:
        nonlocal now
        kept, made, done = status_route._Shared[int](10.0), [], asyncio.Event()

        async def make() -> int:
            await done.wait()
            made.append(len(made))
            return made[-1]

        first = kept.get("x", make)
        assert first is not None
        assert kept.get("x", make) is first
        now = 60.0
        done.set()
        assert await first == 0
        now = 69.0
        assert kept.get("x", make) is first
        now = 71.0
        again = kept.get("x", make)
        assert again is not None
        assert await again == 1

    asyncio.run(look())


def test_what_failed_is_made_again() -> None:
    async def look() -> None:
        kept = status_route._Shared[int](10.0)

        async def fails() -> int:
            raise StoreUnavailable("away")

        first = kept.get("x", fails)
        assert first is not None
        with pytest.raises(StoreUnavailable):
            await first
        again = kept.get("x", fails)
        assert again is not None
        assert again is not first
        again.cancel()
        with pytest.raises(asyncio.CancelledError):
            await again
        assert kept.get("x", fails) is not again

    asyncio.run(look())


def test_head_says_what_get_would_and_nothing_can_be_changed(surface: Surface) -> None:
    full, head = surface.get("/"), surface.get("/", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(full.body))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert surface.get("/", method).status == 405


def test_its_policy_lets_in_nothing_but_its_own_style_and_script(surface: Surface) -> None:
    with_all(surface)
    for path, status in (("/", 200), ("/?refresh=0", 200), ("/?target=x", 404), ("/?x=1", 400)):
        answer = surface.get(path)
        assert answer.status == status
        digests = {}
        for tag in ("style", "script"):
            inside = re.findall(f"<{tag}>(.*?)</{tag}>", answer.body.decode(), re.DOTALL)
            assert len(inside) == (1 if tag == "style" or path == "/" else 0)
            digest = hashlib.sha256("".join(inside).encode()).digest()
            digests[tag] = base64.b64encode(digest).decode()
        assert answer.headers["content-security-policy"].split("; ") == [
            "default-src 'none'", f"style-src 'sha256-{digests['style']}'",
            f"script-src 'sha256-{digests['script']}'", "connect-src 'self'", "img-src 'none'",
            "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'",
        ]  # fmt: skip
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


def hostile_status(name: str) -> DaemonStatus:
    odd = minute(START, target=name, model_name=name)
    state = GuardState(name, phase=Phase.HELD, why=name, waiting=name)
    failure = Failure(name, name, NOW - 5)  # type: ignore[arg-type]
    return daemon(
        target(
            name, models={name: Mode.ON}, recent=(odd,), engine_version=name, failure=failure,
            failures={name: 3}, decision=decided(target=name, model_name=name),
            tap=TapStatus(trouble=(Trouble(name, name, name),)),
            guard=GuardStatus(name, state, holder=name, error=name),
        ),
        daemon=name, version=name, stuck=(name,), store=StoreStatus(name, error=name),
        judging=JudgingStatus(error=name),
        pagers=(PagerStatus(name, failing_since=NOW, error=name),),
    )  # fmt: skip


@pytest.mark.parametrize("name", [HTML, HTML + "y" * 10_000, "\ud800", "javascript:alert(1)"])
def test_whatever_comes_from_outside_is_text(surface: Surface, name: str) -> None:
    surface.status = hostile_status(name)
    surface.windows = lambda **_: iter(
        [minute(START, target=name, model_name=name),
         of_tap(START, name, target=name, model_name=name, drafts=5, of=5, server=5)]
    )  # fmt: skip
    surface.verdicts = lambda **_: [
        change(target=name, model_name=name, temperature=name, rule=name, verdict=name)
    ]
    surface.steps = lambda **_: [StepRecord(name, 1, NOW, name, name, name, name, name, {})]
    answer = surface.get("/")
    assert answer.status == 200
    assert len(answer.body) < 300_000
    assert "\u202e" not in answer.body.decode()
    root = page.read(answer.body.decode())
    tags = {element.name for element in root.all()}
    assert tags.isdisjoint({"img", "iframe", "object", "base"})
    assert (root.count("script"), root.count("form")) == (1, 0)
    for element in root.all():
        names = element.attributes
        assert not any(name.startswith("on") or name in ("style", "src") for name in names)
    for href in root.links.values():
        assert href.startswith(("/", "#"))
        assert not href.startswith("//")


def test_a_target_has_a_page_of_its_own(surface: Surface) -> None:
    name = "a b&c=d/é?#"
    surface.status = daemon(target(), target(name))
    href = read(surface).links[name]
    assert parse_qs(urlsplit(href).query) == {"target": [name]}
    root = read(surface, href)
    assert root.count("h2") == 3
    assert f"{name}: no problem - specwatch" in root.words
    own = parse_qs(urlsplit(root.links["minutes of the last hour"]).query)
    assert own == {"target": [name]}
    assert surface.get(root.links["minutes of the last hour"]).status == 200


def plotted(surface: Surface) -> list[dict[str, Any]]:
    """What is asked of the report, which has a model of the target, from now on."""
    asked: list[dict[str, Any]] = []
    full = sample.full()
    own = msgspec.structs.replace(full.targets[1], model_name="llama")
    hours = msgspec.structs.replace(full, targets=(own,))
    surface.report = lambda **chosen: asked.append(chosen) or hours
    return asked


def test_a_target_s_page_has_plots_of_its_last_hours(surface: Surface) -> None:
    surface.status = daemon(target("plotted"), target("broken"))
    asked = plotted(surface)
    assert read(surface).count("figure") == 0
    root = read(surface, "/?target=plotted")
    until = NOW - 60
    assert asked == [
        {"since": until - 6 * 3600, "until": until, "now": until, "targets": ["plotted"]}
    ]
    assert [one.words for one in root.all("figcaption")] == [
        "Speedup", "Acceptance by temperature", "Time per output token", "Time to the first token",
        "Load",
    ]  # fmt: skip
    assert "Speedup over time, with times without speculation and incidents" in root.words
    surface.report = lambda **_: 1 / 0
    root = read(surface, "/?target=broken")
    assert root.count("figcaption") == 0, "a defect of the plots takes down nothing else"
    assert "Nothing was generated" in root.words


def test_plots_are_made_once_a_minute_however_many_look(surface: Surface) -> None:
    """A page that is made anew has those of before until a minute is stored, or one is over of a
    target that stores none."""
    asked = plotted(surface)
    surface.status = daemon(target("seen"), target("other"))
    stored = START - 60
    surface.windows = lambda **_: iter([minute(stored, target="seen")])
    for refresh in (10, 20, 30):
        surface.status = replace(surface.status, now=NOW + refresh / 10)
        assert read(surface, f"/?target=seen&refresh={refresh}").count("figcaption") == 5
    assert [one["until"] for one in asked] == [START]
    stored = START
    for _ in range(2):
        assert read(surface, "/?target=seen").count("figcaption") == 5
    surface.status = replace(surface.status, now=NOW + 120)
    read(surface, "/?target=seen")
    assert [one["until"] for one in asked] == [START, START + 60, START + 120]


def test_a_target_that_is_not_watched_is_not_found(surface: Surface) -> None:
    root = read(surface, "/?target=%3Cb%3Enope", status=404)
    assert 'No target is called "<b>nope"' in root.words
    assert root.links["chat"] == "/?target=chat"
    assert root.count("b") == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("x=1", '"x": unknown parameter; known are target, refresh, state, model, search'),
        ("sort=age", 'sort: "age" is not one of problem, speedup, target, running, acceptance'),
        ("page=-1", 'page: "-1" is not a number from 0 to 9999'),
        ("refresh=3", 'refresh: "3" is not a number from 10 to 3600, nor 0'),
        ("refresh=-1", "is not a number"),
        ("refresh=" + "9" * 5000, "is not a number"),
        ("refresh=%D9%A3%D9%A0", "is not a number"),
    ],
)
def test_what_cannot_be_asked_is_refused(surface: Surface, query: str, words: str) -> None:
    assert words in read(surface, f"/?{query}", status=400).words


def test_it_asks_for_itself_again_until_it_is_paused(surface: Surface) -> None:
    """By a script, and without one by an element that no script sees."""
    root = read(surface)
    refresh = '<noscript><meta http-equiv="refresh" content="{}"></noscript>'
    assert refresh.format(30) in surface.get("/").body.decode()
    assert refresh.format(60) in surface.get("/?refresh=60").body.decode()
    assert "every 30 s" in root.words
    paused = surface.get(root.links["pause"]).body.decode()
    assert 'refresh"' not in paused
    assert "<script" not in paused
    assert page.read(paused).links["refresh it by itself again"] == "/"
    of_one = read(surface, "/?target=chat")
    assert of_one.links["pause"] == "/?target=chat&refresh=0"
    assert of_one.links["All targets"] == "/"


def events(surface: Surface, count: int, query: str = "") -> list[str]:
    """The first lines of the stream of events that are not empty."""
    with urllib.request.urlopen(f"{surface.url}/events{query}", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines: list[str] = []
        while len(lines) < count:
            lines += [line for line in [stream.readline().decode().strip()] if line]
    return lines


def test_a_page_that_is_open_is_told_when_there_is_news(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 0.05)
    first, second = events(surface, 2)
    assert first.startswith("data: ")
    assert second == ": the same"
    assert events(surface, 1) == [first]
    surface.status = daemon(dead())
    (third,) = events(surface, 1)
    assert third.startswith("data: ")
    assert third != first


def test_the_viewer_of_a_target_follows_that_target_alone(surface: Surface) -> None:
    def versions() -> dict[str, str]:
        return {query: events(surface, 1, query)[0] for query in ("", "?target=a", "?target=b")}

    surface.status = daemon(target("a"), target("b"))
    before = versions()
    for query, version in before.items():
        path = f"/{query}&refresh=60" if query else "/"
        assert f'data-version="{version.removeprefix("data: ")}"' in surface.get(path).body.decode()
    surface.status = daemon(target("a"), target("b", last_window=START + 120))
    after = versions()
    assert [query for query in before if before[query] != after[query]] == ["", "?target=b"]
    surface.status = daemon(target("a"), dead("b"))
    assert versions()["?target=a"] == before["?target=a"]
    assert "b cannot be read" not in read(surface, "/?target=a").words
    assert surface.get("/events?sort=age").status == 400


def test_more_listeners_than_a_daemon_has_time_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_route, "_MOST_LISTENERS", 1)
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 0.05)
    with serving() as fresh:
        assert fresh.get("/events", "HEAD").status == 200
        with urllib.request.urlopen(f"{fresh.url}/events", timeout=30) as stream:
            assert stream.readline().startswith(b"data: ")
            assert fresh.get("/events").status == 503
        until = time.monotonic() + 10
        while time.monotonic() < until and not events_begin(fresh):
            time.sleep(0.05)
        assert events_begin(fresh), "who left makes room"


def test_a_daemon_that_stops_waits_for_no_page_that_is_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 60.0)
    with serving() as fresh:
        # As a browser asks.
        request = urllib.request.Request(
            f"{fresh.url}/events", headers={"Accept": "text/event-stream"}
        )
        with urllib.request.urlopen(request, timeout=30) as stream:
            assert stream.readline().startswith(b"data: ")
            assert fresh.server.stop(30.0)
            with pytest.raises(http.client.IncompleteRead):
                stream.read()
    assert "CancelledError" not in caplog.text


def events_begin(surface: Surface) -> bool:
    try:
        return bool(events(surface, 1))
    except urllib.error.HTTPError:
        return False


def test_it_leads_to_all_other_pages(surface: Surface) -> None:
    links = set(read(surface).links.values())
    assert {"/api/v1/targets", "/api/v1/windows", "/api/v1/decisions", "/metrics", "/runbook",
            "/api/v1/report?format=html"} <= links  # fmt: skip


def test_every_table_is_told_and_can_be_reached(surface: Surface) -> None:
    """With a caption, headers of columns and rows, and by the keyboard where it scrolls."""
    with_all(surface)
    root = read(surface)
    assert root.count("table") == root.count("caption") == 5
    assert all(cell.attributes["scope"] in ("col", "row") for cell in root.all("th"))
    every = [element.attributes for element in root.all()]
    regions = [attributes for attributes in every if attributes.get("role") == "region"]
    assert len(regions) == 5
    ids = {attributes["id"] for attributes in every if "id" in attributes}
    assert all(region["tabindex"] == "0" for region in regions)
    names = [region["aria-labelledby"] for region in regions]
    assert {part for name in names for part in name.split()} <= ids
    assert len(set(names)) == 5
    assert next(root.all("html")).attributes == {"lang": "en"}
    assert next(root.all("time")).attributes["datetime"] == "2023-11-14T22:14:00Z"


def fleet(count: int) -> DaemonStatus:
    """Every third target cannot be read, every fifth has another model."""
    failure = Failure(ScrapeReason.TIMEOUT, "z" * 400, NOW - 60)
    targets = []
    for n in range(count):
        name = "qwen" if n % 5 == 0 else "llama"
        decision = decided(rules=(), slos=(), target=f"t{n:03}", model_name=name)
        targets.append(
            target(
                f"t{n:03}", decision=decision, models={name: Mode.ON},
                configured_group="odd" if n % 2 else "even", labels={"zone": f"z{n % 2}"},
                recent=(minute(START, target=f"t{n:03}", model_name=name),),
                failure=failure if n % 3 == 0 else None,
            )
        )  # fmt: skip
    return daemon(*targets)


def shown_targets(surface: Surface, query: str) -> list[str]:
    return [link for link in read(surface, f"/?{query}").links if re.fullmatch(r"t\d{3}", link)]


def test_three_hundred_targets_are_small_pages_the_worst_first(surface: Surface) -> None:
    surface.status = fleet(300)
    asked: list[str] = []
    surface.windows = lambda **chosen: asked.append(chosen["target"]) or hour(**chosen)
    answer = surface.get("/")
    assert len(answer.body) < 150_000
    root = page.read(answer.body.decode())
    assert asked == []
    assert "t000 cannot be read since 22:13 UTC (60 s)" in root.words
    assert "Likewise: t003, t006, t009 and 96 more." in root.words
    assert shown_targets(surface, "")[:3] == ["t000", "t003", "t006"]
    every = [name for number in range(1, 8) for name in shown_targets(surface, f"page={number}")]
    assert sorted({*every}) == [f"t{n:03}" for n in range(300)]
    assert read(surface, "/").links["page 6"] == "/?page=6"


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("state=pays", ["t001", "t002", "t004"]),
        ("search=T29+llama", ["t291", "t294", "t297"]),
        ("model=qwen&sort=target", ["t000", "t005", "t010"]),
        ("group=model&sort=target&page=5", ["t176", "t177", "t178"]),
        ("group=model", ["t000", "t015", "t030"]),
        ("group=group&sort=target", ["t000", "t002", "t004"]),
        ("group=group&search=zone=z1", ["t003", "t009", "t015"]),
        ("group=group&search=even", ["t000", "t006", "t012"]),
        ("group=state&sort=target&page=3", ["t001", "t002", "t004"]),
        ("sort=speedup", ["t001", "t002", "t004"]),
        ("search=nobody", []),
    ],
)
def test_the_table_is_chosen_and_arranged(surface: Surface, query: str, first: list[str]) -> None:
    surface.status = fleet(300)
    assert shown_targets(surface, query)[: len(first)] == first
    assert bool(shown_targets(surface, query)) is bool(first)


def test_a_group_s_model_is_named_once(surface: Surface) -> None:
    surface.status = fleet(10)

    def models(query: str) -> int:
        page = read(surface, f"/{query}")
        table = next(one for one in page.all("table") if "Speedup now" in one.words)
        rows = table.all("span")
        return sum(row.attributes.get("class") == "soft model" for row in rows)

    assert (models(""), models("?group=state"), models("?group=model")) == (10, 10, 0)


def test_a_target_with_many_models_shows_and_reads_few(surface: Surface) -> None:
    models = {f"m{n:03}": Mode.ON for n in range(500)}
    surface.status = daemon(target(models=models, recent=()))
    asked: list[str] = []
    surface.windows = lambda **chosen: asked.append(chosen["model_name"]) or iter(())
    text = read(surface).words
    assert asked == ["m000", "m001", "m002", "m003", "m004"]
    assert "495 more models" in text


def test_numbers_that_are_none_are_no_figures(surface: Surface) -> None:
    odd = minute(START, ttft=Histogram((1.0,), (1, 0), float("inf")))
    surface.status = daemon(target(recent=(odd,), scrape_seconds=None, load=float("nan")))
    surface.windows = lambda **_: iter([odd])
    assert "chat" in read(surface).words


def test_templates_are_not_loaded_before_somebody_looks() -> None:
    """A daemon that nobody looks at goes without the memory."""
    code = (
        "import sys, specwatch.daemon.daemon;"
        " print({'jinja2', 'specwatch.pages'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

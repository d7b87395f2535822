"""The status page over HTTP: what is asked for, that it costs little, and the stream of news."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from specwatch.domain.model import Window
from specwatch.errors import StoreUnavailable
from specwatch.pages.status_table import Selection
from specwatch.web import status_route
from tests.hostile import wait_for
from tests.report import page, sample
from tests.web.statuses import NOW, STANDBY, Surface, daemon, minute, serving, target
from tests.web.test_status_page import START, dead, hour, read, with_all


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Surface]:
    """A surface of its own, which keeps what it has made for as long as a test may take."""
    for name in ("_STATUS_SECONDS", "_PAGE_SECONDS", "_HISTORY_SECONDS"):
        monkeypatch.setattr(status_route, name, 3600.0)
    with serving() as running:
        yield running


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


def test_many_viewers_cost_one_reading(fresh: Surface) -> None:
    asked: list[Any] = []
    with_all(fresh)
    fresh.windows = lambda **selection: asked.append(selection) or hour(**selection)
    viewers = [threading.Thread(target=fresh.get, args=("/",)) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    read(fresh, "/?refresh=0")
    assert asked == [
        {"since": NOW - 3600, "until": NOW, "target": name} for name in ("chat", "guessed")
    ]


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
    fresh: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    over.set()
    begun, _ = making(monkeypatch, over)
    for query in (
        "target=chat&refresh=60",
        "refresh=60&target=chat",
        "refresh=060&target=chat",
        "target=x&target=chat&refresh=60&state=&page=0",
    ):
        assert fresh.get(f"/?{query}").status == 200
    assert begun == [(Selection(target="chat", refresh=60),)]


def test_only_a_few_pages_are_made_at_once(fresh: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different ones are asked for; beyond some more, who asks is told to wait."""
    over = threading.Event()
    _, at_once = making(monkeypatch, over)
    most = status_route._MOST_MAKING
    threads, codes = asking(fresh, [f"/?refresh={n}" for n in range(10, 10 + most + 4)])
    try:
        wait_for(lambda: len(codes) >= 4 and max(at_once) >= 2)
        assert codes == [503] * 4
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert sorted(codes) == [200] * most + [503] * 4
    assert max(at_once) == status_route._MOST_RENDERED


def test_what_cannot_be_asked_takes_no_place_of_a_page(
    fresh: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, _ = making(monkeypatch, over := threading.Event())
    over.set()
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
            "default-src 'none'",
            f"style-src 'sha256-{digests['style']}'",
            f"script-src 'sha256-{digests['script']}'",
            "connect-src 'self'",
            "img-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


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
        "Speedup",
        "Acceptance by temperature",
        "Time per output token",
        "Time to the first token",
        "Load",
    ]
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
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 0.01)
    first, second = events(surface, 2)
    assert first.startswith("data: ")
    assert second == ": the same"
    assert events(surface, 1) == [first]
    surface.status = daemon(dead())
    (third,) = events(surface, 1)
    assert third.startswith("data: ")
    assert third != first


def test_a_renewal_of_the_lease_of_another_process_is_no_news(surface: Surface) -> None:
    surface.status = daemon(lease=STANDBY)
    before = events(surface, 1)
    surface.status = daemon(lease=replace(STANDBY, left=5.0))
    assert events(surface, 1) == before


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
    fresh: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_route, "_MOST_LISTENERS", 1)
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 0.05)
    assert fresh.get("/events", "HEAD").status == 200
    with urllib.request.urlopen(f"{fresh.url}/events", timeout=30) as stream:
        assert stream.readline().startswith(b"data: ")
        assert fresh.get("/events").status == 503
    wait_for(lambda: events_begin(fresh))  # who left makes room


def test_a_daemon_that_stops_waits_for_no_page_that_is_open(
    fresh: Surface, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_route, "_LOOK_SECONDS", 60.0)
    # As a browser asks.
    request = urllib.request.Request(f"{fresh.url}/events", headers={"Accept": "text/event-stream"})
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

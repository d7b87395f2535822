"""The daemon's HTTP surface, over real connections."""

from __future__ import annotations

import itertools
import json
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from specwatch.domain.model import Histogram, Mode, Source
from specwatch.errors import ConfigError, ScrapeReason, StoreUnavailable
from specwatch.report.model import Report
from specwatch.scrape.coverage import Coverage
from specwatch.status import Failure, StoreStatus, TapStatus
from specwatch.web.query import windows_query
from tests.hostile import wait_for
from tests.plugins.golden import Golden
from tests.report import sample
from tests.web.decided import UNLIKE, change, decided, unlike
from tests.web.statuses import HOSTILE, NOW, STANDBY, Surface, daemon, minute, serving, target
from tests.web.test_exporter import named

START = 1_699_999_980
DAY = 86400
WINDOWS, DECISIONS, REPORT = "/api/v1/windows", "/api/v1/decisions", "/api/v1/report"
PAGES = (
    "/metrics",
    "/healthz",
    "/readyz",
    "/api/v1/targets",
    "/api/v1/windows",
    "/api/v1/decisions",
    "/api/v1/report",
)


KNOWN_HOSTS = (
    "127.0.0.1:9469",
    "10.0.0.7",
    "[::1]:9469",
    "[fe80::1]",
    "localhost:9469",
    "LOCALHOST.",
    "chat.localhost",
    "gpu-7",
    "GPU-7:9469",
    "a.b.example.com:80",
    "",
)
FOREIGN_HOSTS = (
    "example.com",
    "gpu-7.attacker.net:9469",
    "localhost.attacker.net",
    "127.0.0.1.attacker.net",
    "2130706433",
    "attacker.net:9469",
)


def test_requests_for_a_foreign_host_name_are_refused(surface: Surface) -> None:
    """A web page whose name points here could read the answers (DNS rebinding)."""
    surface.hosts = ("gpu-7", "*.example.com")
    for host in KNOWN_HOSTS:
        assert surface.get("/api/v1/decisions", Host=host).status == 200, host
    for host in FOREIGN_HOSTS:
        for path in ("/api/v1/decisions", "/nope"):
            answer = surface.get(path, Host=host)
            assert answer.status == 421
            assert f'"{host}"' in answer.json["error"]
            assert "allowed_hosts" in answer.json["error"]
    surface.hosts = ("*",)
    assert surface.get("/api/v1/decisions", Host="example.com").status == 200


def test_metrics_and_health_are_answered_under_any_name_beyond_loopback(surface: Surface) -> None:
    """Prometheus has names of its own for us; on loopback nobody needs any."""
    surface.hosts = ()
    paths = ("/metrics", "/healthz", "/readyz")
    for path in paths:
        assert surface.get(path, Host="specwatch.monitoring.svc:9469").status == 200
    with serving(Surface(monitored=False)) as loopback:
        loopback.hosts = ()
        for path in paths:
            assert loopback.get(path, Host="specwatch.monitoring.svc:9469").status == 421
            assert loopback.get(path).status == 200


OPEN = ("/healthz", "/readyz")
CLOSED = ("/", "/runbook", "/nope", "/healthz/", "//healthz", *(set(PAGES) - set(OPEN)))


TOKENS = (
    "",
    "Bearer",
    "Bearer ",
    "Bearer t0ke",
    "Bearer t0kenn",
    "Basic t0ken",
    "t0ken",
    "Bearer \xe9",
    "Bearer T0KEN",
)


def test_requests_without_the_token_are_refused(surface: Surface) -> None:
    surface.token = lambda: "t0ken"
    asked = [*((path, "") for path in sorted(CLOSED)), *(("/metrics", given) for given in TOKENS)]
    for path, given in asked:
        for method in ("GET", "HEAD", "POST"):
            answer = surface.get(path, method, **({"Authorization": given} if given else {}))
            assert answer.status == 401, (method, path, given)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"t0ken" not in answer.body


def test_the_token_opens_everything_and_health_needs_none(surface: Surface) -> None:
    surface.token = lambda: "t0ken"
    for path in OPEN:
        assert surface.get(path).status == 200
    for path in (*PAGES, "/", "/runbook"):
        assert surface.get(path, Authorization="Bearer t0ken").status == 200
    assert surface.get("/metrics", Authorization="bearer t0ken").status == 200
    assert surface.get("/nope", Authorization="Bearer t0ken").status == 404


def test_nobody_is_let_in_while_the_token_cannot_be_read(surface: Surface) -> None:
    def gone() -> str:
        raise ValueError("cannot read /etc/specwatch/token")

    surface.token = gone
    answer = surface.get("/metrics", Authorization="Bearer ")
    assert answer.status == 503
    assert "listen_token_file" in answer.json["error"]
    assert "/etc/specwatch" not in answer.json["error"]
    assert surface.get("/healthz").status == 200


def test_head_has_the_headers_of_get_and_no_body(surface: Surface) -> None:
    for path in (*PAGES, "/", "/runbook"):
        full, head = surface.get(path), surface.get(path, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(full.body)), path


def test_other_methods_are_not_allowed(surface: Surface) -> None:
    for path in (*PAGES, "/", "/runbook"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = surface.get(path, method)
            assert answer.status == 405
            assert {word.strip() for word in answer.headers["allow"].split(",")} == {"GET", "HEAD"}
            assert method in answer.json["error"]


def test_an_unknown_path_names_the_known_ones(surface: Surface) -> None:
    for path in ("/nope", "/metrics/", "/api/v1", "/api/v1/windows/1", "/%00%1b"):
        answer = surface.get(path)
        assert answer.status == 404
        assert "/api/v1/windows" in answer.json["error"]


def test_a_defect_is_answered_in_json_without_details(
    surface: Surface, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: object) -> Iterator[object]:
        raise RuntimeError("secret")

    surface.windows = broken
    answer = surface.get("/api/v1/windows")
    assert answer.status == 500
    assert "secret" not in answer.json["error"]
    wait_for(lambda: "secret" in caplog.text, 10)  # it is logged after the answer


def test_metrics_are_in_the_accepted_format(surface: Surface) -> None:
    text = surface.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=")
    assert b"# EOF" not in text.body
    openmetrics = surface.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_unhealthy_while_a_loop_hangs_whatever_becomes_of_targets(surface: Surface) -> None:
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW)
    surface.status = daemon(target(failure=failure), stuck=("chat",), silent=30.0)
    assert surface.get("/healthz").json == {"healthy": True, "silent_seconds": 30.0}
    surface.status = daemon(silent=30.5)
    answer = surface.get("/healthz")
    assert (answer.status, answer.json) == (503, {"healthy": False, "silent_seconds": 30.5})


def test_not_ready_says_why(surface: Surface) -> None:
    assert surface.get("/readyz").json == {"ready": True, "store": "ok", "standby": False}
    surface.status = daemon(ready=False, store=StoreStatus("x", error="it is locked"))
    answer = surface.get("/readyz")
    assert answer.status == 503
    assert answer.json == {"ready": False, "store": "it is locked", "standby": False}
    surface.status = daemon(ready=True, lease=STANDBY)
    assert surface.get("/readyz").json == {"ready": True, "store": "ok", "standby": True}


def rounded(value: Any) -> Any:
    """A JSON value with numbers of twelve digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.mark.golden
def test_answers_have_exactly_these_members(surface: Surface, golden: Golden) -> None:
    surface.status = named()
    down = msgspec.structs.replace(minute(START), observed_seconds=20.0, down_seconds=40.0)
    surface.windows = lambda **_: iter([down])
    surface.verdicts = lambda **_: [change(), change("pass")]
    for path in ("targets", "windows", "decisions"):
        answer = rounded(surface.get(f"/api/v1/{path}").json)
        golden(f"web/{path}.json", json.dumps(answer, indent=1, ensure_ascii=False) + "\n")


def test_targets_show_of_when_a_speedup_is_and_why_it_is_not_of_now(surface: Surface) -> None:
    surface.status = daemon(
        target("a", decision=decided()),
        target("b", decision=unlike()),
        target("c", decision=unlike(since=NOW - 601)),
        target("d", decision=unlike(since=NOW - 600)),
    )
    known = [
        entry["decision"]["models"]["llama"]
        for entry in surface.get("/api/v1/targets").json["targets"]
    ]
    shown = [[entry[name] for name in ("current", "until", "missing", "remedy")] for entry in known]
    calibrate = "specwatch calibrate"
    assert shown == [
        [True, START + 60, None, None],
        [False, None, UNLIKE, calibrate],
        [False, NOW - 601, UNLIKE, calibrate],
        [True, NOW - 600, None, None],
    ]
    assert (known[1]["speedup"], known[1]["assumed_acceptance"]) == (None, None)


@pytest.mark.parametrize(
    ("path", "selection"),
    [
        (WINDOWS, {"since": NOW - 3600, "until": NOW, "length": 60, "limit": 10_001}),
        (
            f"{WINDOWS}?since=30m&until=1700000000.5&length=3600&limit=7&target=a%20b&model_name=m"
            "&dimension=temperature&value=(0%2C0.3]&daemon=left",
            {
                "since": NOW - 1800,
                "until": 1_700_000_000.5,
                "length": 3600,
                "limit": 8,
                "target": "a b",
                "model_name": "m",
                "dimension": "temperature",
                "value": "(0,0.3]",
                "daemon": "left",
            },
        ),
        (DECISIONS, {"since": NOW - DAY, "until": NOW, "limit": 1001}),
        (
            f"{DECISIONS}?since=30m&until=1700000000.5&target=a%20b&rule=r&limit=7",
            {
                "since": NOW - 1800,
                "until": 1_700_000_000.5,
                "target": "a b",
                "rule": "r",
                "limit": 8,
            },
        ),
        (REPORT, {"since": NOW - 7 * DAY, "until": NOW, "now": NOW, "targets": None}),
        (
            f"{REPORT}?since=2d&until=1699999000&target=a&target=b%20c",
            {
                "since": NOW - 2 * DAY,
                "until": 1_699_999_000.0,
                "now": NOW,
                "targets": ["a", "b c"],
            },
        ),
    ],
)
def test_the_query_selects_what_is_read(
    surface: Surface, path: str, selection: dict[str, object]
) -> None:
    asked: list[dict[str, object]] = []

    def reader(answer: object) -> Any:
        return lambda **chosen: asked.append(chosen) or answer

    surface.windows, surface.verdicts = reader(iter([minute(START)])), reader([change()])
    surface.report = reader(sample.full())
    answer = surface.get(path)
    assert answer.status == 200
    assert asked == [selection]
    assert answer.json.get("more", False) is False


@pytest.mark.parametrize(
    ("form", "media_type", "start"),
    [
        ("text", "text/plain; charset=utf-8", b"specwatch report\n"),
        ("md", "text/markdown; charset=utf-8", b"# "),
        ("html", "text/html; charset=utf-8", b"<!doctype html>"),
    ],
)
def test_each_format_of_a_report_has_its_media_type(
    surface: Surface, form: str, media_type: str, start: bytes
) -> None:
    answer = surface.get(f"{REPORT}?format={form}")
    assert (answer.status, answer.headers["content-type"]) == (200, media_type)
    assert answer.body[: len(start)].lower() == start.lower()


def test_a_report_in_json_is_the_default(surface: Surface) -> None:
    assert msgspec.json.decode(surface.get(REPORT).body, type=Report) == sample.full()


def test_a_report_in_html_loads_and_runs_nothing(surface: Surface) -> None:
    surface.report = lambda **_: sample.hostile()
    answer = surface.get(f"{REPORT}?format=html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy
    assert b"<script" not in answer.body.lower()
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


def test_answers_contain_no_control_characters(surface: Surface) -> None:
    """Whoever reads one on a terminal is safe; a program gets the very name."""
    name = "\x1b[31m\x7f\x9b31m\u202e\u2028\U000e0001 é😀"
    window = minute(START, model_name=name)
    tap = tap_of(name)
    surface.status = daemon(
        target(models={name: Mode.ON}, recent=(window,), engine_version=name, tap=tap)
    )
    surface.windows = lambda **_: iter((window,))
    for path in ("/metrics", "/api/v1/targets", "/api/v1/windows"):
        text = surface.get(path).body.decode()
        assert text.replace("\n", "").isprintable()
        assert "é😀" in text
    (shown,) = surface.get("/api/v1/windows").json["windows"]
    assert shown["model_name"] == name
    assert name in surface.get("/api/v1/targets").json["targets"][0]["models"]


def tap_of(name: str) -> TapStatus:
    return TapStatus(Source.TAP, models={name: Coverage(Source.TAP, 1, 2, {}, {name: 1})})


def test_names_that_look_alike_once_they_are_clean_are_two_series(surface: Surface) -> None:
    surface.status = daemon(target(models={"a\x1b": Mode.ON, r"a\x1b": Mode.ON}, recent=()))
    lines = [
        line
        for line in surface.get("/metrics").body.splitlines()
        if b"a\\\\x1b" in line and b"_info" not in line  # which has the group
    ]
    assert len({line.rpartition(b" ")[0] for line in lines}) == len(lines) == 2


def test_hostile_names_and_numbers_that_are_none_stay_json(surface: Surface) -> None:
    odd = minute(START, model_name=HOSTILE, ttft=Histogram((1.0,), (1, 0), math.inf))
    surface.status = daemon(
        target(HOSTILE, models={HOSTILE: Mode.ON}, recent=(odd,), scrape_seconds=math.nan)
    )
    surface.windows = lambda **_: iter([odd])
    (shown,) = surface.get("/api/v1/targets").json["targets"]
    assert shown["name"] == HOSTILE
    assert shown["scrape_seconds"] is None
    (window,) = surface.get("/api/v1/windows").json["windows"]
    assert window["model_name"] == HOSTILE
    assert window["ttft"]["sum"] is None
    assert surface.get("/metrics").status == 200


@pytest.mark.parametrize(("stored", "more"), [(4, False), (5, False), (6, True)])
def test_an_answer_says_when_there_is_more(surface: Surface, stored: int, more: bool) -> None:
    windows = [minute(START + 60 * number) for number in range(stored)]
    surface.windows = lambda limit, **_: itertools.islice(iter(windows), limit)
    answer = surface.get("/api/v1/windows?limit=5").json
    starts = [window["start"] for window in answer["windows"]]
    assert starts == [window.start for window in windows[:5]]
    assert answer["more"] is more
    surface.verdicts = lambda limit, **_: [change()] * min(stored, limit)
    answer = surface.get(f"{DECISIONS}?limit=5").json
    assert (len(answer["decisions"]), answer["more"]) == (min(stored, 5), more)


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        (WINDOWS, "since=yesterday", ["since", "yesterday", "30m", "Unix time"]),
        (WINDOWS, "since=nan", ["since", "nan"]),
        (WINDOWS, "since=inf", ["since", "inf"]),
        (WINDOWS, "until=", ["until", "Unix time"]),
        (WINDOWS, "since=10m&until=20m", ["since", "10m", "20m", "later"]),
        (WINDOWS, "length=61", ["length", "61", "60, 3600"]),
        (WINDOWS, "limit=0", ["limit", "0", "10000"]),
        (WINDOWS, "limit=-1", ["limit", "-1"]),
        (WINDOWS, "limit=10001", ["limit", "10001"]),
        (WINDOWS, "limit=" + "9" * 5000, ["limit"]),
        (WINDOWS, "limit=%C2%B2", ["limit"]),
        (WINDOWS, "target=a%00b", ["target", "null"]),
        (WINDOWS, "modelname=x", ["modelname", "model_name", "unknown"]),
        (WINDOWS, "since=" + quote(HOSTILE[:50]), ["since"]),
        (DECISIONS, "daemon=x", ["daemon", "unknown parameter; known are target, rule"]),
        (DECISIONS, "limit=1001", ["not a number from 1 to 1000"]),
        (REPORT, "sinse=7d", ["sinse", "known are since, until, target, format"]),
        (REPORT, "since=soon", ["since", "soon", "such as 30m"]),
        (REPORT, "since=93d", ["92d", "specwatch report"]),
        (REPORT, "format=pdf", ["format", "pdf", "json, html, md, text"]),
    ],
)
def test_a_bad_parameter_is_refused_with_its_name_and_what_is_expected(
    surface: Surface, path: str, query: str, words: list[str]
) -> None:
    answer = surface.get(f"{path}?{query}")
    assert answer.status == 400
    for word in words:
        assert word in answer.json["error"]
    assert len(answer.json["error"]) < 300


@pytest.mark.parametrize("path", [WINDOWS, DECISIONS, REPORT])
def test_a_store_that_is_away_is_503(surface: Surface, path: str) -> None:
    def away(**_: object) -> Any:
        raise StoreUnavailable("it is locked")

    surface.windows = surface.verdicts = surface.report = away
    answer = surface.get(path)
    assert (answer.status, answer.json) == (503, {"error": "it is locked"})


def test_extreme_times_are_just_times() -> None:
    """A store that holds nothing in them answers with nothing; see the store's own tests."""
    query = windows_query({"since": "-1e300", "until": "1e300"}, NOW)
    assert (query["since"], query["until"]) == (-1e300, 1e300)
    with pytest.raises(ConfigError):
        windows_query({"since": "1e400"}, NOW)


def test_a_store_that_fails_while_it_is_read_is_503(surface: Surface) -> None:
    def windows(**_: object) -> Iterator[object]:
        yield minute(START)
        raise StoreUnavailable("it is locked")

    surface.windows = windows
    answer = surface.get("/api/v1/windows")
    assert (answer.status, answer.json) == (503, {"error": "it is locked"})


def test_slow_windows_do_not_delay_health_and_metrics(surface: Surface) -> None:
    """However many ask for them at once."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def windows(**_: object) -> Iterator[object]:
        begun.release()
        assert go_on.wait(30)
        return iter([])

    surface.windows = windows
    statuses: list[int] = []
    askers = [
        threading.Thread(target=lambda: statuses.append(surface.get("/api/v1/windows").status))
        for _ in range(60)
    ]
    for asker in askers:
        asker.start()
    try:
        assert begun.acquire(timeout=10)
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/targets"):
            assert surface.get(path).status == 200
    finally:
        go_on.set()
        for asker in askers:
            asker.join(30)
    assert statuses == [200] * len(askers)


def test_bytes_that_are_not_http_are_answered_with_400(surface: Surface) -> None:
    with socket.create_connection(("127.0.0.1", surface.server.port), timeout=10) as peer:
        peer.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert peer.recv(1000).startswith(b"HTTP/1.1 400")
    assert surface.get("/healthz").status == 200

"""The daemon's HTTP surface, over real connections."""

from __future__ import annotations

import dataclasses
import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from specwatch.domain.model import Histogram, Mode, Source
from specwatch.errors import ConfigError, ScrapeReason, StoreUnavailable
from specwatch.rules import decisions
from specwatch.rules.decisions import Decision
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.taps import Trouble
from specwatch.status import Failure, JudgingStatus, ProxyStatus, StoreStatus, TapStatus
from specwatch.web.query import windows_query
from tests.web.decided import BREACHED, PASSING, UNLIKE, change, decided, unlike
from tests.web.statuses import HOSTILE, NOW, Surface, daemon, minute, serving, target

START = 1_699_999_980
PAGES = (
    "/metrics",
    "/healthz",
    "/readyz",
    "/api/v1/targets",
    "/api/v1/windows",
    "/api/v1/decisions",
    "/api/v1/report",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Surface]:
    with serving() as surface:
        yield surface


@pytest.fixture
def surface(server: Surface) -> Surface:
    """As at first, whatever the test before did."""
    server.status = daemon()
    server.windows = lambda **_: iter(())
    server.verdicts = lambda **_: []
    server.hosts = ("*",)
    server.token = lambda: None
    return server


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9469", True),
        ("10.0.0.7", True),
        ("[::1]:9469", True),
        ("[fe80::1]", True),
        ("localhost:9469", True),
        ("LOCALHOST.", True),
        ("chat.localhost", True),
        ("gpu-7", True),
        ("GPU-7:9469", True),
        ("a.b.example.com:80", True),
        ("", True),
        ("example.com", False),
        ("gpu-7.attacker.net:9469", False),
        ("localhost.attacker.net", False),
        ("127.0.0.1.attacker.net", False),
        ("2130706433", False),
        ("attacker.net:9469", False),
    ],
)
def test_under_a_foreign_name_nothing_is_told(surface: Surface, host: str, known: bool) -> None:
    """A web page whose name points here now may read what its visitor's browser is told."""
    surface.hosts = ("gpu-7", "*.example.com")
    for path in ("/", "/api/v1/targets", "/api/v1/report", "/runbook", "/nope"):
        answer = surface.get(path, Host=host)
        assert (answer.status != 421) is known
    if not known:
        said = surface.get("/api/v1/targets", Host=host).json["error"]
        assert f'"{host}"' in said
        assert "allowed_hosts" in said
    surface.hosts = ("*",)
    assert surface.get("/", Host=host).status == 200


def test_metrics_and_health_are_told_under_any_name_beyond_loopback(surface: Surface) -> None:
    """Prometheus has names of its own for us; on loopback nobody needs any."""
    surface.hosts = ()
    paths = ("/metrics", "/healthz", "/readyz")
    for path in paths:
        assert surface.get(path, Host="specwatch.monitoring.svc:9469").status == 200
    with serving(monitored=False) as loopback:
        loopback.hosts = ()
        for path in paths:
            assert loopback.get(path, Host="specwatch.monitoring.svc:9469").status == 421
            assert loopback.get(path).status == 200


OPEN = ("/healthz", "/readyz")
CLOSED = ("/", "/runbook", "/nope", "/healthz/", "//healthz", *(set(PAGES) - set(OPEN)))


@pytest.mark.parametrize("path", sorted(CLOSED))
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer t0ke", "Bearer t0kenn", "Basic t0ken", "t0ken",
              "Bearer \xe9", "Bearer T0KEN"],
)  # fmt: skip
def test_without_the_token_nothing_is_told(surface: Surface, path: str, given: str) -> None:
    surface.token = lambda: "t0ken"
    for method in ("GET", "HEAD", "POST"):
        answer = surface.get(path, method, **({"Authorization": given} if given else {}))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert b"t0ken" not in answer.body


def test_with_the_token_everything_is_told_and_health_without_it(surface: Surface) -> None:
    surface.token = lambda: "t0ken"
    for path in OPEN:
        assert surface.get(path).status == 200
    for scheme in ("Bearer", "bearer"):
        for path in (*PAGES, "/", "/runbook"):
            assert surface.get(path, Authorization=f"{scheme} t0ken").status == 200
    assert surface.get("/nope", Authorization="Bearer t0ken").status == 404


def test_a_token_that_cannot_be_read_lets_nobody_in(surface: Surface) -> None:
    def gone() -> str:
        raise ValueError("cannot read /etc/specwatch/token")

    surface.token = gone
    answer = surface.get("/metrics", Authorization="Bearer ")
    assert answer.status == 503
    assert "listen_token_file" in answer.json["error"]
    assert "/etc/specwatch" not in answer.json["error"]
    assert surface.get("/healthz").status == 200


@pytest.mark.parametrize("path", PAGES)
def test_head_says_what_get_would_without_its_body(surface: Surface, path: str) -> None:
    full, head = surface.get(path), surface.get(path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(full.body))


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(surface: Surface, path: str, method: str) -> None:
    answer = surface.get(path, method)
    assert answer.status == 405
    assert {word.strip() for word in answer.headers["allow"].split(",")} == {"GET", "HEAD"}
    assert method in answer.json["error"]


@pytest.mark.parametrize("path", ["/nope", "/metrics/", "/api/v1", "/api/v1/windows/1", "/%00%1b"])
def test_an_unknown_path_names_the_known_ones(surface: Surface, path: str) -> None:
    answer = surface.get(path)
    assert answer.status == 404
    assert "/api/v1/windows" in answer.json["error"]


def test_a_defect_is_json_too_and_tells_no_details(
    surface: Surface, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: object) -> Iterator[object]:
        raise RuntimeError("secret")

    surface.windows = broken
    answer = surface.get("/api/v1/windows")
    assert answer.status == 500
    assert "secret" not in answer.json["error"]
    deadline = time.monotonic() + 10  # it is logged after the answer
    while "secret" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "secret" in caplog.text


def test_metrics_come_in_the_format_that_is_asked_for(surface: Surface) -> None:
    text = surface.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=")
    assert b"# EOF" not in text.body
    openmetrics = surface.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_health_is_that_the_loop_turns(surface: Surface) -> None:
    assert surface.get("/healthz").json == {"healthy": True, "stuck": []}
    surface.status = daemon(stuck=("chat",))
    answer = surface.get("/healthz")
    assert (answer.status, answer.json) == (503, {"healthy": False, "stuck": ["chat"]})


def test_a_failing_target_is_no_reason_to_restart_the_daemon(surface: Surface) -> None:
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW)
    surface.status = daemon(target(failure=failure))
    assert surface.get("/healthz").status == 200


def test_ready_says_why_it_is_not(surface: Surface) -> None:
    assert surface.get("/readyz").json == {"ready": True, "store": "ok"}
    surface.status = daemon(ready=False, store=StoreStatus("x", error="it is locked"))
    answer = surface.get("/readyz")
    assert (answer.status, answer.json) == (503, {"ready": False, "store": "it is locked"})


def test_targets_show_the_daemon_its_store_and_every_target(surface: Surface) -> None:
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 60)
    surface.status = daemon(
        target(), target("down", failure=failure, failures={ScrapeReason.REFUSED: 3}, recent=())
    )
    found = surface.get("/api/v1/targets").json
    assert found["store"]["written"] == 12
    chat, down = found["targets"]
    assert chat["models"] == {"llama": "on"}
    assert chat["recent"][0]["acceptance_rate"] == 0.5
    assert chat["failure"] is None
    assert down["failure"] == {
        "reason": "refused", "detail": "nothing listens", "since": NOW - 60,
    }  # fmt: skip
    assert down["failures"] == {"refused": 3}


def test_targets_show_whether_speculation_pays_and_on_what_that_rests(surface: Surface) -> None:
    surface.status = daemon(
        target(decision=decided()), target("b", decision=decided(measured=False))
    )
    chat, guessed = surface.get("/api/v1/targets").json["targets"]
    model = chat["decision"]["models"]["llama"]
    assert model["speedup"]["basis"] == "measured"
    assert model["speedup"]["lower"] < model["speedup"]["value"] < model["speedup"]["upper"]
    (bin_,) = model["bins"]
    assert (bin_["load_bin"], bin_["step_cost"]["value"]) == ("3-4", pytest.approx(1.5))
    assert bin_["break_even_acceptance"]["value"] == pytest.approx(0.125)
    assert bin_["break_even_length"] == pytest.approx(1.5)
    assert {each["temperature"]: each["loses"] for each in model["buckets"]} == {
        "0": False, ">1": True,
    }  # fmt: skip
    assert model["best_k"]["k"] == 2
    assert len(model["best_k"]["speedups"]) == 5
    (baseline,) = model["baseline"]["bins"]
    assert (baseline["load_bin"], baseline["origin"], baseline["points"]) == ("3-4", "windows", 6)
    assert baseline["age"] == model["baseline"]["age"] == NOW - baseline["measured_at"]
    guess = guessed["decision"]["models"]["llama"]
    assert guess["speedup"] == {"basis": "assumed", "value": pytest.approx(3 / 1.4)}
    assert (guess["missing"], guess["assumed_acceptance"]) == ("no baseline", 0.1)


def test_targets_show_of_when_a_speedup_is_and_why_it_is_not_of_now(surface: Surface) -> None:
    surface.status = daemon(
        target("a", decision=decided()),
        target("b", decision=unlike()),
        target("c", decision=unlike(since=NOW - 601)),
        target("d", decision=unlike(since=NOW - 600)),
    )
    known = [
        each["decision"]["models"]["llama"]
        for each in surface.get("/api/v1/targets").json["targets"]
    ]
    told = [[each[name] for name in ("current", "until", "missing", "remedy")] for each in known]
    calibrate = "specwatch calibrate"
    assert told == [
        [True, START + 60, None, None],
        [False, None, UNLIKE, calibrate],
        [False, NOW - 601, UNLIKE, calibrate],
        [True, NOW - 600, None, None],
    ]
    assert (known[1]["speedup"], known[1]["assumed_acceptance"]) == (None, None)


def test_targets_show_what_every_rule_and_objective_says(surface: Surface) -> None:
    surface.status = daemon(target(decision=decided()), judging=JudgingStatus(defects=7))
    found = surface.get("/api/v1/targets").json
    assert found["judging"] == {"defects": 7, "queued": 0, "dropped": 0, "error": None}
    decision = found["targets"][0]["decision"]
    findings = {each["rule"]: each for each in decision["findings"]}
    assert {name: each["verdict"] for name, each in findings.items()} == {
        "too-slow": "breach", "soon": "no_data", "fine": "pass", "silent": "no_data",
    }  # fmt: skip
    assert findings["soon"]["seen"] == "breach"
    assert findings["soon"]["pending"] is not None
    read = findings["too-slow"]["leading"]
    assert (read["metric"], read["basis"], read["below"]) == ("speedup_ratio", "measured", 2.5)
    assert read["lower"] < read["value"] < read["upper"]
    assert findings["too-slow"]["readings"] == [read]
    assert findings["silent"]["severity"] == "warning"
    (objective,) = decision["slos"]
    assert (objective["name"], objective["error_ratio"]) == ("first-token", 0.5)
    assert set(objective["burn_rates"]) == {"5m", "30m", "1h", "2h", "6h", "1d", "3d"}
    assert decision["goodput"]["llama"].keys() == {"5m", "1h"}
    assert decision["goodput"]["llama"]["1h"] == {
        "watched_seconds": 1080.0,
        "offered_per_second": pytest.approx(100 / 60),
        "lower_per_second": pytest.approx(50 / 60),
        "upper_per_second": pytest.approx(50 / 60),
    }


def test_of_any_conditions_the_one_that_is_met_tells_best() -> None:
    rule = PASSING.model_copy(
        update={"combine": "any", "conditions": (*PASSING.conditions, *BREACHED.conditions)}
    )
    (finding,) = decided((rule,)).findings
    told = decisions.leading(finding)
    assert told is not None
    assert told[0].metric == "speedup_ratio"


def test_stored_decisions_are_chosen_by_the_query(surface: Surface) -> None:
    asked: dict[str, object] = {}

    def verdicts(**selection: object) -> list[Decision]:
        asked.update(selection)
        return [change(), change("pass")]

    surface.verdicts = verdicts
    answer = surface.get("/api/v1/decisions?since=30m&until=1700000000.5&target=a%20b&rule=r")
    assert asked == {
        "since": NOW - 1800, "until": 1700000000.5, "target": "a b", "rule": "r", "limit": 1001,
    }  # fmt: skip
    assert answer.json["more"] is False
    first, second = answer.json["decisions"]
    assert (first["rule"], first["verdict"], first["at"]) == ("too-slow", "breach", NOW - 60)
    assert first["inputs"] == {"readings": []}
    assert second["verdict"] == "pass"
    assert surface.get("/api/v1/decisions?limit=1").json["more"] is True
    assert (asked["since"], asked["until"]) == (NOW - 86400, NOW)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("daemon=x", "'daemon': unknown parameter; known are target, rule"),
        ("limit=1001", "not a number from 1 to 1000"),
        ("since=1&until=0", "later than until"),
        ("rule=%00", "null character"),
    ],
)
def test_a_query_for_decisions_that_cannot_be_is_refused(
    surface: Surface, query: str, words: str
) -> None:
    answer = surface.get(f"/api/v1/decisions?{query}")
    assert answer.status == 400
    assert words in answer.json["error"].replace('"', "'")


def test_decisions_of_a_database_that_is_away_are_not_available(surface: Surface) -> None:
    def away(**_: object) -> list[Decision]:
        raise StoreUnavailable("it is away")

    surface.verdicts = away
    answer = surface.get("/api/v1/decisions")
    assert (answer.status, answer.json) == (503, {"error": "it is away"})


def test_no_answer_holds_a_control_character(surface: Surface) -> None:
    """Whoever reads one on a terminal is safe; a program gets the very name."""
    name = "\x1b[31m\x7f\x9b31m\u202e\u2028\U000e0001 é😀"
    window = minute(START, model_name=name)
    told = tap_of(name)
    surface.status = daemon(
        target(models={name: Mode.ON}, recent=(window,), engine_version=name, tap=told)
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
    lines = [line for line in surface.get("/metrics").body.splitlines() if b"a\\\\x1b" in line]
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


def test_windows_are_chosen_by_the_query(surface: Surface) -> None:
    asked = {}

    def windows(**selection: object) -> Iterator[object]:
        asked.update(selection)
        return iter([minute(START)])

    surface.windows = windows
    answer = surface.get(
        "/api/v1/windows?since=30m&until=1700000000.5&length=3600&limit=7&target=a%20b"
        "&model_name=m&temperature=(0%2C0.3]&daemon=left"
    )
    assert asked == {
        "since": NOW - 1800, "until": 1_700_000_000.5, "length": 3600, "limit": 8,
        "target": "a b", "model_name": "m", "temperature": "(0,0.3]", "daemon": "left",
    }  # fmt: skip
    assert [window["drafts"] for window in answer.json["windows"]] == [100]
    assert answer.json["more"] is False


def test_a_window_says_for_how_long_it_was_observed_and_the_engine_down(surface: Surface) -> None:
    one = dataclasses.replace(minute(START), observed_seconds=20.0, down_seconds=40.0)
    surface.windows = lambda **_: iter([one])
    (window,) = surface.get("/api/v1/windows").json["windows"]
    assert (window["observed_seconds"], window["down_seconds"]) == (20.0, 40.0)


def test_windows_of_all_temperatures_alone_can_be_asked_for(surface: Surface) -> None:
    asked: list[object] = []

    def windows(**selection: object) -> Iterator[object]:
        asked.append(selection.get("temperature"))
        return iter([])

    surface.windows = windows
    surface.get("/api/v1/windows?temperature=all")
    surface.get("/api/v1/windows")
    assert asked == ["all", None]


def test_a_target_shows_its_tap(surface: Surface) -> None:
    proxy = ProxyStatus("http://p", Failure(ScrapeReason.TIMEOUT, "late", NOW), {"timeout": 2}, 1)
    surface.status = daemon(
        target(
            tap=TapStatus(
                Source.PROXY,
                (Trouble("low_coverage", "little", "llama"),),
                failures=3,
                models={"llama": Coverage(Source.PROXY, 80, 100, {"timings": 5}, {"several": 2})},
                proxy=proxy,
            )
        ),
        target("without"),
    )
    first, second = surface.get("/api/v1/targets").json["targets"]
    assert first["tap"] == {
        "source": "proxy",
        "trouble": [{"kind": "low_coverage", "text": "little", "model_name": "llama"}],
        "failures": 3,
        "models": {
            "llama": {
                "source": "proxy", "drafts": 80, "server_drafts": 100, "coverage": 0.8,
                "records": {"timings": 5}, "uncovered": {"several": 2},
            }
        },
        "proxy": {
            "url": "http://p", "failures": {"timeout": 2}, "restarts": 1,
            "failure": {"reason": "timeout", "detail": "late", "since": NOW},
        },
    }  # fmt: skip
    assert second["tap"] == {
        "source": None, "trouble": [], "failures": 0, "models": {}, "proxy": None,
    }  # fmt: skip


def test_the_last_hour_of_minutes_is_the_default() -> None:
    found = windows_query({}, NOW)
    assert (found["since"], found["until"], found["length"]) == (NOW - 3600, NOW, 60)


@pytest.mark.parametrize(("stored", "given", "more"), [(4, 4, False), (5, 5, False), (6, 5, True)])
def test_an_answer_says_when_there_is_more(
    surface: Surface, stored: int, given: int, more: bool
) -> None:
    all_of_them = [minute(START + 60 * number) for number in range(stored)]
    surface.windows = lambda limit, **_: itertools.islice(iter(all_of_them), limit)
    found = surface.get("/api/v1/windows?limit=5").json
    assert [window["start"] for window in found["windows"]] == [
        window.start for window in all_of_them[:given]
    ]
    assert found["more"] is more


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("since=yesterday", ["since", "yesterday", "30m", "Unix time"]),
        ("since=nan", ["since", "nan"]),
        ("since=inf", ["since", "inf"]),
        ("until=", ["until", "Unix time"]),
        ("since=10m&until=20m", ["since", "10m", "20m", "later"]),
        ("length=61", ["length", "61", "60, 3600"]),
        ("limit=0", ["limit", "0", "10000"]),
        ("limit=-1", ["limit", "-1"]),
        ("limit=10001", ["limit", "10001"]),
        ("limit=" + "9" * 5000, ["limit"]),
        ("limit=%C2%B2", ["limit"]),
        ("target=a%00b", ["target", "null"]),
        ("modelname=x", ["modelname", "model_name", "unknown"]),
        ("since=" + quote(HOSTILE[:50]), ["since"]),
    ],
)
def test_a_bad_parameter_is_named_with_what_was_found_and_expected(
    surface: Surface, query: str, words: list[str]
) -> None:
    answer = surface.get(f"/api/v1/windows?{query}")
    assert answer.status == 400
    for word in words:
        assert word in answer.json["error"]
    assert len(answer.json["error"]) < 300


def test_extreme_times_are_just_times() -> None:
    """A store that holds nothing in them answers with nothing; see the store's own tests."""
    found = windows_query({"since": "-1e300", "until": "1e300"}, NOW)
    assert (found["since"], found["until"]) == (-1e300, 1e300)
    with pytest.raises(ConfigError):
        windows_query({"since": "1e400"}, NOW)


def test_a_store_that_is_away_is_503_even_in_the_middle(surface: Surface) -> None:
    def windows(**_: object) -> Iterator[object]:
        yield minute(START)
        raise StoreUnavailable("it is locked")

    surface.windows = windows
    answer = surface.get("/api/v1/windows")
    assert (answer.status, answer.json) == (503, {"error": "it is locked"})


def test_slow_windows_do_not_hold_up_health_and_metrics(surface: Surface) -> None:
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


def test_answers_name_no_server_and_are_not_kept(surface: Surface) -> None:
    answer = surface.get("/api/v1/targets")
    assert "server" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"


def test_what_is_no_http_at_all_is_answered_and_hung_up(surface: Surface) -> None:
    with socket.create_connection(("127.0.0.1", surface.server.port), timeout=10) as peer:
        peer.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert peer.recv(1000).startswith(b"HTTP/1.1 400")
    assert surface.get("/healthz").status == 200

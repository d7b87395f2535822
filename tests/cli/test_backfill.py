"""``specwatch backfill`` from a simulated Prometheus: queries, output and failures."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from specwatch.backfill import prometheus as api
from specwatch.backfill.prometheus_targets import BackfillSource
from specwatch.backfill.service import Backfill, Filled, Span
from specwatch.cli.progress import BackfillProgress
from specwatch.domain.model import HOUR, Batch, Cursor, Window
from specwatch.errors import NoAnswer, StoreUnavailable
from specwatch.store.packing import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests import pages
from tests.cli.conftest import Run
from tests.simulated_prometheus import SimulatedPrometheus

BEGUN = int(time.time() // HOUR - 30) * HOUR
INSTANCE = "127.0.0.1:8000"
NAME = f"{socket.gethostname()}:8000"
DAYS = ("--since", "2d")
"""The default of 30 days would be slow with the simulated server."""
FOREVER = {"since": 0.0, "until": 4e9}


def page(number: int) -> str:
    running = pages.gauge("vllm:num_requests_running", 1.0, model_name="m", engine="0")
    return pages.page(running) + pages.speculation(number, (number,), model="m")


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedPrometheus]:
    """Two hours of one server, the first scrape half a minute into an hour."""
    monkeypatch.setattr(api, "_DELAYS", (0.0, 0.0))
    with SimulatedPrometheus() as server:
        for number in range(120):
            at = BEGUN + 30.0 + 60 * number
            server.recording.scrape(page(number), at, instance=INSTANCE, job="vllm")
        yield server


def windows(database: str) -> list[Window]:
    reader = Reader.of(database)
    try:
        return list(reader.windows(**FOREVER))  # type: ignore[arg-type]
    finally:
        reader.close()


def said(done: Result) -> str:
    return " ".join((done.stdout + done.stderr).split())


def test_it_fills_the_store(run: Run, prometheus: SimulatedPrometheus, database: str) -> None:
    """With the target name of `run --target`, and rolled up into hours."""
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        f"{NAME}: 120 minutes written, 0 minutes stored already, of 2 hours with pages\n"
    )
    found = windows(database)
    assert [w.start for w in found] == list(range(BEGUN, BEGUN + 2 * HOUR, 60))
    assert {(w.series.daemon, w.series.target) for w in found} == {(socket.gethostname(), NAME)}
    reader = Reader.of(database)
    hours = list(reader.windows(**FOREVER, length=HOUR))  # type: ignore[arg-type]
    reader.close()
    assert sum(w.tally.drafts or 0 for w in hours) == 119


def test_json_says_what_became_of_each_target(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    words = ("backfill", "--prometheus", prometheus.url, "--database", database, "--json")
    first, again = (json.loads(run(*words, "--target", "chat").stdout) for _ in range(2))
    (target,) = first["targets"]
    until = target.pop("until")
    assert target == {
        "target": "chat", "instance": INSTANCE, "hours": 2, "minutes_written": 120,
        "minutes_kept": 0, "skipped_hours": 0, "queries": 8, "held_by": None,
    }  # fmt: skip
    assert until == first["until"] == pytest.approx(time.time() - 900, abs=120)
    assert first["since"] % HOUR == 0
    assert first["since"] == pytest.approx(time.time() - 30 * 86400, abs=2 * HOUR)
    (target,) = again["targets"]
    assert (target["minutes_written"], target["minutes_kept"]) == (0, 120)
    assert target["skipped_hours"] == 2


def test_a_dry_run_creates_nothing(
    run: Run, prometheus: SimulatedPrometheus, database: str, tmp_path: Path
) -> None:
    done = run(
        "backfill", "--prometheus", prometheus.url, "--database", database, *DAYS, "--dry-run"
    )
    assert done.exit_code == 0, done.stderr
    assert "120 minutes would be written" in done.stdout
    assert "8 or more queries" in done.stdout
    assert list(tmp_path.glob("*.db*")) == []
    assert prometheus.page_queries() == 0


def test_it_is_asked_with_headers_and_credentials(
    run: Run, prometheus: SimulatedPrometheus, database: str, tmp_path: Path
) -> None:
    """Thanos must not give partial answers or downsampled data."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    run(
        "backfill", "--prometheus", f"{prometheus.url}/", "--database", database, "--header",
        "X-Scope-OrgID: team a", "--bearer-token-file", token, "--since", "1d",
    )  # fmt: skip
    for _, asked, headers in prometheus.asked:
        assert headers["X-Scope-OrgID"] == "team a"
        assert headers["Authorization"] == "Bearer s3cret"
        assert asked["partial_response"] == "false"
        assert asked["max_source_resolution"] == "0s"


def test_nothing_found_is_reported_with_the_jobs_that_exist(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    until = BEGUN + 2 * HOUR
    words = ("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    done = run(*words, "--selector", '{job="llm"}', "--since", BEGUN, "--until", until)
    assert done.exit_code == 1
    assert 'UTC for {job="llm"}; in the hour' in said(done)
    assert 'these jobs have some: "vllm"' in said(done)
    done = run(*words, "--since", "2h")
    assert done.exit_code == 1
    assert "no job has any in the hour before" in said(done)
    assert "(the last 15 minutes are left out: give it more time)" in said(done)


def error(status: int, kind: str, text: str) -> tuple[int, bytes, dict[str, str]]:
    body = {"status": "error", "errorType": kind, "error": text}
    return status, json.dumps(body).encode(), {}


@pytest.mark.parametrize(
    ("refusal", "code", "expected"),
    [
        (error(400, "bad_data", 'parse error: unexpected "x"'), 2,
         'answered 400: parse error: unexpected "x"; see that --selector is one'),
        ((401, b"", {}), 2, "answered 401; give credentials: --bearer-token-file, or --user"),
        ((403, b"no", {}), 2, "answered 403: no; give other credentials, or the tenant"),
        ((404, b"404 page not found\n", {}), 2, "Mimir's ends in /prometheus"),
        ((302, b"", {"Location": "/login"}), 2, "a redirect is not followed"),
        ((200, b"<!doctype html><title>Sign in</title>", {}), 2,
         "answered something that is not the API of Prometheus (a web page); give"),
        ((404, b"<html><body>no</body></html>", {}), 2,
         "answered 404: a web page; give the base URL of the API"),
        ((200, b'{"status": "success", "data": {"res', {}), 1, "broke off after 35 bytes"),
        ((503, b"", {}), 1, "answered 503"),
        ((429, b"slow down", {"Retry-After": "0"}), 1, "answered 429: slow down"),
        (error(422, "execution", "too many chunks"), 1, "too many chunks"),
    ],
)  # fmt: skip
def test_refusals_of_the_server_are_reported_with_a_remedy(
    run: Run, prometheus: SimulatedPrometheus, database: str,
    refusal: tuple[int, bytes, dict[str, str]], code: int, expected: str,
) -> None:  # fmt: skip
    prometheus.refusals = [refusal] * 100
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert done.exit_code == code
    assert expected in said(done)
    assert "Traceback" not in said(done)


def test_a_partial_answer_is_never_written(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    """An info is not a warning."""
    partial = {"status": "success", "data": {"result": []}, "warnings": ["no store matched"]}
    prometheus.refusals = [(200, json.dumps(partial).encode(), {})] * 3
    words = ("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    done = run(*words)
    assert done.exit_code == 1
    assert "gave only a part of the answer: no store matched" in said(done)
    fine = {"status": "success", "data": {"result": []}, "infos": ["fine"]}
    prometheus.refusals = [(200, json.dumps(fine).encode(), {})]
    assert "only a part" not in said(run(*words))


@pytest.mark.parametrize(
    "body", [b"Bearer s3cret", b'{"status": "error", "error": "bad token s3cret"}']
)
def test_secrets_are_in_no_error(
    run: Run, prometheus: SimulatedPrometheus, database: str, tmp_path: Path, body: bytes
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    prometheus.refusals = [(200, body, {})]
    done = run(
        "backfill", "--prometheus", prometheus.url, "--database", database,
        "--bearer-token-file", token,
    )  # fmt: skip
    assert done.exit_code == 2
    assert "***" in said(done)
    assert "s3cret" not in said(done)


def test_no_try_follows_another_at_once(
    prometheus: SimulatedPrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retry-After can only make the delay longer."""
    monkeypatch.setattr(api, "_DELAYS", (1.0, 2.0))
    slept: list[float] = []
    client = api.Prometheus(api.Access(url=prometheus.url), sleep=slept.append)
    prometheus.refusals = [(503, b"", {"Retry-After": after}) for after in ("0", "7")]
    client.query("{}[1000ms]", float(BEGUN))
    client.close()
    assert slept == [1.0, 7.0]


def configured(tmp_path: Path, database: str, **target: str) -> Path:
    config = tmp_path / "specwatch.yml"
    targets = [{"name": "chat", "url": "http://localhost:8000", **target}]
    config.write_text(json.dumps({"daemon": "box", "database": database, "targets": targets}))
    return config


def test_only_targets_of_the_configuration_are_filled_unless_asked(
    run: Run, prometheus: SimulatedPrometheus, database: str, tmp_path: Path
) -> None:
    prometheus.recording.scrape(page(1), BEGUN + 30.0, instance="gpu-9:8000", job="vllm")
    config = configured(tmp_path, database)
    words = ("backfill", "--prometheus", prometheus.url, "--config", config, *DAYS)
    done = run(*words)
    assert done.exit_code == 0, done.stderr
    assert 'does not have them: "gpu-9:8000"; --all fills them' in said(done)
    assert {(w.series.daemon, w.series.target) for w in windows(database)} == {("box", "chat")}
    assert run(*words, "--selector", '{job="vllm"}', "--dry-run").stdout.count("minute") > 2
    done = run(*words, "--all", "--json")
    assert [load["target"] for load in json.loads(done.stdout)["targets"]] == ["chat", "gpu-9:8000"]


def test_missing_temperatures_of_a_proxy_are_reported(
    run: Run, prometheus: SimulatedPrometheus, database: str, tmp_path: Path
) -> None:
    config = configured(tmp_path, database, proxy="http://localhost:8001")
    done = run("backfill", "--prometheus", prometheus.url, "--config", config, *DAYS)
    assert "those of a `specwatch tap proxy` are not read" in said(done)


@pytest.mark.parametrize("ended", [False, True])
def test_the_daemon_that_holds_the_rest_is_named(
    run: Run, prometheus: SimulatedPrometheus, database: str, *, ended: bool
) -> None:
    """With the time of its last scrape, and what can be done if it has ended."""
    store = Store(database, daemon="old box", version="1")
    store.open(BEGUN)
    cursor = Cursor(NAME, {}, None, BEGUN + 1000.0)
    store.write([pack_batch(Batch((), cursor))], BEGUN)
    if ended:
        store.close(BEGUN + 1000.0)
    words = ("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    text = said(run(*words))
    assert ': daemon "old box" scraped it last then' in text
    assert ("--past-cursor" in text) == ended
    assert ("has not stopped properly" in text) != ended
    assert len(windows(database)) == 16
    run(*words, "--past-cursor")
    assert len(windows(database)) == (120 if ended else 16)
    store.close(BEGUN + 1000.0)


def test_one_target_that_fails_does_not_end_the_others(
    run: Run, prometheus: SimulatedPrometheus, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        at = BEGUN + 30.0 + 60 * number
        prometheus.recording.scrape(page(number), at, instance="a:8000", job="vllm")
    fill = Backfill.fill

    def fail(self: Backfill, source: BackfillSource, span: Span) -> Filled:
        if source.target == "a:8000":
            raise NoAnswer("too many samples")
        return fill(self, source, span)

    monkeypatch.setattr(Backfill, "fill", fail)
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert done.exit_code == 1
    assert "a:8000: too many samples" in said(done)
    assert f"{NAME}: 120 minutes written" in said(done)


def test_replicas_stop_only_their_own_target(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    for replica in ("x", "y"):
        for number in range(3):
            at = BEGUN + 30.0 + 60 * number
            prometheus.recording.scrape(page(number), at, instance="a:8000", replica=replica)
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert done.exit_code == 2
    assert "both target a:8000 at the same time" in said(done)
    assert {w.series.target for w in windows(database)} == {NAME}


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), StoreUnavailable("locked")])
def test_the_roll_up_is_retried_and_reported(
    run: Run, prometheus: SimulatedPrometheus, database: str, monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
) -> None:  # fmt: skip
    roll_up, faults = Store.roll_up, [fault]

    def busy(self: Store, now: float, **more: bool) -> int:
        if faults:
            raise faults.pop()
        return roll_up(self, now, **more)

    monkeypatch.setattr(Store, "roll_up", busy)
    monkeypatch.setattr("specwatch.backfill.service._DELAYS", (0.0,))
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert "all minutes are written; rolling up the hours" in said(done)
    interrupted = isinstance(fault, KeyboardInterrupt)
    assert done.exit_code == int(interrupted)
    told = "interrupted while rolling up the hours: all minutes are written"
    assert (told in said(done)) == interrupted
    assert len(windows(database)) == 120


def test_what_fails_for_a_while_is_tried_again(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    prometheus.refusals = [(503, b"", {}), (200, b'{"status": "succ', {})]
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    assert done.exit_code == 0, done.stderr
    assert len(windows(database)) == 120


def test_an_absent_server_is_reported(
    run: Run, prometheus: SimulatedPrometheus, database: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = run("backfill", "--prometheus", url, "--database", database)
    assert done.exit_code == 1
    assert f"nothing listens at {url}; is Prometheus up, on this port?" in said(done)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--selector", 'job="vllm"'), "is not a selector; write labels in braces"),
        (("--step", "5m"), "expected 1s to 1m"),
        (("--header", "X"), "write it like 'X-Scope-OrgID: tenant'"),
        (("--user", "me"), "--user and --password-file go together"),
        (("--since", "1h", "--until", "2h"), "--until is not after --since"),
        (("--since", "yesterday"), "is not a date or time such as 20"),
        (("--prometheus", "ftp://x"), "does not begin with http://"),
        (("--bearer-token-file", "/nowhere/token"), "cannot read /nowhere/token"),
    ],
)
def test_wrong_options_are_refused(
    run: Run, prometheus: SimulatedPrometheus, database: str, more: tuple[str, ...], expected: str
) -> None:
    done = run("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS, *more)
    assert done.exit_code == 2
    assert expected in said(done)
    assert prometheus.asked == []


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), StoreUnavailable("the disk is full")])
def test_it_reports_where_it_stopped_and_continues_there(
    run: Run, prometheus: SimulatedPrometheus, database: str, monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
) -> None:  # fmt: skip
    write = Store.add_missing

    def fail(self: Store, packed: list[Window], *rest: object) -> int:
        if packed[0].start >= BEGUN + HOUR:
            raise fault
        return write(self, packed, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("specwatch.backfill.service._DELAYS", ())
    words = ("backfill", "--prometheus", prometheus.url, "--database", database, *DAYS)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "add_missing", fail)
        done = run(*words)
    assert done.exit_code == 1
    assert f"of {NAME}; the same command continues" in said(done)
    assert len(windows(database)) == 60
    assert run(*words).exit_code == 0
    found = windows(database)
    assert sum(w.tally.drafts or 0 for w in found) == 119
    assert len(found) == 120


def test_in_a_pipe_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = BackfillProgress(monotonic=lambda: now[0])
    with progress.over(100):
        for number in range(50):
            now[0] += 1.0
            progress.hour("chat", BEGUN + HOUR * number, 60)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "15 of 100 hours, 900 minutes written, 1 hours a second" in lines[0]


def test_the_search_for_servers_shows_its_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    progress = BackfillProgress(monotonic=lambda: now[0])
    for number in range(5):
        now[0] += 1.0
        progress.looked(BEGUN + HOUR * number)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("looking for servers: until 20")


def test_on_a_terminal_it_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BackfillProgress(Console(stderr=True, force_terminal=True, width=120))
    with progress.over(2):
        progress.hour("chat", BEGUN, 60)
        progress.hour("chat", BEGUN + HOUR, 60)
    assert "2/2" in capsys.readouterr().err

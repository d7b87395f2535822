"""``specwatch backfill`` from a simulated Prometheus: queries, output and failures."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import Result
from rich.console import Console

from specwatch.cli.progress import BackfillProgress
from specwatch.domain.model import HOUR, MINUTE, Batch, Cursor, Window
from specwatch.errors import NoAnswer, StoreUnavailable
from specwatch.lab.backfill import prometheus as api
from specwatch.lab.backfill.prometheus_targets import BackfillSource
from specwatch.lab.backfill.service import Backfill, Filled, Span
from specwatch.store.batches import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests import pages
from tests.cli.conftest import Run
from tests.simulated_prometheus import InProcess, RecordedPrometheus, Recording

BEGUN = int(time.time() // HOUR - 30) * HOUR
INSTANCE = "127.0.0.1:8000"
NAME = f"{socket.gethostname()}:8000"
Backfilling = Callable[..., Result]


def page(number: int) -> str:
    running = pages.gauge("vllm:num_requests_running", 1.0, model_name="m", engine="0")
    return pages.page(running) + pages.speculation(number, (number,), model="m")


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Two hours of one server, the first scrape half a minute into an hour."""
    made = Recording()
    for number in range(120):
        made.scrape(page(number), BEGUN + 30.0 + 60 * number, instance=INSTANCE, job="vllm")
    return made


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> RecordedPrometheus:
    monkeypatch.setattr(api, "_DELAYS", (0.0, 0.0))
    server = RecordedPrometheus()
    server.recording.add(recording)
    new_session = api.new_session

    def session(*given: Any) -> requests.Session:
        made = new_session(*given)
        made.mount(server.url, InProcess(server))
        return made

    monkeypatch.setattr(api, "new_session", session)
    return server


def windows(database: str, length: int = MINUTE) -> list[Window]:
    with closing(Reader.of(database)) as reader:
        return list(reader.windows(since=0.0, until=4e9, length=length))


@pytest.fixture
def backfill(run: Run, prometheus: RecordedPrometheus, database: str) -> Callable[..., Result]:
    """Runs the command; of options that are given twice the last counts."""
    words = ("--prometheus", prometheus.url, "--database", database, "--since", "2d")
    return lambda *more: run("backfill", *words, *more)


def text(done: Result) -> str:
    return " ".join((done.stdout + done.stderr).split())


def test_it_fills_the_store_as_run_would_and_rolls_up(backfill: Backfilling, database: str) -> None:
    done = backfill()
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        f"{NAME}: 120 minutes written, 0 minutes stored already, of 2 hours with pages\n"
    )
    minutes = windows(database)
    assert [w.start for w in minutes] == list(range(BEGUN, BEGUN + 2 * HOUR, 60))
    assert {(w.series.daemon, w.series.target) for w in minutes} == {(socket.gethostname(), NAME)}
    assert sum(w.tally.drafts or 0 for w in windows(database, length=HOUR)) == 119


def test_json_has_the_result_of_each_target(backfill: Backfilling) -> None:
    words = ("--since", "30d", "--json", "--target", "chat")
    first, again = (json.loads(backfill(*words).stdout) for _ in range(2))
    (target,) = first["targets"]
    until = target.pop("until")
    assert target == {
        "target": "chat",
        "instance": INSTANCE,
        "hours": 2,
        "minutes_written": 120,
        "minutes_kept": 0,
        "skipped_hours": 0,
        "queries": 8,
        "held_by": None,
    }
    assert until == first["until"] == pytest.approx(time.time() - 900, abs=120)
    assert first["since"] % HOUR == 0
    assert first["since"] == pytest.approx(time.time() - 30 * 86400, abs=2 * HOUR)
    (target,) = again["targets"]
    assert (target["minutes_written"], target["minutes_kept"]) == (0, 120)
    assert target["skipped_hours"] == 2


def test_a_dry_run_creates_nothing(
    backfill: Backfilling, prometheus: RecordedPrometheus, tmp_path: Path
) -> None:
    done = backfill("--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "120 minutes would be written" in done.stdout
    assert "8 or more queries" in done.stdout
    assert list(tmp_path.glob("*.db*")) == []
    assert prometheus.page_queries() == 0


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


def test_queries_have_the_headers_and_credentials(
    backfill: Backfilling, prometheus: RecordedPrometheus, token: Path
) -> None:
    """Thanos must not give partial answers or downsampled data."""
    header = ("--header", "X-Scope-OrgID: team a")
    backfill("--prometheus", f"{prometheus.url}/", *header, "--bearer-token-file", token)
    for _, asked, headers in prometheus.asked:
        assert headers["X-Scope-OrgID"] == "team a"
        assert headers["Authorization"] == "Bearer s3cret"
        assert asked["partial_response"] == "false"
        assert asked["max_source_resolution"] == "0s"


@pytest.mark.parametrize(
    "body", [b"Bearer s3cret", b'{"status": "error", "error": "bad token s3cret"}']
)
def test_secrets_are_in_no_error(
    backfill: Backfilling, prometheus: RecordedPrometheus, token: Path, body: bytes
) -> None:
    prometheus.refusals = [(200, body, {})]
    done = backfill("--bearer-token-file", token)
    assert done.exit_code == 2
    assert "***" in text(done)
    assert "s3cret" not in text(done)


def test_without_pages_the_existing_jobs_are_named(backfill: Backfilling) -> None:
    done = backfill("--selector", '{job="llm"}', "--since", BEGUN, "--until", BEGUN + 2 * HOUR)
    assert done.exit_code == 1
    assert 'UTC for {job="llm"}; in the hour' in text(done)
    assert 'these jobs have some: "vllm"' in text(done)
    done = backfill("--since", "2h")
    assert done.exit_code == 1
    assert "no job has any in the hour before" in text(done)
    assert "(the last 15 minutes are left out: give it more time)" in text(done)


def error(status: int, kind: str, text: str) -> tuple[int, bytes, dict[str, str]]:
    body = {"status": "error", "errorType": kind, "error": text}
    return status, json.dumps(body).encode(), {}


@pytest.mark.parametrize(
    ("refusal", "code", "expected"),
    [
        (
            error(400, "bad_data", 'parse error: unexpected "x"'),
            2,
            'answered 400: parse error: unexpected "x"; see that --selector is one',
        ),
        ((401, b"", {}), 2, "answered 401; give credentials: --bearer-token-file, or --user"),
        ((403, b"no", {}), 2, "answered 403: no; give other credentials, or the tenant"),
        ((404, b"404 page not found\n", {}), 2, "Mimir's ends in /prometheus"),
        ((302, b"", {"Location": "/login"}), 2, "a redirect is not followed"),
        (
            (200, b"<!doctype html><title>Sign in</title>", {}),
            2,
            "answered something that is not the API of Prometheus (a web page); give",
        ),
        (
            (404, b"<html><body>no</body></html>", {}),
            2,
            "answered 404: a web page; give the base URL of the API",
        ),
        ((200, b'{"status": "success", "data": {"res', {}), 1, "broke off after 35 bytes"),
        ((503, b"", {}), 1, "answered 503"),
        ((429, b"slow down", {"Retry-After": "0"}), 1, "answered 429: slow down"),
        (error(422, "execution", "too many chunks"), 1, "too many chunks"),
    ],
)
def test_refusals_of_the_server_are_reported_with_a_remedy(
    backfill: Backfilling,
    prometheus: RecordedPrometheus,
    refusal: tuple[int, bytes, dict[str, str]],
    code: int,
    expected: str,
) -> None:
    prometheus.refusals = [refusal] * 100
    done = backfill()
    assert done.exit_code == code
    assert expected in text(done)


def test_a_partial_answer_is_never_written(
    backfill: Backfilling, prometheus: RecordedPrometheus
) -> None:
    """An info is not a warning."""
    partial = {"status": "success", "data": {"result": []}, "warnings": ["no store matched"]}
    prometheus.refusals = [(200, json.dumps(partial).encode(), {})] * 3
    done = backfill()
    assert done.exit_code == 1
    assert "gave only a part of the answer: no store matched" in text(done)
    fine = {"status": "success", "data": {"result": []}, "infos": ["fine"]}
    prometheus.refusals = [(200, json.dumps(fine).encode(), {})]
    assert "only a part" not in text(backfill())


def test_temporary_failures_are_retried_after_a_delay(
    backfill: Backfilling,
    database: str,
    prometheus: RecordedPrometheus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retry-After can only make the delay longer."""
    prometheus.refusals = [(503, b"", {}), (200, b'{"status": "succ', {})]
    done = backfill()
    assert done.exit_code == 0, done.stderr
    assert len(windows(database)) == 120
    monkeypatch.setattr(api, "_DELAYS", (1.0, 2.0))
    delays: list[float] = []
    client = api.Prometheus(api.Access(url=prometheus.url), sleep=delays.append)
    prometheus.refusals = [(503, b"", {"Retry-After": after}) for after in ("0", "7")]
    client.query("{}[1000ms]", float(BEGUN))
    client.close()
    assert delays == [1.0, 7.0]


def configured(tmp_path: Path, database: str, **target: str) -> Path:
    config = tmp_path / "specwatch.yml"
    targets = [{"name": "chat", "url": "http://localhost:8000", **target}]
    config.write_text(json.dumps({"daemon": "box", "database": database, "targets": targets}))
    return config


def test_only_targets_of_the_configuration_are_filled_unless_all_are_asked_for(
    backfill: Backfilling, prometheus: RecordedPrometheus, database: str, tmp_path: Path
) -> None:
    prometheus.recording.scrape(page(1), BEGUN + 30.0, instance="gpu-9:8000", job="vllm")
    config = ("--config", configured(tmp_path, database, proxy="http://localhost:8001"))
    done = backfill(*config)
    assert done.exit_code == 0, done.stderr
    assert 'does not have them: "gpu-9:8000"; --all fills them' in text(done)
    assert "those of a `specwatch tap proxy` are not read" in text(done)
    assert {(w.series.daemon, w.series.target) for w in windows(database)} == {("box", "chat")}
    dry_run = backfill(*config, "--selector", '{job="vllm"}', "--dry-run")
    assert dry_run.stdout.count("minute") > 2
    targets = json.loads(backfill(*config, "--all", "--json").stdout)["targets"]
    assert [target["target"] for target in targets] == ["chat", "gpu-9:8000"]


@pytest.mark.parametrize("ended", [False, True])
def test_the_daemon_that_counts_the_rest_is_named(
    backfill: Backfilling, database: str, *, ended: bool
) -> None:
    """With the time of its last scrape, and what can be done if it has ended."""
    store = Store(database, daemon="old box", version="1")
    store.open(BEGUN)
    store.write([pack_batch(Batch((), Cursor(NAME, {}, None, BEGUN + 1000.0)))], BEGUN)
    if ended:
        store.close(BEGUN + 1000.0)
    message = text(backfill())
    assert ': daemon "old box" scraped it last then' in message
    assert ("--past-cursor" in message) == ended
    assert ("has not stopped properly" in message) != ended
    assert len(windows(database)) == 16
    backfill("--past-cursor")
    assert len(windows(database)) == (120 if ended else 16)
    store.close(BEGUN + 1000.0)


@pytest.mark.parametrize("replicas", [False, True], ids=["no answer", "replicas"])
def test_a_target_that_fails_does_not_end_the_others(
    backfill: Backfilling,
    prometheus: RecordedPrometheus,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replicas: bool,
) -> None:
    for number in range(3):
        for replica in ("x", "y") if replicas else ("",):
            at = BEGUN + 30.0 + 60 * number
            prometheus.recording.scrape(page(number), at, instance="a:8000", replica=replica)
    fill = Backfill.fill

    def fail(self: Backfill, source: BackfillSource, span: Span) -> Filled:
        if source.target == "a:8000":
            raise NoAnswer("too many samples")
        return fill(self, source, span)

    monkeypatch.setattr(Backfill, "fill", fail)
    done = backfill()
    assert done.exit_code == (2 if replicas else 1)
    reason = "both target a:8000 at the same time" if replicas else "a:8000: too many samples"
    assert reason in text(done)
    assert f"{NAME}: 120 minutes written" in text(done)
    assert {w.series.target for w in windows(database)} == {NAME}


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), StoreUnavailable("locked")])
def test_the_roll_up_is_retried_and_its_end_is_reported(
    backfill: Backfilling, database: str, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    roll_up, faults = Store.roll_up, [fault]

    def busy(self: Store, now: float, **more: bool) -> int:
        if faults:
            raise faults.pop()
        return roll_up(self, now, **more)

    monkeypatch.setattr(Store, "roll_up", busy)
    monkeypatch.setattr("specwatch.lab.backfill.service._DELAYS", (0.0,))
    done = backfill()
    assert "all minutes are written; rolling up the hours" in text(done)
    interrupted = isinstance(fault, KeyboardInterrupt)
    assert done.exit_code == int(interrupted)
    message = "interrupted while rolling up the hours: all minutes are written"
    assert (message in text(done)) == interrupted
    assert len(windows(database)) == 120


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), StoreUnavailable("the disk is full")])
def test_it_reports_where_it_stopped_and_continues_there(
    backfill: Backfilling, database: str, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    write = Store.add_missing

    def fail(self: Store, packed: list[Window], *rest: object) -> int:
        if packed[0].start >= BEGUN + HOUR:
            raise fault
        return write(self, packed, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("specwatch.lab.backfill.service._DELAYS", ())
    with monkeypatch.context() as patched:
        patched.setattr(Store, "add_missing", fail)
        done = backfill()
    assert done.exit_code == 1
    assert f"of {NAME}; the same command continues" in text(done)
    assert len(windows(database)) == 60
    assert backfill().exit_code == 0
    minutes = windows(database)
    assert sum(w.tally.drafts or 0 for w in minutes) == 119
    assert len(minutes) == 120


def test_an_absent_server_is_reported(backfill: Backfilling) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = backfill("--prometheus", url)
    assert done.exit_code == 1
    assert f"nothing listens at {url}; is Prometheus up, on this port?" in text(done)


@pytest.mark.parametrize(
    ("words", "expected"),
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
    backfill: Backfilling, prometheus: RecordedPrometheus, words: tuple[str, ...], expected: str
) -> None:
    done = backfill(*words)
    assert done.exit_code == 2
    assert expected in text(done)
    assert prometheus.asked == []


def test_in_a_pipe_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = itertools.count()
    progress = BackfillProgress(monotonic=lambda: float(next(clock)))
    progress.looked(BEGUN)
    for number in range(5):
        progress.looked(BEGUN + HOUR * number)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) < 5
    assert lines[0].startswith("looking for servers: until 20")
    now = [0.0]
    progress = BackfillProgress(monotonic=lambda: now[0])
    with progress.over(100):
        for number in range(50):
            now[0] += 1.0
            progress.hour("chat", BEGUN + HOUR * number, 60)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "15 of 100 hours, 900 minutes written, 1 hours a second" in lines[0]


def test_on_a_terminal_it_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BackfillProgress(Console(stderr=True, force_terminal=True, width=120))
    with progress.over(2):
        progress.hour("chat", BEGUN, 60)
        progress.hour("chat", BEGUN + HOUR, 60)
    assert "2/2" in capsys.readouterr().err

"""``specwatch check-config``."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.responses import Response

from specwatch.cli import options
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.store.repository import Store
from tests import pages
from tests.cli.conftest import Run
from tests.web.statuses import Surface


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "specwatch.yml"
    file.write_text(text)
    return file


@pytest.fixture
def good(tmp_path: Path, vllm: str) -> Path:
    """A configuration with a target that answers and a database that can be created."""
    return written(
        tmp_path,
        f"database: sqlite:///{tmp_path}/new/history.db\n"
        f"targets: [{{name: chat, url: '{vllm}'}}]\n",
    )


def test_a_good_configuration_is_zero_and_creates_nothing(run: Run, good: Path) -> None:
    done = run("check-config", "--config", good)
    assert (done.exit_code, done.stderr) == (0, "")
    first, rules, note, database, target = done.stdout.splitlines()
    assert first == "configuration: ok, 1 target"
    assert rules == (
        "rules: 15 apply, 2 of them would disable speculation: net-negative,"
        " net-negative-unexplained"
    )
    assert note.startswith("note: no baseline of chat: speedup is assumed, not measured; run")
    assert database.endswith("history.db: ok, empty, will be set up at start")
    assert target.endswith("ok, tiny (speculation on)")
    assert not (good.parent / "new").exists()


def test_json_of_the_configuration_in_its_usual_place(run: Run, good: Path) -> None:
    options.DEFAULT_FILE.parent.mkdir()
    good.rename(options.DEFAULT_FILE)
    done = run("check-config", "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["problems"]) == (0, True, [])
    assert answer["configuration"]["targets"][0]["interval"] == "5s"
    assert [check["ok"] for check in answer["checks"]] == [True, True]
    rule = answer["rules"][0]
    assert (rule["name"], rule["window"], rule["for"]) == ("net-negative", "1h", "0s")
    assert len(answer["notes"]) == 1


def test_an_unreadable_database_and_folder_exit_with_1(
    run: Run, tmp_path: Path, vllm: str, forbid: Callable[[Path], None]
) -> None:
    forbid(tmp_path / "private")
    file = written(
        tmp_path,
        f"database: sqlite:///{tmp_path}/private/specwatch/history.db\n"
        f"report: {{directory: {tmp_path}/private/specwatch/reports}}\n"
        f"targets: [{{name: chat, url: '{vllm}'}}]\n",
    )
    done = run("check-config", "--config", file)
    assert done.exit_code == 1
    assert "history.db: FAILED: SQLite database " in done.stdout
    assert "history.db: this user may not use it; use sudo" in done.stdout
    assert "reports: FAILED: this user may not search" in done.stdout


def measured(place: Path, targets: str, age: float) -> None:
    """Store a baseline of each target, of an age in seconds."""
    now = time.time()
    points = tuple(Point(now - age - n, 4.0, 50.0, 1000.0) for n in range(9))
    store = Store(f"sqlite:///{place}", daemon="d")
    store.open(now)
    keys = [BaselineKey(name, "tiny") for name in targets]
    store.write_measurements([Measurement(key, 2, Origin.IMPORTED, points) for key in keys], now)
    store.close(now)


ONE_RULE = (
    "rules: {use_defaults: false, extra:"
    " [{name: slow, metric: speedup_ratio, below: 1, scope: {target: b}}]}"
)
NO_RULES = "rules: {use_defaults: false}"
BASELINES = {
    "a baseline that is too old": ("ab", "", [("no baseline of a, b: ", "tail-widening")]),
    "a baseline that is young enough": (
        "abcde",
        "baseline: {max_age: 50d}",
        [("no baseline of c, d, e: ", "tail-widening")],
    ),
    "many targets without a baseline": (
        "cdefg",
        "",
        [("no baseline of c, d, e and 2 more: ", "tail-widening")],
    ),
    "without a rule that needs one, none is missed": ("a", NO_RULES, []),
    "only targets of a rule that needs one": ("xb", ONE_RULE, [("no baseline of b: ", "slow")]),
}


@pytest.mark.parametrize(("names", "more", "notes"), BASELINES.values(), ids=BASELINES.keys())
def test_targets_without_a_valid_baseline_are_noted(
    run: Run, tmp_path: Path, names: str, more: str, notes: list[tuple[str, str]]
) -> None:
    measured(tmp_path / "history.db", "ab", age=40 * 86400.0)
    targets = ", ".join(f"{{name: {name}, url: 'http://127.0.0.1:1/{name}'}}" for name in names)
    database = f"database: sqlite:///{tmp_path}/history.db\n"
    file = written(tmp_path, f"{database}targets: [{targets}]\n{more}\n")
    answer = json.loads(run("check-config", "--config", file, "--json").stdout)
    assert len(answer["notes"]) == len(notes)
    for note, (start, end) in zip(answer["notes"], notes, strict=True):
        assert note.startswith(start)
        assert note.endswith(end)


def test_offline_shows_the_rules_and_contacts_nobody(run: Run, tmp_path: Path) -> None:
    text = (
        f"targets: [{{url: 'http://127.0.0.1:1'}}]\n{NO_RULES}\n"
        "slos: [{name: a, metric: ttft, threshold: 1s, objective: 99%}]\n"
    )
    done = run("check-config", "--config", written(tmp_path, text), "--offline")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == ["rules: none apply; 1 SLO"]


BAD = """\
listen: nowhere
targets:
  - url: http://user:hunter2@host
    intervall: 5s
  - {url: 'http://127.0.0.1:8000', interval: 5}
"""


def test_a_refused_file_shows_all_problems_and_exits_with_2(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path, BAD)
    done = run("check-config", "--config", file)
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(" ")[0] for line in lines] == [f"{file}:{n}:" for n in (1, 3, 4, 5)]
    assert 'did you mean "interval"?' in lines[2]
    assert "hunter2" not in done.output
    done = run("check-config", "--config", file, "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, done.stderr) == (2, "")
    assert (answer["ok"], answer["configuration"], answer["checks"]) == (False, None, [])
    assert len(answer["problems"]) == 4


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "/nonexistent/specwatch.yml"],
        ["--config", "/"],
        [],
        ["--config", "x.yml", "--target", "http://127.0.0.1:1"],
        ["--target", "foo"],
    ],
)
def test_what_cannot_be_a_configuration_exits_with_2(run: Run, words: list[str]) -> None:
    done = run("check-config", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_target_that_does_not_answer_exits_with_1_and_others_are_checked(
    run: Run, tmp_path: Path, vllm: str
) -> None:
    file = written(
        tmp_path,
        f"database: sqlite:///{tmp_path}/history.db\n"
        f"targets: [{{name: a, url: 'http://127.0.0.1:1'}}, {{name: b, url: '{vllm}'}},"
        f" {{name: c, url: '{vllm}', metrics_path: /nope}}]\n",
    )
    done = run("check-config", "--config", file)
    assert done.exit_code == 1
    a, c, *_, b = done.stdout.splitlines()
    assert "FAILED: nothing listens" in a, "what fails comes first"
    assert ": ok, " in b
    assert "FAILED: " in c
    assert "404" in c


def test_targets_are_asked_together(run: Run, tmp_path: Path) -> None:
    """Many hanging targets take one timeout together."""
    open_at_once: list[socket.socket] = []

    def accept() -> None:
        while len(open_at_once) < 20:
            try:
                open_at_once.append(silent.accept()[0])
            except TimeoutError:
                break
        silent.close()
        for connection in open_at_once:
            connection.close()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        silent.settimeout(5)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        hangs = "interval: 20s, timeout: 20s"
        targets = ", ".join(f"{{name: t{n}, url: '{url}/{n}', {hangs}}}" for n in range(20))
        file = written(
            tmp_path, f"database: sqlite:///{tmp_path}/history.db\ntargets: [{targets}]\n"
        )
        accepting = threading.Thread(target=accept)
        accepting.start()
        done = run("check-config", "--config", file)
        accepting.join(30)
    assert len(open_at_once) == 20
    assert done.exit_code == 1
    assert done.stdout.count("FAILED") == 20


@pytest.mark.parametrize(
    ("database", "words"),
    [
        ("sqlite:////dev/null/x.db", "x.db"),
        ("sqlite:///FOLDER/text.db", "not an SQLite database, or damaged"),
        ("sqlite:///FOLDER/newer.db", "a newer specwatch"),
        ("postgresql://specwatch:hunter2@127.0.0.1:1/fleet", "refused"),
    ],
)
def test_an_unusable_database_exits_with_1_without_its_password(
    run: Run, tmp_path: Path, vllm: str, database: str, words: str
) -> None:
    (tmp_path / "text.db").write_text("no database\n" * 100)
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.execute("CREATE TABLE alembic_version (version_num TEXT)")
        newer.execute("INSERT INTO alembic_version VALUES ('9999')")
    newer.close()
    url = database.replace("FOLDER", str(tmp_path))
    file = written(tmp_path, f"database: {url}\ntargets: [{{url: '{vllm}'}}]\n")
    for more in ([], ["--json"]):
        done = run("check-config", "--config", file, *more)
        assert done.exit_code == 1
        assert words in done.stdout
        assert "hunter2" not in done.output


@pytest.mark.parametrize("exists", [False, True])
def test_a_place_that_is_not_ours_to_write_is_found_now(
    run: Run, tmp_path: Path, vllm: str, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    place = folder / "x.db" if exists else folder
    if exists:
        assert run("db", "upgrade", "--database", f"sqlite:///{place}").exit_code == 0
    database = place if exists else folder / "sub" / "x.db"
    file = written(tmp_path, f"database: sqlite:///{database}\ntargets: [{{url: '{vllm}'}}]\n")
    # Root, as which tests may run, is denied nothing.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place or mode == os.R_OK)
    done = run("check-config", "--config", file)
    assert done.exit_code == 1
    assert f"this user may not write in {place}" in done.stdout


def test_a_page_without_an_engine_exits_with_1(run: Run, surface: Surface) -> None:
    done = run("check-config", "--target", surface.url)
    assert done.exit_code == 1
    assert "the server there is not vLLM, llama.cpp" in done.stdout


def test_secrets_are_not_shown(run: Run, tmp_path: Path, vllm: str) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    file = written(
        tmp_path,
        "database: {url: 'postgresql://specwatch@127.0.0.1:1/fleet', password_file: token}\n"
        f"targets: [{{url: '{vllm}', bearer_token_file: token, headers: {{X-Key: hunter2}}}}]\n",
    )
    done = run("check-config", "--config", file, "--json")
    assert done.exit_code == 1
    assert "hunter2" not in done.output
    assert json.loads(done.stdout)["configuration"]["targets"][0]["headers"] == {"X-Key": "***"}


def test_a_hostile_model_name_cannot_command_the_terminal(
    run: Run, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specwatch.scrape.page_client import BlockingPageClient

    name = "\x1b[31m" + "y" * 1_000
    page = pages.page(pages.gauge("vllm:num_requests_running", 1, model_name=name)).encode()
    monkeypatch.setattr(BlockingPageClient, "fetch", lambda *_, **__: page)
    done = run("check-config", "--target", surface.url)
    assert done.exit_code == 0
    assert r"\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 300


PROXY = pages.faithful("tap-proxy")


TEMPERATURES = "tap found, with temperatures 0, (0,0.3], (0.3,0.7], (0.7,1], >1, unknown"
SERVER = pages.capture("draft-k4.2")
TAPS = {
    "a tap in the server": (
        pages.faithful("vllm-0.32-tap"),
        None,
        True,
        f"(speculation on); {TEMPERATURES}",
    ),
    "a proxy": (SERVER, PROXY, True, f"ok, {TEMPERATURES}"),
    "other buckets than the configured": (
        SERVER,
        PROXY.replace(b"(0.3,0.7]", b"(0.3,0.8]"),
        True,
        ": (0.3,0.8]; start it with SPECWATCH_TAP_TEMPERATURE_BUCKETS=0,0.3,0.7,1",
    ),
    "a tap without requests": (
        SERVER,
        pages.tap().encode(),
        True,
        "ok, tap found, no request counted yet",
    ),
    "no page": (SERVER, b"<html>\n", False, "expected a metrics page"),
    "no proxy": (SERVER, SERVER, False, "no specwatch_* family on its page"),
    "a proxy as the server": (PROXY, None, False, "give its URL as the target's proxy"),
}


@pytest.mark.parametrize(("server", "proxy", "ok", "text"), TAPS.values(), ids=TAPS.keys())
def test_the_tap_is_reported_with_its_buckets(
    run: Run,
    tmp_path: Path,
    web: Callable[..., str],
    server: bytes,
    proxy: bytes | None,
    ok: bool,
    text: str,
) -> None:
    target = f"name: chat, url: '{web('/metrics', lambda _: Response(server))}'"
    if proxy is not None:
        target += f", proxy: '{web('/metrics', lambda _: Response(proxy))}'"
    file = written(
        tmp_path, f"database: sqlite:///{tmp_path}/history.db\ntargets: [{{{target}}}]\n"
    )
    done = run("check-config", "--config", file)
    assert done.exit_code == int(not ok)
    line = done.stdout.splitlines()[-1 if ok else 0]
    assert line.startswith("proxy of chat at" if proxy is not None else "target chat at")
    assert ("FAILED: " in line) is not ok
    assert text in line


def test_sources_of_targets_and_what_they_list_are_checked(
    run: Run, tmp_path: Path, vllm: str
) -> None:
    host, _, prefix = vllm.removeprefix("http://").partition("/")
    labels = {"instance": "chat", "__metrics_path__": f"/{prefix}/metrics"}
    group = {"targets": [host, "a/b"], "labels": labels}
    (tmp_path / "targets.json").write_text(json.dumps([group]))
    file = written(
        tmp_path,
        f"database: sqlite:///{tmp_path}/new/history.db\n"
        "discovery: [{file_sd: {files: [targets.json]}}, {http_sd: {url: 'http://127.0.0.1:1'}}]\n",
    )
    done = run("check-config", "--config", file)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"discovery by file_sd {tmp_path}/targets.json: FAILED: 'a/b' is not an address; write"
        " host:port",
        "discovery by http_sd http://127.0.0.1:1: FAILED: nothing listens at http://127.0.0.1:1; is"
        " the server up, on this port?",
    ]
    assert lines[2] == "configuration: ok, 0 targets, 2 sources of targets"
    assert f"target chat at {vllm}/metrics: ok, tiny (speculation on)" in lines
    (tmp_path / "targets.json").write_text(json.dumps([{"targets": [host], "labels": labels}]))
    answer = json.loads(run("check-config", "--config", file, "--json").stdout)
    details = {check["what"].split()[2]: check["detail"] for check in answer["checks"][1:3]}
    assert details["file_sd"] == "1 target"


HOLDOUTS = {
    "in a group that is large enough": ("mode: act, holdout: 1", "x, x, x", []),
    "in a small one": ("mode: act, holdout: 1", "x, x, y", ["too many for x, y"]),
    "that nobody restarts": ("holdout: 2", "x, x, x, x, x, x", ["set guard.mode: act"]),
    "none": ("mode: act", "x", []),
}


@pytest.mark.parametrize(("guard", "groups", "ends"), HOLDOUTS.values(), ids=HOLDOUTS.keys())
def test_a_holdout_that_cannot_be_is_noted(
    run: Run, tmp_path: Path, guard: str, groups: str, ends: list[str]
) -> None:
    targets = ", ".join(
        f"{{url: 'http://127.0.0.1:1/{at}', name: t{at}, group: {group}}}"
        for at, group in enumerate(groups.split(", "))
    )
    file = written(
        tmp_path, f"database: sqlite:///{tmp_path}/d.db\ntargets: [{targets}]\nguard: {{{guard}}}\n"
    )
    answer = json.loads(run("check-config", "--offline", "--config", file, "--json").stdout)
    notes = [note for note in answer["notes"] if note.startswith("guard.holdout")]
    assert [note.endswith(end) for note, end in zip(notes, ends, strict=True)] == [True] * len(ends)


def test_who_listens_for_everybody_without_a_token_is_told(run: Run, tmp_path: Path) -> None:
    for more, told in (("", True), (f"listen_token_file: {tmp_path}/token\n", False)):
        file = tmp_path / "specwatch.yml"
        (tmp_path / "token").write_text("0123456789abcdef")
        file.write_text(f"listen: 0.0.0.0:9469\n{more}targets: [{{url: http://127.0.0.1:1}}]\n")
        done = run("check-config", "--config", file, "--offline")
        assert (
            "everybody who can connect to that address" in " ".join(done.stdout.split())
        ) is told

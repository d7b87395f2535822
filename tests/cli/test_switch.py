"""``specwatch switch``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from specwatch.cli import switch
from tests.cli.conftest import Run
from tests.switched_server import LAUNCH, TOKEN, SwitchedServer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waits: the server counts by page, not by time."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(switch, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(switch, "_WATCHED_SECONDS", 5.0)
    monkeypatch.setattr("specwatch.actuators.switch._LOOK_SECONDS", 0.005)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SwitchedServer]:
    with SwitchedServer(tmp_path / "switch") as running:
        yield running


def test_an_order_is_given_watched_and_ended(run: Run, server: SwitchedServer) -> None:
    access = ["--url", server.url, "--directory", server.directory]
    done = run("switch", *access, "--k", "0", "--lease", "2m", "--by", "ann")
    assert done.exit_code == 0, done.output
    assert ": 0 draft tokens a step until " in done.stdout
    assert "ordered by ann; its counters show it" in done.stdout
    shown = run("switch", *access)
    assert ": 0 draft tokens a step until " in shown.stdout
    done = run("switch", *access, "--launch")
    assert done.stdout.rstrip().endswith("4 draft tokens a step, as launched; its counters show it")
    assert server.used == [0, None]


def test_a_schedule_is_ordered(run: Run, server: SwitchedServer) -> None:
    access = ["--url", server.url, "--directory", server.directory]
    done = run("switch", *access, "--schedule", "[[1, 8, 4], [9, 256, 0]]", "--by", "ann")
    assert done.exit_code == 0, done.output
    assert ": [[1,8,4],[9,256,0]] (requests, and their draft tokens) a step until " in done.stdout
    assert server.used == [((1, 8, 4), (9, 256, 0))]
    refused = run("switch", *access, "--schedule", "[[1, 8, 5]]")
    assert (refused.exit_code, "5 draft tokens are more than" in refused.stderr) == (1, True)


def test_json_has_the_state_of_the_server(run: Run, server: SwitchedServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    done = run("switch", "--url", server.url, "--token-file", token, "--k", "1", "--json")
    answer = json.loads(done.stdout)
    assert list(answer) == ["target", "state", "followed", "reason"]
    assert (answer["state"]["draft_tokens"], answer["followed"]) == (1, True)


def test_an_order_that_is_not_followed_is_taken_back(run: Run, tmp_path: Path) -> None:
    with SwitchedServer(tmp_path / "switch", obeys=False) as server:
        access = ["--url", server.url, "--directory", server.directory]
        done = run("switch", *access, "--k", "1")
        assert done.exit_code == 1
        assert "not followed; the order was taken back" in done.stdout
        assert server.used == [1, None]


def test_without_traffic_it_cannot_be_seen(run: Run, tmp_path: Path) -> None:
    with SwitchedServer(tmp_path / "switch", tokens=0) as server:
        done = run("switch", "--url", server.url, "--directory", server.directory, "--k", "1")
    assert done.exit_code == 0
    assert "too little is generated" in done.stdout


def test_a_schedule_of_the_launch(run: Run, tmp_path: Path) -> None:
    launch = msgspec.structs.replace(LAUNCH, launch_schedule=((1, 4), (5, 0)))
    with SwitchedServer(tmp_path / "switch", launch) as server:
        done = run("switch", "--url", server.url, "--directory", server.directory)
    assert "up to 4 draft tokens a step, as launched" in done.stdout


def test_a_server_that_follows_no_orders(run: Run, tmp_path: Path) -> None:
    launch = msgspec.structs.replace(LAUNCH, unavailable="it has no schedule")
    with SwitchedServer(tmp_path / "switch", launch) as server:
        access = ["--url", server.url, "--directory", server.directory]
        shown, ordered = run("switch", *access), run("switch", *access, "--k", "1")
    assert (shown.exit_code, ordered.exit_code) == (1, 1)
    assert "follows no orders: it has no schedule" in shown.stdout
    assert "it has no schedule" in ordered.stderr


def test_a_target_of_the_configuration(run: Run, server: SwitchedServer, tmp_path: Path) -> None:
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"targets:\n- {{name: chat, url: '{server.url}',"
        f" switch: {{directory: {server.directory}}}}}\n"
        "- {name: other, url: 'http://127.0.0.1:1'}\n"
    )
    done = run("switch", "chat", "--config", file, "--k", "2")
    assert done.stdout.startswith("chat: 2 draft tokens a step until "), done.output
    other = run("switch", "other", "--config", file)
    assert (other.exit_code, "no switch is configured for" in other.stderr) == (2, True)
    file.write_text("targets:\n- {url: 'http://127.0.0.1:1'}\n")
    assert "see targets[].switch" in run("switch", "--config", file).stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--k", "1", "--launch"], "one of --k, --schedule and --launch"),
        (["--k", "0", "--schedule", "[[1,1,1]]"], "one of --k, --schedule and --launch"),
        (["--schedule", "[]"], "--schedule: it has no ranges; give ranges of first and last"),
        (["--schedule", "4"], "--schedule: Expected `array`, got `int`; give ranges"),
        (["--schedule", "[[1,4,2],[6,9,1]]"], "the range [6, 9, 1] of the schedule: expected one"),
        (["--k", "-1"], "-1 is not in the range"),
        (["--directory", "/run/x"], "need the --url"),
        (["--url", "http://127.0.0.1:1"], "one of them"),
        (["--url", "http://127.0.0.1:1", "--directory", "/x", "--token-file", "/y"], "one of them"),
        (["--url", "nonsense", "--directory", "/run/x"], "--url"),
        (["--lease", "2d", "--k", "1"], "from 1s to 1d"),
        ([], "there is no configuration"),
    ],
)
def test_what_cannot_be_asked(run: Run, arguments: list[str], why: str) -> None:
    done = run("switch", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr

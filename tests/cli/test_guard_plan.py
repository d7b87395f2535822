"""``specwatch guard plan``."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from specwatch.cli import guard_plan
from specwatch.guard.plan import FileChange, Plan
from tests.cli.conftest import Run
from tests.cli.guards import Guards
from tests.switched_server import LAUNCH, SwitchedServer
from tests.web.decided import decided
from tests.web.statuses import Surface, daemon, target


def configuration(tmp_path: Path, guards: Guards, surface: Surface, service: str) -> Path:
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {guards.url}\nlisten: {surface.url.removeprefix('http://')}\n"
        f"targets: [{{url: 'http://127.0.0.1:8000', name: chat{service}}}]\n"
    )
    return file


COMMAND = ", service: {kind: command, disable: [/bin/true, off], enable: [/bin/true, on]}"


def test_plan_shows_the_steps_and_what_they_would_cost(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path
) -> None:
    guards.put(costs=(30.0, 40.0, 500.0))
    surface.status = daemon(target(decision=decided(), load=3.0))
    file = configuration(tmp_path, guards, surface, COMMAND)
    done = run("guard", "plan", "--config", file)
    assert (done.exit_code, done.stderr) == (0, "")
    printed = done.stdout.splitlines()
    assert printed[:5] == [
        "Speculation pays for llama now: what takes an hour would take 60 min longer",
        "  without it, as the speedup is 2.00x (1.95 to 2.05).",
        "chat  command service",
        "steps",
        "  1. run `/bin/true off`, for 10m at most",
    ]
    assert printed[-2:] == [
        "  40 s without service, the median of 3 restarts, after draining for at most 1m",
        "  3 requests running or waiting now",
    ]
    answer = json.loads(run("guard", "plan", "chat", "--config", file, "--json").stdout)
    assert sorted(answer) == ["cost", "plan", "refused", "target"]
    assert answer["cost"]["restart_seconds"] == 40.0
    saved = answer["cost"]["models"][0]["saves_seconds_per_hour"]
    assert saved["lower"] <= saved["value"] <= saved["upper"] < 0


def test_a_plan_needs_neither_a_daemon_nor_a_database(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path
) -> None:
    surface.status = daemon(target("other"))
    file = configuration(tmp_path, guards, surface, COMMAND)
    done = run("guard", "plan", "--config", file, "--database", f"sqlite:///{tmp_path}/no.db")
    assert done.exit_code == 0
    printed = " ".join(done.stdout.split())
    assert "2 min without service, assumed" in printed
    assert "earlier restarts are unknown: SQLite database" in printed
    assert "requests and speedup are unknown: no daemon that watches it was found" in printed


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ("", "it has no service, so specwatch cannot restart it; add one"),
        (", service: {kind: supervised}", "it is a child of `specwatch run -- COMMAND`"),
        (
            COMMAND.replace("/bin/true", "/absent"),
            "/absent does not exist or is not a file; create it",
        ),
    ],
)
def test_an_impossible_plan_exits_with_1_and_the_reason(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path, service: str, reason: str
) -> None:
    file = configuration(tmp_path, guards, surface, service)
    done = run("guard", "plan", "chat", "--config", file)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"chat: {reason}")
    done = run("guard", "plan", "chat", "--config", file, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["refused"].startswith(reason)
    done = run("guard", "plan", "chta", "--config", file)
    assert (done.exit_code, 'did you mean "chat"?' in done.stderr) == (2, True)


def test_a_plan_has_both_commands_and_its_files_as_a_diff() -> None:
    plan = Plan(
        ("vllm", "serve", "a b", "-sc", "{}"),
        ("vllm", "serve", "a b"),
        (
            FileChange("/etc/x.conf", None, "[Service]\nExecStart=\n"),
            FileChange("/etc/y.conf", "old\n", None),
        ),
        ("restart it",),
        ("look twice",),
    )
    printed = [line for line, _ in guard_plan.plan_lines(plan)]
    assert printed == [
        "the command now",
        "  vllm serve 'a b' -sc '{}'",
        "the command without speculation",
        "  vllm serve 'a b'",
        "  removed: -sc '{}'",
        "--- /dev/null",
        "+++ /etc/x.conf",
        "@@ -0,0 +1,2 @@",
        "+[Service]",
        "+ExecStart=",
        "--- /etc/y.conf",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-old",
        "steps",
        "  1. restart it",
        "note: look twice",
    ]
    assert guard_plan.plan_summary(plan) == "without -sc '{}'; restart it; look twice"


def test_with_a_switch_the_plan_begins_with_standby(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path
) -> None:
    with SwitchedServer(tmp_path / "switch") as server:
        access = f", switch: {{directory: {server.directory}}}"
        file = configuration(tmp_path, guards, surface, access)
        alone = json.loads(run("guard", "plan", "--config", file, "--json").stdout)["plan"]
        assert "order 0 draft tokens" in alone["steps"][0]
        assert alone["steps"][1].endswith("if not, back to the launch")
        file = configuration(tmp_path, guards, surface, access + COMMAND)
        both = json.loads(run("guard", "plan", "--config", file, "--json").stdout)["plan"]
        assert "order 0 draft tokens" in both["steps"][0]
        assert both["steps"][2].startswith("run `/bin/true off`")
        file.write_text(file.read_text() + "guard: {release_memory: true}\n")
        restart = json.loads(run("guard", "plan", "--config", file, "--json").stdout)["plan"]
        assert restart["steps"] == both["steps"][2:]
        checked = run("check-config", "--config", file)
        assert "switch of chat" in checked.stdout
        assert "0 to 4 draft tokens, 4 now" in checked.stdout


def test_a_switch_that_follows_no_orders_is_no_plan(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path
) -> None:
    launch = msgspec.structs.replace(LAUNCH, unavailable="it has no schedule")
    with SwitchedServer(tmp_path / "switch", launch) as server:
        access = f", switch: {{directory: {server.directory}}}"
        file = configuration(tmp_path, guards, surface, access)
        done = run("guard", "plan", "--config", file)
        assert done.exit_code == 1
        assert "its switch follows no orders: it has no schedule" in done.stderr
        assert "it follows no orders: it has no schedule" in run("check-config", "-c", file).stdout

"""``specwatch guard``: what a person sees of the guard, and tells it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from specwatch.domain.model import Mode
from specwatch.guard.plan import FileChange, Plan
from specwatch.guard.state import Cause, GuardState, Incident, Order, Pause, Phase
from specwatch.rules.decision_view import finding_view
from specwatch.store.repository import Store
from tests.cli.conftest import Run
from tests.cli.guards import LATER, NOW, Guards
from tests.guard.living import ACT, Living
from tests.guard.simulated_server import SimulatedServer
from tests.web.decided import BREACHED, decided
from tests.web.statuses import HOSTILE, Surface, daemon, target

INCIDENT = Incident("chat-6b", Cause.RULE, NOW - 600, "too-slow", "llama", "all")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and nothing in them."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    store = Store(f"sqlite:///{path}", daemon="left")
    store.open(0.0)
    store.close(0.0)
    return path


@pytest.fixture
def guards(tmp_path: Path, template: Path) -> Iterator[Guards]:
    made = Guards(tmp_path, template)
    yield made
    made.store.close(NOW)


def answer(run: Run, guards: Guards, *words: object, code: int = 0) -> Any:
    """What a command says, as JSON."""
    done = run("guard", *words, "--database", guards.url, "--json")
    assert (done.exit_code, done.stderr) == (code, "")
    return json.loads(done.stdout)


def lines(run: Run, guards: Guards, *words: object, code: int = 0) -> list[str]:
    """The lines that a command prints, none wider than a terminal but those about steps."""
    done = run("guard", *words, "--database", guards.url)
    assert (done.exit_code, done.stderr) == (code, "")
    found: list[str] = done.stdout.splitlines()
    assert max(map(len, found)) <= 80 or words[0] in ("history", "enable", "disable")
    return found


def refusal(run: Run, guards: Guards, *words: object, code: int = 2) -> str:
    done = run("guard", *words, "--database", guards.url)
    assert (done.exit_code, done.stdout) == (code, "")
    return str(done.stderr.splitlines()[-1])


LONG_NAME = "a-name-that-is-longer-than-its-column"


def test_status_has_a_line_for_each_guard_and_what_it_waits_for(run: Run, guards: Guards) -> None:
    guards.put(
        phase=Phase.CONFIRMED, goal=Mode.ON, waiting="cooling down", incident=INCIDENT,
        actions=(NOW - 60, NOW - 90_000), pause=Pause(NOW + 7000, "ann", "new driver"),
    )  # fmt: skip
    guards.put(LONG_NAME, guarded=False)
    header, row, unattended, *chat = lines(run, guards, "status")
    assert header.split() == ["target", "state", "for", "wanted", "guarded", "by", "actions"]
    assert row.split() == f"{LONG_NAME} observing 10 min - no daemon 0".split()
    assert unattended == "  no daemon guards it now: this is its last known state"
    assert chat[0].split() == ["chat", "confirmed", "10", "min", "on", "left", "1"]
    assert chat[1] == "  waiting: cooling down"
    assert chat[2].startswith("  paused by ann until 2")
    assert chat[2].endswith(" left: new driver")
    assert chat[3] == "  specwatch guard explain chat-6b"


def test_a_held_guard_is_one_and_says_why(run: Run, guards: Guards) -> None:
    guards.put(phase=Phase.HELD, why="the unit is masked")
    assert lines(run, guards, "status", "chat", code=1)[2] == "  the unit is masked"
    found = answer(run, guards, "status", code=1)
    assert found["held"] is True
    assert found["guards"][0]["state"]["phase"] == "held"


def test_what_a_database_says_cannot_command_a_terminal(run: Run, guards: Guards) -> None:
    order = Order(Mode.OFF, HOSTILE, NOW, HOSTILE)
    guards.put(
        phase=Phase.HELD, why=HOSTILE, waiting=HOSTILE, pause=Pause(NOW + 7000, HOSTILE, HOSTILE),
        order=order, incident=Incident(HOSTILE, Cause.RULE, NOW),
    )  # fmt: skip
    guards.step(HOSTILE, inputs={HOSTILE: HOSTILE})
    said: list[str] = []
    for words in (["status"], ["history"], ["explain", "latest"]):
        said += run("guard", *words, "--database", guards.url).stdout.splitlines()
    assert len(said) > 20
    assert all(line.isprintable() for line in said)


def test_status_as_json_has_keys_to_rely_on(run: Run, guards: Guards, tmp_path: Path) -> None:
    guards.put(phase=Phase.DISABLED, goal=Mode.OFF, rearm_at=NOW + 7200)
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {guards.url}\ntargets: [{{url: 'http://h', name: chat}}]\n"
        "guard: {mode: act, max_actions_per_day: 7}\n"
    )
    done = run("guard", "status", "--config", file, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["mode"], found["held"]) == (0, "act", False)
    (one,) = found["guards"]
    assert sorted(one) == [
        "actions_today", "daemon", "max_actions_per_day", "state", "target", "trial_in",
    ]  # fmt: skip
    assert (one["target"], one["daemon"], one["max_actions_per_day"]) == ("chat", "left", 7)
    assert 7200 - LATER < one["trial_in"] <= 7200


def test_reading_leaves_no_trace_in_the_database(run: Run, guards: Guards) -> None:
    guards.put(incident=INCIDENT)
    for words in (["status"], ["history"], ["explain", "latest"], ["explain", "chat-6b"]):
        lines(run, guards, *words)
    with sqlite3.connect(guards.path) as connection:
        found = connection.execute("SELECT DISTINCT daemon FROM runs").fetchall()
    assert found == [("left",)]


def test_a_target_that_nobody_guards_is_told_from_one_that_is_misspelt(
    run: Run, guards: Guards
) -> None:
    assert refusal(run, guards, "status", code=1).startswith("no daemon has guarded any target yet")
    assert refusal(run, guards, "pause", "chat", code=1).startswith("no daemon has guarded chat")
    guards.put()
    assert refusal(run, guards, "status", "chta").endswith('ever guarded; did you mean "chat"?')
    guards.put("other")
    assert refusal(run, guards, "resume") == "Error: which target? give one of chat, other"


def test_a_pause_ends_by_itself_and_a_person_stands_for_it(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put(phase=Phase.DRAINING)
    monkeypatch.setenv("SUDO_USER", "ann")
    said = lines(run, guards, "pause", "--for", "2h", "--reason", "new driver")
    assert said[0].startswith("chat is paused by ann until 2")
    assert said[1].startswith("it drains the server now, and gives that up")
    pause = guards.state().pause
    assert pause is not None
    assert (pause.by, pause.why) == ("ann", "new driver")
    assert 7200 <= pause.until - NOW < 7200 + LATER
    found = answer(run, guards, "pause", "chat", "--by", "bob")
    assert found["state"]["pause"]["by"] == "bob"
    assert 86_400 <= found["state"]["pause"]["until"] - NOW < 86_400 + LATER
    assert guards.book.history(limit=1)[0].daemon == "specwatch guard"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pause", "--for", "0s"], "0s is no time at all"),
        (["pause", "--for", "soon"], '"soon" is not a duration; write it like'),
        (["pause", "--by", " "], "is empty or has spaces around it; write a plain name; give --by"),
        (["pause", "--reason", "a\nb"], "expected one line of at most 500 characters"),
        (["disable", "--timeout", "5"], '5 has no unit; write "5s"'),
        (["history", "--since", "never"], '"never" is not a date or time such as 20'),
        (["history", "--limit", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_is_two_and_says_what_was_expected(
    run: Run, guards: Guards, words: list[str], said: str
) -> None:
    guards.put()
    assert said in refusal(run, guards, *words)
    assert len(guards.book.history()) == 1


def test_resume_ends_a_pause_and_a_hold_and_says_where_there_is_neither(
    run: Run, guards: Guards
) -> None:
    guards.put(phase=Phase.HELD, why="it hangs", pause=Pause(NOW + LATER, "ann"))
    assert lines(run, guards, "resume", "--by", "bob") == [
        "chat is resumed by bob", "it was held: it hangs",
    ]  # fmt: skip
    assert (guards.state().phase, guards.state().pause) == (Phase.OBSERVING, None)
    assert lines(run, guards, "resume") == ["chat is neither paused nor held"]
    assert answer(run, guards, "resume")["resumed"] is False


@pytest.fixture
def living(guards: Guards, monkeypatch: pytest.MonkeyPatch) -> Iterator[Living]:
    """A guardian on a server that does well, which takes a turn whenever a command waits."""
    server = SimulatedServer(now=NOW - 60, started=NOW - 90, bad=False)
    policy = ACT.model_copy(update={"start_timeout": 60.0})
    made = Living(guards.path, server=server, policy=policy)

    def pause(_: float) -> None:
        made.book.changed = True
        made.live(2)

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", pause)
    with capture_logs():  # which would go to standard output, among what the command prints
        made.live(10)
        yield made
    made.store.close(NOW)


def test_disable_and_enable_are_followed_to_their_end(
    run: Run, guards: Guards, living: Living
) -> None:
    said = lines(run, guards, "disable", "chat", "--by", "ann", "--reason", "slow", "--for", "8h")
    phases = [phase for phase, _ in groupby(line.split()[2] for line in said[:-1])]
    assert phases == ["observing", "draining", "restarting", "verifying", "disabled"]
    assert said[1].endswith("draining      ann switched speculation off: slow")
    assert said[-1] == "chat: speculation is off"
    assert living.server.mode is Mode.OFF
    assert 28_790 < (guards.state().rearm_at or 0) - NOW < 28_800 + LATER
    found = answer(run, guards, "enable")
    assert (found["reached"], found["reason"]) == (True, "speculation is on")
    assert found["state"]["goal"] == "on"
    assert [step["phase"] for step in found["steps"]][-1] == "observing"
    assert living.server.mode is Mode.ON


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no-status", "refused: the manager does not answer"),
        ("refuse", "held: nothing was done: the unit is masked"),
        ("hang", "held: vLLM was not healthy within 1m; it runs again as before"),
    ],
)
def test_an_order_that_fails_is_one_with_the_reason(
    run: Run, guards: Guards, living: Living, fault: str, said: str
) -> None:
    living.server.fault = fault
    assert lines(run, guards, "disable", code=1)[-1] == f"chat: {said}"
    assert living.server.mode is Mode.ON


def test_an_order_that_is_overtaken_by_another_is_one(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put(goal=Mode.ON)

    def overtake(_: float) -> None:
        guards.step("bob wants it on", order=Order(Mode.ON, "bob", NOW))

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", overtake)
    said = lines(run, guards, "disable", "--timeout", "5s", code=1)
    assert said[-1] == "chat: bob wants something else since"


def test_an_order_that_was_given_up_is_one(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put(goal=Mode.ON)

    def give_up(_: float) -> None:
        guards.step("given up: bob wants something else", order=None)

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", give_up)
    last = lines(run, guards, "disable", "--timeout", "5s", code=1)[-1]
    assert last == "chat: speculation is not off: given up: bob wants something else"


def test_without_a_daemon_an_order_stays_and_is_one(run: Run, guards: Guards) -> None:
    guards.put(guarded=False)
    said = lines(run, guards, "disable", "--by", "ann", code=1)
    assert said == [
        "ann wants speculation off",
        "chat: no daemon guards it now; the order stays until one does",
        "`specwatch guard status` shows how far it is",
    ]
    order = guards.state().order
    assert order is not None
    assert (order.goal, order.by, order.until) == (Mode.OFF, "ann", None)


def test_an_order_can_be_left_to_the_daemon(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()
    monkeypatch.setattr("specwatch.cli.guard_orders._ANSWER_SECONDS", 0.01)
    found = answer(run, guards, "enable", "--no-wait", "--by", "ann")
    assert (found["reached"], found["daemon"]) == (None, "left")
    assert found["reason"] == "left guards it and will do it"


def test_an_order_that_is_left_to_the_daemon_is_not_followed_once_it_has_begun(
    run: Run, guards: Guards, living: Living
) -> None:
    found = answer(run, guards, "disable", "--no-wait")
    assert (found["reached"], found["reason"]) == (None, "d has begun")
    assert guards.state().phase is not Phase.DISABLED


@pytest.mark.parametrize("words", [("--no-wait",), ()])
def test_an_order_for_a_target_without_a_service_is_refused_with_the_remedy(
    run: Run, guards: Guards, living: Living, words: tuple[str, ...]
) -> None:
    living.guardian._actuator = None
    said = lines(run, guards, "disable", *words, code=1)[-1]
    assert said.startswith("chat: refused: it has no `service`, so specwatch cannot restart it; ")
    assert "`specwatch strip`" in said
    assert guards.state().order is None


def test_waiting_ends_after_the_timeout(run: Run, guards: Guards) -> None:
    guards.put()
    said = lines(run, guards, "disable", "--timeout", "1ms", code=1)
    assert said[-2] == "chat: not done within 1ms; the order stays"


def test_waiting_ends_when_nobody_guards_it_any_more(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("specwatch.cli.guard_orders.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", lambda _: guards.leave())
    said = lines(run, guards, "disable", code=1)
    assert said[-2] == "chat: no daemon guards it any more; the order stays"


def test_a_database_that_goes_away_meanwhile_is_waited_for(
    run: Run, guards: Guards, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = guards.path.with_suffix(".away")
    turns = iter(range(1000))

    def pause(_: float) -> None:
        number = next(turns)
        if number == 2:
            guards.path.rename(away)
        elif number == 4:
            away.rename(guards.path)
        if not 2 <= number < 4:
            living.book.changed = True
            living.live(2)

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", pause)
    assert lines(run, guards, "disable")[-1] == "chat: speculation is off"
    assert next(turns) > 5


def test_a_database_that_stays_away_is_one_and_the_reason(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("specwatch.cli.guard_orders.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(
        "specwatch.cli.guard_orders.sleep", lambda _: guards.path.unlink(missing_ok=True)
    )
    said = lines(run, guards, "disable", "--timeout", "1m", code=1)
    assert said[-2].startswith("chat: not known: SQLite database ")
    assert said[-2].endswith("; the order stays")


def test_who_stops_to_follow_leaves_the_order(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", interrupt)
    said = lines(run, guards, "enable", code=1)
    assert said[-2] == "chat: not followed any further; the order stays"
    assert guards.state().order is not None


def test_history_is_a_line_a_step_oldest_first(run: Run, guards: Guards) -> None:
    guards.put()
    guards.step("a rule is in breach", phase=Phase.CONFIRMED, incident=INCIDENT)
    first, second = lines(run, guards, "history")
    assert first[20:] == " observing     it is so"
    assert second[20:] == " confirmed     a rule is in breach  [chat-6b]"
    guards.put("other")
    found = answer(run, guards, "history", "chat", "--limit", "1")
    assert (found["more"], [step["reason"] for step in found["steps"]]) == (
        True, ["a rule is in breach"],
    )  # fmt: skip
    assert sorted(found["steps"][0]) == [
        "at", "daemon", "incident", "inputs", "phase", "phase_before", "reason", "target",
        "version",
    ]  # fmt: skip
    assert any("  other  observing" in line for line in lines(run, guards, "history"))
    (nothing,) = lines(run, guards, "history", "--since", str(int(NOW) + 1000))
    assert nothing.startswith("the guard took no step since 2")


def breach() -> dict[str, Any]:
    """The numbers of a breach, as the guard stores them."""
    (found,) = (finding for finding in decided().findings if finding.rule == BREACHED)
    return dict(msgspec.to_builtins(finding_view(found)))


def explained(guards: Guards) -> None:
    guards.put()
    guards.step(
        "the rule too-slow is in breach", phase=Phase.CONFIRMED, incident=INCIDENT,
        inputs=breach(), at=NOW + 1,
    )  # fmt: skip
    guards.step("drained for 10s", phase=Phase.RESTARTING, inputs={"requests": 3.0}, at=NOW + 2)
    speedup = {"value": 0.5, "lower": 0.45, "upper": 0.55, "samples": 20, "confidence": 0.95}
    guards.step(
        "it helped", phase=Phase.DISABLED,
        inputs={"speedup": speedup, "speedup_before": 0.55, "slowdown": 0.91},
        rearm_at=NOW + 9000, since=NOW + 3, at=NOW + 3,
    )  # fmt: skip


def test_explain_shows_each_step_with_its_numbers(run: Run, guards: Guards) -> None:
    explained(guards)
    said = lines(run, guards, "explain", "latest")
    assert said[0] == "chat-6b of chat"
    assert said[2].endswith(", a trial in 2 h")
    text = "\n".join(said)
    assert "confirmed     the rule too-slow is in breach" in text
    (reading,) = (line.split() for line in said if "speedup_ratio" in line)
    assert reading[1:3] == ["2", "1.75"]
    assert reading[-2:] == ["below", "2.5"]
    assert "    3 requests ran or waited then" in said
    assert "    0.55 was the speedup by the earlier baseline" in said
    assert "    0.91 times as long as it says takes serving without speculation" in said
    (speedup,) = (line for line in said if "measured speedup" in line)
    assert speedup.split()[-6:] == ["0.50", "0.45", "to", "0.55", "20", "min"]
    assert lines(run, guards, "explain", "chat-6b") == said


def test_an_incident_that_is_over_says_how_long_it_took(run: Run, guards: Guards) -> None:
    explained(guards)
    guards.step("speculation pays", phase=Phase.OBSERVING, incident=None, at=NOW + 61)
    assert lines(run, guards, "explain", "latest")[1].endswith(", over after 60 s")
    found = answer(run, guards, "explain", "chat-6b")
    assert (found["incident"], found["target"], found["state"]) == ("chat-6b", "chat", None)
    assert (found["began"], found["ended"], len(found["steps"])) == (NOW + 1, NOW + 61, 4)
    assert found["steps"][0]["inputs"]["readings"][0]["metric"] == "speedup_ratio"


def test_an_unknown_incident_gets_the_nearest(run: Run, guards: Guards) -> None:
    guards.put()
    assert refusal(run, guards, "explain", "latest", code=1) == "there was no incident yet"
    explained(guards)
    said = refusal(run, guards, "explain", "chat-6c")
    assert said.endswith('there is no incident "chat-6c"; did you mean "chat-6b"?')
    assert "goes with latest" in refusal(run, guards, "explain", "chat-6b", "--target", "chat")


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
    said = done.stdout.splitlines()
    assert said[:3] == [
        "chat  command service",
        "steps",
        "  1. run `/bin/true off`, for 10m at most",
    ]
    assert said[-4:] == [
        "  40 s without service, the median of 3 restarts, after draining for at most 1m",
        "  3 requests running or waiting now",
        "  llama: what takes an hour now would take 60 min longer, as the speedup is 2.00",
        "    (1.95 to 2.05)",
    ]
    found = json.loads(run("guard", "plan", "chat", "--config", file, "--json").stdout)
    assert sorted(found) == ["cost", "plan", "refused", "target"]
    assert found["cost"]["restart_seconds"] == 40.0
    saved = found["cost"]["models"][0]["saves_seconds_per_hour"]
    assert saved["lower"] <= saved["value"] <= saved["upper"] < 0


def test_a_plan_needs_neither_a_daemon_nor_a_database(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path
) -> None:
    surface.status = daemon(target("other"))
    file = configuration(tmp_path, guards, surface, COMMAND)
    done = run("guard", "plan", "--config", file, "--database", f"sqlite:///{tmp_path}/no.db")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert "2 min without service, assumed" in said
    assert "earlier restarts are not known: SQLite database" in said
    assert "requests and speedup are not known: no daemon that watches it was found" in said


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("", "it has no service, so that nobody knows how to restart it; add it"),
        (", service: {kind: supervised}", "it is a child of `specwatch run -- COMMAND`"),
        (
            COMMAND.replace("/bin/true", "/absent"),
            "/absent does not exist or is not a file; create it",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_with_the_reason(
    run: Run, guards: Guards, surface: Surface, tmp_path: Path, service: str, said: str
) -> None:
    file = configuration(tmp_path, guards, surface, service)
    done = run("guard", "plan", "chat", "--config", file)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"chat: {said}")
    done = run("guard", "plan", "chat", "--config", file, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["refused"].startswith(said)
    done = run("guard", "plan", "chta", "--config", file)
    assert (done.exit_code, 'did you mean "chat"?' in done.stderr) == (2, True)


def test_a_plan_has_both_commands_and_its_files_as_a_diff() -> None:
    from specwatch.cli import guard_output

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
    said = [line for line, _ in guard_output.plan_lines(plan)]
    assert said == [
        "the command now", "  vllm serve 'a b' -sc '{}'",
        "the command without speculation", "  vllm serve 'a b'", "  removed: -sc '{}'",
        "--- /dev/null", "+++ /etc/x.conf", "@@ -0,0 +1,2 @@", "+[Service]", "+ExecStart=",
        "--- /etc/y.conf", "+++ /dev/null", "@@ -1 +0,0 @@", "-old",
        "steps", "  1. restart it", "note: look twice",
    ]  # fmt: skip
    assert guard_output.plan_summary(plan) == "without -sc '{}'; restart it; look twice"


def guarded(**changes: Any) -> Any:
    from specwatch.guard.status import GuardStatus

    state = GuardState("chat", since=1_699_999_440.0, **changes)
    return GuardStatus("act", state, ours=True, holder="left")


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, ["guard: observing for 10 min"]),
        (
            {"phase": Phase.HELD, "why": "the unit is masked"}, 1,
            ["guard: held for 10 min", "  the unit is masked"],
        ),
        (
            {"phase": Phase.DISABLED, "rearm_at": 1_700_007_240.0, "waiting": "paused by ann"}, 0,
            ["guard: disabled for 10 min, a trial in 2 h", "  waiting: paused by ann"],
        ),
        (
            {"phase": Phase.DISABLED}, 0,
            ["guard: disabled for 10 min, until a person enables it"],
        ),
        (
            {
                "phase": Phase.DISABLED, "rearm_at": 1_700_007_240.0,
                "incident": Incident("chat-7", Cause.PERSON, 0.0, "ann"),
            }, 0,
            ["guard: disabled for 10 min, speculation comes back in 2 h"],
        ),
    ],
    ids=["observing", "held", "trial", "for ever", "ordered"],
)  # fmt: skip
def test_the_daemons_status_says_where_the_guard_is(
    run: Run, surface: Surface, changes: dict[str, Any], code: int, said: list[str]
) -> None:
    surface.status = daemon(target(guard=guarded(**changes)))
    done = run("status", "--url", surface.url)
    assert (done.exit_code, done.stderr) == (code, "")
    found = done.stdout.splitlines()
    at = found.index(said[0])
    assert found[at : at + len(said)] == said

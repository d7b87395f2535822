"""``specwatch guard``: status, pause and resume, history, incidents."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.domain.model import ALL, Mode
from specwatch.guard.state import Cause, GuardState, Incident, Order, Pause, Phase
from specwatch.guard.status import GuardStatus
from specwatch.rules.decision_view import finding_view
from tests.cli.conftest import Run
from tests.cli.guards import LATER, NOW, Guards, answer, lines, refusal
from tests.web.decided import BREACHED, decided
from tests.web.statuses import HOSTILE, Surface, daemon, target

INCIDENT = Incident("chat-6b", Cause.RULE, NOW - 600, "too-slow", "llama", ALL)


LONG_NAME = "a-name-that-is-longer-than-its-column"


def test_status_has_a_line_for_each_guard_and_what_it_waits_for(run: Run, guards: Guards) -> None:
    guards.put(
        phase=Phase.CONFIRMED,
        goal=Mode.ON,
        waiting="cooling down",
        incident=INCIDENT,
        actions=(NOW - 60, NOW - 90_000),
        pause=Pause(NOW + 7000, "ann", "new driver"),
    )
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


def test_discovered_targets_that_are_gone_are_not_listed_unless_work_is_left(
    run: Run, guards: Guards, tmp_path: Path
) -> None:
    guards.put("serving/vllm-here")
    guards.put("serving/vllm-gone", guarded=False, phase=Phase.CONFIRMED)
    guards.put("serving/vllm-off", guarded=False, phase=Phase.DISABLED, goal=Mode.OFF)
    guards.put("chat", guarded=False)
    config = f"database: {guards.url}\ntargets: [{{url: 'http://h', name: chat}}]\n"
    file = tmp_path / "specwatch.yml"
    for discovery, gone in (("", 1), ("discovery: [{file_sd: {files: [/nowhere.yml]}}]\n", 0)):
        file.write_text(config + discovery)
        listed = json.loads(run("guard", "status", "--config", file, "--json").stdout)["guards"]
        names = ["chat", *["serving/vllm-gone"] * gone, "serving/vllm-here", "serving/vllm-off"]
        assert [one["target"] for one in listed] == names


def test_a_held_guard_exits_with_1_and_the_reason(run: Run, guards: Guards) -> None:
    guards.put(phase=Phase.HELD, why="the unit is masked")
    assert lines(run, guards, "status", "chat", code=1)[2] == "  the unit is masked"
    result = answer(run, guards, "status", code=1)
    assert result["held"] is True
    assert result["guards"][0]["state"]["phase"] == "held"


def test_what_a_database_says_cannot_command_a_terminal(run: Run, guards: Guards) -> None:
    order = Order(Mode.OFF, HOSTILE, NOW, HOSTILE)
    guards.put(
        phase=Phase.HELD,
        why=HOSTILE,
        waiting=HOSTILE,
        pause=Pause(NOW + 7000, HOSTILE, HOSTILE),
        order=order,
        incident=Incident(HOSTILE, Cause.RULE, NOW),
    )
    guards.step(HOSTILE, inputs={HOSTILE: HOSTILE})
    printed: list[str] = []
    for words in (["status"], ["history"], ["explain", "latest"]):
        printed += run("guard", *words, "--database", guards.url).stdout.splitlines()
    assert len(printed) > 20
    assert all(line.isprintable() for line in printed)


def test_status_as_json_has_keys_to_rely_on(run: Run, guards: Guards, tmp_path: Path) -> None:
    guards.put(phase=Phase.DISABLED, goal=Mode.OFF, rearm_at=NOW + 7200)
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {guards.url}\ntargets: [{{url: 'http://h', name: chat}}]\n"
        "guard: {mode: act, max_actions_per_day: 7}\n"
    )
    done = run("guard", "status", "--config", file, "--json")
    result = json.loads(done.stdout)
    assert (done.exit_code, result["mode"], result["held"]) == (0, "act", False)
    (one,) = result["guards"]
    assert sorted(one) == [
        "actions_today",
        "daemon",
        "max_actions_per_day",
        "state",
        "target",
        "trial_in",
    ]
    assert (one["target"], one["daemon"], one["max_actions_per_day"]) == ("chat", "left", 7)
    assert 7200 - LATER < one["trial_in"] <= 7200


def test_reading_leaves_no_trace_in_the_database(run: Run, guards: Guards) -> None:
    guards.put(incident=INCIDENT)
    for words in (["status"], ["history"], ["explain", "latest"], ["explain", "chat-6b"]):
        lines(run, guards, *words)
    with sqlite3.connect(guards.path) as connection:
        daemons = connection.execute("SELECT DISTINCT daemon FROM runs").fetchall()
    assert daemons == [("left",)]


def test_an_unguarded_target_is_distinguished_from_a_misspelt_one(run: Run, guards: Guards) -> None:
    assert refusal(run, guards, "status", code=1).startswith("no daemon has guarded any target yet")
    assert refusal(run, guards, "pause", "chat", code=1).startswith("no daemon has guarded chat")
    guards.put()
    assert refusal(run, guards, "status", "chta").endswith(
        'has ever guarded "chta"; did you mean "chat"?'
    )
    guards.put("other")
    assert refusal(run, guards, "resume") == "Error: which target? give one of chat, other"


def test_a_pause_has_an_end_and_an_operator(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put(phase=Phase.DRAINING)
    monkeypatch.setenv("SUDO_USER", "ann")
    printed = lines(run, guards, "pause", "--for", "2h", "--reason", "new driver")
    assert printed[0].startswith("chat is paused by ann until 2")
    assert printed[1].startswith("it is draining the server, and abandons that")
    pause = guards.state().pause
    assert pause is not None
    assert (pause.by, pause.why) == ("ann", "new driver")
    assert 7200 <= pause.until - NOW < 7200 + LATER
    result = answer(run, guards, "pause", "chat", "--by", "bob")
    assert result["state"]["pause"]["by"] == "bob"
    assert 86_400 <= result["state"]["pause"]["until"] - NOW < 86_400 + LATER
    assert guards.book.history(limit=1)[0].daemon == "specwatch guard"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["pause", "--for", "0s"], "0s: expected more than 0 seconds"),
        (["pause", "--for", "soon"], '"soon" is not a duration; write it like'),
        (["pause", "--by", " "], "is empty or has spaces around it; write a plain name; give --by"),
        (["pause", "--reason", "a\nb"], "expected one line of at most 500 characters"),
        (["disable", "--timeout", "5"], '5 has no unit; write "5s"'),
        (["history", "--since", "never"], '"never" is not a date or time such as 20'),
        (["history", "--limit", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_exits_with_2_and_what_was_expected(
    run: Run, guards: Guards, words: list[str], problem: str
) -> None:
    guards.put()
    assert problem in refusal(run, guards, *words)
    assert len(guards.book.history()) == 1


def test_resume_ends_a_pause_and_a_hold_and_reports_neither(run: Run, guards: Guards) -> None:
    guards.put(phase=Phase.HELD, why="it hangs", pause=Pause(NOW + LATER, "ann"))
    assert lines(run, guards, "resume", "--by", "bob") == [
        "chat is resumed by bob",
        "it was held: it hangs",
    ]
    assert (guards.state().phase, guards.state().pause) == (Phase.OBSERVING, None)
    assert lines(run, guards, "resume") == ["chat is neither paused nor held"]
    assert answer(run, guards, "resume")["resumed"] is False


def test_history_is_a_line_a_step_oldest_first(run: Run, guards: Guards) -> None:
    guards.put()
    guards.step("a rule is in breach", phase=Phase.CONFIRMED, incident=INCIDENT)
    first, second = lines(run, guards, "history")
    assert first[19:] == " UTC  observing     it is so"
    assert second[19:] == " UTC  confirmed     a rule is in breach  [chat-6b]"
    guards.put("other")
    result = answer(run, guards, "history", "chat", "--limit", "1")
    assert (result["more"], [step["reason"] for step in result["steps"]]) == (
        True,
        ["a rule is in breach"],
    )
    assert sorted(result["steps"][0]) == [
        "at",
        "daemon",
        "incident",
        "inputs",
        "phase",
        "phase_before",
        "reason",
        "target",
        "version",
    ]
    assert any("  other  observing" in line for line in lines(run, guards, "history"))
    (nothing,) = lines(run, guards, "history", "--since", str(int(NOW) + 1000))
    assert nothing.startswith("the guard took no step since 2")


def explained(guards: Guards) -> None:
    """The steps of an incident, with the measurements that the guard stores."""
    (finding,) = (finding for finding in decided().findings if finding.rule == BREACHED)
    guards.put()
    guards.step(
        "the rule too-slow is in breach",
        phase=Phase.CONFIRMED,
        incident=INCIDENT,
        inputs=msgspec.to_builtins(finding_view(finding)),
        at=NOW + 1,
    )
    guards.step("drained for 10s", phase=Phase.RESTARTING, inputs={"requests": 3.0}, at=NOW + 2)
    speedup = {"value": 0.5, "lower": 0.45, "upper": 0.55, "samples": 20, "confidence": 0.95}
    guards.step(
        "it helped",
        phase=Phase.DISABLED,
        inputs={"speedup": speedup, "speedup_before": 0.55, "slowdown": 0.91},
        rearm_at=NOW + 9000,
        since=NOW + 3,
        at=NOW + 3,
    )


def test_explain_shows_each_step_with_its_numbers(run: Run, guards: Guards) -> None:
    explained(guards)
    printed = lines(run, guards, "explain", "latest")
    assert printed[0] == "chat-6b of chat"
    assert printed[2].endswith(", a trial in 2 h")
    text = "\n".join(printed)
    assert "confirmed     the rule too-slow is in breach" in text
    (reading,) = (line.split() for line in printed if "speedup_ratio" in line)
    assert reading[1:3] == ["2", "1.75"]
    assert reading[-2:] == ["below", "2.5"]
    assert "    3 requests ran or waited then" in printed
    assert "    0.55 was the speedup by the earlier baseline" in printed
    assert "    0.91 times as long as it says takes serving without speculation" in printed
    (speedup,) = (line for line in printed if "measured speedup" in line)
    assert speedup.split()[-6:] == ["0.50", "0.45", "to", "0.55", "20", "min"]
    again = lines(run, guards, "explain", "chat-6b")
    del again[2], printed[2]  # they have a time that passes
    assert again == printed


def test_an_incident_that_is_over_says_how_long_it_took(run: Run, guards: Guards) -> None:
    explained(guards)
    guards.step("speculation pays", phase=Phase.OBSERVING, incident=None, at=NOW + 61)
    assert lines(run, guards, "explain", "latest")[1].endswith(", over after 60 s")
    result = answer(run, guards, "explain", "chat-6b")
    assert (result["incident"], result["target"], result["state"]) == (
        "chat-6b",
        "chat",
        None,
    )
    assert (result["began"], result["ended"], len(result["steps"])) == (NOW + 1, NOW + 61, 4)
    assert result["steps"][0]["inputs"]["readings"][0]["metric"] == "speedup_ratio"


def test_an_unknown_incident_gets_the_nearest(run: Run, guards: Guards) -> None:
    guards.put()
    assert refusal(run, guards, "explain", "latest", code=1) == "there was no incident yet"
    explained(guards)
    problem = refusal(run, guards, "explain", "chat-6c")
    assert problem.endswith('there is no incident "chat-6c"; did you mean "chat-6b"?')
    assert "is for latest" in refusal(run, guards, "explain", "chat-6b", "--target", "chat")


STANDING: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "observing": ({}, 0, ["guard: observing for 10 min"]),
    "held": (
        {"phase": Phase.HELD, "why": "the unit is masked"},
        1,
        ["guard: held for 10 min", "  the unit is masked"],
    ),
    "disabled until a trial": (
        {"phase": Phase.DISABLED, "rearm_at": 1_700_007_240.0, "waiting": "paused by ann"},
        0,
        ["guard: disabled for 10 min, a trial in 2 h", "  waiting: paused by ann"],
    ),
    "disabled without an end": (
        {"phase": Phase.DISABLED},
        0,
        ["guard: disabled for 10 min, until a person enables it"],
    ),
    "disabled by an order with an end": (
        {
            "phase": Phase.DISABLED,
            "rearm_at": 1_700_007_240.0,
            "incident": Incident("chat-7", Cause.PERSON, 0.0, "ann"),
        },
        0,
        ["guard: disabled for 10 min, speculation comes back in 2 h"],
    ),
}


@pytest.mark.parametrize(("changes", "code", "lines"), STANDING.values(), ids=STANDING.keys())
def test_the_daemons_status_has_the_state_of_the_guard(
    run: Run, surface: Surface, changes: dict[str, Any], code: int, lines: list[str]
) -> None:
    state = GuardState("chat", since=1_699_999_440.0, **changes)
    surface.status = daemon(target(guard=GuardStatus("act", state, ours=True, holder="left")))
    done = run("status", "--url", surface.url)
    assert (done.exit_code, done.stderr) == (code, "")
    printed = done.stdout.splitlines()
    first = printed.index(lines[0])
    assert printed[first : first + len(lines)] == lines

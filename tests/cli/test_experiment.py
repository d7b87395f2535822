"""``specwatch experiment``: status, results, stop and start."""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.domain.interval import Interval
from specwatch.domain.model import Batch, Mode
from specwatch.domain.switchback import (
    Moments,
    Switchback,
    SwitchbackDesign,
    SwitchbackState,
    TunedSchedule,
)
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.pages.status_html import StatusHistory, status_html
from specwatch.store.batches import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from specwatch.wording import experiment
from tests.cli.conftest import Run
from tests.plugins.golden import Golden
from tests.report import history
from tests.web.statuses import HOSTILE, NOW, Surface, daemon, target

T0 = 1_795_003_200.0
SLOW, FAST = Moments(42, 0.21, 0.4), Moments(42, -0.1, 0.1)
"""Logarithms of time per token: of standby less the launch, of 2 draft tokens less the launch."""


def switchback(name: str = "chat", stopped: str = "", **changes: Any) -> Switchback:
    state = SwitchbackState(
        environment="0.32.0/cafe/((1, 4),)",
        began=T0,
        counted=T0 + 100_000,
        arm="launch",
        usual="launch",
        other_seconds=4000.0,
        lost_seconds=500.0,
        episodes=42,
        excluded=3,
        differences={
            "all": {"0": {"2": Moments(42, 0.31, 0.4), "launch": SLOW}, "2": {"launch": FAST}},
            "load 3-4": {"0": {"launch": Moments(3, 0.2, 0.01)}, "2": {"launch": FAST}},
            "temperature >1": {"2": {"launch": Moments(42, 0.2, 0.1)}},
            "temperature 0": {"2": {"launch": Moments(42, -0.2, 0.1)}},
        },
        tokens={
            "all": 1000.0,
            "load 3-4": 1000.0,
            "temperature 0": 600.0,
            "temperature >1": 300.0,
            "prompt length 16385+": 900.0,
        },
    )
    design = SwitchbackDesign(arms=("launch", "0", "2"), usual="launch", seed=1)
    return Switchback(target=name, design=design, state=replace(state, **changes), stopped=stopped)


Put = Callable[..., None]


@pytest.fixture
def put(database: str) -> Iterator[Put]:
    """Stores experiments."""
    store = Store(database, daemon="left")

    def stored(one: Switchback) -> None:
        store.change_switchback(one.target, lambda _: one, T0)

    yield stored
    store.close(T0)


def stored(database: str, name: str = "chat") -> Switchback:
    with closing(Reader.of(database)) as reader:
        return reader.switchbacks(name)[0]


def lines(run: Run, database: str, *words: object, code: int = 0) -> list[str]:
    done = run("experiment", *words, "--database", database)
    assert (done.exit_code, done.stderr) == (code, "")
    printed: list[str] = done.stdout.splitlines()
    assert max(map(len, printed)) <= 80
    return printed


def refusal(run: Run, database: str, *words: object, code: int) -> str:
    done = run("experiment", *words, "--database", database)
    assert (done.exit_code, done.stdout) == (code, "")
    return str(done.stderr.splitlines()[-1])


@pytest.mark.golden
def test_results_begin_with_the_answer(run: Run, database: str, put: Put, golden: Golden) -> None:
    """Then come tables by load, temperature and prompt length."""
    put(switchback())
    golden("cli/experiment-results.txt", "\n".join(lines(run, database, "results")) + "\n")


def test_without_groups_there_is_one_table(run: Run, database: str, put: Put) -> None:
    put(switchback(differences={"all": {"2": {"launch": FAST}}}, tokens={"all": 9.0}))
    text = " ".join(lines(run, database, "results"))
    assert ("of tokens" in text, "running" in text) == (False, True)
    assert "known of 0.0% of the tokens" in text


def test_an_arm_that_loses_is_slow_by_the_inverse(run: Run, database: str, put: Put) -> None:
    put(switchback(differences={"all": {"0": {"launch": SLOW}}}))
    answer = "chat: 0 draft tokens (standby) is 1.23 times as slow as the launch (1.1"
    assert lines(run, database, "results", "chat")[0].startswith(answer)
    text = " ".join(" ".join(lines(run, database, "results")).split())
    assert "no arm is known to be faster than the launch" in text


def test_what_is_not_known_yet_says_how_far_it_is(run: Run, database: str, put: Put) -> None:
    put(switchback(differences={"all": {"0": {"launch": Moments(3, 0.2, 0.01)}}}, episodes=3))
    text = " ".join(" ".join(lines(run, database, "results")).split())
    assert "0 draft tokens (standby) against the launch: not known yet: 3 of 6 episodes" in text
    put(switchback(differences={}, episodes=0))
    assert "not known yet: 0 of 6" in lines(run, database, "results")[0]


def test_an_interval_around_1_is_not_an_answer(run: Run, database: str, put: Put) -> None:
    put(switchback(differences={"all": {"2": {"launch": Moments(42, -0.01, 1.0)}}}))
    text = " ".join(lines(run, database, "results"))
    assert "chat: not clear yet: 2 draft tokens is 1.01 times as fast as the launch (0.9" in text


def test_any_arm_can_be_the_reference(run: Run, database: str, put: Put) -> None:
    put(switchback())
    printed = lines(run, database, "results", "--reference", "0")
    assert printed[0].startswith("chat: 2 draft tokens is 1.36 times as fast as 0 draft tokens")
    assert refusal(run, database, "results", "--reference", "3", code=2).startswith("Error: ")
    done = run("experiment", "results", "--reference", "2", "--json", "--database", database)
    result = json.loads(done.stdout)
    assert (result["reference"], result["best"]) == ("2", "2")
    assert [one["arm"] for one in result["arms"]] == ["launch", "0"]


def test_results_as_json(run: Run, database: str, put: Put) -> None:
    put(switchback(stopped="ann"))
    done = run("experiment", "results", "--json", "--database", database)
    result = json.loads(done.stdout)
    assert sorted(result) == [
        "against_off",
        "answer",
        "arms",
        "best",
        "episodes",
        "excluded",
        "loads",
        "prompt_lengths",
        "reference",
        "shares",
        "stopped",
        "target",
        "temperatures",
        "tuning",
        "washout",
    ]
    assert result["answer"].startswith("2 draft tokens is 1.11 times as fast as the launch")
    assert list(result["loads"]) == ["3-4"]
    assert result["loads"]["3-4"][0] == {"arm": "0", "speedup": None, "episodes": 3}
    assert list(result["temperatures"]) == ["0", ">1"]
    assert result["temperatures"][">1"][1]["speedup"]["value"] == pytest.approx(0.82, abs=0.01)
    assert result["prompt_lengths"] == {
        "16385+": [{"arm": arm, "speedup": None, "episodes": 0} for arm in ("0", "2")]
    }
    assert result["shares"]["temperature"] == {"0": 0.6, ">1": 0.3}
    assert (result["stopped"], result["tuning"]) == ("ann", None)


def tuned(**changes: Any) -> Switchback:
    """One that learns a schedule, and has learned one."""
    made = switchback(tuned={"3-4": "2", "65+": "0"}, **changes)
    design = replace(made.design, tune="observe", launch_schedule=((1, 4),))
    return replace(made, design=design)


def test_a_learned_schedule_is_proposed_with_its_gain(run: Run, database: str, put: Put) -> None:
    put(tuned())
    text = " ".join(" ".join(lines(run, database, "results")).split())
    assert (
        'proposed for the launch: "num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 4, 2],'
        " [5, 64, 4], [65, 256, 0]] (0 is standby), expected 1.11 times as fast (1.0"
    ) in text
    assert "at the loads of 42 episodes" in text
    done = run("experiment", "results", "--json", "--database", database)
    advised = json.loads(done.stdout)["tuning"]
    assert advised["schedule"] == [[1, 2, 4], [3, 4, 2], [5, 64, 4], [65, 256, 0]]
    assert advised["gain"]["lower"] > 1
    put(replace(tuned(), state=replace(tuned().state, tuned={"3-4": "2"})))
    text = " ".join(lines(run, database, "results"))
    assert "standby), expected" not in text


def test_why_no_schedule_is_proposed(run: Run, database: str, put: Put) -> None:
    none = replace(tuned(), state=replace(tuned().state, tuned={}))
    put(none)
    text = " ".join(lines(run, database, "results"))
    assert "no schedule is proposed: no arm is cert" in text
    put(replace(none, state=replace(none.state, differences={})))
    reason = "no schedule is proposed: no load has more than 0 of the 9 episodes needed"
    assert reason in " ".join(lines(run, database, "results"))
    done = run("experiment", "results", "--json", "--database", database)
    assert json.loads(done.stdout)["tuning"] == {
        "schedule": [],
        "gain": None,
        "episodes": 0,
        "needed": 9,
    }


def test_results_are_against_the_launch_while_the_tuned_schedule_is_in_use(
    run: Run, database: str, put: Put
) -> None:
    made = tuned()
    design = replace(made.design, arms=("launch", "0", "2", "tuned"), usual="tuned", tune="act")
    differences = {"all": {"launch": {"tuned": Moments(30, 0.15, 0.1)}, "2": {"launch": FAST}}}
    state = replace(made.state, usual="tuned", arm="tuned", differences=differences)
    put(replace(made, design=design, state=state))
    text = " ".join(" ".join(lines(run, database, "results")).split())
    assert text.startswith("chat: the tuned schedule is 1.16 times as fast as the launch (1.")
    done = run("experiment", "results", "--json", "--database", database)
    assert json.loads(done.stdout)["reference"] == "launch"


def serve_in_standby(database: str, minutes: int, *, baseline: bool = True) -> None:
    """Minutes until now of 36 ms a token, with four requests running; a baseline of 30 ms."""
    now = int(time.time()) // 60 * 60
    windows = [
        history.hour(
            0,
            history.counted(rate=None, tpot=0.036),
            mode=Mode.STANDBY,
            length=60,
            busy=60.0,
            environment=history.ON,
            start=now - 60 * n,
        )[0]
        for n in range(1, minutes + 1)
    ]
    store = Store(database, daemon="left")
    store.open(now)
    store.write([pack_batch(Batch(tuple(windows), None))], now)
    if baseline:
        store.write_measurements([history.measurement(at=now - 3600.0)], now)
    store.close(now)


def test_with_the_cost_of_standby_arms_are_compared_with_off(
    run: Run, database: str, put: Put
) -> None:
    put(switchback())
    serve_in_standby(database, 12)
    printed = lines(run, database, "results")
    said = printed.index(next(line for line in printed if line.startswith("against off:")))
    answer = "against off: standby takes 1.20 times as long per token as vLLM without speculation"
    assert " ".join(" ".join(printed[said : said + 2]).split()).startswith(answer)
    rows = [" ".join(line.split()) for line in printed[said + 3 :]]
    assert rows[0] == "running arm speedup 95 % interval"
    assert rows[1].startswith("all the launch 1.03 0.9")
    assert rows[2].startswith("all 0 draft tokens (standby) 0.83 0.8")
    assert rows[3].startswith("all 2 draft tokens 1.14 1.0")
    # At 3-4 running requests there were too few episodes with standby.
    assert rows[4:] == [
        "3-4 the launch - -",
        f"3-4{rows[2][3:]}",
        "3-4 2 draft tokens - -",
    ]
    done = run("experiment", "results", "--json", "--database", database)
    against_off = json.loads(done.stdout)["against_off"]
    assert against_off["standby_cost"]["value"] == pytest.approx(1.2)
    assert against_off["missing"] == ""
    launch = against_off["arms"][0]
    assert (launch["arm"], launch["episodes"]) == ("launch", 42)
    assert launch["speedup"]["value"] == pytest.approx(math.exp(0.21) / 1.2)


@pytest.mark.parametrize(
    ("minutes", "baseline", "why"),
    [
        (
            0,
            True,
            "no whole minute in standby was seen; let it run for a quarter of an hour: specwatch"
            " switch chat --k 0 --lease 15m",
        ),
        (
            12,
            False,
            "no baseline; measure serving without speculation: specwatch calibrate --off URL"
            " --target chat",
        ),
    ],
    ids=["no standby", "no baseline"],
)
def test_without_it_they_are_compared_with_standby_only(
    run: Run, database: str, put: Put, minutes: int, baseline: bool, why: str
) -> None:
    put(switchback())
    serve_in_standby(database, minutes, baseline=baseline)
    text = " ".join(" ".join(lines(run, database, "results")).split())
    assert "against standby only: how much slower standby is than off is not known: " in text
    assert text.endswith(why)
    done = run("experiment", "results", "--json", "--database", database)
    against_off = json.loads(done.stdout)["against_off"]
    assert against_off["standby_cost"] is None
    assert against_off["missing"] == why.partition(";")[0]
    assert against_off["arms"][0] == {"arm": "launch", "speedup": None, "episodes": 42}


def test_standby_of_another_version_is_not_that_of_the_experiment(
    run: Run, database: str, put: Put
) -> None:
    put(switchback(environment="0.33.0/cafe/((1, 4),)"))
    serve_in_standby(database, 12)
    done = run("experiment", "results", "--json", "--database", database)
    assert (
        json.loads(done.stdout)["against_off"]["missing"] == "no whole minute in standby was seen"
    )


def test_without_an_arm_of_0_nothing_is_compared_with_standby(
    run: Run, database: str, put: Put
) -> None:
    design = SwitchbackDesign(arms=("launch", "2"), usual="launch", seed=1)
    put(replace(switchback(differences={"all": {"2": {"launch": FAST}}}), design=design))
    assert "standby" not in " ".join(lines(run, database, "results"))
    done = run("experiment", "results", "--json", "--database", database)
    assert json.loads(done.stdout)["against_off"] is None


def test_status_has_what_it_cost_and_who_stopped_it(run: Run, database: str, put: Put) -> None:
    put(switchback(stopped="ann: a demo", dropped={"launch": ("0",)}))
    put(switchback("code"))
    header, chat, who, dropped, code = lines(run, database, "status")
    assert header.split() == [
        "target",
        "episodes",
        "left",
        "out",
        "other",
        "arms",
        "lost",
        "washout",
    ]
    assert " ".join(chat.split()) == "chat 42 3 4.0% of 5.0% 0.5% of 2.0% 30.0 s"
    assert who == "  stopped by ann: a demo"
    assert dropped == "  no longer ordered, slower than the launch: 0 draft tokens (standby)"
    assert code.split()[0] == "code"
    done = run("experiment", "status", "code", "--json", "--database", database)
    (row,) = json.loads(done.stdout)["experiments"]
    assert (row["target"], row["share"], row["share_allowed"]) == ("code", 0.04, 0.05)
    assert row["arms"] == ["launch", "0", "2"]


def test_a_person_stops_and_starts_it(run: Run, database: str, put: Put) -> None:
    put(switchback())
    printed = lines(run, database, "stop", "chat", "--reason", "a demo", "--by", "ann")
    assert printed == ["the experiment of chat is stopped by ann: a demo"]
    assert stored(database) == switchback(stopped="ann: a demo")
    printed = lines(run, database, "start", "--by", "bob")
    assert printed == ["the experiment of chat is started by bob"]
    assert stored(database) == switchback()
    done = run("experiment", "stop", "--by", "bob", "--json", "--database", database)
    assert json.loads(done.stdout) == {"target": "chat", "stopped": "bob"}


@pytest.mark.parametrize("words", [["status"], ["results"], ["stop"], ["start"]])
def test_without_an_experiment_it_exits_with_1(
    run: Run, database: str, put: Put, tmp_path: Path, words: list[str]
) -> None:
    assert "does not exist (yet)" in refusal(run, database, *words, code=1)
    assert not (tmp_path / "specwatch.db").exists()
    store = Store(database, daemon="left")
    store.open(T0)
    store.close(T0)
    assert refusal(run, database, *words, code=1).startswith("there is no experiment in the data")
    put(switchback())
    refused = refusal(run, database, *words, "chta", code=1)
    assert refused == 'there is no experiment of "chta"; did you mean "chat"?'


def test_with_several_a_target_is_needed(run: Run, database: str, put: Put) -> None:
    put(switchback())
    put(switchback("code"))
    asked = "Error: which target? give one of chat, code"
    assert refusal(run, database, "results", code=2) == asked
    assert refusal(run, database, "stop", "--by", "ann", code=2) == asked
    assert "one line" in refusal(run, database, "stop", "chat", "--reason", "a\nb", code=2)


def test_what_a_database_says_cannot_command_a_terminal(run: Run, database: str, put: Put) -> None:
    put(switchback(HOSTILE[:200], stopped=HOSTILE))
    for words in (["status"], ["results"]):
        assert all(line.isprintable() for line in lines(run, database, *words))


RUNNING = ExperimentStatus(
    arm="0",
    next_at=NOW + 40,
    episodes=42,
    excluded=3,
    best="2",
    speedups={"0": Interval(0.81, 0.76, 0.87, 42), "2": Interval(1.11, 1.07, 1.14, 42)},
)
STANDING = {
    "running": (
        RUNNING,
        "0 draft tokens (standby) in force, next switch in 40 s; 42 episodes, 3 left out; 2 draft"
        " tokens is 1.11 times as fast as the launch (1.07 to 1.14)",
    ),
    "waiting": (
        replace(RUNNING, paused="no traffic", next_at=None, excluded=0),
        "waiting: no traffic; 42 episodes; 2 draft tokens is 1.11 times as fast as the launch (1.07"
        " to 1.14)",
    ),
    "tuned": (
        replace(
            RUNNING,
            arm="tuned",
            excluded=0,
            best="tuned",
            speedups={"tuned": Interval(1.11, 1.07, 1.14, 42)},
            tuning=TunedSchedule(
                schedule=((1, 2, 4), (3, 256, 2)),
                episodes=30,
                needed=9,
                gain=Interval(1.12, 1.05, 1.19, 42),
            ),
        ),
        "the tuned schedule in force, next switch in 40 s; 42 episodes; the tuned schedule is 1.11"
        " times as fast as the launch (1.07 to 1.14); proposed for the launch:"
        ' "num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 256, 2]], expected 1.12 times as'
        " fast (1.05 to 1.19) at the loads of 42 episodes",
    ),
    "tuned without traffic": (
        ExperimentStatus(arm="tuned", paused="no traffic"),
        "the tuned schedule in force, waiting: no traffic",
    ),
    "not read yet": (
        ExperimentStatus(arm="launch", paused="the guard was not read yet"),
        "waiting: the guard was not read yet",
    ),
    "not known": (
        ExperimentStatus(arm="launch", best="launch", speedups={"0": None}, episodes=1),
        "the launch in force; 1 episode; no arm is known to be faster than the launch",
    ),
    "the launch wins": (
        replace(RUNNING, best="launch", speedups={"0": RUNNING.speedups["0"]}, arm="launch"),
        "the launch in force, next switch in 40 s; 42 episodes, 3 left out; the launch is the"
        " fastest",
    ),
}


@pytest.mark.parametrize(("known", "sentence"), STANDING.values(), ids=STANDING)
def test_the_status_has_a_sentence(
    run: Run, surface: Surface, known: ExperimentStatus, sentence: str
) -> None:
    assert experiment.standing(known, NOW) == sentence
    surface.status = daemon(target(experiment=known))
    done = run("status", "--url", surface.url)
    assert done.exit_code == 0
    assert f"experiment: {sentence}" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    page = status_html(surface.status, StatusHistory())
    assert f"<p>Experiment: {html.escape(sentence)}.</p>" in page.replace("&#34;", "&quot;")
    (shown,) = surface.get("/api/v1/targets").json["targets"]
    assert shown["experiment"]["episodes"] == known.episodes
    assert sorted(shown["experiment"]) == [
        "arm",
        "best",
        "episodes",
        "excluded",
        "groups",
        "next_at",
        "paused",
        "speedups",
        "tuning",
    ]

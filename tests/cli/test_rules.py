"""``specwatch rules``."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.model import Histogram, Mode, Window
from specwatch.store.repository import Store
from tests.cli.conftest import Run
from tests.cli.history import MODEL, T0, fill, minute
from tests.segments import segment

BAD = range(60, 80)
"""Minutes with a low acceptance, of two hours."""
ALL = (T0, T0 + 7200)
RULE = """
rules:
  use_defaults: false
  extra:
    - {name: low, metric: acceptance_ratio, below: 0.4, window: 5m, for: 2m, clear_for: 2m,
       min_drafts: 100, severity: critical, action: disable, summary: Few drafts are kept}
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of two hours of a target with twenty bad minutes, and of one without."""
    url = f"sqlite:///{tmp_path_factory.mktemp('history')}/history.db"
    bad = (minute(n, acceptance=0.1 if n in BAD else 0.75) for n in range(120))
    good = (minute(n, target="good") for n in range(40))
    fill(url, chain.from_iterable(chain(bad, good)))
    return url


@pytest.fixture
def config(tmp_path: Path, history: str) -> Path:
    """A configuration with one rule of the user's."""
    file = tmp_path / "specwatch.yml"
    file.write_text(f"database: {history}\ntargets: [{{url: 'http://h:1', name: chat}}]\n{RULE}")
    return file


def judged(run: Run, *words: object, code: int, since: int = ALL[0], until: int = ALL[1]) -> Any:
    """The JSON output of a replay."""
    done = run("rules", "test", "--since", since, "--until", until, "--json", *words)
    assert (done.exit_code, done.stderr) == (code, "")
    return json.loads(done.stdout)


def only_course(replay: Any) -> Any:
    """The history of the only target, rule, model and temperature."""
    (target,) = replay["targets"]
    (course,) = target["courses"]
    return course


def test_a_drop_fires_the_rule_at_its_minute_and_clears_it(run: Run, config: Path) -> None:
    """Three bad minutes of five are below the threshold; that holds for two more minutes."""
    replay = judged(run, "--config", config, "--target", "chat", code=1)
    course = only_course(replay)
    (firing,) = course["firings"]
    assert replay["fired"] is True
    assert (course["rule"], course["model_name"], course["segment"]["value"]) == (
        "low",
        MODEL,
        "all",
    )
    assert firing["fired"] == T0 + 60 * (60 + 3 + 2)
    assert firing["cleared"] == T0 + 60 * (80 + 3 + 2)
    assert firing["seconds"] == course["breach_seconds"] == 20 * 60
    assert (course["judged_minutes"], course["no_data_share"]) == (120, 0.0)
    (reading,) = firing["readings"]
    assert (reading["metric"], reading["below"]) == ("acceptance_ratio", 0.4)
    assert reading["value"] == pytest.approx(0.09)
    attribution = firing["attribution"]
    assert attribution["metric"] == "speedup_ratio"
    assert attribution["before"] > 2 > attribution["now"]
    assert attribution["causes"][0]["factor"] == "acceptance"
    assert attribution["causes"][0]["share"] > 0.95


def test_in_words(run: Run, config: Path) -> None:
    done = run(
        "rules", "test", "-c", config, "--target", "chat", "--since", ALL[0], "--until", ALL[1]
    )
    assert (done.exit_code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:4] == [
        "chat",
        "judged from 2023-11-14 22:00 UTC to 2023-11-15 00:00 UTC, 2 h",
        "",
        "llama",
    ]
    assert re.fullmatch(r"  baseline from calibrate, load 3-4; \d+ days old, .*", lines[4])
    assert lines[5:] == [
        "rule  segment  fired  in breach  no data",
        "low       all      1     20 min     0.0%",
        "",
        "low (critical, disable)",
        "  fired 2023-11-14 23:05 UTC, cleared 2023-11-14 23:25 UTC after 20 min",
        "  acceptance_ratio 0.09; fires below 0.4",
        "  speedup_ratio 2.47 the day before, 0.91 now; 100% of it: acceptance at",
        "    temperature 0 fell from 75% to 10%: -2.34 tokens per step",
    ]


def test_a_measured_loss_fires_too_and_the_baseline_is_named(run: Run, history: str) -> None:
    words = ("--database", history, "--target", "chat", "--rule", "net-negative")
    replay = judged(run, *words, code=1, since=T0 + 60 * 50, until=T0 + 60 * 75)
    (firing,) = only_course(replay)["firings"]
    assert T0 + 60 * (60 + 3) <= firing["fired"] <= T0 + 60 * (60 + 10)
    reading = firing["readings"][0]
    assert reading["upper"] < 1
    assert reading["basis"] == "measured"
    (bin_,) = replay["targets"][0]["baselines"][MODEL]["bins"]
    assert (bin_["load_bin"], bin_["origin"], bin_["measured_at"]) == ("3-4", "calibrate", T0)


@pytest.mark.parametrize(("objective", "code"), [("tpot", 0), ("e2e", 1)])
def test_a_loss_depends_on_the_objective_of_the_target(
    run: Run, tmp_path: Path, objective: str, code: int
) -> None:
    """Tokens come three times as fast, and the first of them forty times as late."""
    url = f"sqlite:///{tmp_path}/slow-start.db"
    off = (_with_first(window, 0.1) for n in range(40) for window in minute(n))
    on = (_with_first(window, 4.0) for n in range(40, 80) for window in minute(n))
    fill(url, chain((_without_drafts(window) for window in off), on), baseline=False)
    file = tmp_path / "specwatch.yml"
    target = f"{{url: 'http://h:1', name: chat, objective: {objective}}}"
    file.write_text(f"database: {url}\ntargets: [{target}]\n")
    replay = judged(run, "--config", file, "--rule", "net-negative", code=code)
    assert len(only_course(replay)["firings"]) == code


def test_a_rule_about_segments_is_judged_by_stored_segments(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/segments.db"
    windows = []
    for n in range(60):
        for one in minute(n):
            label = {"0": "output=text", "(0.7,1]": "output=tool_call"}.get(
                one.series.segment.value
            )
            rate = {"output=text": 1.0, "output=tool_call": 0.1}.get(label or "", 1.0)
            accepted = round((one.tally.accepted_tokens or 0) * rate)
            tally = replace(one.tally, accepted_tokens=accepted)
            series = replace(one.series, segment=segment(label or "all"))
            windows.append(replace(one, series=series, tally=tally))
    fill(url, windows)
    file = tmp_path / "specwatch.yml"
    rule = RULE.replace("severity", "scope: {dimension: output}, severity")
    file.write_text(f"database: {url}\ntargets: [{{url: 'http://h:1', name: chat}}]\n{rule}")
    replay = judged(run, "--config", file, "--target", "chat", code=1, until=T0 + 3600)
    (target,) = replay["targets"]
    fired = {course["segment"]["value"]: len(course["firings"]) for course in target["courses"]}
    assert fired == {"text": 0, "tool_call": 1}
    words = ("rules", "test", "--config", str(file), "--since", str(T0), "--until", str(T0 + 3600))
    stdout = run(*words).stdout
    assert "plain text" in stdout
    assert "low for tool calls (" in stdout


def _with_first(one: Window, ttft: float) -> Window:
    counted = replace(one.tally, prompt_tokens=1000, ttft=Histogram((), (20,), 20 * ttft))
    return replace(one, tally=counted) if one.series.segment == segment("all") else one


def _without_drafts(one: Window) -> Window:
    counted = replace(one.tally, drafts=None, draft_tokens=None, accepted_tokens=None)
    if counted.inter_token is not None:
        counted = replace(counted, inter_token=Histogram((), (4000,), 3 * 4000 * 0.0075))
    return replace(one, mode=Mode.OFF, tally=counted)


@pytest.mark.parametrize(
    ("guard", "count"),
    [
        ("{explore: {budget: 1%}}", 1),
        ("{mode: act, explore: {max_age: 12h}}", 0),
        ("{mode: off, explore: {budget: 1%}}", 0),
    ],
)
def test_explorations_have_a_note_that_they_are_not_replayed(
    run: Run, config: Path, guard: str, count: int
) -> None:
    config.write_text(f"{config.read_text()}guard: {guard}\n")
    words = ("-c", config, "--target", "chat", "--since", T0 + 60 * 55, "--until", T0 + 60 * 75)
    done = run("rules", "test", *words)
    note = "note: the explorations of guard.explore are not replayed"
    assert done.stdout.count(note) == count
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_history_without_a_breach_exits_with_0(run: Run, history: str) -> None:
    """There is no baseline for the target ``good``, which is reported."""
    words = ("--database", history, "--target", "good")
    until = T0 + 60 * 20
    replay = judged(run, *words, code=0, until=until)
    assert replay["fired"] is False
    courses = {course["rule"]: course for course in replay["targets"][0]["courses"]}
    assert courses.keys() == {rule.name for rule in DEFAULT_RULES}
    assert all(course["firings"] == [] for course in courses.values())
    assert courses["net-negative"]["no_data_share"] == 1.0
    done = run("rules", "test", *words, "--since", T0, "--until", until)
    assert "no baseline: rules on the speedup have no data" in done.stdout


@pytest.mark.parametrize(
    ("since", "until", "cleared", "text"),
    [
        (T0 + 60 * 75, T0 + 60 * 95, True, "fired before, cleared "),
        (T0 + 60 * 55, T0 + 60 * 75, False, "still in breach after 10 min"),
    ],
    ids=["began before", "lasts"],
)
def test_a_breach_counts_within_the_time_that_is_replayed(
    run: Run, config: Path, since: int, until: int, cleared: bool, text: str
) -> None:
    words = ("-c", config, "--target", "chat")
    course = only_course(judged(run, *words, code=1, since=since, until=until))
    (firing,) = course["firings"]
    assert firing["seconds"] == course["breach_seconds"] == 10 * 60
    assert (firing["cleared"] is not None) is cleared
    done = run("rules", "test", *words, "--since", since, "--until", until)
    assert text in done.stdout


def test_minutes_in_which_nobody_watched_are_without_data(
    run: Run, config: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/gap.db"
    fill(url, chain.from_iterable(minute(n) for n in range(45) if not 15 <= n < 30))
    course = only_course(judged(run, "-c", config, "--database", url, code=0, until=T0 + 2700))
    assert course["judged_minutes"] == 45
    assert 0.25 < course["no_data_share"] < 0.35


def test_pruned_minutes_are_reported_and_the_others_judged(
    run: Run, config: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/pruned.db"
    fill(url, chain.from_iterable(minute(n) for n in (*range(5), *range(120, 180))))
    store = Store(url, daemon="left")
    store.roll_up(T0 + 4 * 3600.0)
    store.prune(T0 + 4 * 3600.0, 2 * 3600.0, 10**7)
    store.close(0.0)
    words = ("-c", config, "--database", url)
    (target,) = judged(run, *words, code=0, until=T0 + 10800)["targets"]
    assert target["courses"][0]["firings"] == []
    assert (target["since"], target["only_hours_before"]) == (T0 + 7200, True)
    done = run("rules", "test", *words, "--since", T0, "--until", T0 + 10800)
    assert "before that only hours are stored" in done.stdout
    none = run("rules", "test", *words, "--since", T0, "--until", T0 + 7200)
    assert (none.exit_code, none.stdout) == (1, "")
    assert "only hours are stored" in none.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rule", "net-negativ"], 'there is no rule "net-negativ"; did you mean "net-negative"?'),
        (["--target", "god"], 'no daemon has ever watched "god"; did you mean "good"?'),
        (["--since", "yesterday"], '"yesterday" is not a date or time such as 20'),
        (["--since", "nan"], "a duration before now such as 30m"),
        (["--since", "-1e300"], '"-1e300" is too early or too late'),
        (["--until", "1700000000000"], "is too early or too late; write it like 2026-11-19T14:30"),
        (["--until", T0 - 1], "--since is not before --until"),
        (["--database", "x.db"], "is not a database URL"),
        (["--config", "/nowhere.yml"], "/nowhere.yml"),
    ],
)
def test_a_mistake_is_refused_with_the_remedy(
    run: Run, history: str, words: list[object], problem: str
) -> None:
    done = run("rules", "test", "--database", history, "--since", T0, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in " ".join(done.stderr.split())


def test_a_time_without_history_exits_with_1(run: Run, history: str) -> None:
    done = run("rules", "test", "--database", history, "--since", "1h")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no minutes are stored from " in done.stderr


def test_the_rules_of_a_configuration_are_listed(run: Run, config: Path) -> None:
    assert run("rules", "list", "--config", config).stdout.splitlines() == [
        "low",
        "  critical, asks to switch speculation off, yours",
        "  Few drafts are kept",
        "  fires: acceptance_ratio below 0.4 over 5m, for 2m",
        "  clears: acceptance_ratio back at 0.4, for 2m",
        "  needs: 100 drafts",
    ]
    (low,) = json.loads(run("rules", "list", "-c", config, "--json").stdout)
    assert low["default"] is False
    assert (low["for"], low["window"], low["all"][0]["below"]) == ("2m", "5m", 0.4)


def test_without_a_configuration_the_defaults_are_listed(run: Run) -> None:
    done = run("rules", "list")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line and line[0] != " "] == [r.name for r in DEFAULT_RULES]
    assert max(map(len, lines)) <= 80
    assert "  only: each temperature above 0 by itself" in lines
    listed = json.loads(run("rules", "list", "--json").stdout)
    assert [rule["default"] for rule in listed] == [True] * len(DEFAULT_RULES)

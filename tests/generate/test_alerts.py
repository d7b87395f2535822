"""The alerting rules and their runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specwatch.cli import group as cli
from specwatch.config.guard import DEFAULT_RUNBOOK_URL
from specwatch.config.rules import DEFAULT_RULES
from specwatch.generate.alerts import (
    alert_files,
    exported_groups,
    runbook_sections,
    sections,
    sent_sections,
)
from specwatch.generate.alerts.rules import Alert, Group, Recording, render
from specwatch.generate.runbook import Section, markdown
from tests.generate.boards import boards, everything
from tests.generate.test_dashboard_queries import exist, labels_of, parsed, problems

ROOT = Path(__file__).parents[2]
RULE_FILES = ("specwatch.rules.yml", "vllm.rules.yml")
DURATION = re.compile(r"[1-9]\d*[mhd]")
PRINTF = re.compile(
    r'printf "((?:specwatch|time|clamp_max|count|max)(?:[^"\\]|\\.)*)"'
    r'((?: \$labels\.\w+| \(or \$labels\.\w+ "all"\))*)'
)
COMMAND = re.compile(r"`(specwatch [^`]*)`")


@cache
def files() -> dict[str, str]:
    return dict(alert_files())


@cache
def advice() -> tuple[Section, ...]:
    """The sections of the runbook."""
    return tuple(runbook_sections())


@cache
def rules(name: str) -> list[dict[str, Any]]:
    read = yaml.load(files()[name], Loader=yaml.CSafeLoader)
    return [rule for group in read["groups"] for rule in group["rules"]]


def alerts(*names: str) -> list[dict[str, Any]]:
    return [rule for name in names for rule in rules(name) if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for name in RULE_FILES for rule in rules(name) if "record" in rule}


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", files()["RUNBOOK.md"], re.MULTILINE)


def test_each_default_rule_has_its_alert() -> None:
    rules_of_alerts = [alert["labels"].get("rule") for alert in alerts("specwatch.rules.yml")]
    names = sorted(rule for rule in rules_of_alerts if rule not in (None, "bucket-loses"))
    assert names == sorted(rule.name for rule in DEFAULT_RULES)


def test_every_alert_has_duration_severity_texts_and_runbook() -> None:
    for alert in alerts(*RULE_FILES):
        name = alert["alert"]
        assert DURATION.fullmatch(alert["for"]), name
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        texts = alert["annotations"]
        ours = {"dashboard_url"} if alert in rules("specwatch.rules.yml") else set()
        assert set(texts) == {"summary", "description", "runbook_url"} | ours, name
        assert 10 < len(texts["summary"]) < 120, name
        assert re.search(r"\$(value|labels)\b", texts["description"]), name
        url, _, fragment = texts["runbook_url"].partition("#")
        assert url == DEFAULT_RUNBOOK_URL
        assert fragment in map(str.lower, headings()), name


def test_alerts_of_one_name_differ_in_their_labels() -> None:
    seen = [
        (alert["alert"], json.dumps(alert["labels"], sort_keys=True))
        for alert in alerts(*RULE_FILES)
    ]
    assert len(seen) == len(set(seen))


def test_all_metrics_and_labels_of_an_alert_are_exported() -> None:
    """In its expression, in its texts, and in the queries of its texts."""
    for alert in alerts("specwatch.rules.yml"):
        name, expr = alert["alert"], parsed(alert["expr"])
        assert list(problems(expr)) == [], name
        texts = " ".join([*alert["annotations"].values(), *alert["labels"].values()])
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels_of(expr), name
        for query, arguments in PRINTF.findall(texts):
            assert query.count("%q") == arguments.count("$labels"), name
            asked = json.loads(f'"{query}"').replace("%q", '"x"')
            assert list(problems(parsed(asked))) == [], name
            assert set(re.findall(r"\$labels\.(\w+)", arguments)) <= labels_of(expr), name


def test_the_texts_ask_for_something() -> None:
    """The pattern by which the test above finds their queries fits."""
    found = [
        query
        for alert in alerts("specwatch.rules.yml")
        for text in (alert["annotations"]["description"], *alert["labels"].values())
        for query in PRINTF.findall(text)
    ]
    assert len(found) == files()["specwatch.rules.yml"].count("| query") > 20


def test_rules_for_vllm_name_only_what_vllm_or_a_recording_has() -> None:
    names = {name for rule in rules("vllm.rules.yml") for name in _names(parsed(rule["expr"]))}
    assert any(name.startswith("vllm:") for name in names)
    assert names <= {*exist(), *recorded()}


def _names(node: Any) -> Iterator[str]:
    yield from re.findall(r"(?<![\w:\"])([a-z]+_?\w*:\w[\w:]*)", str(node))


def test_the_committed_files_are_current() -> None:
    for name, text in files().items():
        committed = ROOT / "alerts" / name
        assert committed.read_text() == text, f"run: specwatch generate alerts ({committed})"
        assert "Generated by `specwatch generate alerts`. DO NOT EDIT." in text.split("\n", 1)[0]


def test_the_runbook_has_one_section_an_alert_in_their_order() -> None:
    names = [alert["alert"] for alert in alerts("specwatch.rules.yml")]
    names += [section.name for section in sent_sections()]
    names += [alert["alert"] for alert in alerts("vllm.rules.yml")]
    assert headings() == list(dict.fromkeys(names)) == [section.name for section in advice()]


def test_each_section_is_short_and_says_what_to_do() -> None:
    for section in advice():
        for part in (section.meaning, section.look, section.do):
            assert 20 < len(part) < 520, section.name
            assert part.endswith((".", ")", "?")), section.name
            assert part.count("`") % 2 == 0, section.name


def test_every_command_that_is_named_exists_with_its_options() -> None:
    texts = [part for section in advice() for part in (section.meaning, section.look, section.do)]
    texts += [alert["annotations"]["description"] for alert in alerts(*RULE_FILES)]
    commands = {found for text in texts for found in COMMAND.findall(text)}
    assert len(commands) > 10
    for command in commands:
        words = re.sub(r"{{.*?}}", "TARGET", command).split()[1:]
        options = {word for word in words if word.startswith("--")}
        path = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word) and word != "latest"]
        shown = CliRunner().invoke(cli, [*path, "--help"])
        assert shown.exit_code == 0, f"{command}: {shown.output}"
        assert options <= set(re.findall(r"--[a-z-]+", shown.output)), command


def test_every_dashboard_and_panel_that_is_named_exists() -> None:
    titles = {title for board in boards().values() for title in _titles(board)}
    ours = (*sections(exported_groups()), *sent_sections())
    texts = [text for section in ours for text in (section.look, section.do)]
    named = {found for text in texts for found in re.findall(r'"([^"]*)"', text)}
    assert len(named) > 10
    assert named <= titles


def _titles(board: dict[str, Any]) -> Iterator[str]:
    yield board["title"]
    yield from (panel["title"] for panel in everything(board))


def alert(name: str = "ItBurns", **changes: Any) -> Alert:
    known = {
        "expr": "up == 0",
        "for_": "5m",
        "severity": "warning",
        "summary": "It is {{ $value }}",
        "description": 'a: "b" # c',
        "meaning": "M.",
        "look": "L.",
        "do": "D.",
    }
    return Alert(name=name, **{**known, **changes})


def test_a_rule_file_has_each_rule_as_it_is() -> None:
    group = Group(
        "g",
        (
            Recording(record="a:b:c", expr="sum(up)", labels={"x": "y"}),
            alert(expr="up\n== 0", keep_firing_for="1m", labels={"rule": "r"}),
        ),
        "5m",
    )
    text = render([group], runbook_url="http://here/book", header="First.\n\nSecond.")
    assert text.splitlines()[1:4] == ["# First.", "#", "# Second."]
    assert "expr: |-\n          up\n          == 0\n" in text
    (found,) = yaml.safe_load(text)["groups"]
    assert found == {
        "name": "g",
        "interval": "5m",
        "rules": [
            {"record": "a:b:c", "expr": "sum(up)", "labels": {"x": "y"}},
            {
                "alert": "ItBurns",
                "expr": "up\n== 0",
                "for": "5m",
                "keep_firing_for": "1m",
                "labels": {"severity": "warning", "rule": "r"},
                "annotations": {
                    "summary": "It is {{ $value }}",
                    "description": 'a: "b" # c',
                    "runbook_url": "http://here/book#itburns",
                },
            },
        ],
    }


def test_alerts_of_one_name_share_a_section_and_must_say_the_same() -> None:
    both = [Group("g", (alert(severity="critical"), alert()))]
    assert sections(both) == (Section("ItBurns", "critical or warning", "M.", "L.", "D."),)
    text = markdown(sections(both))
    assert "## ItBurns\n\nSeverity: critical or warning.\n\n**What it means.** M." in text
    with pytest.raises(ValueError, match="ItBurns: alerts of one name share one section"):
        sections([Group("g", (alert(), alert(do="Something else.")))])


def test_the_job_and_the_address_of_the_runbook_are_as_asked() -> None:
    text = alert_files(job='a "b"', runbook_url="https://wiki/x")["specwatch.rules.yml"]
    assert 'up{job="a \\"b\\""} == 0' in text
    assert "https://wiki/x#specwatchdown" in text
    assert DEFAULT_RUNBOOK_URL not in text

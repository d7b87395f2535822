"""The sample configuration, as Alertmanager's own tool reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from specwatch.alerts import firing as own
from specwatch.config.rules import DEFAULT_RULES
from specwatch.generate.alerts import alertmanager_sample, exported_groups, stock_groups
from specwatch.generate.alerts.rules import Group
from specwatch.rules.objectives import BURNS

OWN = {own.RULE, own.SLO_BURN, own.SERVER_DOWN, own.SWITCHED_OFF, own.BLOCKED, own.FAILED}
"""Alerts that the daemon tells by itself."""
_SERVER = {"target", "instance", "job"}
"""Labels of which one at least has to be equal, for two alerts to be of one server."""
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sample") / "alertmanager.yml"
    file.write_text(alertmanager_sample())
    return file


def amtool(*arguments: str | Path) -> str:
    if shutil.which("amtool") is None:
        pytest.skip("amtool (of Alertmanager) is missing")
    ran = subprocess.run(
        ["amtool", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_alertmanager_takes_it(sample: Path) -> None:
    said = amtool("check-config", sample)
    assert "SUCCESS" in said
    assert "3 receivers" in said


def test_alertmanager_takes_it_with_what_is_off_in_it(sample: Path, tmp_path: Path) -> None:
    """Who removes the marks of its last lines gets what ``across_servers`` gives."""
    whole = alertmanager_sample(across_servers=True)
    assert sample.read_text().replace("\n#:", "\n") == whole != sample.read_text()
    file = tmp_path / "alertmanager.yml"
    file.write_text(whole)
    assert "SUCCESS" in amtool("check-config", file)


@pytest.mark.parametrize(
    ("severity", "receiver"),
    [("critical", "page"), ("warning", "chat"), ("info", "mailbox"), ("none", "chat")],
)
def test_the_severity_says_whom_an_alert_reaches(
    sample: Path, severity: str, receiver: str
) -> None:
    amtool(
        "config",
        "routes",
        "test",
        f"--config.file={sample}",
        f"--verify.receivers={receiver}",
        f"severity={severity}",
        "alertname=SpeculationSloBurn",
        "target=chat-70b",
    )


def test_every_severity_has_a_route() -> None:
    matched = {
        value
        for route in yaml.safe_load(alertmanager_sample())["route"]["routes"]
        for label, _, value in map(_parts, route["matchers"])
        if label == "severity"
    }
    assert matched == {alert.severity for group in _groups() for alert in group.alerts}


def test_it_names_nothing_that_is_not_there() -> None:
    """Each word of a matcher stands for an alert or a rule that there is."""
    known = {
        "alertname": OWN | {alert.name for group in _groups() for alert in group.alerts},
        "rule": {rule.name for rule in DEFAULT_RULES}
        | {alert.labels.get("rule", "") for group in _groups() for alert in group.alerts},
        "severity": {"critical", "warning", "info"},
        "servers": {"one"},
        "dimension": {"", "all"},
        "long": {burn.long for burn in BURNS},
    }
    for label, value in _matched():
        for word in value.split("|"):
            assert any(re.fullmatch(word, each) for each in known[label]), f"{label}: {word}"


def test_each_alert_of_the_daemon_s_own_inhibits_its_twin() -> None:
    assert {label_of(rule, "alertname") for rule in _rules()} >= OWN


def test_one_objective_of_one_model_pages_once() -> None:
    own, stock_one = "LatencySloBurn", {"alertname": "VllmLatencySloBurn", "servers": "one"}
    for source, reached in (("critical", {"critical", "warning"}), ("warning", {"warning"})):
        rules = [
            rule
            for rule in _rules()
            if label_of(rule, "alertname") == own
            and label_of(rule, "severity") in (source, "")
            and rule["equal"] == ["model_name", "slo"]
        ]
        assert reached == {
            severity
            for severity in ("critical", "warning")
            if any(_reaches(rule, {**stock_one, "severity": severity}) for rule in rules)
        }


def test_where_several_servers_have_a_model_no_page_of_one_hides_another_s() -> None:
    alert = {"alertname": "VllmLatencySloBurn", "severity": "critical", "servers": "several"}
    assert not any(_reaches(rule, alert) for rule in _rules())
    of_slo = [rule for rule in _rules() if label_of(rule, "alertname") == "LatencySloBurn"]
    assert {label_of(rule, "servers") for rule in of_slo} == {"one"}


def test_but_for_objectives_nothing_reaches_across_servers_unless_the_marks_are_taken_away() -> (
    None
):
    across = [rule for rule in _rules() if not _SERVER & {*rule["equal"]}]
    assert {label_of(rule, "alertname") for rule in across} == {"LatencySloBurn"}


def test_no_page_is_inhibited_by_an_alert_of_another_server() -> None:
    """But for the burn of one objective, which one page is enough for."""
    across = [
        rule
        for rule in _rules(across_servers=True)
        if not _SERVER & {*rule["equal"]} and label_of(rule, "alertname") != "LatencySloBurn"
    ]
    pages = [
        {"alertname": alert.name, "severity": alert.severity}
        for group in _groups()
        for alert in group.alerts
        if alert.severity == "critical"
    ]
    assert len(across) > 2
    assert [(rule, page) for rule in across for page in pages if _reaches(rule, page)] == []


def test_specwatch_being_down_inhibits_nothing_by_labels_that_are_not_there() -> None:
    """Alertmanager takes a label that both lack as equal."""
    for rule, label in zip(_of_down(), ("target", "instance"), strict=True):
        assert label in rule["equal"]
        for matchers in (rule["source_matchers"], rule["target_matchers"]):
            assert (label, "!=", "") in map(_parts, matchers)


def test_what_the_daemon_tells_is_not_inhibited_by_its_end() -> None:
    for name in (alert.name for group in _exported() for alert in group.alerts):
        assert _ends_with_the_daemon(name) == (name != "SpecwatchDown"), name
    for name in OWN:
        assert not _ends_with_the_daemon(name), name


def _of_down() -> list[dict[str, list[str]]]:
    return [rule for rule in _rules() if label_of(rule, "alertname") == "SpecwatchDown"]


def _ends_with_the_daemon(name: str) -> bool:
    labels = {"alertname": name, "target": "chat", "instance": "there"}
    return any(_reaches(rule, labels) for rule in _of_down())


def _reaches(rule: dict[str, list[str]], labels: Mapping[str, str]) -> bool:
    """Whether an alert with these labels is one that it would inhibit."""
    for label, operator, value in map(_parts, rule["target_matchers"]):
        found = labels.get(label, "")
        same = bool(re.fullmatch(value, found)) if "~" in operator else found == value
        if same == operator.startswith("!"):
            return False
    return True


def label_of(rule: dict[str, list[str]], label: str) -> str:
    return next((v for name, _, v in map(_parts, rule["source_matchers"]) if name == label), "")


@cache
def _exported() -> tuple[Group, ...]:
    return tuple(exported_groups())


@cache
def _groups() -> list[Group]:
    return [*_exported(), *stock_groups()]


@cache
def _rules(*, across_servers: bool = False) -> list[dict[str, list[str]]]:
    text = alertmanager_sample(across_servers=across_servers)
    read = yaml.load(text, Loader=yaml.CSafeLoader)
    found: list[dict[str, list[str]]] = read["inhibit_rules"]
    return found


def _matched() -> Iterator[tuple[str, str]]:
    for rule in _rules(across_servers=True):
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, _, value = _parts(matcher)
            if value:
                yield label, value


def _parts(matcher: str) -> tuple[str, str, str]:
    found = _MATCHER.fullmatch(matcher)
    assert found, matcher
    return found[1], found[2], found[3]

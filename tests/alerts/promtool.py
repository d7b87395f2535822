"""Cases for alerts, and the files that `promtool test rules` reads of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specwatch.alerts.alert import runbook_address
from specwatch.config.guard import DEFAULT_RUNBOOK_URL
from specwatch.generate.alerts.rules import Alert, Group, Recording, render

_LONG = 1440
"""Minutes of a case from which on its rules are evaluated less often, to save time."""

Value = float | str | None
"""Of a series: always the same, or as promtool writes values; None for no series."""
World = Mapping[str, Value]
"""Series by their selector."""


@dataclass(frozen=True)
class Firing:
    """An alert that fires: labels beside those of the rule, and its description, word for word."""

    labels: Mapping[str, str]
    description: str


@dataclass(frozen=True)
class Case:
    """A world, and which instances of one alert fire in it after ``at`` minutes.

    ``severity`` says which of the alerts of one name it is about, where there are several.
    """

    title: str
    world: World
    alert: str
    at: int
    fires: Sequence[Firing] = ()
    severity: str = ""


@dataclass(frozen=True)
class Calm:
    """A world in which no alert at all fires, at these minutes."""

    title: str
    world: World
    at: Sequence[int]


@dataclass(frozen=True)
class Fault:
    """What is unlike a healthy world: series that change, or are gone.

    ``traffic`` says that idle traffic silences it, ``speculation`` that speculation being off does.
    ``spare`` are metrics of its expression whose absence does not.
    """

    alert: str
    changes: Mapping[str, Value]
    labels: Mapping[str, str]
    """Of the instance that fires, beside those of the rule."""
    description: str
    at: int = 60
    traffic: bool = False
    speculation: bool = False
    spare: frozenset[str] = frozenset()
    begins: int = 0
    """The minute from which on its expression holds."""
    ordered: bool = False
    """Whether it is silent while a person keeps speculation off."""

    @property
    def firing(self) -> list[Firing]:
        """The instance that fires."""
        return [Firing(self.labels, self.description)]


def series(name: str, **labels: str) -> str:
    """A selector; its order is fixed, so that one series has one."""
    text = ",".join(f"{key}={json.dumps(labels[key])}" for key in sorted(labels))
    return f"{name}{{{text}}}"


def name_of(selector: str) -> str:
    """The metric of a series."""
    return selector.partition("{")[0]


def minutes(duration: str) -> int:
    """Minutes in a duration as Prometheus writes it."""
    match = re.fullmatch(r"(\d+)([mhd])", duration)
    assert match, duration
    return int(match[1]) * {"m": 1, "h": 60, "d": 1440}[match[2]]


def document(
    cases: Iterable[Case | Calm], alerts: Sequence[Alert], rules: str, *, every: str = "1m"
) -> str:
    """The test file: JSON, which is YAML.

    ``rules`` is the path of the rule file, ``every`` how often they are evaluated.
    """
    tests = [_calm(case) if isinstance(case, Calm) else _case(case, alerts) for case in cases]
    body = {"rule_files": [rules], "evaluation_interval": every, "tests": tests}
    return json.dumps(body, indent=1)


def write(folder: Path, groups: Sequence[Group], cases: Iterable[Case | Calm]) -> list[Path]:
    """Write test files and the rules that they need; returns the test files.

    Each alert is tested alone, with the recording rules of its group: it is much faster.
    """
    of_all: list[Case | Calm] = []
    by_alert: dict[str, list[Case | Calm]] = {}
    for case in cases:
        kept = of_all if isinstance(case, Calm) else by_alert.setdefault(case.alert, [])
        kept.append(case)
    files = [_write(folder, "calm", groups, of_all)] if of_all else []
    return files + [
        _write(folder, name, list(_alone(name, groups)), tests) for name, tests in by_alert.items()
    ]


def _write(folder: Path, name: str, groups: Sequence[Group], cases: Iterable[Case | Calm]) -> Path:
    rules, tests = folder / f"{name}.rules.yml", folder / f"{name}.test.yml"
    text = render(groups, runbook_url=DEFAULT_RUNBOOK_URL, header="")
    rules.write_text(text)
    cases = [replace(case, world=_asked_for(case.world, text)) for case in cases]
    alerts = [alert for group in groups for alert in group.alerts]
    long = any(isinstance(case, Case) and case.at > _LONG for case in cases)
    tests.write_text(document(cases, alerts, rules.name, every="5m" if long else "1m"))
    return tests


def _asked_for(world: World, rules: str) -> World:
    """The series that rules could ask for: the fewer, the faster."""
    return {selector: value for selector, value in world.items() if name_of(selector) in rules}


def _alone(name: str, groups: Iterable[Group]) -> Iterator[Group]:
    for group in groups:
        if name in [alert.name for alert in group.alerts]:
            kept = [
                rule for rule in group.rules if isinstance(rule, Recording) or rule.name == name
            ]
            yield Group(group.name, tuple(kept), group.interval)


def _input(world: World, last: int) -> list[dict[str, str]]:
    return [
        {"series": selector, "values": value if isinstance(value, str) else f"{value:g}x{last}"}
        for selector, value in world.items()
        if value is not None
    ]


def _calm(case: Calm) -> dict[str, Any]:
    return {
        "name": case.title,
        "interval": "1m",
        "input_series": _input(case.world, max(case.at)),
        "promql_expr_test": [
            {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{at}m", "exp_samples": []}
            for at in case.at
        ],
    }


def _case(case: Case, alerts: Iterable[Alert]) -> dict[str, Any]:
    named = [alert for alert in alerts if alert.name == case.alert]
    assert named, f"{case.alert}: no such alert"
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": "1m",
        "input_series": _input(case.world, case.at),
        "alert_rule_test": [
            {
                "eval_time": f"{case.at}m",
                "alertname": case.alert,
                "exp_alerts": [_expected(firing, case, named) for firing in case.fires],
            }
        ],
    }


_BUT_ALL = re.compile(r'{{ if ne \$labels\.(\w+) "all" }}(.*?){{ end }}')
_AT = re.compile(r"{{ with \$labels\.(\w+) }}(.*?){{ end }}")


def _at(label: str, text: str) -> str:
    return text.replace("{{ . }}", label) if label else ""


def _expected(firing: Firing, case: Case, named: Sequence[Alert]) -> dict[str, Any]:
    (alert,) = (
        alert
        for alert in named
        if all(
            "{{" in value or firing.labels.get(key, value) == value
            for key, value in alert.labels.items()
        )
        and case.severity in ("", alert.severity)
    )
    labels = {**alert.labels, **firing.labels, "severity": alert.severity}
    summary = _AT.sub(lambda match: _at(labels.get(match[1], ""), match[2]), alert.summary)
    summary = _BUT_ALL.sub(lambda match: "" if labels[match[1]] == "all" else match[2], summary)
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels[match[1]], summary)
    return {
        "exp_labels": labels,
        "exp_annotations": {
            "summary": summary,
            "description": firing.description,
            "runbook_url": runbook_address(DEFAULT_RUNBOOK_URL, alert.name),
        },
    }

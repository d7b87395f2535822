"""The rule files as Prometheus reads them: well formed, and firing only when they should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specwatch.generate.alerts import alert_files, exported_groups
from tests.alerts.cases import ALERTS, cases
from tests.alerts.promtool import Case, write
from tests.e2e.conftest import unavailable

ROOT = Path(__file__).parents[2]
RULES = ("specwatch.rules.yml", "vllm.rules.yml")


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        unavailable("no promtool is installed (Debian: prometheus)")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_prometheus_takes_the_rule_files(promtool: str) -> None:
    run(promtool, "check", "rules", *(ROOT / "alerts" / name for name in RULES))


def test_it_takes_those_for_another_job_and_no_objectives(promtool: str, tmp_path: Path) -> None:
    for name, text in alert_files(job='it\'s "odd" {{ }}', slos=()).items():
        if name in RULES:
            (tmp_path / name).write_text(text)
            run(promtool, "check", "rules", tmp_path / name)


def test_alerts_fire_when_they_should_and_not_otherwise(promtool: str, tmp_path: Path) -> None:
    """The cases include idle traffic, counter resets, restarts, and what is off or missing."""
    run(promtool, "test", "rules", *write(tmp_path, exported_groups(), cases()))


def test_each_alert_has_cases_in_which_it_fires_and_in_which_not() -> None:
    known = [case for case in cases() if isinstance(case, Case)]
    for name in {alert.name for alert in ALERTS}:
        assert [case for case in known if case.alert == name and case.fires], name
        assert [case for case in known if case.alert == name and not case.fires], name

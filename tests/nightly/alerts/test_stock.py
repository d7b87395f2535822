"""All cases of the alerts on stock vLLM metrics, as a real Prometheus evaluates them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.promtool import write
from tests.alerts.stock import CASES, GROUPS, odd_names_file, run_promtool

NAMES = sorted({alert.name for group in GROUPS for alert in group.alerts})
ODD_NAMES = ('{"a\\b"}', "{{ $value }}", "}} {{{ {{", "`x`", "it's 99%")


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    files = write(tmp_path, GROUPS, CASES)
    run_promtool(*files, odd_names_file(tmp_path, *ODD_NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_there_are_cases_that_fire_and_that_must_not(name: str) -> None:
    cases = [case for case in CASES if case.alert == name]
    assert [case for case in cases if case.fires]
    assert len([case for case in cases if not case.fires]) >= 3

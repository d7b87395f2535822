"""Services, guard and Alertmanager in a file: read whole, or refused with each problem's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specwatch.config.guard import Alertmanager, Guard, Maintenance
from specwatch.config.loading import parse
from specwatch.config.service import (
    SystemdService,
)
from specwatch.errors import ConfigError
from tests.config.files import one_target, valid


def without_nulls(value: Any) -> Any:
    """What a person would write: a key that has no value is left out."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


def test_without_a_guard_section_it_observes() -> None:
    config = one_target("")
    assert config.guard == Guard()
    assert (config.guard.mode, config.guard.explore.budget) == ("observe", 0.0)
    assert config.guard.rearm.wait(60.0) == (2 * 60 + 90) / 0.02
    assert config.alertmanager is None
    assert config.targets[0].service is None


def test_secrets_of_alertmanager_reach_their_place(folder: Path) -> None:
    section = valid("guard/valid.yml", folder).alertmanager
    assert section is not None
    assert section.request_headers() == {
        "X-Scope-OrgID": "scope-hunter2",
        "Authorization": "Basic c3BlY3dhdGNoOnBhc3MtaHVudGVyMg==",
    }
    (folder / "password").unlink()
    with pytest.raises(ConfigError, match=r"alertmanager: cannot read .*password: No such file"):
        section.request_headers()


@pytest.mark.parametrize(("resend", "timeout"), [("1s", 1.0), ("5s", 5.0), ("1m", 5.0)])
def test_the_default_timeout_fits_the_resend_interval(resend: str, timeout: float) -> None:
    assert Alertmanager(urls=["http://h"], resend=resend).timeout == timeout


@pytest.mark.parametrize("time", ["00:00", "09:59", "19:00", "23:59"])
def test_a_time_of_day_is_hours_and_minutes(time: str) -> None:
    window = Maintenance.model_validate({"from": time, "to": time})
    assert (window.from_, window.to) == (time, time)


@pytest.mark.parametrize("time", ["24:00", "9:00", "12:60", "1200", "T1200", "12:0\n", "12:00Z"])
def test_an_invalid_time_of_day_is_refused(time: str) -> None:
    with pytest.raises(ConfigError, match="is not a time of day; write it like 02:00"):
        one_target(f"guard: {{windows: {{allow: [{{from: {json.dumps(time)}, to: '01:00'}}]}}}}")


@pytest.mark.parametrize("zone", ["../../etc/passwd", "/etc/localtime", "Europe", "a\0b", "."])
def test_a_path_is_not_a_time_zone_target(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not a time zone of this machine"):
        one_target(
            "guard: {windows: {allow: [{from: '00:00', to: '01:00',"
            f" timezone: {json.dumps(zone)}}}]}}}}"
        )


@pytest.mark.parametrize(
    "unit",
    [
        "vllm.service",
        "vllm@8000.service",
        r"a\x2db.service",
        "A:b_c.1.service",
        "a" * 247 + ".service",
    ],
)
def test_a_unit_has_a_name_that_systemd_takes(unit: str) -> None:
    assert SystemdService(kind="systemd", unit=unit).unit == unit


@pytest.mark.parametrize(
    "unit",
    [
        "vllm",
        "vllm.timer",
        "a/b.service",
        "../b.service",
        "a b.service",
        "a.service ",
        "a.service\n",
        "@a.service",
        ".a.service",
        "-a.service",
        "a@.service",
        "",
        "ä.service",
        "a" * 248 + ".service",
        "a%i.service",
        "a;b.service",
        "$a.service",
    ],
)
def test_an_invalid_unit_name_is_refused(unit: str) -> None:
    text = f"[{{url: 'http://h', service: {{kind: systemd, unit: {json.dumps(unit)}}}}}]"
    with pytest.raises(ConfigError, match=r"targets\[0\]\.service\.unit: .* write it|template"):
        parse(f"targets: {text}", "f", environ={}, hostname="gpu-7")


def test_the_public_configuration_reads_back_equal(folder: Path) -> None:
    """In the syntax of the file, with units, under the names that a file has; secrets aside."""
    config = valid("guard/valid.yml", folder)
    public = without_nulls(config.public())
    keys = ("targets", "guard", "alertmanager")
    text = yaml.safe_dump({key: public[key] for key in keys}).replace("$HOME", "$$HOME")
    again = parse(text.replace("***", "scope-hunter2"), "public", environ={}, hostname="gpu-7")
    assert again.guard == config.guard
    assert again.targets == config.targets
    assert again.alertmanager == config.alertmanager

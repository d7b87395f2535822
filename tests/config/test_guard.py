"""Services, guard and Alertmanager in a file: read whole, or refused with each problem's place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from specwatch.config.guard import Alertmanager, Explore, Guard, Hooks, Maintenance, Rearm, Windows
from specwatch.config.loading import Config, load, parse
from specwatch.config.service import CommandService, SupervisedService, SystemdService
from specwatch.errors import ConfigError

DATA = Path(__file__).parents[1] / "data" / "guard"

INVALID = {
    "services": [
        "2: targets[0].service: must be a mapping, like {kind: systemd, unit:"
        " vllm.service}",
        "3: targets[1].service: must be a mapping, like {kind: systemd, unit:"
        " vllm.service}",
        '4: targets[2].service: has no kind; add "kind: systemd", or else supervised or'
        " command",
        '5: targets[3].service: has no kind; add "kind: systemd", or else supervised or'
        " command",
        "6: targets[4].service.kind: \"docker\" is none of 'systemd', 'supervised' or"
        " 'command'",
        "7: targets[5].service.kind: [\"systemd\"] is none of 'systemd', 'supervised' or"
        " 'command'",
        '8: targets[6].service: has no unit; add it, like "unit: vllm.service"',
        '9: targets[7].service: has no unit; add it, like "unit: vllm.service"',
        "9: targets[7].service.scope: \"root\" is none of 'system' or 'user'",
        '9: targets[7].service.unti: unknown key; did you mean "unit"?',
        '13: targets[8].service.unit: "vllm" is not a unit name; write it like'
        " vllm.service",
        '14: targets[8].service.timeout: 5 has no unit; write "5s" for seconds, or use ms, m,'
        " h, d",
        '15: targets[9].service.unit: "vllm@.service" is a template; name an instance:'
        " vllm@a.service",
        "15: targets[9].service.timeout: 0s is outside 1s to 2h",
        '16: targets[10].service.unit: "../vllm.service" is not a unit name; write it like'
        " vllm.service",
        "16: targets[10].service.timeout: 3h is outside 1s to 2h",
        '17: targets[11].service.unit: ".service" is not a unit name; write it like'
        " vllm.service",
        "18: targets[12].service.unit: expected text, found a number; put it in quotes",
        "19: targets[13].service.unit: unknown key of a supervised service; known here: kind",
        "20: targets[14].service.command: unknown key of a supervised service; known here:"
        " kind",
    ],
    "commands": [
        '2: targets[0].service: has no disable; add it, like "disable:'
        " [/usr/local/bin/vllm-speculation, 'off']\"",
        '2: targets[0].service: has no enable; add it, like "enable:'
        " [/usr/local/bin/vllm-speculation, 'on']\"",
        "6: targets[1].service.disable: expected a list, found text",
        "7: targets[1].service.enable: names no program by its full path; write a list, like"
        " [/usr/local/bin/switch, off]",
        "8: targets[1].service.status: names no program by its full path; write a list, like"
        " [/usr/local/bin/switch, off]",
        "9: targets[1].service.timeout: 500ms is outside 1s to 2h",
        "13: targets[2].service.disable: has a zero byte, which no command can have",
        "14: targets[2].service.enable[1]: expected text, found a number; put it in quotes",
        '15: targets[2].service.statsu: unknown key; did you mean "status"?',
        "16: targets[3].service.unit: unknown key of a command service; known here: kind,"
        " disable, enable, status, timeout",
    ],
    "guard": [
        "3: guard.mode: \"on\" is none of 'off', 'observe' or 'act'",
        '4: guard.cooldown: 5 has no unit; write "5s" for seconds, or use ms, m, h, d',
        "5: guard.max_actions_per_day: -1 is not a whole number of at least 0",
        "6: guard.start_timeout: 5s is too short; make it at least 10s",
        "7: guard.verify: 1s is too short; make it at least 10s",
        "8: guard.drain: unknown key; known here: mode, cooldown, max_actions_per_day,"
        " drain_timeout, start_timeout, verify, respect, restart_cost,"
        " act_on_assumptions, windows, hooks, rearm, explore",
        "11: guard.windows.allow[0].days: is empty; leave it out for every day",
        '11: guard.windows.allow[0].from: "2:00" is not a time of day; write it like 02:00',
        '11: guard.windows.allow[0].to: "24:00" is not a time of day; write it like 02:00',
        "12: guard.windows.allow[1].days[0]: \"monday\" is none of 'mon', 'tue', 'wed',"
        " 'thu', 'fri', 'sat' or 'sun'",
        "12: guard.windows.allow[1].to: is missing; add it, like \"to: 05:00\"",
        '12: guard.windows.allow[1].timezone: "Mars/Base" is not a time zone of this machine;'
        " write it like Europe/Berlin, and install tzdata if it is missing",
        '13: guard.windows.allow[2].from: "0200Z" is not a time of day; write it like 02:00',
        "13: guard.windows.allow[2].to: expected text, found a number; put it in quotes",
        '13: guard.windows.allow[2].timezone: "" is not a time zone of this machine;'
        " write it like Europe/Berlin, and install tzdata if it is missing",
        "14: guard.windows.forbid: expected a list, found a mapping",
        "15: guard.windows.never: unknown key; known here: allow, forbid",
        "17: guard.hooks.before: expected a list, found text",
        "18: guard.hooks.after: names no program by its full path; write a list, like"
        " [/usr/local/bin/switch, off]",
        '19: guard.hooks.befor: unknown key; did you mean "before"?',
        "20: guard.hooks.timeout: 0s is outside 1s to 2h",
        "22: guard.rearm.after: 1s is too short; make it at least 1m",
        "23: guard.rearm.most: the longest wait, 0s, is shorter than after, 1s; make most at"
        " least 1s",
        "24: guard.rearm.trial: 1m is too short to measure anything; make it at least 2m",
    ],
    "rearm": [
        "3: guard.hooks.before: has a zero byte, which no command can have",
        "3: guard.hooks.after: names no program by its full path; write a list, like"
        " [/usr/local/bin/switch, off]",
        "3: guard.hooks.timeout: 1d is outside 1s to 2h",
        "4: guard.rearm: the longest wait, 1d, is shorter than after, 2d; make most at least"
        " 2d",
    ],
    "guard-shape": [
        "2: guard: expected a mapping of keys to values, found text",
        "3: alertmanager: expected a mapping of keys to values, found a list",
    ],
    "alertmanager": [
        '4: alertmanager.urls[0]: "ftp://127.0.0.1" does not begin with http:// or https://',
        "5: alertmanager.urls[1]: holds credentials; move them to basic_auth",
        "6: alertmanager.urls[2]: has a query or fragment; give the server's base URL only",
        "8: alertmanager.labels.team-name: is not a label name; use letters, digits and _,"
        " like team",
        "9: alertmanager.labels.alertname: is each alert's own name; give the label another"
        " name",
        "10: alertmanager.labels.site: is empty; give the label a value or remove it",
        "11: alertmanager.resend: 500ms is outside 1s to 1h",
        "12: alertmanager.timeout: 50ms is too short; make it at least 100ms",
        '13: alertmanager.headers: "X Scope" is not a header name; use letters, digits and -',
        "14: alertmanager.bearer_token_file: cannot read FOLDER/absent: No such file or"
        " directory; create it, or correct the path",
        "16: alertmanager.ca_file: has no effect beside insecure_skip_verify: true; remove"
        " one of them",
        '17: alertmanager.url: unknown key; did you mean "urls"?',
    ],
    "alertmanager-twice": [
        '3: alertmanager.urls: "http://127.0.0.1:9093" is given twice; list each Alertmanager'
        " once",
        "4: alertmanager.labels.site: expected text, found a number; put it in quotes",
        "6: alertmanager.timeout: 5s is longer than resend, 2s; make it at most 2s",
        "8: alertmanager.basic_auth: authorization is given too; keep one way to authorize",
    ],
    "alertmanager-none": [
        "2: alertmanager.urls: is empty; name one, or remove the section alertmanager",
        '2: alertmanager.runbook_url: "wiki.example" does not begin with http:// or https://; write'
        ' "http://wiki.example"',
    ],
    "alertmanager-missing": [
        '2: alertmanager.urls: is missing; add it, like "urls: [http://127.0.0.1:9093]"',
        "2: alertmanager.resend: 2h is outside 1s to 1h",
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the configurations of tests/data and the files that they name."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    (tmp_path / "password").write_text("pass-hunter2\n")
    (tmp_path / "ca.pem").write_text("certificate")
    return tmp_path


def valid(folder: Path) -> Config:
    return load(folder / "valid.yml", environ={}, hostname="gpu-7")


def one(text: str, folder: Path = Path()) -> Config:
    targets = "targets: [{url: 'http://h'}]\n"
    return parse(targets + text, "specwatch.yml", environ={}, hostname="gpu-7", folder=folder)


def without_nulls(value: Any) -> Any:
    """What a person would write: a key that has no value is left out."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def test_every_invalid_file_is_in_the_table() -> None:
    assert {path.stem for path in DATA.glob("invalid-*.yml")} == {f"invalid-{n}" for n in INVALID}


@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_invalid_file_is_refused_with_each_problem_on_its_line(name: str, folder: Path) -> None:
    path = folder / f"invalid-{name}.yml"
    with pytest.raises(ConfigError) as caught:
        load(path, environ={}, hostname="gpu-7")
    lines = str(caught.value).splitlines()
    assert lines == [f"{path}:{line.replace('FOLDER', str(folder))}" for line in INVALID[name]]
    assert "hunter2" not in str(caught.value)


def test_without_a_word_the_guard_only_watches() -> None:
    config = one("")
    assert config.guard == Guard()
    assert (config.guard.mode, config.guard.max_actions_per_day) == ("observe", 4)
    assert (config.guard.cooldown, config.guard.respect) == (1800.0, 3600.0)
    assert config.guard.rearm == Rearm(after=None, most="24h", trial="20m", budget=0.02)
    assert config.guard.explore == Explore(budget=0.0, max_age="24h", block="10m")
    assert config.guard.rearm.wait(60.0) == (2 * 60 + 90) / 0.02
    assert (config.guard.windows, config.guard.hooks) == (Windows(), Hooks())
    assert config.alertmanager is None
    assert config.targets[0].service is None


def test_every_kind_of_service_reaches_its_target(folder: Path) -> None:
    assert [target.service for target in valid(folder).targets] == [
        SystemdService(kind="systemd", unit="vllm@chat.service", scope="user", timeout="5m"),
        SupervisedService(kind="supervised"),
        CommandService(
            kind="command",
            disable=("/usr/local/bin/switch", "off", "$HOME"),
            enable=("/usr/local/bin/switch", "on"),
            status=("/usr/local/bin/switch",),
            timeout="90s",
        ),
        None,
    ]


def test_every_key_of_the_guard_reaches_its_place(folder: Path) -> None:
    guard = valid(folder).guard
    assert (guard.mode, guard.cooldown, guard.max_actions_per_day) == ("act", 3600.0, 2)
    assert (guard.drain_timeout, guard.start_timeout, guard.verify) == (0.0, 1200.0, 300.0)
    assert (guard.respect, guard.restart_cost) == (12 * 3600.0, 90.0)
    weekend, nightly = guard.windows.allow
    assert (weekend.days, weekend.from_, weekend.to) == (("sat", "sun"), "22:00", "05:30")
    assert weekend.timezone == "Europe/Berlin"
    assert (len(nightly.days), nightly.from_, nightly.timezone) == (7, "01:00", "UTC")
    (forbidden,) = guard.windows.forbid
    assert (forbidden.from_, forbidden.to) == ("00:00", "00:00")
    assert guard.hooks.before == ("/usr/local/bin/lb", "drain")
    assert guard.hooks.after == ("/usr/local/bin/lb", "ready")
    assert guard.hooks.timeout == 30.0
    assert (guard.rearm.after, guard.rearm.most, guard.rearm.trial) == (7200.0, 172800.0, 900.0)


def test_every_key_of_alertmanager_reaches_its_place(folder: Path) -> None:
    section = valid(folder).alertmanager
    assert section is not None
    assert section.urls == ("http://127.0.0.1:9093", "https://alerts.example/am")
    assert section.labels == {"team": "ml", "_site": "eu-1"}
    assert (section.resend, section.timeout) == (30.0, 2.0)
    assert section.runbook_url == "https://wiki.example/specwatch"
    assert section.ca_file == folder / "ca.pem"
    assert section.request_headers() == {
        "X-Scope-OrgID": "scope-hunter2",
        "Authorization": "Basic c3BlY3dhdGNoOnBhc3MtaHVudGVyMg==",
    }
    (folder / "password").unlink()
    with pytest.raises(ConfigError, match=r"alertmanager: cannot read .*password: No such file"):
        section.request_headers()


@pytest.mark.parametrize(("resend", "timeout"), [("1s", 1.0), ("5s", 5.0), ("1m", 5.0)])
def test_the_default_timeout_fits_the_time_between_two_letters(resend: str, timeout: float) -> None:
    assert Alertmanager(urls=["http://h"], resend=resend).timeout == timeout


@pytest.mark.parametrize("time", ["00:00", "09:59", "19:00", "23:59"])
def test_a_time_of_day_is_written_as_it_is_said(time: str) -> None:
    window = Maintenance.model_validate({"from": time, "to": time})
    assert (window.from_, window.to) == (time, time)


@pytest.mark.parametrize("time", ["24:00", "9:00", "12:60", "1200", "T1200", "12:0\n", "12:00Z"])
def test_no_other_time_of_day_is_taken(time: str) -> None:
    with pytest.raises(ConfigError, match="is not a time of day; write it like 02:00"):
        one(f"guard: {{windows: {{allow: [{{from: {json.dumps(time)}, to: '01:00'}}]}}}}")


@pytest.mark.parametrize("zone", ["../../etc/passwd", "/etc/localtime", "Europe", "a\0b", "."])
def test_no_file_passes_for_a_time_zone(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not a time zone of this machine"):
        one(
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
        "vllm", "vllm.timer", "a/b.service", "../b.service", "a b.service", "a.service ",
        "a.service\n", "@a.service", ".a.service", "-a.service", "a@.service", "", "ä.service",
        "a" * 248 + ".service", "a%i.service", "a;b.service", "$a.service",
    ],
)  # fmt: skip
def test_no_other_name_of_a_unit_is_taken(unit: str) -> None:
    text = f"[{{url: 'http://h', service: {{kind: systemd, unit: {json.dumps(unit)}}}}}]"
    with pytest.raises(ConfigError, match=r"targets\[0\]\.service\.unit: .* write it|template"):
        parse(f"targets: {text}", "f", environ={}, hostname="gpu-7")


def test_no_face_of_the_configuration_shows_a_secret(folder: Path) -> None:
    config = valid(folder)
    public = json.dumps(config.public())
    for face in (repr(config), str(config), public, config.model_dump_json()):
        assert "hunter2" not in face
    assert config.public()["alertmanager"]["headers"] == {"X-Scope-OrgID": "***"}


def test_the_public_face_reads_back_as_the_same(folder: Path) -> None:
    """In the syntax of the file, with units, under the names that a file has; secrets aside."""
    config = valid(folder)
    public = without_nulls(config.public())
    assert public["guard"]["windows"]["allow"][0]["from"] == "22:00"
    assert public["guard"]["rearm"] == {
        "after": "2h", "most": "2d", "trial": "15m", "budget": 0.02,
    }  # fmt: skip
    keys = ("targets", "guard", "alertmanager")
    text = yaml.safe_dump({key: public[key] for key in keys}).replace("$HOME", "$$HOME")
    again = parse(text.replace("***", "scope-hunter2"), "public", environ={}, hostname="gpu-7")
    assert again.guard == config.guard
    assert again.targets == config.targets
    assert again.alertmanager == config.alertmanager

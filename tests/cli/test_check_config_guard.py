"""``specwatch check-config`` about the guard and Alertmanagers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specwatch.runtime.http_server import HttpServer
from tests.cli.conftest import Run

COMMAND = "{kind: command, disable: [/bin/true, 'off'], enable: [/bin/true, 'on']}"
ABSENT = COMMAND.replace("/bin/true", "/absent")
WORKLOAD = "{kind: kubernetes, workload: deployment/vllm}"
SUPERVISED = "{kind: supervised}"
UNIT = "{kind: systemd, unit: vllm.service}"


@pytest.fixture
def alertmanager() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of one that needs credentials, and the requests that it got."""
    sent: list[bytes] = []

    async def alerts(request: Request) -> Response:
        sent.append(await request.body())
        return Response(status_code=200 if "authorization" in request.headers else 401)

    app = Starlette(routes=[Route("/api/v2/alerts", alerts, methods=["POST"])])
    server = HttpServer(app, "127.0.0.1", 0, name="alertmanager")
    server.start()
    yield server.url, sent
    assert server.stop()


def checked(run: Run, tmp_path: Path, *services: str, more: str = "") -> Any:
    """The result for targets with these services, none of which answers."""
    file = tmp_path / "specwatch.yml"
    targets = ", ".join(
        f"{{name: t{n}, url: 'http://127.0.0.1:1/{n}'{service and f', service: {service}'}}}"
        for n, service in enumerate(services)
    )
    file.write_text(f"database: sqlite:///{tmp_path}/h.db\ntargets: [{targets}]\n{more}\n")
    return json.loads(run("check-config", "--config", file, "--json").stdout)


def named(answer: Any, what: str) -> list[tuple[str, bool, str]]:
    return [
        (check["what"], check["ok"], check["detail"])
        for check in answer["checks"]
        if check["what"].startswith(what)
    ]


def test_what_the_guard_would_run_is_shown_or_why_it_could_not(run: Run, tmp_path: Path) -> None:
    checks = named(checked(run, tmp_path, COMMAND, ABSENT, SUPERVISED, ""), "guard")
    assert [(what, ok) for what, ok, _ in checks] == [
        ("guard of t0, command service", True),
        ("guard of t1, command service", False),
        ("guard of t2, supervised service", True),
    ]
    details = [detail for *_, detail in checks]
    assert details[0].startswith("run `/bin/true off`, for 10m at most; to undo it, run `/bin/")
    assert details[1].startswith("/absent does not exist or is not a file; create it")
    assert details[2].startswith("restarted by `specwatch run -- COMMAND`; ")


def test_a_guard_that_is_off_needs_nothing(run: Run, tmp_path: Path) -> None:
    assert named(checked(run, tmp_path, ABSENT, more="guard: {mode: off}"), "guard") == []


NOTES: dict[str, tuple[list[str], str, str, str]] = {
    "a guard that acts needs services": (
        [COMMAND, "", "", "", ""],
        "mode: act",
        "guard.mode is act",
        "no service is configured for t1, t2, t3 and 1 more: ",
    ),
    "a guard that observes needs none": ([COMMAND, ""], "mode: observe", "guard", ""),
    "a verification can be much too short": (
        [COMMAND],
        "mode: act, verify: 2m",
        "guard.verify is 2m, but it takes about 8m to measure",
        "verification ends undecided after 6m, three times that, and",
    ),
    "a verification can be too short": (
        [COMMAND],
        "mode: observe, verify: 3m",
        "guard.verify is 3m, but it takes about 8m",
        "verification is extended to that, up to 9m. Make it at least 8m",
    ),
    "a verification is long enough": ([COMMAND], "mode: act, verify: 8m", "guard.verify", ""),
    "a guard that is off verifies nothing": ([COMMAND], "mode: off, verify: 1m", "guard.", ""),
}
"""Services, the section guard, the beginning of a note, and a part of it, empty for no note."""


@pytest.mark.parametrize(("services", "guard", "start", "part"), NOTES.values(), ids=NOTES.keys())
def test_what_is_probably_a_mistake_is_noted(
    run: Run, tmp_path: Path, services: list[str], guard: str, start: str, part: str
) -> None:
    answer = checked(run, tmp_path, *services, more=f"guard: {{{guard}}}")
    notes = [note for note in answer["notes"] if note.startswith(start)]
    assert len(notes) == bool(part)
    assert all(part in note for note in notes)


def test_each_alertmanager_is_asked_and_sent_no_alert(
    run: Run, tmp_path: Path, alertmanager: tuple[str, list[bytes]]
) -> None:
    url, sent = alertmanager
    urls = f"urls: ['{url}', 'http://127.0.0.1:1']"
    answer = checked(
        run, tmp_path, "", more=f"alertmanager: {{{urls}, headers: {{Authorization: a}}}}"
    )
    assert named(answer, "Alertmanager") == [
        (f"Alertmanager {url}", True, "it accepts alerts"),
        (
            "Alertmanager http://127.0.0.1:1",
            False,
            "nothing listens at http://127.0.0.1:1; is Alertmanager up, on this port?",
        ),
    ]
    (refused, _) = named(checked(run, tmp_path, "", more=f"alertmanager: {{{urls}}}"), "Alertm")
    assert refused[1:] == (
        False,
        f"{url} answered 401; give credentials: bearer_token_file or basic_auth",
    )
    assert sent == [b"[]", b"[]"]


@pytest.mark.parametrize(
    ("services", "said"),
    [
        (
            (UNIT, "", UNIT),
            'targets[2].service.unit: "vllm.service" is the unit of targets[0] too; leave it at'
            " the target that it serves",
        ),
        (
            (WORKLOAD, WORKLOAD),
            'targets[1].service.workload: "deployment/vllm" is the workload of targets[0] too;'
            " leave it at the target that it serves",
        ),
        (
            (SUPERVISED, SUPERVISED),
            "targets[1].service: targets[0] is supervised too, and specwatch runs one vLLM; leave"
            " it at the target that it serves",
        ),
    ],
)
def test_two_targets_that_are_one_process_are_refused(
    run: Run, tmp_path: Path, services: tuple[str, ...], said: str
) -> None:
    (problem,) = checked(run, tmp_path, *services)["problems"]
    assert problem == f"{tmp_path}/specwatch.yml:2: {said}"


def test_a_server_of_several_targets_is_noted(run: Run, tmp_path: Path) -> None:
    """It may be intended, but its requests are counted twice."""
    targets = ", ".join(f"{{name: {name}, url: 'http://127.0.0.1:1'}}" for name in ("a", "b"))
    file = tmp_path / "specwatch.yml"
    file.write_text(f"targets: [{targets}]\n")
    done = run("check-config", "--offline", "--config", file)
    assert done.exit_code == 0
    note = "note: http://127.0.0.1:1/metrics is watched as a, b: its requests are counted for each"
    assert note in done.stdout.splitlines()


def test_units_of_two_managers_are_two(run: Run, tmp_path: Path) -> None:
    user = UNIT.replace("}", ", scope: user}")
    assert checked(run, tmp_path, UNIT, user, more="guard: {mode: off}")["problems"] == []


@pytest.mark.parametrize("user", [0, 1000])
def test_a_unit_that_only_root_can_restart_is_noted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    unit = UNIT.replace("vllm", "specwatch-test")
    notes = checked(
        run, tmp_path, unit, unit.replace("test", "user").replace("}", ", scope: user}")
    )["notes"]
    root_notes = [note for note in notes if note.startswith("root can restart")]
    assert root_notes == [
        "root can restart specwatch-test.service, but the daemon, as another user, cannot:"
        " the helper for specwatch-test.service is not installed: `systemctl enable --now"
        " specwatch-guard@specwatch-test.socket`"
    ] * (user == 0)

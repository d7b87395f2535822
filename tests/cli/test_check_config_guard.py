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


def named(found: Any, what: str) -> list[tuple[str, bool, str]]:
    return [
        (check["what"], check["ok"], check["detail"])
        for check in found["checks"]
        if check["what"].startswith(what)
    ]


def test_what_the_guard_would_run_is_shown_or_why_it_could_not(run: Run, tmp_path: Path) -> None:
    found = named(checked(run, tmp_path, COMMAND, ABSENT, SUPERVISED, ""), "guard")
    assert [(what, ok) for what, ok, _ in found] == [
        ("guard of t0, command service", True),
        ("guard of t1, command service", False),
        ("guard of t2, supervised service", True),
    ]
    details = [detail for *_, detail in found]
    assert details[0].startswith("run `/bin/true off`, for 10m at most; to undo it, run `/bin/")
    assert details[1].startswith("/absent does not exist or is not a file; create it")
    assert details[2].startswith("restarted by `specwatch run -- COMMAND`; ")


def test_a_guard_that_is_off_needs_nothing(run: Run, tmp_path: Path) -> None:
    assert named(checked(run, tmp_path, ABSENT, more="guard: {mode: off}"), "guard") == []


def test_a_guard_that_acts_without_hands_is_noted(run: Run, tmp_path: Path) -> None:
    notes = checked(run, tmp_path, COMMAND, "", "", "", "", more="guard: {mode: act}")["notes"]
    assert notes[-1].startswith(
        "guard.mode is act, but no service is configured for t1, t2, t3 and 1 "
    )
    notes = checked(run, tmp_path, COMMAND, "")["notes"]
    assert not any(note.startswith("guard") for note in notes)


@pytest.mark.parametrize(
    ("guard", "ends"),
    [
        ("mode: act, verify: 2m", "verification ends undecided after 6m, three times that, and"),
        ("mode: observe, verify: 3m", "verification is extended to that, up to 9m. Make it at le"),
        ("mode: act, verify: 8m", None),
        ("mode: off, verify: 1m", None),
    ],
)
def test_a_verification_too_short_to_measure_in_is_noted(
    run: Run, tmp_path: Path, guard: str, ends: str | None
) -> None:
    notes = checked(run, tmp_path, COMMAND, more=f"guard: {{{guard}}}")["notes"]
    found = [note for note in notes if note.startswith("guard.verify is")]
    assert len(found) == (ends is not None)
    assert all("it takes about 8m to measure" in note and str(ends) in note for note in found)


def test_each_alertmanager_is_asked_and_sent_no_alert(
    run: Run, tmp_path: Path, alertmanager: tuple[str, list[bytes]]
) -> None:
    url, sent = alertmanager
    urls = f"urls: ['{url}', 'http://127.0.0.1:1']"
    found = checked(
        run, tmp_path, "", more=f"alertmanager: {{{urls}, headers: {{Authorization: a}}}}"
    )
    assert named(found, "Alertmanager") == [
        (f"Alertmanager {url}", True, "it accepts alerts"),
        (
            "Alertmanager http://127.0.0.1:1", False,
            "nothing listens at http://127.0.0.1:1; is Alertmanager up, on this port?",
        ),
    ]  # fmt: skip
    (refused, _) = named(checked(run, tmp_path, "", more=f"alertmanager: {{{urls}}}"), "Alertm")
    assert refused[1:] == (
        False, f"{url} answered 401; give credentials: bearer_token_file or basic_auth",
    )  # fmt: skip
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
    found = [note for note in notes if note.startswith("root can restart")]
    assert found == [
        "root can restart specwatch-test.service, but the daemon, as another user, cannot:"
        " the helper for specwatch-test.service is not installed: `systemctl enable --now"
        " specwatch-guard@specwatch-test.socket`"
    ] * (user == 0)

"""``specwatch probe --compare`` against two simulated servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.lab.simulator.engine import SimulatedEngine
from tests.cli.conftest import Run
from tests.simulated_load import VirtualClient, in_virtual_time, settings

SHORT = ("--requests", "10", "--max-tokens", "24")


@pytest.fixture
def on() -> SimulatedEngine:
    return SimulatedEngine(settings(speculates=True))


@pytest.fixture
def off() -> SimulatedEngine:
    return SimulatedEngine(settings())


def asked(run: Run, on: SimulatedEngine, off: SimulatedEngine, *arguments: object) -> Result:
    with in_virtual_time([on, off]) as (first, second):
        return run("probe", "--target", first, "--compare", second, *SHORT, *arguments)


def compared(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, *arguments: object, code: int = 0
) -> tuple[dict[str, Any], str]:
    """The result, and the text of standard error."""
    done = asked(run, on, off, "--json", *arguments)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout), done.stderr


def differing(patch: pytest.MonkeyPatch, of: SimulatedEngine, text: str = "another text") -> None:
    """Has one of the servers answer with another text."""
    send = VirtualClient.send

    async def changed(client: VirtualClient, ask: Ask) -> Answer:
        answer = await send(client, ask)
        return replace(answer, text=text) if client._engine is of else answer

    patch.setattr(VirtualClient, "send", changed)


def test_servers_that_answer_alike_differ_nowhere(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, tmp_path: Path
) -> None:
    found, stderr = compared(run, on, off, "-o", tmp_path / "out.json")
    assert found["outcome"] == "no_more"
    assert (found["compared"], found["complete"], found["errors"]) == (10, True, {})
    assert found["differences"]["count"] == found["differences_again"]["count"] == 0
    assert found["at_limit"] == {"on": 10, "off": 10, "again": 10}
    assert (found["concurrency"], found["again_concurrency"]) == (1, 8)
    assert (found["on"]["mode"], found["off"]["mode"]) == ("on", "off")
    assert json.loads((tmp_path / "out.json").read_text()) == found
    requests = [entry.request for entry in off.log]
    assert len(requests) == 1 + 2 * 10
    assert {request.temperature for request in requests} == {0.0}
    assert "10 of 10 prompts answered, 0 failed" in stderr


def test_another_text_with_speculation_is_exit_code_1(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    differing(monkeypatch, on)
    found, stderr = compared(run, on, off, "--concurrency", 3, code=1)
    assert found["outcome"] == "more"
    assert found["differences"]["count"] == len(found["partings"]) == 10
    assert found["again_concurrency"] == 1
    assert "Answers differ more often with speculation" in stderr


def test_the_tables_say_where_answers_part(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    differing(monkeypatch, on, "\x1b[31mred")
    done = asked(run, on, off)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Answers differ more often with speculation than the server")
    assert any("with, without" in line and "10 of 10 (72% to 100%)" in line for line in lines)
    assert any("without, again" in line and "0 of 10 (0% to 28%)" in line for line in lines)
    assert "ended at the limit of length: 10 with, 10 without, 10 again" in lines
    assert sum("from character 0" in line for line in lines) == 3
    assert "\x1b" not in done.stdout


def test_the_same_prompt_is_not_asked_again(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    found, _ = compared(run, on, off, "--prompts", prompts)
    assert (found["compared"], found["workload"]["prompts"]) == (3, 3)


def test_failed_requests_are_exit_code_1(
    run: Run, on: SimulatedEngine, off: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = VirtualClient.send, []

    async def failing(client: VirtualClient, ask: Ask) -> Answer:
        sent.append(ask)
        answer = await send(client, ask)
        return replace(answer, error=ErrorKind.TIMEOUT) if len(sent) == 5 else answer

    monkeypatch.setattr(VirtualClient, "send", failing)
    found, stderr = compared(run, on, off, code=1)
    assert (found["compared"], found["errors"]) == (9, {"timeout": 1})
    assert "requests failed: 1 timeout" in stderr


@pytest.mark.parametrize(
    ("swapped", "arguments", "message"),
    [
        (True, (), "--compare: this server speculates"),
        (False, ("--temperatures", "0,1"), "--compare asks at temperature 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    run: Run,
    on: SimulatedEngine,
    off: SimulatedEngine,
    swapped: bool,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    first, second = (off, on) if swapped else (on, off)
    done = asked(run, first, second, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_target_without_speculation_is_refused(run: Run, off: SimulatedEngine) -> None:
    done = asked(run, off, SimulatedEngine(settings()))
    assert done.exit_code == 2
    assert "--target: this server does not speculate" in done.stderr

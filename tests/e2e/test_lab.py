"""The lab itself: what later tests take for granted about the real things is true."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.e2e.conftest import StartVllm
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.traffic import Outcome, Request, requests_at, send, send_all
from tests.lab.vllm_server import ServerFailed, VllmServer

SAMPLE = re.compile(r"^(vllm:\w+?)(?:_total)?(\{[^}]*\})? (\S+)$")


def counters(server: VllmServer) -> dict[str, float]:
    """Speculative counters by name; those of positions as ``name/position``."""
    found = {}
    for line in server.metrics().splitlines():
        match = SAMPLE.match(line)
        if match and "spec_decode" in match[1] and not match[1].endswith("_created"):
            position = re.search(r'position="(\d+)"', match[2] or "")
            name = match[1].removeprefix("vllm:spec_decode_num_")
            found[f"{name}/{position[1]}" if position else name] = float(match[3])
    return found


def increase(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    assert before.keys() == after.keys()
    return {name: after[name] - before[name] for name in after}


def summed(outcomes: list[Outcome]) -> dict[str, float]:
    """What the per-request records add up to, under the counters' names."""
    records = [outcome.record for outcome in outcomes]
    assert None not in records, "a request has no record"
    total: dict[str, float] = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    for record in records:
        assert record is not None
        total["drafts"] += record.drafts
        total["draft_tokens"] += record.draft_tokens
        total["accepted_tokens"] += record.accepted_tokens
        for position, accepted in enumerate(record.accepted_per_position):
            name = f"accepted_tokens_per_pos/{position}"
            total[name] = total.get(name, 0) + accepted
    return total


def assert_all_answered(outcomes: list[Outcome]) -> None:
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []


@pytest.fixture(scope="module")
def drafting(good_server: VllmServer) -> VllmServer:
    return good_server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_the_records_of_all_requests_add_up_to_the_counters(
    drafting: VllmServer, chat: bool, stream: bool
) -> None:
    before = counters(drafting)
    outcomes = send_all(drafting.url, requests_at([0.0, 1.0], 8, chat=chat, stream=stream))
    assert_all_answered(outcomes)
    assert {outcome.tokens for outcome in outcomes} == {32}
    assert {outcome.finish_reason for outcome in outcomes} == {"length"}
    assert increase(before, counters(drafting)) == summed(outcomes)


def test_acceptance_falls_with_temperature_but_stays_above_zero(drafting: VllmServer) -> None:
    """At 1.0 the unrepaired CPU build would accept nothing at all."""
    rates = []
    for temperature in (0.0, 1.0):
        outcomes = send_all(drafting.url, requests_at([temperature], 12, max_tokens=64))
        assert_all_answered(outcomes)
        total = summed(outcomes)
        rates.append(total["accepted_tokens"] / total["draft_tokens"])
    cold, warm = rates
    assert 0.65 < cold < 0.95
    assert 0.25 < warm < cold - 0.1


def test_a_stream_shows_when_its_tokens_came(drafting: VllmServer) -> None:
    outcome = send(drafting.url, Request(stream=True, max_tokens=64))
    assert outcome.ok
    assert outcome.ttft is not None
    assert outcome.last_token is not None
    assert outcome.finished is not None
    assert 0 < outcome.ttft < outcome.last_token <= outcome.finished
    assert outcome.tpot == pytest.approx((outcome.last_token - outcome.ttft) / 63)
    assert outcome.text == send(drafting.url, Request(max_tokens=64)).text


def test_a_stream_without_usage_has_no_record(drafting: VllmServer) -> None:
    outcome = send(drafting.url, Request(stream=True, include_usage=False))
    assert outcome.ok
    assert outcome.text
    assert outcome.record is None
    assert outcome.tokens is None


def test_a_refused_request_says_why(drafting: VllmServer) -> None:
    outcome = send(drafting.url, Request(temperature=-1.0))
    assert outcome.status == 400
    assert not outcome.ok
    assert "temperature" in (outcome.error or "")


def test_a_server_comes_back_without_speculation_on_the_same_port(start_vllm: StartVllm) -> None:
    """Without speculation the families are absent, not zero, and there are no records."""
    with start_vllm(speculation="ngram", k=3) as server:
        url, first = server.url, server.pid
        assert counters(server)["drafts"] == 0
        server.restart()
        assert (server.url, server.pid != first) == (url, True)
        outcomes = send_all(server.url, requests_at([0.0, 1.0], 4))
        assert_all_answered(outcomes)
        assert [outcome.record for outcome in outcomes] == [None] * 4
        assert counters(server) == {}
        assert "vllm:generation_tokens_total" in server.metrics()
    assert server.processes() == []


def test_a_killed_server_leaves_nothing_behind(drafting: VllmServer) -> None:
    """The engine and its worker are processes of their own and die with the front end."""
    assert len(drafting.processes()) >= 3
    drafting.kill()
    assert drafting.processes() == []
    assert not drafting.healthy()


def test_a_server_that_cannot_start_says_why_at_once(start_vllm: StartVllm) -> None:
    with pytest.raises(ServerFailed, match=r"(?s)ended with status 2.*unrecognized arguments"):
        start_vllm("--no-such-flag")


UNIT = """\
[Service]
Type=oneshot
RemainAfterExit=yes
DynamicUser=yes
StateDirectory=lab
ExecStart=/bin/sh -c 'echo "I am $(id -u)"; touch /var/lib/lab/was-here'
"""


def test_a_machine_runs_a_unit_and_nothing_of_it_stays_here(
    systemd_machine: SystemdMachine,
) -> None:
    systemd_machine.write_file("/etc/systemd/system/lab-hello.service", UNIT)
    systemd_machine.run("systemctl", "daemon-reload")
    systemd_machine.run("systemctl", "start", "lab-hello.service")
    state = systemd_machine.run("systemctl", "show", "-P", "ActiveState", "lab-hello.service")
    assert state.stdout == "active\n"
    assert re.search(r"I am \d{5}", systemd_machine.journal("lab-hello.service"))
    assert "was-here" in systemd_machine.shell("ls /var/lib/lab/")
    assert not os.path.exists("/etc/systemd/system/lab-hello.service")
    assert not os.path.exists("/var/lib/lab")


def test_a_machine_sees_the_checkout_and_the_running_python(
    systemd_machine: SystemdMachine,
) -> None:
    systemd_machine.run("test", "-r", __file__)
    systemd_machine.run(sys.executable, "-c", "import pytest")


def test_a_command_that_fails_in_a_machine_says_so(systemd_machine: SystemdMachine) -> None:
    with pytest.raises(AssertionError, match=r"(?s)status 3.*no such thing"):
        systemd_machine.shell("echo no such thing >&2; exit 3")
    assert systemd_machine.run("false", check=False).returncode == 1

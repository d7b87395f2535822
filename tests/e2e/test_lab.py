"""The lab itself: what other tests take for granted about the servers and machines is true.

That a server's counters are the sum of its requests' records, test_tap and test_watching prove.
"""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.e2e.conftest import StartVllm
from tests.e2e.tap_page import everywhere, of_records
from tests.e2e.witness import speculates
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.traffic import Request, requests_at, send, send_all
from tests.lab.vllm_server import ServerFailed, VllmServer


def test_acceptance_falls_with_temperature_but_stays_above_zero(good_server: VllmServer) -> None:
    """At 1.0 the unrepaired CPU build would accept nothing at all."""
    rates = []
    for temperature in (0.0, 1.0):
        outcomes = send_all(good_server.url, requests_at([temperature], 12, max_tokens=64))
        assert [outcome.error for outcome in outcomes if not outcome.ok] == []
        total = everywhere(of_records(outcomes))
        rates.append(total["accepted_tokens"] / total["draft_tokens"])
    cold, warm = rates
    assert 0.65 < cold < 0.95
    assert 0.25 < warm < cold - 0.1


def test_a_stream_shows_when_its_tokens_came(good_server: VllmServer) -> None:
    outcome = send(good_server.url, Request(stream=True, max_tokens=64))
    assert outcome.ok
    assert outcome.ttft is not None
    assert outcome.last_token is not None
    assert outcome.finished is not None
    assert 0 < outcome.ttft < outcome.last_token <= outcome.finished
    assert outcome.tpot == pytest.approx((outcome.last_token - outcome.ttft) / 63)
    assert outcome.text == send(good_server.url, Request(max_tokens=64)).text


def test_a_server_comes_back_without_speculation_on_the_same_port(start_vllm: StartVllm) -> None:
    """Without speculation the families are absent, not zero, and there are no records."""
    with start_vllm(speculation="ngram", k=3) as server:
        url, first = server.url, server.pid
        assert speculates(url)
        server.restart()
        assert (server.url, server.pid != first) == (url, True)
        outcomes = send_all(server.url, requests_at([0.0, 1.0], 4))
        assert [(outcome.ok, outcome.record) for outcome in outcomes] == [(True, None)] * 4
        assert "spec_decode" not in server.metrics()
        assert "vllm:generation_tokens_total" in server.metrics()
    assert server.processes() == []


def test_a_killed_server_leaves_nothing_behind(good_server: VllmServer) -> None:
    """The engine and its worker are separate processes and die with the front end."""
    assert len(good_server.processes()) >= 3
    good_server.kill()
    assert good_server.processes() == []
    assert not good_server.healthy()


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
    assert systemd_machine.show("ActiveState", "lab-hello.service") == "active"
    assert re.search(r"I am \d{5}", systemd_machine.journal("lab-hello.service"))
    assert "was-here" in systemd_machine.shell("ls /var/lib/lab/")
    assert not os.path.exists("/etc/systemd/system/lab-hello.service")
    assert not os.path.exists("/var/lib/lab")


def test_a_machine_sees_the_checkout_and_says_when_a_command_fails(
    systemd_machine: SystemdMachine,
) -> None:
    systemd_machine.run("test", "-r", __file__)
    systemd_machine.run(sys.executable, "-c", "import pytest")
    with pytest.raises(AssertionError, match=r"(?s)status 3.*no such thing"):
        systemd_machine.shell("echo no such thing >&2; exit 3")
    assert systemd_machine.run("false", check=False).returncode == 1

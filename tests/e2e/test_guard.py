"""The whole of it: a real systemd restarts real vLLMs without speculation, and tries again later.

Two servers with a draft that is never right. While speculation is off, the owner of one puts a good
draft in its place.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import Clients
from tests.e2e.guarded import GuardedVllm, GuardService, LoadBalancer
from tests.e2e.monitoring import RunningAlertmanager
from tests.e2e.waiting import eventually
from tests.lab.systemd_machine import SystemdMachine

KEPT, LOST = "vllm-kept", "vllm-lost"
SWITCHED_OFF = "SpeculationSwitchedOff"
BREACH_WITHIN = 1200.0
START_WITHIN = 600.0
PAUSE = 3.0
"""Seconds between the requests of a user: enough for the rule, and it spares the cores."""


@dataclass
class Story:
    service: GuardService
    servers: dict[str, GuardedVllm]
    clients: dict[str, Clients]
    alertmanager: RunningAlertmanager
    plan: dict[str, Any]
    """What ``guard plan`` says of the one that will be kept, before anybody asks the servers."""

    def alerts(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What Alertmanager has, by name and target."""
        return {
            (alert["labels"]["alertname"], alert["labels"]["target"]): alert
            for alert in self.alertmanager.alerts()
        }


@pytest.fixture(scope="module")
def story(
    systemd_machine: SystemdMachine,
    vllm_install: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    servers = {
        name: GuardedVllm(systemd_machine, name, vllm_install, tiny_models) for name in (KEPT, LOST)
    }
    alertmanager = RunningAlertmanager(tmp_path_factory.mktemp("alertmanager"))
    balancer = LoadBalancer()
    with alertmanager, contextlib.closing(balancer):
        for server in servers.values():
            server.configure("draft-bad")
            systemd_machine.run("systemctl", "start", server.unit)
        for server in servers.values():
            eventually(
                server.is_healthy, what=f"{server.unit} is healthy", within=START_WITHIN, every=0.5
            )
        all_of_them = list(servers.values())
        service = GuardService(systemd_machine, all_of_them, alertmanager.url, balancer)
        service.start()
        for name in servers:
            service.wait_for(name, "observing", within=START_WITHIN)
        assert all(server.speculates() for server in all_of_them)
        plan = service.guard("plan", KEPT)["plan"]
        clients = {
            KEPT: Clients(
                servers[KEPT].url, pause=PAUSE, held_back=lambda: KEPT in balancer.drained
            ),
            LOST: Clients(servers[LOST].url, pause=PAUSE),
        }
        with clients[KEPT], clients[LOST]:
            yield Story(service, servers, clients, alertmanager, plan)


def test_the_plan_shows_the_command_and_the_file_in_advance(story: Story) -> None:
    plan = story.plan
    assert "$SPECULATION" in plan["before"] or "--speculative-config" in plan["before"]
    assert not {"$SPECULATION", "--speculative-config"} & set(plan["after"])
    assert plan["after"][1:3] == ["serve", plan["before"][2]]
    assert [change["path"] for change in plan["files"]] == [
        f"/etc/systemd/system/{KEPT}.service.d/90-specwatch.conf"
    ]


@dataclass
class ProcessState:
    """What was seen of one server, from its bad draft to the end of the first trial."""

    off: dict[str, Any]
    """The guard's state when speculation was off."""
    starts_until_off: int
    spoke_of_speculation: list[bool]
    """Whether its page did: off, in the trial, and after it."""
    answered: bool
    """Whether requests were, once it was off."""
    numbers: str
    """Of the alert that it was switched off."""
    after: dict[str, Any]


def life_of(story: Story, name: str) -> ProcessState:
    """Each server is followed by itself: their restarts take as long as they take."""
    server, clients = story.servers[name], story.clients[name]
    off = story.service.wait_for(name, "disabled", within=BREACH_WITHIN)
    if name == KEPT:
        server.configure("draft-good")
    spoke, starts, before = [server.speculates()], server.starts(), clients.answered
    eventually(
        lambda: (SWITCHED_OFF, name) in story.alerts(), what="the alert is there", within=120
    )
    numbers = story.alerts()[SWITCHED_OFF, name]["annotations"]["description"]
    eventually(lambda: clients.answered > before + 10, what="requests are answered", within=120)
    eventually(
        lambda: tried(story, name),
        what=f"{name} is tried",
        within=BREACH_WITHIN,
        every=0.2,
        evidence=lambda: story.service.state(name),
    )
    spoke.append(server.speculates())
    end = "observing" if name == KEPT else "disabled"
    after = story.service.wait_for(name, end, within=BREACH_WITHIN)
    spoke.append(server.speculates())
    return ProcessState(off, starts, spoke, clients.answered > before, numbers, after)


def tried(story: Story, name: str) -> bool:
    """Whether it speculates on trial, which may be lost with the next minute and then drains."""
    state = story.service.state(name)
    lost = (state.get("incident") or {}).get("cause") == "trial_lost"
    return lost or state.get("phase") == "trial"


@pytest.fixture(scope="module")
def lives(story: Story) -> dict[str, ProcessState]:
    with ThreadPoolExecutor(len(story.servers)) as pool:
        found = pool.map(lambda name: life_of(story, name), story.servers)
        return dict(zip(story.servers, found, strict=True))


def test_a_bad_draft_is_switched_off_by_one_restart(lives: dict[str, ProcessState]) -> None:
    for life in lives.values():
        assert life.off["incident"]["what"] == "low"
        assert life.spoke_of_speculation[0] is False
        assert life.starts_until_off == 2
        assert life.answered


def test_alertmanager_shows_it_with_the_numbers(lives: dict[str, ProcessState]) -> None:
    for life in lives.values():
        assert re.search(r"By the rule low: acceptance 0[.0-9]*.*, below ", life.numbers)


def test_a_bad_draft_goes_off_again_for_longer(lives: dict[str, ProcessState]) -> None:
    life = lives[LOST]
    assert life.spoke_of_speculation[1:] == [True, False]
    assert life.after["rearm_at"] - life.after["since"] == pytest.approx(120, abs=1)


def test_a_good_draft_is_kept(story: Story, lives: dict[str, ProcessState]) -> None:
    assert lives[KEPT].spoke_of_speculation[1:] == [True, True]
    assert story.servers[KEPT].starts() == 3


def test_the_alert_of_the_one_that_is_kept_resolves(
    story: Story, lives: dict[str, ProcessState]
) -> None:
    eventually(
        lambda: (SWITCHED_OFF, KEPT) not in story.alerts(), what="it is resolved", within=240
    )
    assert "SpeculationGuardFailed" not in {name for name, _ in story.alerts()}


def test_the_history_tells_each_step_and_how_long_it_took(
    story: Story, lives: dict[str, ProcessState]
) -> None:
    steps = story.service.history(KEPT)
    phases = [step["phase"] for step in steps if step["phase"] != step["phase_before"]]
    assert set(phases[: phases.index("confirmed")]) <= {"suspect", "observing"}
    assert phases[phases.index("confirmed") :] == [
        "confirmed",
        "draining",
        "restarting",
        "verifying",
        "disabled",
        "draining",
        "restarting",
        "verifying",
        "trial",
        "observing",
    ]
    at = {step["phase"]: step["at"] for step in reversed(steps)}
    print(f"confirmed to restart: {at['restarting'] - at['confirmed']:.1f} s")


def test_behind_a_load_balancer_no_request_is_lost(
    story: Story, lives: dict[str, ProcessState]
) -> None:
    """Without one those that run are aborted, and those that come find nobody."""
    lost = {name: clients.errors() for name, clients in story.clients.items()}
    for name, clients in story.clients.items():
        refused = [error for error in lost[name] if "refused" in error.lower()]
        print(
            f"{name}: {story.servers[name].starts() - 1} restarts, {clients.answered} answered,"
            f" {len(lost[name]) - len(refused)} aborted, {len(refused)} refused"
        )
    assert lost[KEPT] == []
    assert lost[LOST] != []

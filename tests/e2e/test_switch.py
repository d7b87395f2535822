"""The switch in a real vLLM: the number of draft tokens changes while requests run."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.e2e.conftest import StartSwitched
from tests.e2e.processes import CHECKOUT, DaemonProcess, specwatch
from tests.e2e.switching import (
    TOKEN,
    K,
    Switched,
    Traffic,
    ask,
    counters,
    follows,
    gauge,
    order,
)
from tests.e2e.unit_lab import UNITS, install, seen_by_services
from tests.e2e.waiting import eventually
from tests.lab.http_get import is_ok
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.vllm_server import VllmServer, free_port

SWITCHES = 20
ATTACK_SECONDS = 4


@pytest.fixture(scope="module")
def good(start_switched: StartSwitched) -> Iterator[Switched]:
    """A server with a draft that is always right; each test leaves it as it was launched."""
    with start_switched("draft-good") as switched:
        yield switched


def test_no_request_is_lost_and_no_text_changes(good: Switched) -> None:
    """At every switch the counters follow, whatever runs meanwhile."""
    switch_about("draft-good", good.server, SWITCHES)


@pytest.mark.parametrize("draft", ["draft-bad", "ngram"])
def test_other_drafts_follow_as_well(start_switched: StartSwitched, draft: str) -> None:
    with start_switched(draft) as switched:
        switch_about(draft, switched.server, SWITCHES // 4)


def switch_about(draft: str, server: VllmServer, times: int) -> None:
    chance = random.Random(17)
    seconds: list[float] = []
    assert gauge(server, "specwatch_switch_draft_tokens") == K
    with Traffic(server.url).running() as traffic:
        eventually(lambda: counters(server)["tokens"] > 100, what="traffic", within=60)
        before: int | None = None
        for _ in range(times):
            before = chance.choice([k for k in (0, 1, 2, 4, None) if k != before])
            began = time.monotonic()
            assert order(server, before)["draft_tokens"] == before
            read = time.monotonic() - began
            k = K if before is None else before
            seconds.append(read + follows(server, k, exact=draft != "ngram"))
            assert gauge(server, "specwatch_switch_draft_tokens") == k
            assert gauge(server, "specwatch_switch_ordered") == (before is not None)
            time.sleep(0.1)  # four orders a second are taken
    order(server, None)
    traffic.check()
    print(
        f"{draft}: {len(seconds)} switches, {len(traffic.outcomes)} requests; seconds from the"
        f" order until the counters show it: median {statistics.median(seconds):.2f},"
        f" most {max(seconds):.2f}"
    )


def test_the_command_gives_an_order_and_the_daemon_shows_it(good: Switched, tmp_path: Path) -> None:
    server, database = good.server, f"sqlite:///{tmp_path}/specwatch.db"
    daemon = DaemonProcess.configured(tmp_path, database, {"targets": [good.target]})
    with Traffic(server.url).running() as traffic, daemon:
        daemon.wait_scraped(time.time())
        done = specwatch("switch", "--config", str(tmp_path / "specwatch.yml"), "--k", "0")
        assert done.returncode == 0, done.stderr
        assert "0 draft tokens a step until" in done.stdout
        assert done.stdout.endswith("its counters show it\n")
        shown = daemon.wait(
            lambda status: status["targets"][0]["models"].get("tiny") == "standby",
            what="standby",
            within=20,
        )
        shown = daemon.wait(
            lambda status: bool((status["targets"][0]["switch"] or {}).get("followed")),
            what="followed",
            within=20,
        )
        expected = {"draft_tokens": 0, "ordered": True, "followed": True, "schedule": 0}
        assert shown["targets"][0]["switch"] == expected
        status = specwatch("status", "--url", daemon.url)
        assert "standby: the switch is at 0 draft tokens" in status.stdout
        done = specwatch(
            "switch", "--url", server.url, "--directory", str(good.directory), "--launch", "--json"
        )
        assert json.loads(done.stdout)["followed"] is True
    traffic.check()


def test_a_schedule_is_followed_by_the_number_of_requests(good: Switched) -> None:
    server = good.server
    done = specwatch(
        "switch",
        "--url",
        server.url,
        "--directory",
        str(good.directory),
        "--schedule",
        "[[1,1,4],[2,256,1]]",
    )
    assert done.returncode == 0, done.stderr
    assert gauge(server, "specwatch_switch_schedule") > 0
    for clients, k in ((1, 4), (3, 1), (1, 4)):
        with Traffic(server.url, clients).running() as traffic:
            follows(server, k, exact=True)
        traffic.check()
    order(server, None)
    assert gauge(server, "specwatch_switch_schedule") == 0


def test_two_api_servers_share_a_switch(start_switched: StartSwitched) -> None:
    with (
        start_switched("draft-good", "--api-server-count", "2") as (server, _),
        Traffic(server.url, 4).running() as traffic,
    ):
        for k in (0, 2, 4):
            order(server, k)
            follows(server, k, exact=True)
            assert gauge(server, "specwatch_switch_draft_tokens") == k
    traffic.check()


def test_under_data_parallelism_vllm_has_no_schedule(start_switched: StartSwitched) -> None:
    with start_switched("draft-good", "--data-parallel-size", "2") as (server, _):
        _, state = ask(server, "GET")
        assert "as with data parallelism" in state["unavailable"]
        body = json.dumps({"server": state["server"], "number": 1, "draft_tokens": 0, "lease": 9})
        status, answer = ask(server, "PUT", body.encode())
        assert (status, answer["error"]) == (409, state["unavailable"])
        done = specwatch(
            "switch",
            "--url",
            server.url,
            "--token-file",
            str(Path(server.log).parent / "none"),
            "--k",
            "0",
        )
        assert done.returncode != 0


IGNORING = """
from specwatch_tap import scheduler

class Scheduler:
    def __new__(cls, *args, **options):
        made = scheduler.Scheduler(*args, **options)
        launch, schedule = made.dynamic_sd_lookup, made.schedule

        def ignoring(*args, **options):
            made.dynamic_sd_lookup = launch
            return schedule(*args, **options)

        made.schedule = ignoring
        return made
"""


def test_a_server_that_ignores_orders_is_found_out(
    start_switched: StartSwitched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ignoring.py").write_text(IGNORING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ignoring = start_switched("draft-good", "--scheduler-cls", "ignoring.Scheduler")
    with ignoring as (server, directory):
        with Traffic(server.url).running():
            eventually(lambda: counters(server)["tokens"] > 100, what="traffic", within=60)
            asked = ("switch", "--url", server.url, "--directory", str(directory), "--k", "1")

            def told() -> CompletedProcess[str] | None:
                done = specwatch(*asked)
                return None if "too little is generated" in done.stdout else done

            done = eventually(told, what="enough is generated to see it", within=120)
        assert done.returncode == 1
        assert "not followed; the order was taken back" in done.stdout
        assert ask(server, "GET")[1]["draft_tokens"] is None


def test_nothing_switches_without_the_token(good: Switched) -> None:
    """Hundreds of requests with wrong tokens, replayed and oversized orders."""
    server = good.server
    followed = order(server, 2)
    replayed = json.dumps(
        {
            "server": followed["server"],
            "number": followed["number"],
            "draft_tokens": 0,
            "lease": 60,
            "by": "x",
        }
    ).encode()
    assert ask(server, "PUT", replayed)[0] == 409
    assert ask(server, "PUT", b" " * 100_000)[0] == 413
    wrong = [None, "", "x", TOKEN + "x", TOKEN[:-1]]
    with Traffic(server.url).running() as traffic:
        attempts = threading.Event()
        refused: list[int] = []

        def attack() -> None:
            while not attempts.is_set():
                refused.append(ask(server, "PUT", replayed, wrong[len(refused) % 5])[0])

        threads = [threading.Thread(target=attack) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(ATTACK_SECONDS)
        attempts.set()
        for thread in threads:
            thread.join()
    assert set(refused) == {401}
    assert len(refused) > 100 * ATTACK_SECONDS
    state = ask(server, "GET")[1]
    assert (state["draft_tokens"], state["number"]) == (2, followed["number"])
    assert json.loads((good.directory / "order.json").read_bytes())["draft_tokens"] == 2
    order(server, None)
    traffic.check()
    print(
        f"{len(refused)} requests with wrong tokens in {ATTACK_SECONDS} s,"
        f" {len(traffic.outcomes)} served"
    )


def test_a_lease_ends_and_a_restart_forgets(good: Switched) -> None:
    """On an idle server, after kill -9, and with the order of the killed process still there."""
    server = good.server
    order(server, 1, lease=2.0)
    assert gauge(server, "specwatch_switch_draft_tokens") == 1
    eventually(
        lambda: gauge(server, "specwatch_switch_draft_tokens") == K,
        what="the lease ends",
        within=10,
    )
    earlier = order(server, 0, lease=3600.0)
    server.kill()
    assert json.loads((good.directory / "order.json").read_bytes())["draft_tokens"] == 0
    server.start()
    server.wait_healthy()
    _, state = ask(server, "GET")
    assert state["server"] != earlier["server"]
    assert (state["draft_tokens"], state["number"], state["refused"]) == (None, 0, "")
    with Traffic(server.url, 1).running() as traffic:
        follows(server, K, exact=True)
    traffic.check()


def test_the_hardened_unit_gives_orders_to_another_user(systemd_machine: SystemdMachine) -> None:
    """vLLM (simulated) is a unit of a user with its RuntimeDirectory, restarted meanwhile;
    specwatch runs as confined as its own unit, in the group of that directory."""
    port = free_port()
    systemd_machine.shell("getent group vllm || groupadd vllm; id vllm || useradd -g vllm vllm")
    config = json.dumps(
        {
            "method": "ngram",
            "num_speculative_tokens": K,
            "num_speculative_tokens_per_batch_size": [[1, 1, K]],
        }
    ).replace('"', '\\"')
    install(systemd_machine, "specwatch.service", "")
    server = (
        "[Service]\nUser=vllm\nEnvironment=SPECWATCH_SWITCH_DIRECTORY=/run/vllm-switch\n"
        "RuntimeDirectory=vllm-switch\nRuntimeDirectoryMode=2770\nRuntimeDirectoryPreserve=yes\n"
        f"Environment=PYTHONPATH={CHECKOUT}\n"
        f"ExecStart=/opt/specwatch/bin/specwatch simulate tiny --port {port} --simulated-rate 5"
        f' --speculative-config "{config}" --scheduler-cls specwatch_tap.Scheduler'
        " --middleware specwatch_tap.Tap\n" + seen_by_services()
    )
    systemd_machine.write_file(f"{UNITS}/vllm-switched.service", server)
    switch = (
        f"/opt/specwatch/bin/specwatch switch --url http://127.0.0.1:{port}"
        " --directory /run/vllm-switch --k 1"
    )
    own = (
        "[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nNotifyAccess=none\nExecStart=\n"
        f"ExecStart={switch}\nSupplementaryGroups=vllm\nReadWritePaths=-/run/vllm-switch\n"
        f"Environment=PYTHONPATH={CHECKOUT}\nTimeoutStartSec=60\n" + seen_by_services()
    )
    systemd_machine.write_file(f"{UNITS}/specwatch.service.d/zz-switch.conf", own)
    systemd_machine.run("systemctl", "daemon-reload")
    for _ in range(2):
        systemd_machine.run("systemctl", "restart", "vllm-switched.service")
        try:
            eventually(
                lambda: is_ok(f"http://127.0.0.1:{port}/health"), what="an answer", within=60
            )
        except AssertionError:
            raise AssertionError(systemd_machine.journal("vllm-switched.service")) from None
        systemd_machine.run("systemctl", "start", "specwatch.service")
        assert ": 1 draft token a step until" in systemd_machine.journal("specwatch.service")
        state = json.loads(systemd_machine.shell("cat /run/vllm-switch/state.json"))
        assert state["draft_tokens"] == 1
    systemd_machine.run("systemctl", "stop", "vllm-switched.service")

"""The switch in a real vLLM: the number of draft tokens changes while requests run."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import StartVllm
from tests.e2e.processes import CHECKOUT, DaemonProcess, specwatch
from tests.e2e.unit_lab import UNITS, install, seen_by_services
from tests.e2e.waiting import eventually
from tests.lab.http_get import is_ok
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.traffic import Outcome, Request, send
from tests.lab.vllm_server import VllmServer, free_port, speculation_flags

SWITCHES = 100
K = 4
TOKEN = "e2e-token-0123456789abcdef"
PROMPT = "the loop reads a page of numbers and keeps what changed"
NAMES = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:generation_tokens_total": "tokens",
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the switch and, beside it, the token; in the environment of vLLM."""
    place = tmp_path / "switch"
    place.mkdir(mode=0o770)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    monkeypatch.setenv("SPECWATCH_SWITCH_DIRECTORY", str(place))
    monkeypatch.setenv("SPECWATCH_SWITCH_TOKEN_FILE", str(token))
    return place


@pytest.fixture
def start(
    start_vllm: StartVllm, tap: tuple[str, ...], tiny_models: Path, directory: Path
) -> Callable[..., VllmServer]:
    """Starts a vLLM with the flags that ``tap flags --switch`` prints."""

    def started(draft: str, *flags: str) -> VllmServer:
        command = ["vllm", "serve", "M", *speculation_flags(tiny_models, draft, K)]
        advice = specwatch(
            "tap", "flags", "--json", "--vllm-version", "0.32.0", "--switch",
            "--switch-directory", str(directory), "--", *command,
        )  # fmt: skip
        return start_vllm(*json.loads(advice.stdout)["command"][3:], *flags)

    return started


@dataclass
class Traffic:
    """Clients that ask the same again and again, at temperature 0, while a ``with`` block runs."""

    url: str
    clients: int = 3
    outcomes: list[Outcome] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[Traffic]:
        threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _ask(self) -> None:
        request = Request(prompt=PROMPT, max_tokens=300, stream=True)
        while not self._ended.is_set():
            self.outcomes.append(send(self.url, request))

    def check(self) -> None:
        """No request failed, and all have the same text."""
        assert [outcome.error for outcome in self.outcomes if not outcome.ok] == []
        assert len({outcome.text for outcome in self.outcomes}) == 1
        assert {outcome.tokens for outcome in self.outcomes} == {300}


def counters(server: VllmServer) -> dict[str, float]:
    sums = dict.fromkeys(NAMES.values(), 0.0)
    for line in server.metrics().splitlines():
        name = NAMES.get(line.partition("{")[0])
        if name is not None:
            sums[name] += float(line.rpartition(" ")[2])
    return sums


def gauge(server: VllmServer, name: str) -> float:
    (line,) = (line for line in server.metrics().splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def ask(
    server: VllmServer, method: str, body: bytes = b"", token: str | None = TOKEN
) -> tuple[int, dict[str, Any]]:
    """A request to the switch, without specwatch."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request(method, "/specwatch/switch", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def order(server: VllmServer, k: int | None, lease: float = 60.0) -> dict[str, Any]:
    """Give an order over HTTP; returns the state in which it is followed."""
    _, state = ask(server, "GET")
    fields = {"server": state["server"], "number": state["number"] + 1}
    body = json.dumps({**fields, "draft_tokens": k, "lease": lease, "by": "e2e"}).encode()
    status, answer = ask(server, "PUT", body)
    assert status == 200, answer
    return eventually(
        lambda: (now := ask(server, "GET")[1])["number"] > state["number"] and now,
        what="the order is read", within=10, every=0.02,
    )  # fmt: skip


def follows(server: VllmServer, k: int, exact: bool) -> float:
    """Seconds until a stretch of at least 10 tokens in which drafts have ``k`` tokens; at most so
    many unless ``exact``."""
    began = time.monotonic()
    before = counters(server)
    while time.monotonic() - began < 10:
        time.sleep(0.02)
        now = counters(server)
        drafts, drafted, tokens = (now[name] - before[name] for name in NAMES.values())
        if tokens < 10 and drafted <= k * drafts:
            continue
        # The last drafts of a request are cut at its end; n-grams may find fewer tokens.
        longest = drafted > (k - 1) * drafts if exact and k else True
        if drafted <= k * drafts and (drafts or not k) and longest:
            return time.monotonic() - began
        before = now
    raise AssertionError(f"the server does not follow k = {k}")


@pytest.mark.parametrize("draft", ["draft-good", "draft-bad", "ngram"])
def test_no_request_is_lost_and_no_text_changes(
    start: Callable[..., VllmServer], draft: str
) -> None:
    """At every switch the counters follow, whatever runs meanwhile."""
    chance = random.Random(17)
    seconds: list[float] = []
    with start(draft) as server:
        assert gauge(server, "specwatch_switch_draft_tokens") == K
        with Traffic(server.url).running() as traffic:
            eventually(lambda: counters(server)["tokens"] > 100, what="traffic", within=60)
            before: int | None = None
            for _ in range(SWITCHES if draft == "draft-good" else SWITCHES // 4):
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


def test_a_lease_ends_and_a_restart_forgets(
    start: Callable[..., VllmServer], directory: Path
) -> None:
    """On an idle server, after kill -9, and with the order of the killed process still there."""
    with start("draft-good") as server:
        order(server, 1, lease=2.0)
        assert gauge(server, "specwatch_switch_draft_tokens") == 1
        eventually(
            lambda: gauge(server, "specwatch_switch_draft_tokens") == K,
            what="the lease ends", within=10,
        )  # fmt: skip
        earlier = order(server, 0, lease=3600.0)
        server.kill()
        assert json.loads((directory / "order.json").read_bytes())["draft_tokens"] == 0
        server.start()
        server.wait_healthy()
        _, state = ask(server, "GET")
        assert state["server"] != earlier["server"]
        assert (state["draft_tokens"], state["number"], state["refused"]) == (None, 0, "")
        with Traffic(server.url, 1).running() as traffic:
            follows(server, K, exact=True)
        traffic.check()


def test_the_command_gives_an_order_and_the_daemon_shows_it(
    start: Callable[..., VllmServer], directory: Path, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/specwatch.db"
    with start("draft-good") as server, Traffic(server.url).running() as traffic:
        target = {"name": "chat", "url": server.url, "interval": "1s"}
        target["switch"] = {"directory": str(directory)}  # type: ignore[assignment]
        with DaemonProcess.configured(tmp_path, database, {"targets": [target]}) as daemon:
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
            expected = {"draft_tokens": 0, "ordered": True, "followed": True, "deep": False}
            assert shown["targets"][0]["switch"] == expected
            status = specwatch("status", "--url", daemon.url)
            assert "standby: the switch is at 0 draft tokens" in status.stdout
            done = specwatch("switch", "--url", server.url, "--directory", str(directory),
                             "--launch", "--json")  # fmt: skip
            assert json.loads(done.stdout)["followed"] is True
    traffic.check()


def test_two_api_servers_share_a_switch(start: Callable[..., VllmServer]) -> None:
    with (
        start("draft-good", "--api-server-count", "2") as server,
        Traffic(server.url, 4).running() as traffic,
    ):
        for k in (0, 2, 4):
            order(server, k)
            follows(server, k, exact=True)
            assert gauge(server, "specwatch_switch_draft_tokens") == k
    traffic.check()


def test_under_data_parallelism_vllm_has_no_schedule(start: Callable[..., VllmServer]) -> None:
    with start("draft-good", "--data-parallel-size", "2") as server:
        _, state = ask(server, "GET")
        assert "as with data parallelism" in state["unavailable"]
        body = json.dumps({"server": state["server"], "number": 1, "draft_tokens": 0, "lease": 9})
        status, answer = ask(server, "PUT", body.encode())
        assert (status, answer["error"]) == (409, state["unavailable"])
        done = specwatch("switch", "--url", server.url, "--token-file",
                         str(Path(server.log).parent / "none"), "--k", "0")  # fmt: skip
        assert done.returncode != 0


IGNORING = """
from specwatch.tap import scheduler

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
    start: Callable[..., VllmServer],
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "ignoring.py").write_text(IGNORING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start("draft-good", "--scheduler-cls", "ignoring.Scheduler") as server:
        with Traffic(server.url).running():
            eventually(lambda: counters(server)["tokens"] > 100, what="traffic", within=60)
            done = specwatch(
                "switch", "--url", server.url, "--directory", str(directory), "--k", "1"
            )
        assert done.returncode == 1
        assert "not followed; the order was taken back" in done.stdout
        assert ask(server, "GET")[1]["draft_tokens"] is None


def test_nothing_switches_without_the_token(
    start: Callable[..., VllmServer], directory: Path
) -> None:
    """Thousands of requests with wrong tokens, replayed and oversized orders."""
    with start("draft-good") as server:
        followed = order(server, 2)
        replayed = json.dumps(
            {"server": followed["server"], "number": followed["number"], "draft_tokens": 0,
             "lease": 60, "by": "x"}
        ).encode()  # fmt: skip
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
            time.sleep(10)
            attempts.set()
            for thread in threads:
                thread.join()
        assert set(refused) == {401}
        assert len(refused) > 1000
        state = ask(server, "GET")[1]
        assert (state["draft_tokens"], state["number"]) == (2, followed["number"])
        assert json.loads((directory / "order.json").read_bytes())["draft_tokens"] == 2
    traffic.check()
    print(f"{len(refused)} requests with wrong tokens in 10 s, {len(traffic.outcomes)} served")


def test_the_guard_needs_no_restart(
    start: Callable[..., VllmServer], directory: Path, tmp_path: Path
) -> None:
    """A breach, standby, kill -9 of the daemon, a trial that is lost, and standby again."""
    low = {
        "name": "low", "metric": "acceptance_ratio", "below": 0.3, "window": "1m", "for": "0s",
        "clear_for": "1m", "min_drafts": 20, "action": "disable",
    }  # fmt: skip
    guard = {
        "mode": "act", "cooldown": "0s", "verify": "10s", "max_actions_per_day": 9,
        "rearm": {"after": "1m", "trial": "2m"},
    }  # fmt: skip
    database = f"sqlite:///{tmp_path}/specwatch.db"

    def state(daemon: DaemonProcess) -> dict[str, Any]:
        known: dict[str, Any] = daemon.status()["targets"][0]["guard"]["state"] or {}
        return known

    def reached(daemon: DaemonProcess, phase: str) -> dict[str, Any]:
        eventually(lambda: state(daemon).get("phase") == phase, what=phase, within=300)
        return state(daemon)

    with start("draft-bad") as server, Traffic(server.url).running() as traffic:
        config = {
            "targets": [
                {"name": "chat", "url": server.url, "interval": "1s",
                 "switch": {"directory": str(directory)}}
            ],
            "rules": {"use_defaults": False, "extra": [low]},
            "guard": guard,
        }  # fmt: skip
        pid = server.pid
        with DaemonProcess.configured(tmp_path, database, config) as daemon:
            off = reached(daemon, "disabled")
            assert off["standby"] is True
            follows(server, 0, exact=True)
            assert ask(server, "GET")[1]["by"] == f"specwatch guard ({off['incident']['id']})"
            daemon.kill()
            daemon.start()
            assert reached(daemon, "disabled")["standby"] is True
            reached(daemon, "trial")
            follows(server, K, exact=True)
            lost = reached(daemon, "disabled")
            assert (lost["standby"], lost["incident"]["cause"]) == (True, "trial_lost")
            follows(server, 0, exact=True)
            done = specwatch("guard", "enable", "chat", "--database", database, "--by", "e")
            assert done.returncode == 0, done.stderr
            follows(server, K, exact=True)
        assert (server.pid, server.running) == (pid, True)
    traffic.check()


def test_the_hardened_unit_gives_orders_to_another_user(systemd_machine: SystemdMachine) -> None:
    """vLLM (simulated) is a unit of a user with its RuntimeDirectory, restarted meanwhile;
    specwatch runs as confined as its own unit, in the group of that directory."""
    port = free_port()
    systemd_machine.shell("getent group vllm || groupadd vllm; id vllm || useradd -g vllm vllm")
    config = json.dumps(
        {"method": "ngram", "num_speculative_tokens": K,
         "num_speculative_tokens_per_batch_size": [[1, 1, K]]}
    ).replace('"', '\\"')  # fmt: skip
    install(systemd_machine, "specwatch.service", "")
    server = (
        "[Service]\nUser=vllm\nEnvironment=SPECWATCH_SWITCH_DIRECTORY=/run/vllm-switch\n"
        "RuntimeDirectory=vllm-switch\nRuntimeDirectoryMode=2770\nRuntimeDirectoryPreserve=yes\n"
        f"Environment=PYTHONPATH={CHECKOUT}\n"
        f"ExecStart=/opt/specwatch/bin/specwatch simulate tiny --port {port} --simulated-rate 5"
        f' --speculative-config "{config}" --scheduler-cls specwatch.tap.scheduler.Scheduler'
        " --middleware specwatch.tap.Tap\n" + seen_by_services()
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

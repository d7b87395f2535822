"""A real llama-server: whether it speculates, what is accepted, whether that pays, and the guard.

One server has no draft, one has a good draft, and one accepts what it is told to
(``--spec-synth-rates``), so that the truth is known.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specwatch.actuators.supervisor import Supervisor
from specwatch.domain.model import Mode
from tests.e2e.clients import Clients
from tests.e2e.processes import DaemonProcess, HttpServer, TapProxy, specwatch
from tests.e2e.tap_page import at_rest
from tests.e2e.waiting import eventually
from tests.lab import llama_server
from tests.lab.http_get import is_ok, page
from tests.lab.traffic import Request, requests_at, send_all
from tests.lab.vllm_server import free_port

K = 4
RATES = (0.8, 0.5, 0.3, 0.1)
"""Shares of the drafts of which the first, second, .. token is accepted."""
SYNTHETIC = ("--spec-synth-rates", ",".join(map(str, RATES)))
TEMPERATURES = {0.0: "0", 0.5: "(0.3,0.7]", 1.2: ">1"}
COUNTED = ("generation_tokens", "draft_tokens", "accepted_tokens")
_OF_THE_SERVER = {
    "llamacpp:tokens_predicted_total": "generation_tokens",
    "llamacpp:spec_decode_num_drafts_total": "drafts",
    "llamacpp:spec_decode_num_draft_tokens_total": "draft_tokens",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}


class LlamaServer(HttpServer):
    """On its own port; the flags are those beside the target."""

    ready_path = "/health"

    def __init__(self, log: Path, folder: Path, models: Path, *flags: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(log, *llama_server.command(folder, models, port, *flags))

    def counts(self) -> Counter[str]:
        """What it has counted, by specwatch's names, and ``position 0``, .. of accepted tokens."""
        return counted(self.metrics())


def counted(metrics: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if name := _OF_THE_SERVER.get(sample.name):
                found[name] = int(sample.value)
            elif sample.name == "llamacpp:spec_decode_num_accepted_tokens_per_pos_total":
                found[f"position {sample.labels['position']}"] = int(sample.value)
    return found


def speculates(url: str) -> bool:
    """What the server itself says of its first slot."""
    return bool(json.loads(page(url + "/slots"))[0]["speculative"])


@pytest.fixture(scope="module")
def servers(
    llama_install: Path, tiny_ggufs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, LlamaServer]]:
    """``plain``, ``drafted`` and ``forced``; nobody has asked them anything."""
    flags = {
        "plain": (),
        "drafted": llama_server.draft_flags(tiny_ggufs, k=K),
        "forced": (*llama_server.draft_flags(tiny_ggufs, k=K), *SYNTHETIC),
    }
    logs = tmp_path_factory.mktemp("llama")
    with ExitStack() as running:
        started = {
            name: running.enter_context(LlamaServer(logs / name, llama_install, tiny_ggufs, *more))
            for name, more in flags.items()
        }
        for server in started.values():
            server.wait_ready()
        yield started


def scraped(url: str) -> dict[str, Any]:
    ran = specwatch("scrape", url, "--json")
    assert ran.returncode == 0, ran.stderr
    (model,) = json.loads(ran.stdout)["models"]
    assert model["model_name"] == "tiny"
    return dict(model)


def test_it_is_known_before_the_first_draft_whether_a_server_speculates(
    servers: dict[str, LlamaServer],
) -> None:
    assert servers["drafted"].counts()["drafts"] == 0
    shown = {name: scraped(server.url)["speculation"] for name, server in servers.items()}
    assert shown == {"plain": "off", "drafted": "on", "forced": "on"}


def test_forced_acceptance_is_what_is_reported(servers: dict[str, LlamaServer]) -> None:
    """At any temperature, and at each position."""
    server = servers["forced"]
    ran = specwatch(
        "probe",
        "--target",
        server.url,
        "--temperatures",
        "0,1.2",
        "--requests",
        "8",
        "--max-tokens",
        "100",
        "--dry-run",
        "--json",
    )
    assert ran.returncode == 0, ran.stderr
    truth = sum(RATES) / K
    for temperature in json.loads(ran.stdout)["temperatures"]:
        assert temperature["requests"] == 8
        assert temperature["acceptance"]["rate"]["value"] == pytest.approx(truth, abs=0.1)
    model, counts = scraped(server.url), server.counts()
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert model[name] == counts[name] > 0
    shares = [accepted / model["drafts"] for accepted in model["accepted_per_position"]]
    assert shares == pytest.approx(RATES, abs=0.1)


def test_the_proxy_counts_what_the_server_counted(
    servers: dict[str, LlamaServer], tmp_path: Path
) -> None:
    """By temperature; llama-server closes each connection after a stream, which no client sees."""
    server = servers["drafted"]
    requests = [
        *requests_at(list(TEMPERATURES), 18, stream=True),
        *requests_at(list(TEMPERATURES), 6, stream=True, include_usage=False),
        *requests_at(list(TEMPERATURES), 6, chat=False),
    ]
    before = server.counts()
    with TapProxy(tmp_path / "log", server.url) as proxy:
        proxy.wait_ready()
        outcomes = send_all(proxy.url, requests)
        metrics = at_rest(proxy.metrics)
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    buckets: dict[str, Counter[str]] = {bucket: Counter() for bucket in TEMPERATURES.values()}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            name = sample.name.removeprefix("specwatch_").removesuffix("_total")
            if name in (*COUNTED, "requests") and sample.labels["temperature"] in buckets:
                buckets[sample.labels["temperature"]][name] += int(sample.value)
    assert {bucket: counts["requests"] for bucket, counts in buckets.items()} == dict.fromkeys(
        buckets, len(requests) / len(buckets)
    )
    grown = server.counts() - before
    for name in COUNTED:
        assert sum(counts[name] for counts in buckets.values()) == grown[name] > 0
    rates = [counts["accepted_tokens"] / counts["draft_tokens"] for counts in buckets.values()]
    assert rates[0] > rates[-1] + 0.1


def test_calibrate_times_tokens_as_clients_do(servers: dict[str, LlamaServer]) -> None:
    ran = specwatch(
        "calibrate",
        "--off",
        servers["plain"].url,
        "--on",
        servers["drafted"].url,
        "--json",
        "--dry-run",
        "--concurrency",
        "1,2",
        "--duration",
        "6s",
        "--warm-up",
        "500ms",
        "--max-tokens",
        "32",
        "--temperature",
        "0,1.2",
        "--unsteady",
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["engine_version"].startswith(f"b{llama_server.VERSION.partition('.')[0]}")
    for stage in report["stages"]:
        assert (stage["errors"], stage["shared"], stage["shortfall"]) == ({}, False, None)
        clients = mean(tpot for part in stage["clients"] for tpot in part["tpot"])
        assert clients / 2 < stage["seconds_per_token"] < clients * 2
    speedup = report["comparison"]["speedup"]
    assert 0 < speedup["lower"] < speedup["value"] < speedup["upper"]


def test_bench_compares_both(servers: dict[str, LlamaServer]) -> None:
    ran = specwatch(
        "bench",
        "--target",
        servers["drafted"].url,
        "--baseline",
        servers["plain"].url,
        "--json",
        "--dry-run",
        "--concurrency",
        "2",
        "--duration",
        "6s",
        "--warm-up",
        "500ms",
        "--max-tokens",
        "32",
        "--temperature",
        "0",
    )
    assert ran.returncode in (0, 1), ran.stderr
    found = json.loads(ran.stdout)
    (level,) = found["levels"]
    assert level["acceptance_rate"] > 0.5
    for bench in found["benches"]:
        (own,) = bench["levels"]
        assert (own["errors"], own["alone"]) == ({}, True)
        assert own["tokens"] == 32 * own["requests"] > 0


def test_the_wrong_server_is_refused_in_words_of_llama_cpp(
    servers: dict[str, LlamaServer],
) -> None:
    plain, drafted = servers["plain"].url, servers["drafted"].url
    for command in (
        ("probe", "--target", plain),
        ("calibrate", "--off", drafted),
        ("calibrate", "--off", plain, "--on", plain),
    ):
        ran = specwatch(*command, "--dry-run")
        assert ran.returncode == 2
        assert "--spec-type" in ran.stderr
        assert "vllm" not in ran.stderr


def test_a_supervised_server_is_restarted_with_speculation_and_without(
    llama_install: Path, tiny_ggufs: Path
) -> None:
    """``specwatch run -- llama-server ...``; a stream under way does not delay its end for long."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = llama_server.draft_flags(tiny_ggufs, k=K)
    command = llama_server.command(llama_install, tiny_ggufs, port, *flags)
    supervisor = Supervisor(command, environ=os.environ, stop_timeout=5.0)

    def serves() -> bool:
        return is_ok(url + "/health")

    try:
        supervisor.start(Mode.ON)
        eventually(serves, what="it serves", within=120)
        assert speculates(url)
        with Clients(url, requests=endless):
            supervisor.start(Mode.OFF)
            eventually(serves, what="it serves without speculation", within=120)
        assert not speculates(url)
        assert supervisor.status().mode is Mode.OFF
    finally:
        supervisor.stop()
    assert not serves()


def endless(user: int) -> Iterator[Request]:
    """Streams that do not end soon."""
    return itertools.repeat(Request(stream=True, prompt=f"{user}", max_tokens=600))


SCRIPT = """\
#!/bin/sh
# An operator's script: on, off or status.
cd {folder} || exit 1
case $1 in
on) flags='{flags}' ;;
off) flags= ;;
status) cat mode; exit ;;
esac
if [ -e pid ]; then
    # With a stream under way it does not end by itself.
    kill "$(cat pid)" 2> /dev/null
    for _ in $(seq 50); do kill -0 "$(cat pid)" 2> /dev/null && sleep 0.1; done
    kill -9 "$(cat pid)" 2> /dev/null
fi
setsid {command} $flags > log 2>&1 < /dev/null &
echo $! > pid
echo "$1" > mode
"""


class OwnedServer:
    """A server that its operator starts with a script, and ends with the ``with`` block."""

    def __init__(self, folder: Path, command: list[str], flags: list[str], url: str) -> None:
        self.url = url
        self._folder = folder
        self.script = folder / "llama"
        self.script.write_text(
            SCRIPT.format(folder=folder, command=" ".join(command), flags=" ".join(flags))
        )
        self.script.chmod(0o755)

    @property
    def pid(self) -> int:
        return int((self._folder / "pid").read_text())

    def run(self, word: str) -> None:
        """Say a word to the script."""
        subprocess.run([self.script, word], check=True, timeout=60)

    def healthy(self) -> bool:
        return is_ok(self.url + "/health")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not self.healthy(), what="it is gone", within=60)

    def __enter__(self) -> OwnedServer:
        self.run("on")
        eventually(self.healthy, what="the server is healthy", within=120)
        return self

    def __exit__(self, *_exception: object) -> None:
        os.kill(self.pid, signal.SIGKILL)


def test_a_guarded_server_and_one_that_is_watched(
    servers: dict[str, LlamaServer],
    llama_install: Path,
    tiny_ggufs: Path,
    tmp_path: Path,
) -> None:
    """Nothing that is drafted is accepted: a command switches speculation off, and on again.

    The daemon and the server are killed in between. What is watched beside it is counted exactly.
    """
    port = free_port()
    owned = OwnedServer(
        tmp_path,
        llama_server.command(llama_install, tiny_ggufs, port),
        [*llama_server.draft_flags(tiny_ggufs, k=K), "--spec-synth-rates", "0,0,0,0"],
        f"http://127.0.0.1:{port}",
    )
    watched = servers["drafted"]
    low = {
        "name": "low",
        "metric": "acceptance_ratio",
        "below": 0.3,
        "window": "1m",
        "for": "0s",
        "clear_for": "1m",
        "min_drafts": 20,
        "action": "disable",
        "scope": {"target": "guarded"},
    }
    config = {
        "targets": [
            {
                "name": "guarded",
                "url": owned.url,
                "interval": "1s",
                "service": {
                    "kind": "command",
                    "disable": [str(owned.script), "off"],
                    "enable": [str(owned.script), "on"],
                    "status": [str(owned.script), "status"],
                },
            },
            {"name": "watched", "url": watched.url, "interval": "1s"},
        ],
        "rules": {"use_defaults": False, "extra": [low]},
        "guard": {
            "mode": "act",
            "cooldown": "0s",
            "verify": "10s",
            "drain_timeout": "5s",
            "max_actions_per_day": 9,
            "rearm": {"after": "1h", "trial": "2m"},
        },
    }
    database = f"sqlite:///{tmp_path}/specwatch.db"

    def reached(daemon: DaemonProcess, phase: str) -> dict[str, Any]:
        def state() -> dict[str, Any]:
            (guard,) = (t["guard"] for t in daemon.status()["targets"] if t["name"] == "guarded")
            return (guard or {}).get("state") or {}

        eventually(lambda: state().get("phase") == phase, what=phase, within=300, every=0.5)
        return state()

    with owned, DaemonProcess.configured(tmp_path / "daemon", database, config) as daemon:
        daemon.wait_scraped(0)
        before = watched.counts()
        requests = requests_at(list(TEMPERATURES), 12, stream=True)
        assert all(outcome.ok for outcome in send_all(watched.url, requests))
        grown = watched.counts() - before
        with Clients(owned.url, pause=0.2) as clients:
            off = reached(daemon, "disabled")
            assert off["incident"]["what"] == "low"
            assert not speculates(owned.url)
            pid, answered = owned.pid, clients.answered
            daemon.kill()
            owned.kill()
            owned.run("off")
            daemon.start()
            reached(daemon, "disabled")
            eventually(lambda: clients.answered > answered, what="it answers", within=120)
            done = specwatch("guard", "enable", "guarded", "--database", database, "--by", "e")
            assert done.returncode == 0, done.stderr
            eventually(
                lambda: owned.pid != pid and owned.healthy() and speculates(owned.url),
                what="it speculates again",
                within=120,
            )
        daemon.wait_written(time.time())
        daemon.stop()
        windows = daemon.windows()
    totals = {
        name: sum(
            getattr(window.tally, name) or 0
            for window in windows
            if window.series.target == "watched"
        )
        for name in COUNTED
    }
    assert totals == {name: grown[name] for name in COUNTED}
    own = [window for window in windows if window.series.target == "guarded"]
    assert sum(window.tally.accepted_tokens or 0 for window in own) == 0
    assert sum(window.restarts for window in own) >= 2
    assert own[0].mode in (Mode.ON, Mode.MIXED)
    assert {window.mode for window in own} & {Mode.OFF, Mode.MIXED}

"""A Deployment whose pods are discovered is guarded as one server, on a real Kubernetes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from tests.e2e.interrupted import POINTS, Interrupted, require_one_effect
from tests.e2e.pods import PORT, Pods
from tests.e2e.processes import DaemonProcess, specwatch
from tests.e2e.waiting import eventually
from tests.lab.kubernetes_cluster import KubernetesCluster
from tests.postgres import PostgresServer

ROLLOUT_WITHIN = 150.0
FAST = {"interval": "1s"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as daemons:
        yield daemons


class Watched:
    """A daemon that discovers the pods of a Deployment, and guards it."""

    def __init__(
        self,
        pods: Pods,
        cluster: KubernetesCluster,
        folder: Path,
        database: str,
        stack: ExitStack,
        **config: Any,
    ) -> None:
        self.pods, self.name = pods, f"default/{pods.workload}"
        self._folder, self._database = folder, database
        self._config = {
            "database": database,
            "discovery": [{"kubernetes": source_of(pods, cluster), "target": FAST}],
            "guard": {"mode": "act", "cooldown": "0s", "drain_timeout": "1s"},
            **config,
        }
        store = Store(database, daemon="test")
        stack.callback(store.close, time.time())
        self._book = GuardBook(store)
        self.daemon = self.another("one")

    def another(self, name: str) -> DaemonProcess:
        """A daemon that is not started yet."""
        return DaemonProcess.configured(self._folder / name, self._database, self._config)

    def order(self, what: str) -> None:
        """As a person does; returns at once. While the workload moves to another member, the order
        waits."""
        file = str(self._folder / "one/specwatch.yml")
        done = specwatch(
            "guard",
            what,
            self.name,
            "--by",
            "ann",
            "--no-wait",
            "--config",
            file,
            "--database",
            self._database,
        )
        assert done.returncode == 0 or "waits for one" in done.stdout, done.stdout + done.stderr

    def plan(self, name: str | None) -> Any:
        """What `guard plan` prints for a name."""
        file = str(self._folder / "one/specwatch.yml")
        names = () if name is None else (name,)
        done = specwatch("guard", "plan", *names, "--config", file, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def phase(self) -> str:
        entry = self._book.look(self.name).get(self.name)
        return "" if entry is None else str(entry.state.phase)

    def wait_for(self, phase: str) -> None:
        """Return once the guard is in a phase; the daemon may not have begun."""
        eventually(
            lambda: self.daemon.url and self.phase() == phase,
            what=phase,
            within=ROLLOUT_WITHIN,
            evidence=lambda: self.daemon.log_text()[-4000:],
        )

    def holder(self) -> str:
        """What the lease of the guard is held by."""
        return self._book.look(self.name)[self.name].holder

    def guards(self, replicas: int) -> list[dict[str, Any]]:
        """What the API shows of each pod's guard and of that of their workload, which is a target
        of its own, once so many pods are watched."""
        status = self.daemon.wait(
            lambda found: (
                [len(one["pods"]) for one in found["targets"] if one["pods"]] == [replicas]
                and len(found["targets"]) == replicas + 1
                and all(one["guard"] and one["guard"]["state"] for one in found["targets"])
            ),
            what=f"{replicas} pods are guarded",
        )
        *pods, whole = status["targets"]
        assert (whole["name"], whole["pods"]) == (self.name, [pod["name"] for pod in pods])
        assert {pod["workload"] for pod in pods} == {self.name}
        return [one["guard"]["state"] for one in status["targets"]]

    def exported(self) -> set[str]:
        """The targets under which the guard is exported."""
        page = requests.get(f"{self.daemon.url}/metrics", timeout=10).text
        return set(re.findall(r'specwatch_guard_state\{.*target="([^"]*)"', page))


@pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
def test_a_deployment_is_switched_off_and_on_again(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path, stack: ExitStack, strategy: str
) -> None:
    """With Recreate there is a time without any pod."""
    name = f"deployment/whole-{strategy.lower()}"
    database = f"sqlite:///{tmp_path}/specwatch.db"
    with Pods(kubernetes_cluster, name, strategy={"type": strategy}) as pods:
        found = Watched(pods, kubernetes_cluster, tmp_path, database, stack)
        stack.enter_context(found.daemon)
        found.wait_for("observing")
        assert {state["target"] for state in found.guards(3)} == {found.name}
        assert found.exported() == {found.name}
        for address in found.pods.ready():
            body = {"model": "tiny", "prompt": "x", "max_tokens": 32, "ignore_eos": True}
            url = f"http://{address}:{PORT}/v1/completions"
            requests.post(url, json=body, timeout=60).raise_for_status()
        checked = specwatch("check-config", "--config", str(tmp_path / "one/specwatch.yml"))
        assert f"guard of {found.name}" in checked.stdout, checked.stdout
        for shown in (found.name, None):
            plan = found.plan(shown)
            assert (plan["target"], plan["refused"]) == (found.name, None)
        found.order("disable")
        found.wait_for("disabled")
        assert found.pods.speculating() == [False] * 3
        assert {state["phase"] for state in found.guards(3)} == {"disabled"}
        found.order("enable")
        found.wait_for("observing")
        # A probe of a pod may time out on a busy machine, and succeed again.
        eventually(
            lambda: found.pods.speculating() == [True] * 3, what="all speculate again", within=30
        )
        found.guards(3)
        found.daemon.stop()
        minutes = found.daemon.windows()
    tokens: dict[bool, int] = {True: 0, False: 0}
    for minute in minutes:
        tokens[minute.series.target == found.name] += minute.tally.generation_tokens or 0
    assert tokens == {True: 96, False: 96}


def test_a_daemon_that_stands_by_ends_a_rollout_when_the_one_that_began_it_is_killed(
    kubernetes_cluster: KubernetesCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    stack: ExitStack,
) -> None:
    with Pods(kubernetes_cluster, "deployment/survivor") as pods:
        found = Watched(
            pods,
            kubernetes_cluster,
            tmp_path,
            postgres.new_url(),
            stack,
            daemon="d",
        )
        first, second = (found.another(name) for name in ("one", "two"))
        stack.enter_context(first)
        found.daemon = first
        found.wait_for("observing")
        stack.enter_context(second)
        found.order("disable")
        eventually(
            lambda: any(one["event"] == "guard_switches" for one in first.events()),
            what="it begins",
            within=ROLLOUT_WITHIN,
            every=0.02,
        )
        began_by = found.holder()
        first.kill()
        found.daemon = second
        found.wait_for("disabled")
        assert found.holder() != began_by
        assert pods.speculating() == [False] * 3
        assert {state["target"] for state in found.guards(3)} == {found.name}


def test_a_daemon_that_is_killed_or_stopped_leaves_one_rollout_for_each_order(
    kubernetes_cluster: KubernetesCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    stack: ExitStack,
) -> None:
    cases = []
    stopped = [(signal.SIGSTOP, point) for point in POINTS]
    for how, point in [*stopped, (signal.SIGKILL, "in")]:
        name = f"{how.name}-{point}".lower()
        pods = stack.enter_context(Pods(kubernetes_cluster, f"deployment/{name}", replicas=1))
        case = Interrupted(
            tmp_path / name,
            f"sqlite:///{tmp_path}/{name}.db" if how is signal.SIGKILL else postgres.new_url(),
            {"discovery": [{"kubernetes": source_of(pods, kubernetes_cluster), "target": FAST}]},
            guard=f"default/{pods.workload}",
            point=point,
            how=how,
            effects=partial(changes_of, pods),
        )
        cases.append(stack.enter_context(case))
    require_one_effect(cases)


def changes_of(pods: Pods) -> int:
    """How often the workload was written since it was created."""
    return int(pods.object()["metadata"]["generation"]) - 1


def source_of(pods: Pods, cluster: KubernetesCluster) -> dict[str, Any]:
    """The source of discovery that finds these pods."""
    return {
        "kubeconfig": str(cluster.kubeconfig),
        "namespaces": ["default"],
        "selector": f"app={pods.name}",
        "port": PORT,
        "refresh_interval": "1s",
        "service": {"kind": "kubernetes", "timeout": "90s"},
    }

"""Pods of a real Kubernetes are found, watched and left, and keep their counters apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import requests
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding

from specwatch.domain.model import ALL
from tests.e2e.processes import DaemonProcess
from tests.e2e.waiting import eventually
from tests.lab.kubernetes_cluster import KubernetesCluster

PORT = 8000
ARGS = ["tiny", "--host", "$(POD_IP)", "--port", str(PORT)]


def stateful_set(name: str, replicas: int) -> Any:
    labels = {"app": "vllm", "set": name}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": "vllm",
        "image": "vllm",
        "args": ARGS,
        "env": [address],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}},
    }
    return StatefulSet.from_dict(
        {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
    )


class Serving:
    """A namespace with StatefulSets of simulated vLLMs, and a daemon that may list its pods."""

    def __init__(self, cluster: KubernetesCluster, folder: Path, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.client: Any = cluster.client()
        made: Any = Namespace.from_dict({"metadata": {"name": namespace}})
        self.client.apply(made, field_manager="test")
        kubeconfig = cluster.kubeconfig_of("specwatch", namespace)
        self._allow_listing()
        source = {"kubeconfig": str(kubeconfig), "selector": "app in (vllm)", "port": "http"}
        self.daemon = DaemonProcess.configured(
            folder / "daemon",
            f"sqlite:///{folder}/d.db",
            {
                "discovery": [
                    {
                        "kubernetes": {**source, "refresh_interval": "1s"},
                        "target": {"interval": "1s", "labels": {"site": "lab"}},
                    }
                ]
            },
        )

    def _allow_listing(self) -> None:
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
        meta = {"name": "specwatch", "namespace": self.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "specwatch"}
        subject = {"kind": "ServiceAccount", "name": "specwatch", "namespace": self.namespace}
        parts: list[Any] = [
            Role.from_dict({"metadata": meta, "rules": [rule]}),
            RoleBinding.from_dict({"metadata": meta, "roleRef": role, "subjects": [subject]}),
        ]
        for made in parts:
            self.client.apply(made, field_manager="test", namespace=self.namespace)

    def run(self, name: str, replicas: int) -> None:
        self.client.apply(
            stateful_set(name, replicas),
            namespace=self.namespace,
            field_manager="test",
            force=True,
        )

    def pod(self, name: str) -> Any:
        """A pod that runs, when it is ready."""

        def ready() -> Any:
            pods = self.client.list(Pod, namespace=self.namespace)
            pod = next((one for one in pods if one.metadata.name == name), None)
            if pod is None:
                return None
            conditions = {c.type: c.status for c in pod.status.conditions or ()}
            up = conditions.get("Ready") == "True" and pod.metadata.deletionTimestamp is None
            return pod if up else None

        return eventually(ready, what=f"pod {name} is ready", within=60)

    def work(self, name: str, count: int) -> None:
        """Send requests to a pod, each for eight tokens."""
        address = self.pod(name).status.podIP
        for _ in range(count):
            body = {"model": "tiny", "prompt": "x", "max_tokens": 8, "ignore_eos": True}
            url = f"http://{address}:{PORT}/v1/completions"
            requests.post(url, json=body, timeout=60).raise_for_status()

    def wait_for(self, *pods: str) -> dict[str, dict[str, Any]]:
        """The targets by name, once they are these pods and each was read."""
        names = {f"{self.namespace}/{pod}" for pod in pods}

        def complete(status: dict[str, Any]) -> bool:
            read = {one["name"] for one in status["targets"] if one["last_success"]}
            return read == names == {one["name"] for one in status["targets"]}

        status = self.daemon.wait(complete, what=f"{sorted(names)} are watched")
        return {one["name"].partition("/")[2]: one for one in status["targets"]}

    def tokens(self, pod: str) -> int:
        """What the daemon has stored of a target."""
        return sum(
            window.tally.generation_tokens or 0
            for window in self.daemon.windows(target=f"{self.namespace}/{pod}")
            if window.series.segment == ALL
        )


@pytest.fixture
def serving(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Serving]:
    made = Serving(kubernetes_cluster, tmp_path, f"ns-{crc32(request.node.name.encode())}")
    with made.client, made.daemon:
        yield made


def test_pods_join_and_leave_as_their_workload_is_scaled(serving: Serving) -> None:
    serving.run("chat", 2)
    targets = serving.wait_for("chat-0", "chat-1")
    labels = targets["chat-1"]["labels"]
    assert labels == {
        "app": "vllm",
        "set": "chat",
        "namespace": serving.namespace,
        "pod": "chat-1",
        "container": "vllm",
        "node": "lab",
        "site": "lab",
    }
    assert targets["chat-1"]["group"] == "tiny"
    assert 'label_pod="chat-1"' in serving.daemon.metrics()
    serving.run("chat", 3)
    serving.wait_for("chat-0", "chat-1", "chat-2")
    serving.run("chat", 1)
    serving.wait_for("chat-0")
    serving.daemon.stop()
    failed = [one for one in serving.daemon.events() if one["event"] == "scrape_failed"]
    assert not [one for one in failed if one["target"].endswith("chat-0")]


def test_a_pod_that_replaces_another_under_its_name_is_counted_from_its_start(
    serving: Serving,
) -> None:
    serving.run("chat", 1)
    serving.wait_for("chat-0")
    serving.work("chat-0", 3)
    serving.daemon.wait(lambda status: scrapes(status) > 3, what="it is read again")
    first = serving.pod("chat-0").metadata.uid
    serving.daemon.stop()
    assert serving.tokens("chat-0") == 24
    # While no daemon looks, another pod takes the name, and counts further than the first.
    serving.client.delete(Pod, "chat-0", namespace=serving.namespace)
    eventually(
        lambda: serving.pod("chat-0").metadata.uid != first, what="it is replaced", within=60
    )
    serving.work("chat-0", 5)
    serving.daemon.start()
    serving.wait_for("chat-0")
    serving.work("chat-0", 1)
    serving.daemon.wait(lambda status: scrapes(status) > 4, what="it is read again")
    serving.daemon.stop()
    assert serving.tokens("chat-0") == 24 + 40 + 8


def test_an_api_server_that_is_away_changes_nothing(
    serving: Serving, kubernetes_cluster: KubernetesCluster
) -> None:
    serving.run("chat", 1)
    before = serving.wait_for("chat-0")["chat-0"]["scrapes"]
    kubernetes_cluster.stop_api_server()
    try:
        status = serving.daemon.wait(
            lambda status: (
                status["discovery"][0]["failure"] is not None
                and status["targets"][0]["scrapes"] > before + 3
            ),
            what="the source fails, and its pod is still read",
        )
    finally:
        kubernetes_cluster.start_api_server()
    assert status["discovery"][0]["failure"]["reason"] == "unreachable"
    serving.run("chat", 2)
    serving.wait_for("chat-0", "chat-1")
    serving.daemon.stop()
    events = [one["event"] for one in serving.daemon.events()]
    assert events.count("discovery_recovered") == 1
    # Until its rules of access are read, an API server that has just started answers "forbidden".
    assert events.count("discovery_failed") in (1, 2)


def test_an_account_that_may_not_list_pods_says_so(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    kubeconfig = kubernetes_cluster.kubeconfig_of("nobody")
    source = {"kubeconfig": str(kubeconfig), "port": "http"}
    with DaemonProcess.configured(
        tmp_path / "daemon", f"sqlite:///{tmp_path}/d.db", {"discovery": [{"kubernetes": source}]}
    ) as daemon:
        status = daemon.wait(
            lambda status: status["discovery"][0]["failure"] is not None, what="it fails"
        )
    assert status["discovery"][0]["failure"]["reason"] == "forbidden"
    assert status["targets"] == []


def scrapes(status: dict[str, Any]) -> int:
    return int(status["targets"][0]["scrapes"]) if status["targets"] else 0

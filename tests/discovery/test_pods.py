"""The workload of a pod, by what Kubernetes says of its owner."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from specwatch.config.discovery import DiscoverySource
from specwatch.config.service import KubernetesService
from specwatch.discovery import pods
from specwatch.discovery.pods import PodReader
from specwatch.discovery.target_groups import TargetMaker
from tests.discovery.pods import client_of, pod_of

HASH = {"pod-template-hash": "5d8f9c7b6"}
LEADER = {"leaderworkerset.sigs.k8s.io/name": "big"}
SERVICE = {"kind": "kubernetes", "timeout": "90s"}


def source_of(**settings: Any) -> DiscoverySource:
    section = {"namespaces": ["serving"], "port": 8000, "kubeconfig": "/k", **settings}
    return DiscoverySource.model_validate({"kubernetes": section, "target": {"interval": "7s"}})


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Pod]:
    """The pods that there are."""
    found: list[Pod] = []
    monkeypatch.setattr(pods, "kubernetes_client", lambda _: client_of(found))
    return found


def workload_of(source: DiscoverySource) -> Any:
    assert source.kubernetes is not None
    (groups,) = PodReader(source.kubernetes)().values()
    assert isinstance(groups, tuple)
    (target,), refused = TargetMaker(source).targets(groups)
    assert refused == []
    assert target.name == "serving/vllm-0"
    assert target.service is None
    return target.workload


@pytest.mark.parametrize(
    ("owner", "labels", "name"),
    [
        (("ReplicaSet", "vllm-7b-5d8f9c7b6"), HASH, "deployment/vllm-7b"),
        (("StatefulSet", "vllm"), {}, "statefulset/vllm"),
        (("StatefulSet", "big"), LEADER, "leaderworkerset/big"),
    ],
)
def test_the_workload_of_a_pod_is_guarded_as_one_server(
    listed: list[Pod], owner: tuple[str, str], labels: dict[str, str], name: str
) -> None:
    listed.append(pod_of(owner, labels))
    workload = workload_of(source_of(service=SERVICE))
    assert workload.name == f"serving/{name}"
    assert workload.interval == 7.0
    assert workload.service == KubernetesService(
        kind="kubernetes", workload=name, namespace="serving", kubeconfig="/k", timeout="90s"
    )
    assert workload_of(source_of()) is None, "without a service nothing is restarted"


@pytest.mark.parametrize(
    ("owner", "labels"),
    [
        (None, {}),
        (("DaemonSet", "vllm"), {}),
        (("ReplicaSet", "vllm"), {}),
        (("ReplicaSet", "vllm-other"), HASH),
    ],
)
def test_what_no_workload_owns_is_not_restarted(
    listed: list[Pod], owner: tuple[str, str] | None, labels: dict[str, str]
) -> None:
    listed.append(pod_of(owner, labels))
    assert workload_of(source_of(service=SERVICE)) is None

"""Pods of Kubernetes as targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specwatch.config.discovery import PodSource
from specwatch.discovery.target_groups import Group
from specwatch.domain.model import PodInstance
from specwatch.domain.units import host_port
from specwatch.errors import KubernetesError, SpecwatchError
from specwatch.runtime.kubernetes_client import kubernetes_client, kubernetes_errors

if TYPE_CHECKING:
    from lightkube import Client
    from lightkube.models.core_v1 import Container, ContainerStatus, PodStatus
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Pod

_OF_CONTROLLERS = {
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
}
"""Labels that controllers add, and that say nothing about the server."""
_LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_STARTING = 10.0
"""Seconds from a container's start in which no vLLM has become ready, and not ready again."""


class PodReader:
    """Lists pods."""

    def __init__(self, settings: PodSource) -> None:
        self._settings = settings

    def __call__(self) -> Mapping[str, tuple[Group, ...] | SpecwatchError]:
        """The pods of each namespace, each a group of one target. Raises ConfigError."""
        # Made each time, so that a renewed token is used.
        with kubernetes_client(self._settings) as client:
            namespaces = self._settings.namespaces or (client.namespace,)
            return {namespace: self._list(client, namespace) for namespace in namespaces}

    def _list(self, client: Client, namespace: str) -> tuple[Group, ...] | SpecwatchError:
        from lightkube.operators import Operator
        from lightkube.resources.core_v1 import Pod

        # The encoding of an operator is its key, itself and its value: here the whole selector.
        selector = self._settings.selector
        chosen: Any = {"": Operator("selector", "", selector)} if selector else None
        try:
            with kubernetes_errors(client):
                pods = list(client.list(Pod, namespace=namespace, labels=chosen))
        except KubernetesError as error:
            return error
        return tuple(group for pod in pods for group in self._groups(pod))

    def _groups(self, pod: Pod) -> Iterator[Group]:
        """Yield the target in a pod, if it has one now."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        if meta is None or spec is None or status is None or not status.podIP:
            return
        if meta.deletionTimestamp is not None or status.phase in ("Succeeded", "Failed"):
            return
        container, port = self._port(spec.containers)
        reported = {one.name: one for one in status.containerStatuses or ()}.get(container)
        if port is None or reported is None:
            return
        started = _started(reported)
        if started is None or not (reported.restartCount or _was_ready(status, started)):
            return  # vLLM takes minutes to start
        labels = {k: v for k, v in (meta.labels or {}).items() if k not in _OF_CONTROLLERS}
        labels |= {
            "namespace": meta.namespace or "",
            "pod": meta.name or "",
            "container": container,
            "node": spec.nodeName or "",
            "instance": f"{meta.namespace}/{meta.name}",
        }
        instance = PodInstance(meta.uid or "", started)
        yield Group((host_port(status.podIP, port),), labels, instance, _workload(meta))

    def _port(self, containers: list[Container]) -> tuple[str, int | None]:
        """The container that has the port, and its number; by number the first, if none says."""
        wanted = self._settings.port
        for container in containers:
            for port in container.ports or ():
                if wanted in (port.name, port.containerPort):
                    return container.name, port.containerPort
        return containers[0].name, wanted if isinstance(wanted, int) else None


def _workload(meta: ObjectMeta) -> str:
    """``deployment/NAME``, ``statefulset/NAME`` or ``leaderworkerset/NAME``; empty for others.

    A ReplicaSet of a Deployment has the Deployment's name and the hash of its pods' template; the
    StatefulSets of a LeaderWorkerSet say in a label whose they are.
    """
    owner = next((one for one in meta.ownerReferences or () if one.controller), None)
    labels = meta.labels or {}
    if owner is None:
        return ""
    if owner.kind == "StatefulSet":
        leader = labels.get(_LEADER_WORKER_SET)
        return f"leaderworkerset/{leader}" if leader else f"statefulset/{owner.name}"
    template = labels.get("pod-template-hash")
    if owner.kind != "ReplicaSet" or not template:
        return ""
    name = owner.name.removesuffix(f"-{template}")
    return f"deployment/{name}" if name != owner.name else ""


def _started(status: ContainerStatus) -> float | None:
    """When the container was started last, in Unix time; None before its first start."""
    for state in (status.state, status.lastState):
        run = state and (state.running or state.terminated)
        if run and run.startedAt:
            return run.startedAt.timestamp()
    return None


def _was_ready(status: PodStatus, started: float) -> bool:
    """Whether a pod is ready, or was since its container started (Unix time)."""
    for condition in status.conditions or ():
        if condition.type == "Ready":
            changed = condition.lastTransitionTime
            # Kubernetes calls it not ready from its first second on.
            lost = changed is not None and changed.timestamp() > started + _STARTING
            return condition.status == "True" or lost
    return False

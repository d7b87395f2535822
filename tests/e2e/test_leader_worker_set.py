"""A LeaderWorkerSet on a real API server.

Its controller is another project's and is not built here: :class:`Controller` does what that of
version 0.9 does with groups of one pod, and reports it in the same status.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import StatefulSet

from specwatch.actuators.base import Claim
from specwatch.actuators.kubernetes.workload import ANNOTATION
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from specwatch.guard.plan import ProcessState
from tests.e2e.pods import ARGS, SPECULATION, Pods
from tests.e2e.waiting import eventually
from tests.lab.kubernetes_cluster import KubernetesCluster

WITHOUT = ARGS[: -len(SPECULATION)]
GROUP = "leaderworkerset.x-k8s.io"
LeaderWorkerSet = create_namespaced_resource(GROUP, "v1", "LeaderWorkerSet", "leaderworkersets")
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: leaderworkersets.leaderworkerset.x-k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: leaderworkerset.x-k8s.io
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
            spec:
              type: object
              required: [leaderWorkerTemplate]
              properties:
                replicas: {type: integer, default: 1}
                leaderWorkerTemplate:
                  type: object
                  required: [workerTemplate]
                  properties:
                    size: {type: integer, default: 1}
                    leaderTemplate: {type: object, x-kubernetes-preserve-unknown-fields: true}
                    workerTemplate: {type: object, x-kubernetes-preserve-unknown-fields: true}
                rolloutStrategy:
                  type: object
                  default: {type: RollingUpdate, rollingUpdateConfiguration: {}}
                  properties:
                    type: {type: string, enum: [RollingUpdate]}
                    rollingUpdateConfiguration:
                      type: object
                      properties:
                        partition: {type: integer, default: 0}
                        maxUnavailable: {x-kubernetes-int-or-string: true, default: 1}
                        maxSurge: {x-kubernetes-int-or-string: true, default: 0}
"""
"""What matters here of the published one, with its defaults."""


class Controller:
    """Makes a StatefulSet of the leaders, as the controller does, and reports its state."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Controller:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._groups.cluster.client() as client:
            while not self._over.wait(0.2):
                try:
                    self._turn(client)
                except ApiError as error:
                    if error.status.code not in (404, 409):  # it was deleted, or changed meanwhile
                        raise

    def _turn(self, client: Any) -> None:
        found = client.get(LeaderWorkerSet, self._groups.name).to_dict()
        spec, replicas = found["spec"], found["spec"]["replicas"]
        templates = spec["leaderWorkerTemplate"]
        leaders = {
            "metadata": {"name": self._groups.name, "namespace": "default"},
            "spec": {
                "replicas": replicas,
                "serviceName": self._groups.name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": self._groups.labels},
                "template": templates.get("leaderTemplate") or templates["workerTemplate"],
            },
        }
        made: Any = StatefulSet.from_dict(leaders)
        own = client.apply(made, field_manager="lws", force=True).to_dict()
        state = own.get("status", {})
        if state.get("observedGeneration") != own["metadata"]["generation"]:
            return
        ready, updated = state.get("readyReplicas", 0), state.get("updatedReplicas", 0)
        kind = "Available" if ready == updated == replicas else "Progressing"
        generation = found["metadata"]["generation"]
        conditions = [
            {"type": each, "status": str(each in (kind, *self._under_way(updated, replicas)))}
            for each in ("Available", "Progressing", "UpdateInProgress")
        ]
        status = {
            "observedGeneration": generation,
            "replicas": state.get("replicas", 0),
            "readyReplicas": ready,
            "updatedReplicas": updated,
            "conditions": conditions,
        }
        if found.get("status") != status:
            client.replace(
                LeaderWorkerSet.Status(metadata=found["metadata"], status=status),
                self._groups.name,
                namespace="default",
            )

    @staticmethod
    def _under_way(updated: int, replicas: int) -> tuple[str, ...]:
        return ("UpdateInProgress",) if updated < replicas else ()


class Groups(Pods):
    """A LeaderWorkerSet of two groups, and its controller."""

    def __init__(self, cluster: KubernetesCluster, name: str, **more: Any) -> None:
        super().__init__(cluster, f"leaderworkerset/{name}", replicas=2, **more)
        self.resource, self.cluster = LeaderWorkerSet, cluster
        self.labels = {"app": name}
        leader = self._manifest["spec"].pop("template")
        log = {"name": "log", "image": "quiet:1", "args": ["sleep", "9999"]}
        leader["spec"]["containers"].append(log)
        worker = {"spec": {"containers": [{"name": "worker", "image": "ray:1", "args": ["start"]}]}}
        del self._manifest["spec"]["selector"]
        self._manifest["spec"]["leaderWorkerTemplate"] = {
            "leaderTemplate": leader,
            "workerTemplate": worker,
        }
        self._controller = Controller(self)

    def __enter__(self) -> Groups:
        self._controller.__enter__()
        super().__enter__()
        eventually(self._all_ready, what="its controller has seen the ready pods", within=60)
        return self

    def _all_ready(self) -> bool:
        found = self.object()
        return bool(found.get("status", {}).get("readyReplicas") == found["spec"]["replicas"])

    def __exit__(self, *exception: object) -> None:
        self._controller.__exit__(*exception)
        self.client.delete(StatefulSet, self.name)
        super().__exit__(*exception)

    def leader(self) -> dict[str, Any]:
        """The template of the leaders."""
        found: dict[str, Any] = self.object()["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        return found

    def args(self) -> list[str]:
        """The args of vLLM's container."""
        found: list[str] = self.leader()["spec"]["containers"][0]["args"]
        return found


@pytest.fixture(scope="module")
def cluster(kubernetes_cluster: KubernetesCluster) -> KubernetesCluster:
    """A cluster that knows the kind; ``quiet`` runs what its args say."""
    images = kubernetes_cluster.state / "images.json"
    images.write_text(json.dumps({**json.loads(images.read_text()), "quiet": ["env"]}))
    definition: Any = CustomResourceDefinition.from_dict(yaml.safe_load(DEFINITION))
    with kubernetes_cluster.client() as client:
        client.create(definition)

        def established() -> bool:
            found = client.get(CustomResourceDefinition, definition.metadata.name).to_dict()
            conditions = found.get("status", {}).get("conditions", ())
            return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

        eventually(established, what="the kind is served", within=30)
    return kubernetes_cluster


def test_cluster_without_the_kind_says_so(kubernetes_cluster: KubernetesCluster) -> None:
    with (
        Groups(kubernetes_cluster, "unknown").actuator() as actuator,
        pytest.raises(ActuatorError, match=r"leaderworkersets/unknown \(404\); install the"),
    ):
        actuator.plan()


def test_leaders_are_switched_off_and_on_again(cluster: KubernetesCluster) -> None:
    with Groups(cluster, "groups") as groups, groups.actuator() as actuator:
        before, template = actuator.status(), groups.leader()
        assert (before.life, before.mode) == (ProcessState.UP, Mode.ON)
        plan = actuator.plan()
        assert (plan.before, plan.after) == (tuple(ARGS), tuple(WITHOUT))
        assert "patch leaderworkerset/groups in namespace default" in plan.steps[0]
        actuator.disable(Claim("incident-1"))
        assert groups.args() == WITHOUT
        assert groups.speculating() == [False] * 2
        assert ANNOTATION in groups.annotations()
        off = actuator.status()
        assert (off.life, off.mode, off.stale) == (ProcessState.UP, Mode.OFF, False)
        assert off.instance != before.instance
        actuator.enable(Claim("incident-1"))
        assert groups.leader() == template  # with its other container, and all fields
        assert groups.speculating() == [True] * 2
        assert ANNOTATION not in groups.annotations()


def test_leaders_that_never_get_ready_are_put_back(cluster: KubernetesCluster) -> None:
    fragile = Groups(cluster, "fragile-groups", image="vllm-fragile")
    with fragile as groups, groups.actuator(timeout="8s") as actuator:
        with pytest.raises(ActuatorError, match=r"did not end within 8s: .* group") as failed:
            actuator.disable(Claim("incident-1"))
        assert failed.value.changed
        actuator.enable(Claim("incident-1"))
        assert groups.args() == ARGS
        assert groups.speculating() == [True] * 2


def test_controller_that_does_not_run_is_named(cluster: KubernetesCluster) -> None:
    groups = Groups(cluster, "unattended")
    with groups.client as client, groups.actuator() as actuator:
        client.create(LeaderWorkerSet.from_dict(groups._manifest))
        with pytest.raises(ActuatorError, match=r"install LeaderWorkerSet 0\.9 or later"):
            actuator.plan()
        client.delete(LeaderWorkerSet, groups.name)

"""Rollouts: how far one is, and what is recognised before it begins."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.actuators.kubernetes import rollout
from specwatch.guard.plan import ProcessState

COMPLETE = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
UNDER_WAY = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
OVERDUE = {
    "type": "Progressing",
    "status": "False",
    "reason": "ProgressDeadlineExceeded",
    "message": "has timed out progressing",
    "lastUpdateTime": "2026-11-25T14:00:00Z",
}


def deployment(
    *conditions: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    **status: int,
) -> dict[str, Any]:
    """Three replicas, all of them new and available, unless ``status`` says otherwise."""
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 3)
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "vllm",
            "namespace": "serving",
            "generation": 4,
            "annotations": {"deployment.kubernetes.io/revision": "7"},
            **(metadata or {}),
        },
        "spec": {
            "replicas": 3,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
            "template": {
                "metadata": {"labels": {"app": "vllm"}},
                "spec": {"containers": [{"name": "vllm", "image": "vllm"}], **(pod or {})},
            },
            **(spec or {}),
        },
        "status": {
            "observedGeneration": 4,
            "conditions": conditions or [COMPLETE],
            **counts,
            **status,
        },
    }


def statefulset(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    revisions = {"currentRevision": "vllm-b", "updateRevision": "vllm-b"}
    found = deployment(spec={"updateStrategy": {"type": "RollingUpdate"}, **(spec or {})})
    del found["spec"]["strategy"], found["status"]["conditions"]
    found["metadata"] = {**found["metadata"], "uid": "a1"}
    return {**found, "kind": "StatefulSet", "status": {**found["status"], **revisions, **status}}


def leader_worker_set(
    spec: dict[str, Any] | None = None,
    templates: dict[str, Any] | None = None,
    rolling: dict[str, Any] | None = None,
    in_progress: bool = False,
    **status: int,
) -> dict[str, Any]:
    """Three groups of a leader and a worker."""
    template = deployment()["spec"]["template"]
    default = {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}
    own = {
        "replicas": 3,
        "leaderWorkerTemplate": {
            "size": 2,
            "leaderTemplate": template,
            "workerTemplate": template,
            **(templates or {}),
        },
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {**default, **(rolling or {})},
        },
        **(spec or {}),
    }
    kind = "UpdateInProgress" if in_progress else "Available"
    found = deployment({"type": kind, "status": "True"}, **status)
    found["metadata"] = {**found["metadata"], "annotations": {}}
    del found["status"]["availableReplicas"]
    return {**found, "kind": "LeaderWorkerSet", "spec": own}


@pytest.mark.parametrize(
    ("workload", "life", "waits_for"),
    [
        (deployment(), "up", ""),
        (deployment(observedGeneration=3), "changing", "its controller has not seen the change"),
        (deployment(UNDER_WAY, updatedReplicas=1), "changing", "1 of 3 pods is new, 2 old"),
        (deployment(UNDER_WAY, replicas=4), "changing", "3 of 3 pods are new, 1 old"),
        (deployment(UNDER_WAY, availableReplicas=2), "changing", "2 of 3 pods available"),
        # After the rollout pods may die, and come back.
        (deployment(availableReplicas=2), "up", "2 of 3 pods available"),
        (deployment(availableReplicas=0), "down", "0 of 3 pods available"),
        (deployment(spec={"replicas": 0}), "stopped", ""),
        (statefulset(), "up", ""),
        (
            statefulset(updateRevision="vllm-c", updatedReplicas=1),
            "changing",
            "1 of 3 pods is new, 2 old",
        ),
        (
            statefulset(updateRevision="vllm-c", readyReplicas=2),
            "changing",
            "2 of 3 pods available",
        ),
        (statefulset(readyReplicas=0), "down", "0 of 3 pods available"),
        (leader_worker_set(), "up", ""),
        (
            leader_worker_set(observedGeneration=3),
            "changing",
            "its controller has not seen the change",
        ),
        (
            leader_worker_set(in_progress=True, updatedReplicas=1),
            "changing",
            "1 of 3 groups is new, 2 old",
        ),
        (
            leader_worker_set(in_progress=True, replicas=4),
            "changing",
            "3 of 3 groups are new, 1 old",
        ),
        (
            leader_worker_set(in_progress=True, readyReplicas=2),
            "changing",
            "2 of 3 groups available",
        ),
        (leader_worker_set(readyReplicas=2), "up", "2 of 3 groups available"),
    ],
)
def test_progress_is_what_the_controller_reports(
    workload: dict[str, Any], life: str, waits_for: str
) -> None:
    progress = rollout.progress_of(workload)
    assert (progress.life, progress.waits_for, progress.failed) == (life, waits_for, False)
    if workload["kind"] == "LeaderWorkerSet":
        return
    deployed = workload["kind"] == "Deployment"
    assert progress.revision == ("7" if deployed else workload["status"]["updateRevision"])


def test_revision_of_groups_follows_their_templates_and_not_their_number() -> None:
    changed = {"leaderTemplate": deployment(pod=in_containers(args=["tiny"]))["spec"]["template"]}
    revisions = [
        rollout.progress_of(workload).revision
        for workload in (
            leader_worker_set(),
            leader_worker_set({"replicas": 8}),
            leader_worker_set({}, changed),
        )
    ]
    assert revisions[0] == revisions[1] != revisions[2]


def test_leaders_have_the_template_of_workers_where_they_have_none() -> None:
    both, workers = leader_worker_set(), leader_worker_set({}, {"leaderTemplate": None})
    assert rollout.template_path(both) == ("leaderWorkerTemplate", "leaderTemplate")
    assert rollout.template_path(workers) == ("leaderWorkerTemplate", "workerTemplate")
    assert (
        rollout.pod_template(workers) == workers["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    )


def test_rollout_beyond_its_deadline_has_failed() -> None:
    progress = rollout.progress_of(deployment(OVERDUE, updatedReplicas=1))
    assert progress.failed
    assert progress.life is ProcessState.UP  # the old pods serve
    assert progress.waits_for == "its progress deadline is over: has timed out progressing"
    assert rollout.overdue(deployment(OVERDUE)) == "2026-11-25T14:00:00Z"
    assert rollout.overdue(deployment(COMPLETE)) == ""


@pytest.mark.parametrize(
    ("changes", "partition", "observed", "stuck"),
    [
        ({}, 0, 4, True),
        ({"ready": "True"}, 0, 4, False),
        ({"revision": "vllm-b"}, 0, 4, False),
        ({"ending": True}, 0, 4, False),
        ({"owner": "b2"}, 0, 4, False),  # a pod with the same labels, of a Job
        ({}, 2, 4, False),
        ({}, 0, 3, False),
    ],
)
def test_only_own_pods_of_an_earlier_revision_that_are_not_ready_are_stuck(
    changes: dict[str, Any], partition: int, observed: int, stuck: bool
) -> None:
    one = {"ready": "False", "revision": "vllm-a", "ending": False, "owner": "a1", **changes}
    pod = {
        "metadata": {
            "labels": {"controller-revision-hash": one["revision"]},
            "ownerReferences": [{"uid": one["owner"], "controller": True}],
            **({"deletionTimestamp": "2026-11-25T14:00:00Z"} if one["ending"] else {}),
        },
        "status": {"conditions": [{"type": "Ready", "status": one["ready"]}]},
    }
    rolling = {"updateStrategy": {"rollingUpdate": {"partition": partition}}}
    assert rollout.is_stuck(pod, statefulset(rolling, observedGeneration=observed)) is stuck


NODES = [{"metadata": {"name": f"gpu-{n}", "labels": {"gpu": "h100"}}} for n in range(3)]
CORDONED = {**NODES[0], "spec": {"unschedulable": True}}
OWN = {"app": "vllm"}


def apart(selector: dict[str, Any] | None, topology: str = "kubernetes.io/hostname") -> Any:
    term = {"topologyKey": topology, "labelSelector": selector}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": required}}


def in_containers(**parts: Any) -> dict[str, Any]:
    return {"containers": [{"name": "vllm", "image": "vllm", **parts}]}


def without_generation() -> dict[str, Any]:
    found = leader_worker_set()
    del found["status"]["observedGeneration"]
    return found


@pytest.mark.parametrize(
    ("workload", "refusal"),
    [
        (
            deployment(
                metadata={
                    "ownerReferences": [
                        {"kind": "InferenceService", "name": "chat", "controller": True}
                    ]
                }
            ),
            "belongs to InferenceService chat, whose controller puts its command back",
        ),
        (
            deployment(metadata={"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}),
            "annotate it with kustomize.toolkit.fluxcd.io/reconcile: disabled",
        ),
        (
            deployment(
                metadata={
                    "labels": {
                        "kustomize.toolkit.fluxcd.io/name": "apps",
                        "kustomize.toolkit.fluxcd.io/ssa": "Merge",
                    }
                }
            ),
            "Flux puts deployment/vllm back",
        ),
        (deployment(spec={"replicas": 0}), "has 0 replicas"),
        (deployment(spec={"paused": True}), "run `kubectl rollout resume deployment/vllm`"),
        (statefulset({"updateStrategy": {"type": "OnDelete"}}), "set RollingUpdate"),
        (
            statefulset(
                {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}
            ),
            "a partition of 2",
        ),
        (leader_worker_set(rolling={"partition": 2}), "groups below that number are not updated"),
        (without_generation(), "install LeaderWorkerSet 0.9 or later"),
        (
            leader_worker_set(
                {},
                {
                    "workerTemplate": deployment(
                        pod=in_containers(
                            command=["sh", "-c", "vllm serve tiny --headless --spec-method ngram"]
                        )
                    )["spec"]["template"]
                },
            ),
            "the workerTemplate of leaderworkerset/vllm has flags",
        ),
        (
            deployment(pod=apart({"matchLabels": OWN})),
            "its podAntiAffinity allows one pod a node, and 3 nodes for 3 pods leave no room",
        ),
        (
            deployment(
                pod=apart(
                    {
                        "matchExpressions": [
                            {"key": "app", "operator": "In", "values": ["vllm"]},
                            {"key": "track", "operator": "DoesNotExist"},
                        ]
                    }
                )
            ),
            "podAntiAffinity",
        ),
        (
            deployment(pod=in_containers(ports=[{"containerPort": 80, "hostPort": 80}])),
            "its pods use ports of their node",
        ),
        (deployment(pod={"hostNetwork": True, **in_containers()}), "ports of their node"),
        (
            deployment(pod={**apart({"matchLabels": OWN}), "nodeSelector": {"gpu": "b200"}}),
            "0 nodes for 3 pods leave no room",
        ),
    ],
)
def test_change_that_would_not_reach_the_pods_is_refused_with_the_remedy(
    workload: dict[str, Any], refusal: str
) -> None:
    (reason,) = rollout.refusals(workload, NODES)
    assert refusal in reason


@pytest.mark.parametrize(
    "workload",
    [
        deployment(),
        statefulset(),
        leader_worker_set(),
        deployment(
            metadata={
                "labels": {"kustomize.toolkit.fluxcd.io/name": "apps"},
                "annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"},
            }
        ),
        deployment(
            metadata={
                "labels": {
                    "kustomize.toolkit.fluxcd.io/name": "apps",
                    "kustomize.toolkit.fluxcd.io/ssa": "Ignore",
                }
            }
        ),
        deployment(pod=apart({"matchLabels": {"app": "other"}})),
        deployment(pod=apart(None)),
        deployment(pod=apart({"matchLabels": OWN}, "topology.kubernetes.io/zone")),
        deployment(
            pod=apart(
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["vllm"]}]}
            )
        ),
        deployment(
            pod=apart({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
            spec={"replicas": 2},
        ),
        deployment(pod=apart({"matchLabels": OWN}), spec={"strategy": {"type": "Recreate"}}),
        deployment(
            pod=apart({"matchLabels": OWN}),
            spec={
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
                }
            },
        ),
    ],
)
def test_change_that_can_roll_is_not_refused(workload: dict[str, Any]) -> None:
    assert list(rollout.refusals(workload, NODES)) == []


def test_cordoned_nodes_take_no_pods() -> None:
    workload = deployment(pod=apart({"matchLabels": OWN}), spec={"replicas": 2})
    assert list(rollout.refusals(workload, NODES)) == []
    assert len(list(rollout.refusals(workload, [CORDONED, *NODES[1:]]))) == 1


@pytest.mark.parametrize(
    ("workload", "note"),
    [
        (
            deployment(metadata={"annotations": {"argocd.argoproj.io/tracking-id": "a:apps"}}),
            "Argo CD manages deployment/vllm",
        ),
        (
            deployment(metadata={"labels": {"argocd.argoproj.io/instance": "a"}}),
            "RespectIgnoreDifferences=true",
        ),
        (deployment(metadata={"labels": {"helm.toolkit.fluxcd.io/name": "a"}}), "driftDetection"),
        (deployment(metadata={"labels": {"app.kubernetes.io/managed-by": "Helm"}}), "Helm manages"),
        (deployment(spec={"strategy": {"type": "Recreate"}}), "nothing is served until"),
        (
            deployment(pod=in_containers(resources={"limits": {"nvidia.com/gpu": "2"}})),
            "room for 1 pod more, with nvidia.com/gpu: 2",
        ),
        (
            leader_worker_set(
                {},
                {
                    "leaderTemplate": deployment(
                        pod=in_containers(resources={"limits": {"nvidia.com/gpu": "8"}})
                    )["spec"]["template"]
                },
                {"maxUnavailable": 0, "maxSurge": 1},
            ),
            "room for 1 group more, with nvidia.com/gpu: 8; otherwise the rollout ends at its"
            " `time",
        ),
        (deployment(pod=apart({"matchLabels": OWN})), "this account may not list nodes"),
    ],
)
def test_what_an_operator_should_see_before_it_is_noted(
    workload: dict[str, Any], note: str
) -> None:
    (noted,) = rollout.notes(workload, None)
    assert note in noted


def test_workload_without_peculiarities_has_no_notes() -> None:
    assert list(rollout.notes(deployment(), NODES)) == []
    assert list(rollout.notes(statefulset(), NODES)) == []
    assert list(rollout.notes(leader_worker_set(), NODES)) == []


def test_scalers_and_budgets_of_the_workload_are_noted() -> None:
    def scaler(name: str) -> dict[str, Any]:
        scaled = {"kind": "Deployment", "name": name}
        return {"metadata": {"name": name}, "spec": {"scaleTargetRef": scaled, "maxReplicas": 8}}

    def budget(name: str) -> dict[str, Any]:
        selector = {"matchLabels": {"app": name}}
        return {"metadata": {"name": name}, "spec": {"selector": selector}}

    scalers, budgets = [scaler("vllm"), scaler("other")], [budget("vllm"), budget("other")]
    scaled, limited = rollout.scaling_notes(deployment(), scalers, budgets)
    assert "HorizontalPodAutoscaler vllm may change the number of pods (1 to 8)" in scaled
    assert "PodDisruptionBudget vllm does not limit a rollout" in limited


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "pods"),
    [
        (3, "25%", "25%", (1, 0)),
        (8, "25%", "25%", (2, 2)),
        (3, 0, "10%", (0, 1)),
        (3, 2, 0, (2, 0)),
    ],
)
def test_percentages_of_a_rolling_update_are_rounded_as_kubernetes_does(
    replicas: int, surge: int | str, unavailable: int | str, pods: tuple[int, int]
) -> None:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert rollout.rolling_by(deployment(spec={"replicas": replicas, "strategy": strategy})) == pods


@pytest.mark.parametrize(
    ("workload", "share"),
    [
        (deployment(), 0.0),
        (deployment(spec={"replicas": 8}), 0.25),
        (deployment(spec={"strategy": {"type": "Recreate"}}), 1.0),
        (statefulset(), 1 / 3),
        (statefulset({"replicas": 1}), 1.0),
        (leader_worker_set(), 1 / 3),
        (leader_worker_set(rolling={"maxUnavailable": 0, "maxSurge": 1}), 0.0),
        (leader_worker_set(rolling={"maxUnavailable": 5}), 1.0),
    ],
)
def test_rollout_takes_only_some_pods_away(workload: dict[str, Any], share: float) -> None:
    assert rollout.interruption_of(workload) == share

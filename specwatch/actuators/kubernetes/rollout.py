"""Rollouts: how far one is, and in advance what would keep it from its end.

Source: ``kubectl rollout status``, that is ``polymorphichelpers/rollout_status.go`` of Kubernetes;
"Deployments", "StatefulSets" and "Assigning Pods to Nodes" of its documentation; for a
LeaderWorkerSet its API ``leaderworkerset.x-k8s.io/v1``, and ``updateConditions`` of its controller.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specwatch.actuators.kubernetes.container_command import Manifest
from specwatch.guard.plan import ProcessState
from specwatch.wording.figures import counted

_FLUX = "kustomize.toolkit.fluxcd.io/"
_FLUX_HELM = "helm.toolkit.fluxcd.io/"
LEADER_WORKER_SET = "LeaderWorkerSet"
_SPECULATION = re.compile(r"(^|\s)(--spec|-sc\b)")
"""A flag of speculation in a word, or in a text for a shell."""
_ARGO = ("argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rollout is. ``failed``: Kubernetes itself has given it up.

    ``revision`` identifies the pods' template; ``waits_for`` is empty at the end.
    """

    life: ProcessState
    revision: str
    waits_for: str
    failed: bool = False


def progress_of(workload: Manifest) -> Progress:
    """How far the rollout of a workload is."""
    status, replicas = workload.get("status", {}), workload["spec"].get("replicas", 1)
    if workload["kind"] == LEADER_WORKER_SET:  # whose status does not name the revision
        templates = workload["spec"]["leaderWorkerTemplate"]
        revision = hashlib.sha256(json.dumps(templates, sort_keys=True).encode()).hexdigest()[:10]
        available = status.get("readyReplicas", 0)
        complete = _condition(workload, "UpdateInProgress").get("status") != "True"
    elif workload["kind"] == "StatefulSet":
        revision = status.get("updateRevision", "")
        available = status.get("readyReplicas", 0)
        complete = revision == status.get("currentRevision", "")
    else:
        revision = _annotations(workload).get("deployment.kubernetes.io/revision", "")
        available = status.get("availableReplicas", 0)
        progressing = _condition(workload, "Progressing")
        complete = progressing.get("reason") == "NewReplicaSetAvailable"
    running = ProcessState.UP if available else ProcessState.DOWN
    if status.get("observedGeneration", 0) < workload["metadata"]["generation"]:
        return Progress(ProcessState.CHANGING, revision, "its controller has not seen the change")
    if overdue(workload):
        message = _condition(workload, "Progressing").get("message", "")
        why = f"its progress deadline is over: {message}"
        return Progress(running, revision, why, failed=True)
    if replicas == 0:
        return Progress(ProcessState.STOPPED, revision, "")
    updated = status.get("updatedReplicas", 0)
    old = status.get("replicas", 0) - updated
    if updated < replicas or old > 0:
        why = f"{updated} of {_counted(replicas, workload)} {'is' if updated == 1 else 'are'} new"
        return Progress(ProcessState.CHANGING, revision, f"{why}, {max(old, 0)} old")
    if available < replicas:
        life = running if complete else ProcessState.CHANGING
        why = f"{available} of {_counted(replicas, workload)} available"
        return Progress(life, revision, why)
    return Progress(ProcessState.UP, revision, "")


def overdue(workload: Manifest) -> str:
    """When Kubernetes gave up a Deployment's rollout; empty if it has not."""
    condition = _condition(workload, "Progressing")
    exceeded = condition.get("reason") == "ProgressDeadlineExceeded"
    return condition.get("lastUpdateTime", "") if exceeded else ""


def is_stuck(pod: Manifest, workload: Manifest) -> bool:
    """Whether a pod of an earlier revision keeps a StatefulSet from rolling: it is not ready.

    Source: "Forced rollback" in "StatefulSets": such a pod has to be deleted by hand.
    """
    status = workload.get("status", {})
    if status.get("observedGeneration", 0) < workload["metadata"]["generation"]:
        return False  # its update revision is that of the last change
    if _rolling(workload).get("partition"):
        return False  # pods below it are to be of the earlier revision
    # A selector may take in pods of others.
    owners = pod["metadata"].get("ownerReferences", ())
    if not any(one["uid"] == workload["metadata"]["uid"] for one in owners):
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    revision = _labels(pod).get("controller-revision-hash")
    ending = "deletionTimestamp" in pod["metadata"]
    return not ready and not ending and revision != status.get("updateRevision")


def refusals(workload: Manifest, nodes: Sequence[Manifest] | None) -> Iterator[str]:
    """Why a change would not reach the pods, each with the remedy.

    ``nodes`` are all nodes, None if they cannot be read.
    """
    spec, name, replicas = workload["spec"], named(workload), workload["spec"].get("replicas", 1)
    for owner in workload["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            yield (
                f"{name} belongs to {owner['kind']} {owner['name']}, whose controller puts its"
                " command back: remove speculation there"
            )
    marks = {**_labels(workload), **_annotations(workload)}
    rests = marks.get(f"{_FLUX}reconcile") == "disabled"
    rests = rests or marks.get(f"{_FLUX}ssa") in ("IfNotPresent", "Ignore")
    if f"{_FLUX}name" in marks and not rests:
        yield (
            f"Flux puts {name} back at its next reconciliation: annotate it with"
            f" {_FLUX}reconcile: disabled, or remove speculation in its repository"
        )
    if replicas == 0:
        yield f"{name} has 0 replicas: nothing runs that could be switched"
    if spec.get("paused"):
        yield f"{name} is paused: run `kubectl rollout resume {name}`"
    if spec.get("updateStrategy", {}).get("type") == "OnDelete":
        yield (
            f"{name} has updateStrategy OnDelete, so its pods stay as they are until somebody"
            " deletes them: set RollingUpdate"
        )
    if partition := _rolling(workload).get("partition"):
        yield (
            f"{name} has a partition of {partition}, and {_unit(workload)}s below that number are"
            " not updated: set it to 0"
        )
    if workload["kind"] == LEADER_WORKER_SET:
        yield from _refusals_of_groups(workload)
    need = needs_free_node(workload)
    if need and nodes is not None and (fitting := _fitting(nodes, workload)) <= replicas:
        yield (
            f"{name} can never roll: maxUnavailable is 0, so a new pod has to be ready before an"
            f" old one ends, but {need}, and {counted(fitting, 'node')} for"
            f" {counted(replicas, 'pod')} leave no room; set"
            " strategy.rollingUpdate.maxUnavailable: 1"
        )


def notes(workload: Manifest, nodes: Sequence[Manifest] | None) -> Iterator[str]:
    """What an operator should see before a rollout begins."""
    name, labels, strategy = named(workload), _labels(workload), workload["spec"].get("strategy")
    if any(key in {**labels, **_annotations(workload)} for key in _ARGO):
        yield (
            f"Argo CD manages {name}: a sync, with selfHeal at once, puts its command back, which"
            " the guard respects; to prevent that, list the container's args in ignoreDifferences"
            " of the Application, with the sync option RespectIgnoreDifferences=true"
        )
    elif f"{_FLUX_HELM}name" in labels:
        yield (
            f"a HelmRelease of Flux manages {name}: an upgrade puts its command back, which the"
            " guard respects; drift detection does so too, unless the container's args are listed"
            " in driftDetection.ignore"
        )
    elif labels.get("app.kubernetes.io/managed-by") == "Helm":
        yield f"Helm manages {name}: an upgrade puts its command back, which the guard respects"
    if strategy is not None and strategy["type"] == "Recreate":
        yield "its strategy is Recreate: nothing is served until the new pods are ready"
    elif workload["kind"] != "StatefulSet" and rolling_by(workload)[1] == 0:
        surge = rolling_by(workload)[0]
        if gpus := _gpus(workload):
            limit = "`timeout`" if workload["kind"] == LEADER_WORKER_SET else "progress deadline"
            yield (
                f"maxUnavailable is 0, so there has to be room for {_counted(surge, workload)}"
                f" more, with {gpus}; otherwise the rollout ends at its {limit}"
            )
        if nodes is None and (need := needs_free_node(workload)):
            yield (
                f"maxUnavailable is 0, and {need}: whether a node has room is unknown, since this"
                " account may not list nodes"
            )


def scaling_notes(
    workload: Manifest, scalers: Sequence[Manifest], budgets: Sequence[Manifest]
) -> Iterator[str]:
    """Notes on HorizontalPodAutoscalers and PodDisruptionBudgets of the workload's namespace."""
    own = {"kind": workload["kind"], "name": workload["metadata"]["name"]}
    for scaler in scalers:
        spec = scaler["spec"]
        if own.items() <= spec["scaleTargetRef"].items():
            yield (
                f"HorizontalPodAutoscaler {scaler['metadata']['name']} may change the number of"
                f" pods ({spec.get('minReplicas', 1)} to {spec['maxReplicas']}), as the load of"
                " each changes"
            )
    labels = _labels(pod_template(workload))
    for budget in budgets:
        if _matches(budget["spec"].get("selector"), labels):
            yield (
                f"PodDisruptionBudget {budget['metadata']['name']} does not limit a rollout: the"
                " strategy of the workload does"
            )


def rolling_by(workload: Manifest) -> tuple[int, int]:
    """How many pods, or groups, the rollout of a Deployment or a LeaderWorkerSet has more than the
    replicas, and fewer, at most."""
    replicas, rolling = workload["spec"].get("replicas", 1), _rolling(workload)
    more, fewer = (0, 1) if workload["kind"] == LEADER_WORKER_SET else ("25%", "25%")
    surge = math.ceil(_share(rolling.get("maxSurge", more), replicas))
    unavailable = math.floor(_share(rolling.get("maxUnavailable", fewer), replicas))
    return (surge, unavailable) if surge or unavailable else (0, 1)


def needs_free_node(workload: Manifest) -> str:
    """Why one pod more needs a node without any, where no old pod may end before; else empty."""
    template = pod_template(workload)
    strategy = workload["spec"].get("strategy", {"type": ""})
    if strategy["type"] != "RollingUpdate" or rolling_by(workload)[1] > 0:
        return ""
    ports = [port for one in template["spec"]["containers"] for port in one.get("ports", ())]
    if any(port.get("hostPort") for port in ports) or template["spec"].get("hostNetwork"):
        return "its pods use ports of their node"
    affinity = template["spec"].get("affinity", {}).get("podAntiAffinity", {})
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        own = _matches(term.get("labelSelector"), _labels(template))
        if own and term["topologyKey"] == "kubernetes.io/hostname":
            return "its podAntiAffinity allows one pod a node"
    return ""


def interruption_of(workload: Manifest) -> float:
    """The share of the pods that are away during a rollout, 0 to 1."""
    replicas: int = max(workload["spec"].get("replicas", 1), 1)
    if workload["kind"] == "StatefulSet":
        return 1 / replicas
    if workload["spec"].get("strategy", {}).get("type") == "Recreate":
        return 1.0
    return min(rolling_by(workload)[1] / replicas, 1.0)


def template_path(workload: Manifest) -> tuple[str, ...]:
    """Where in its spec the template of the pods that serve is."""
    if workload["kind"] != LEADER_WORKER_SET:
        return ("template",)
    templates = workload["spec"]["leaderWorkerTemplate"]
    own = "leaderTemplate" if templates.get("leaderTemplate") else "workerTemplate"
    return ("leaderWorkerTemplate", own)


def pod_template(workload: Manifest) -> Manifest:
    """The template of the pods that serve; in a LeaderWorkerSet those are the leaders."""
    template: Manifest = workload["spec"]
    for key in template_path(workload):
        template = template[key]
    return template


def named(workload: Manifest) -> str:
    """The workload as kubectl writes it."""
    return f"{workload['kind'].lower()}/{workload['metadata']['name']}"


def _labels(thing: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = thing.get("metadata", {}).get("labels", {})
    return labels


def _annotations(thing: Manifest) -> Mapping[str, str]:
    annotations: Mapping[str, str] = thing["metadata"].get("annotations", {})
    return annotations


def _condition(workload: Manifest, kind: str) -> Manifest:
    conditions = workload.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


def _rolling(workload: Manifest) -> Manifest:
    """How many pods are replaced at once, and which."""
    strategy, rolling = {
        "Deployment": ("strategy", "rollingUpdate"),
        "StatefulSet": ("updateStrategy", "rollingUpdate"),
        LEADER_WORKER_SET: ("rolloutStrategy", "rollingUpdateConfiguration"),
    }[workload["kind"]]
    limits: Manifest = workload["spec"].get(strategy, {}).get(rolling) or {}
    return limits


def _refusals_of_groups(workload: Manifest) -> Iterator[str]:
    name, templates = named(workload), workload["spec"]["leaderWorkerTemplate"]
    if "observedGeneration" not in workload.get("status", {}):
        yield (
            f"the controller of {name} does not report which change it has seen, or does not run:"
            " install LeaderWorkerSet 0.9 or later"
        )
    if templates.get("leaderTemplate"):
        workers = templates["workerTemplate"]["spec"]["containers"]
        words = [w for one in workers for w in (*one.get("command", ()), *one.get("args", ()))]
        if any(map(_SPECULATION.search, words)):
            yield (
                f"the workerTemplate of {name} has flags of speculation, too, and specwatch changes"
                " leaders only: use a service of kind command"
            )


def _unit(workload: Manifest) -> str:
    return "group" if workload["kind"] == LEADER_WORKER_SET else "pod"


def _counted(number: int, workload: Manifest) -> str:
    return counted(number, _unit(workload))


def _share(amount: int | str, replicas: int) -> float:
    return amount if isinstance(amount, int) else replicas * int(amount.removesuffix("%")) / 100


def _matches(selector: Manifest | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes in what has these labels; without one nothing is."""
    if selector is None:
        return False
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        {
            "In": labels.get(one["key"]) in one.get("values", ()),
            "NotIn": labels.get(one["key"]) not in one.get("values", ()),
            "Exists": one["key"] in labels,
            "DoesNotExist": one["key"] not in labels,
        }[one["operator"]]
        for one in selector.get("matchExpressions", ())
    )


def _fitting(nodes: Sequence[Manifest], workload: Manifest) -> int:
    """How many nodes take pods of the workload, by their labels."""
    wanted = pod_template(workload)["spec"].get("nodeSelector", {}).items()
    return sum(
        not node.get("spec", {}).get("unschedulable") and wanted <= _labels(node).items()
        for node in nodes
    )


def _gpus(workload: Manifest) -> str:
    """The GPUs of one pod, as its limits name them."""
    containers = pod_template(workload)["spec"]["containers"]
    limits = [one.get("resources", {}).get("limits", {}) for one in containers]
    return ", ".join(
        f"{name}: {amount}" for limit in limits for name, amount in limit.items() if "gpu" in name
    )

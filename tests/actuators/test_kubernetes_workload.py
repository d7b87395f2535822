"""The actuator of a workload where the API of Kubernetes answers with errors, or not at all."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specwatch.actuators.base import Claim, boottime
from specwatch.actuators.kubernetes.workload import ANNOTATION, KubernetesWorkload
from specwatch.config.service import KubernetesService
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from tests.fixtures import Serve
from tests.hostile import Visit
from tests.runtime.test_kubernetes_client import JSON, access_to

ARGS = ["tiny", "--spec-method", "ngram", "--spec-tokens", "3"]
Connect = Callable[..., KubernetesWorkload]


def workload(**changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), 1)
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "vllm",
            "namespace": "serving",
            "resourceVersion": "7",
            "generation": 1,
            "uid": "a1",
            "annotations": changes.get("annotations", {}),
        },
        "spec": {
            "selector": {},
            "replicas": 1,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm",
                            "args": ARGS,
                            **changes.get("container", {}),
                        }
                    ]
                }
            },
        },
        "status": {"observedGeneration": 1, **counts},
    }


class Api:
    """Answers for one Deployment; a patch is answered by ``patched``."""

    def __init__(self, found: dict[str, Any], patched: Callable[[Visit, dict[str, Any]], None]):
        self.found, self._patched = found, patched
        self.patches: list[dict[str, Any]] = []
        self.asked_for_pods = 0
        self.pods: Callable[[Visit], None] = lambda visit: refuse(visit, 503, "try again")

    def __call__(self, visit: Visit) -> bool:
        if visit.head.startswith("PATCH"):
            # What came together with the head is the beginning of the body.
            body = visit.head.partition("\r\n\r\n")[2].encode("latin-1")
            while len(body) < int(visit.headers["content-length"]):
                body += visit.receive()
            self.patches.append(json.loads(body))
            self._patched(visit, self.patches[-1])
        elif "/pods" in visit.path:
            self.asked_for_pods += 1
            self.pods(visit)
        elif "/configmaps/" in visit.path:
            code = 404 if visit.path.endswith("/missing") else 403
            refuse(visit, code, "no configmaps")
        else:
            answer(visit, self.found)
        return True  # the connection is used again


def answer(visit: Visit, body: object, status: str = "200 OK") -> None:
    visit.answer(json.dumps(body).encode(), status, JSON)


def refuse(visit: Visit, code: int, message: str) -> None:
    answer(visit, {"kind": "Status", "message": message, "code": code}, f"{code} No")


@pytest.fixture
def connect(serve: Serve, tmp_path: Path) -> Iterator[Connect]:
    """``connect(api)``: an actuator that asks it."""
    made: list[KubernetesWorkload] = []

    def connected(api: Api, name: str = "deployment/vllm") -> KubernetesWorkload:
        access = access_to(serve(api).url, tmp_path)
        service = KubernetesService(
            kind="kubernetes", workload=name, kubeconfig=access.kubeconfig, timeout="1s"
        )
        clock = itertools.count()
        made.append(
            KubernetesWorkload(service, sleep=lambda _: None, monotonic=lambda: next(clock))
        )
        return made[-1]

    yield connected
    for actuator in made:
        actuator.close()


def failure(act: Callable[[], object]) -> ActuatorError:
    with pytest.raises(ActuatorError) as failed:
        act()
    return failed.value


def test_without_its_lease_it_patches_nothing(connect: Connect) -> None:
    """Also where the lease ends after a patch that another change has crossed."""
    api = Api(workload(), lambda visit, _: refuse(visit, 409, "changed meanwhile"))
    ends = iter([boottime() + 60, 0.0])
    error = failure(lambda: connect(api).disable(Claim("a", until=lambda: next(ends))))
    assert "the lease of the guard has ended" in str(error)
    assert (error.changed, error.retry) == (False, True)
    assert len(api.patches) == 1


def test_patch_names_the_version_that_it_is_for(connect: Connect) -> None:
    def patched(visit: Visit, patch: dict[str, Any]) -> None:
        api.found["metadata"]["annotations"] = patch["metadata"]["annotations"]
        api.found["spec"]["template"]["spec"]["containers"][0]["args"] = ["tiny"]
        answer(visit, api.found)

    api = Api(workload(), patched)
    actuator = connect(api)
    actuator.disable(Claim("incident-1"))
    (patch,) = api.patches
    assert patch["metadata"]["resourceVersion"] == "7"
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "vllm", "command": None, "args": ["tiny"]}
    assert json.loads(patch["metadata"]["annotations"][ANNOTATION])["original"]["args"] == ARGS
    assert actuator.status().mode is Mode.OFF


def test_conflicts_are_tried_again_a_few_times(connect: Connect) -> None:
    api = Api(workload(), lambda visit, _: refuse(visit, 409, "modified"))
    error = failure(lambda: connect(api).disable(Claim("incident-1")))
    assert len(api.patches) == 5
    assert (error.changed, error.retry) == (False, True)
    assert "changed meanwhile" in str(error)


@pytest.mark.parametrize(
    ("patched", "changed", "retry", "reason"),
    [
        (lambda visit, _: refuse(visit, 403, "denied by a webhook"), False, False, "webhook"),
        (lambda visit, _: refuse(visit, 422, "invalid"), False, False, "invalid"),
        # Nobody knows whether it was done.
        (lambda visit, _: visit.reset(), True, True, "does not answer"),
        (lambda visit, _: refuse(visit, 500, "timed out"), True, True, "timed out"),
    ],
)
def test_failed_patch_says_whether_anything_may_have_changed(
    connect: Connect,
    patched: Callable[[Visit, dict[str, Any]], None],
    changed: bool,
    retry: bool,
    reason: str,
) -> None:
    error = failure(lambda: connect(Api(workload(), patched)).disable(Claim("incident-1")))
    assert (error.changed, error.retry) == (changed, retry)
    assert reason in str(error)


def nothing(_visit: Visit, patch: dict[str, Any]) -> None:
    raise AssertionError(patch)


def test_annotation_that_is_not_ours_is_named(connect: Connect) -> None:
    actuator = connect(Api(workload(annotations={ANNOTATION: "{}"}), nothing))
    for act in (actuator.plan, actuator.status, lambda: actuator.disable(Claim("incident-1"))):
        assert f"the annotation {ANNOTATION} of deployment/vllm cannot be" in str(failure(act))


def test_config_map_that_cannot_be_read_is_named(connect: Connect) -> None:
    reference = {"name": "SEED", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    container = {"args": [*ARGS, "--seed", "$(SEED)"], "env": [reference]}
    actuator = connect(Api(workload(container=container), nothing))
    error = failure(lambda: actuator.disable(Claim("incident-1")))
    assert "container vllm has values of ConfigMap c: " in str(error)
    assert not error.changed
    status = actuator.status()
    assert status.mode is None
    assert "no configmaps" in status.detail


@pytest.mark.parametrize("optional", [True, False])
def test_optional_config_map_may_be_missing(connect: Connect, optional: bool) -> None:
    missing = {"name": "missing", "optional": optional}
    one = {"name": "SEED", "valueFrom": {"configMapKeyRef": {**missing, "key": "k"}}}
    container = {
        "args": [*ARGS, "--seed", "$(SEED)"],
        "env": [one],
        "envFrom": [{"configMapRef": missing}],
    }
    status = connect(Api(workload(container=container), nothing)).status()
    assert status.mode is (Mode.ON if optional else None)


def test_without_speculation_there_is_nothing_to_switch(connect: Connect) -> None:
    actuator = connect(Api(workload(container={"args": ["tiny"]}), nothing))
    message = "deployment/vllm has no speculation in its command"
    assert message in str(failure(lambda: actuator.disable(Claim("incident-1"))))
    assert "somebody else removed it" in str(failure(lambda: actuator.enable(Claim("incident-1"))))
    assert actuator.status().mode is Mode.OFF


def test_enabled_again_nothing_is_done(connect: Connect) -> None:
    connect(Api(workload(), nothing)).enable(Claim("incident-1"))


STUCK = {
    "metadata": {
        "name": "vllm-0",
        "labels": {"controller-revision-hash": "vllm-a"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "vllm", "uid": "a1"}
        ],
    },
    "status": {"conditions": [{"type": "Ready", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        # What may pass is waited for, and so is a pod that is gone already.
        (lambda visit: refuse(visit, 503, "try again"), "within 1s: .*try again"),
        (
            lambda visit: (
                refuse(visit, 404, "gone")
                if visit.head.startswith("DELETE")
                else answer(visit, {"metadata": {}, "items": [STUCK]})
            ),
            "within 1s: 0 of 1 pod",
        ),
        (
            lambda visit: (
                refuse(visit, 403, "no deleting")
                if visit.head.startswith("DELETE")
                else answer(visit, {"metadata": {}, "items": [STUCK]})
            ),
            "no deleting .* a Role has to",
        ),
    ],
)
def test_stuck_pods_that_cannot_be_deleted(
    connect: Connect, answers: Callable[[Visit], None], reason: str
) -> None:
    stateful = workload()
    stateful |= {"kind": "StatefulSet", "spec": {**stateful["spec"], "serviceName": "vllm"}}
    stateful["status"] |= {"updatedReplicas": 0, "updateRevision": "vllm-b"}
    api = Api(stateful, nothing)
    api.pods = answers
    error = failure(lambda: connect(api, "statefulset/vllm").enable(Claim("incident-1")))
    assert error.changed
    assert re.search(reason, str(error))
    assert api.asked_for_pods


def test_missing_library_is_an_error_of_the_actuator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkube", None)
    service = KubernetesService(kind="kubernetes", workload="deployment/vllm")
    with closing(KubernetesWorkload(service)) as actuator:
        assert "pip install 'specwatch[kubernetes]'" in str(failure(actuator.status))

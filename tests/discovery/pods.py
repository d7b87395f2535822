"""Pods as an API server lists them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from lightkube.models.core_v1 import PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.core_v1 import Pod


def pod_of(owner: tuple[str, str] | None, labels: dict[str, str]) -> Pod:
    """A pod that is ready."""
    owners = (
        []
        if owner is None
        else [
            OwnerReference(
                apiVersion="apps/v1", kind=owner[0], name=owner[1], uid="u", controller=True
            )
        ]
    )
    status = {
        "podIP": "10.0.0.7",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "vllm",
                "image": "",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    }
    return Pod(
        metadata=ObjectMeta(
            name="vllm-0", namespace="serving", uid="1", labels=labels, ownerReferences=owners
        ),
        spec=PodSpec.from_dict({"containers": [{"name": "vllm"}]}),
        status=PodStatus.from_dict(status),
    )


def client_of(found: Sequence[Pod]) -> Any:
    """A client of an API server with these pods; they may change meanwhile."""

    class Client(SimpleNamespace):
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    cluster = SimpleNamespace(cluster=SimpleNamespace(server="http://api"))
    return Client(namespace="serving", config=cluster, list=lambda *_, **__: iter(found))

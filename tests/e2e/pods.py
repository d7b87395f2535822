"""Workloads of simulated vLLMs in the lab's Kubernetes."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.core_v1 import Pod

from specwatch.actuators.kubernetes.workload import KubernetesWorkload
from specwatch.config.service import KubernetesService
from tests.e2e.waiting import eventually
from tests.lab.kubernetes_cluster import KubernetesCluster

PORT = 8000
SPECULATION = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3})]
ARGS = ["tiny", "--host", "$(POD_IP)", "--port", str(PORT), *SPECULATION]
STARTS_WITHIN = 120.0


class Pods:
    """A Deployment or a StatefulSet, ``kind/name``, in the namespace ``default``."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        workload: str,
        *,
        image: str = "vllm",
        replicas: int = 3,
        metadata: Mapping[str, Any] | None = None,
        args: list[str] | None = None,
        pod: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        kind, _, self.name = workload.partition("/")
        self.workload, self._cluster = workload, cluster
        self.resource: Any = Deployment if kind == "deployment" else StatefulSet
        labels = {"app": self.name}
        self.container: dict[str, Any] = {
            "name": "vllm",
            "image": f"{image}:1",
            "args": args or ARGS,
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}},
        }
        template = {
            "metadata": {"labels": labels},
            "spec": {
                "containers": [self.container],
                "terminationGracePeriodSeconds": 1,
                **(pod or {}),
            },
        }
        own = {"serviceName": self.name} if kind == "statefulset" else {}
        self._manifest = {
            "metadata": {"name": self.name, "namespace": "default", **(metadata or {})},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": template,
                **own,
                **spec,
            },
        }
        self.client: Client = cluster.client()

    def __enter__(self) -> Pods:
        self.client.create(self.resource.from_dict(self._manifest))
        eventually(
            lambda: len(self.speculating()) == self._manifest["spec"]["replicas"],
            what=f"{self.workload} is up",
            within=STARTS_WITHIN,
            evidence=self.object,
        )
        return self

    def __exit__(self, *_exception: object) -> None:
        self.client.delete(self.resource, self.name)
        eventually(lambda: not self.pods(), what="its pods are gone", within=60)
        self.client.close()

    def actuator(self, *, kubeconfig: Path | None = None, timeout: str = "90s") -> Actuating:
        """The actuator of the workload, as a context manager."""
        service = KubernetesService(
            kind="kubernetes",
            workload=self.workload,
            timeout=timeout,
            kubeconfig=kubeconfig or self._cluster.kubeconfig,
        )
        return Actuating(service)

    def object(self) -> dict[str, Any]:
        """The workload as Kubernetes has it."""
        found: dict[str, Any] = self.client.get(self.resource, self.name).to_dict()
        return found

    def args(self) -> list[str]:
        """The args of its container."""
        found: list[str] = self.object()["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        found: dict[str, str] = self.object()["metadata"].get("annotations", {})
        return found

    def pods(self) -> list[dict[str, Any]]:
        """Its pods, those that end included."""
        return [pod.to_dict() for pod in self.client.list(Pod, labels={"app": self.name})]

    def speculating(self) -> list[bool]:
        """Of each pod that is ready and stays, whether its command asks for speculation."""
        return [
            "--speculative-config" in pod["spec"]["containers"][0]["args"]
            for pod in self._serving()
        ]

    def ready(self) -> list[str]:
        """The addresses of those pods."""
        return sorted(pod["status"]["podIP"] for pod in self._serving())

    def _serving(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"]
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions", ())
            )
        ]

    def write(self, args: list[str]) -> None:
        """Set the args as another tool does."""
        containers = [{"name": "vllm", "args": args}]
        body = {"spec": {"template": {"spec": {"containers": containers}}}}
        self.client.patch(self.resource, self.name, body)


class Balancer:
    """What a Service does, which nothing routes here: forwards connections to pods that are ready.

    Each goes to the next pod; with ``affine``, all go to one pod as long as it is ready
    (``sessionAffinity: ClientIP``). A connection lasts a second.
    """

    def __init__(self, pods: Pods, *, affine: bool) -> None:
        self._pods, self._affine = pods, affine
        self._server = socket.create_server(("127.0.0.1", 0))
        self._turns = itertools.count()
        self._chosen = ""
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]

    def __enter__(self) -> Balancer:
        self._threads[0].start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            self._threads.append(threading.Thread(target=self._forward, args=(connection,)))
            self._threads[-1].start()

    def _forward(self, connection: socket.socket) -> None:
        until = time.monotonic() + 1.0
        with contextlib.suppress(OSError), connection:
            pod = socket.create_connection((self._pod(), PORT), 5)
            with pod:
                while (left := until - time.monotonic()) > 0:
                    for source in select.select((connection, pod), (), (), left)[0]:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        (pod if source is connection else connection).sendall(data)

    def _pod(self) -> str:
        ready = self._pods.ready()
        if self._chosen not in ready or not self._affine:
            self._chosen = ready[next(self._turns) % len(ready)] if ready else ""
        return self._chosen


class Actuating(KubernetesWorkload):
    """Closed with its block."""

    def __enter__(self) -> Actuating:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

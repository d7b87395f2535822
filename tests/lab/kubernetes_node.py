"""A node of the lab's cluster: runs pods as local processes, with readiness probes and restarts.

``python kubernetes_node.py URL TOKEN STATE NETWORK``: ``STATE/images.json`` has a command for the
name of each image, without its tag; the container's command, else that one, gets its args.
A pod has an address of its own on the loopback, which is ``POD_IP`` in its environment. Variables
in ``$(NAME)`` are expanded as a kubelet does; ConfigMaps, volumes and limits are not there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NAME = "lab"
EVERY = 0.3
"""Seconds between two looks at the pods."""
BACK_OFF = 1.0
"""Seconds until a container that ended is started again."""
MERGE = "application/merge-patch+json"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def expanded(word: str, environment: dict[str, str]) -> str:
    """A word of a container with its variables, as the program gets it."""
    return re.sub(r"\$\((\w+)\)", lambda named: environment.get(named[1], named[0]), word)


class Api:
    """Requests to the API server."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._tls = ssl._create_unverified_context()

    def __call__(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._tls, timeout=10) as answer:
            return json.load(answer)


class Container:
    """One container of a pod as one local process."""

    def __init__(self, spec: dict[str, Any], address: str, state: Path, log: Path) -> None:
        self.spec, self.address, self.log = spec, address, log
        self._state = state
        self.restarts, self.ended_at = 0, 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        images = json.loads((self._state / "images.json").read_text())
        image = re.sub(r"(:[\w.-]+)?(@.*)?$", "", self.spec["image"])
        environment = {"POD_IP": self.address}
        for variable in self.spec.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = self.address if field == "status.podIP" else variable.get("value", "")
            environment[variable["name"]] = expanded(value, environment)
        words = [*(self.spec.get("command") or images.get(image, [])), *self.spec.get("args", [])]
        command = [expanded(word, environment) for word in words]
        self.started = now()
        with self.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *command],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"cannot start {command}: {error}\n".encode())
                self.process = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ready(self) -> bool:
        probe = self.spec.get("readinessProbe", {}).get("httpGet")
        if not self.alive or probe is None:
            return self.alive
        named = {port.get("name"): port["containerPort"] for port in self.spec.get("ports", ())}
        port = named.get(probe["port"], probe["port"])
        url = f"http://{self.address}:{port}{probe.get('path', '/')}"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status < 400)
        except OSError:
            return False

    def keep(self) -> None:
        """Start it again if it has ended."""
        if not self.alive:
            self.ended_at = self.ended_at or time.monotonic()
            if time.monotonic() - self.ended_at > BACK_OFF:
                self.restarts, self.ended_at = self.restarts + 1, 0.0
                self.start()

    def end(self, grace: float) -> None:
        if self.process is not None and self.alive:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def status(self) -> dict[str, Any]:
        running = {"running": {"startedAt": self.started}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        return {
            "name": self.spec["name"],
            "image": self.spec["image"],
            "imageID": "",
            "restartCount": self.restarts,
            "ready": self.ready(),
            "started": self.alive,
            "state": running if self.alive else waiting,
        }


class Node:
    """The node; ``network`` are the first three numbers of its pods' addresses."""

    def __init__(self, api: Api, state: Path, network: str) -> None:
        self._api, self._state, self._network = api, state, network
        self._pods: dict[str, tuple[str, list[Container]]] = {}
        self.stopping = False

    def run(self) -> None:
        beaten = 0.0
        while not self.stopping:
            try:
                if time.monotonic() - beaten > 5:
                    self._beat()
                    beaten = time.monotonic()
                self._turn()
            except OSError as error:
                print(f"{now()} {error}", flush=True)
                time.sleep(1)
            time.sleep(EVERY)
        for _, containers in self._pods.values():
            for container in containers:
                container.end(1)

    def _beat(self) -> None:
        metadata = {"name": NAME, "labels": {"kubernetes.io/hostname": NAME}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        try:
            self._api("POST", "/api/v1/nodes", body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        size = {"cpu": "64", "memory": "256Gi", "pods": "250", "nvidia.com/gpu": "64"}
        ready = {"type": "Ready", "status": "True", "reason": "Lab", "lastHeartbeatTime": now()}
        self._api(
            "PATCH",
            f"/api/v1/nodes/{NAME}/status",
            {"status": {"capacity": size, "allocatable": size, "conditions": [ready]}},
            "application/strategic-merge-patch+json",
        )
        self._api("PATCH", f"/api/v1/nodes/{NAME}", {"spec": {"taints": None}}, MERGE)

    def _turn(self) -> None:
        listed = self._api("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NAME}")["items"]
        for pod in listed:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if not meta.get("deletionTimestamp"):
                self._keep(pod, path)
                continue
            for container in self._pods.pop(meta["uid"], ("", []))[1]:
                container.end(meta.get("deletionGracePeriodSeconds", 30))
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            self._api("DELETE", path, body)
        for uid in self._pods.keys() - {pod["metadata"]["uid"] for pod in listed}:
            for container in self._pods.pop(uid)[1]:
                container.end(1)

    def _keep(self, pod: dict[str, Any], path: str) -> None:
        """Start a new pod; report the state of one that runs."""
        meta = pod["metadata"]
        if meta["uid"] not in self._pods:
            used = {address for address, _ in self._pods.values()}
            addresses = (f"{self._network}.{n}" for n in range(1, 255))
            address = next(each for each in addresses if each not in used)
            logs = self._state / "pods" / meta["namespace"] / meta["name"]
            logs.mkdir(parents=True, exist_ok=True)
            self._pods[meta["uid"]] = (
                address,
                [
                    Container(spec, address, self._state, logs / f"{spec['name']}.log")
                    for spec in pod["spec"]["containers"]
                ],
            )
        address, containers = self._pods[meta["uid"]]
        for container in containers:
            container.keep()
        statuses = [container.status() for container in containers]
        ready = "True" if all(status["ready"] for status in statuses) else "False"
        before = {c["type"]: c for c in pod["status"].get("conditions", [])}
        conditions = [
            before[kind]
            if before.get(kind, {}).get("status") == value
            else {"type": kind, "status": value, "lastTransitionTime": now()}
            for kind, value in {
                "Initialized": "True",
                "PodScheduled": "True",
                "ContainersReady": ready,
                "Ready": ready,
            }.items()
        ]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": "127.0.0.1",
            "startTime": pod["status"].get("startTime") or now(),
            "conditions": conditions,
            "containerStatuses": statuses,
        }
        if any(pod["status"].get(key) != value for key, value in status.items()):
            self._api("PATCH", f"{path}/status", {"status": status}, MERGE)


if __name__ == "__main__":
    url, token, state, network = sys.argv[1:]
    node = Node(Api(url, token), Path(state), network)
    signal.signal(signal.SIGTERM, lambda *_: setattr(node, "stopping", True))
    node.run()

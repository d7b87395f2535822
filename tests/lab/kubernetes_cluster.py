"""A real Kubernetes control plane on loopback, with one node that runs pods as local processes.

``python -m tests.lab.kubernetes_cluster`` builds it; what is there already is left alone.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Secret, ServiceAccount

from tests.lab.vllm_install import lab_folder
from tests.lab.vllm_server import free_port

VERSION, BUILD = "1.20.2", 2
"""Of Kubernetes, and of the script that builds it."""
HERE = Path(__file__).parent
START_TIMEOUT = 90.0
"""Seconds until the API server must answer; five on an idle machine with two cores."""


def kubernetes_folder() -> Path:
    """Where the control plane's programs are, whether or not they are there."""
    return lab_folder() / f"kubernetes-{VERSION}-{BUILD}"


def is_built() -> bool:
    """Whether the build in :func:`kubernetes_folder` was finished."""
    return (kubernetes_folder() / "installed").exists() and shutil.which("etcd") is not None


def build() -> Path:
    """Build it unless it is there, in about four minutes; returns its folder.

    Raises ``subprocess.CalledProcessError``; the reason is on stderr.
    """
    subprocess.run([HERE / "kubernetes_build.sh", kubernetes_folder()], check=True)
    return kubernetes_folder()


class KubernetesCluster:
    """One cluster: etcd, API server with RBAC, controllers, scheduler, and the node ``lab``.

    ``images`` are commands by the name of an image, without its tag. ``kubeconfig`` is that of an
    administrator. Several run side by side.
    """

    def __init__(self, folder: Path, state: Path, images: Mapping[str, Sequence[str]]) -> None:
        self._bin, self.state = folder / "bin", state
        self._port = free_port()
        self._etcd, self._etcd_peers = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        # Two clusters on one machine have other addresses.
        self.network = f"127.{self._port >> 8}.{self._port & 255}"
        """The first three numbers of the pods' addresses; the last is 1 to 254."""
        self._token = secrets.token_hex(16)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._certificate = state / "certs/apiserver.crt"
        state.mkdir(parents=True, exist_ok=True)
        (state / "images.json").write_text(json.dumps({k: [*v] for k, v in images.items()}))
        (state / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        key = ["openssl", "genrsa", "-out", str(state / "sa.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)
        self.kubeconfig = self._written_kubeconfig("admin", self._token)

    def start(self) -> None:
        """Start everything; returns when the API server answers."""
        self._start(
            "etcd",
            "etcd",
            "--data-dir",
            f"{self.state}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._etcd_peers}",
        )
        self.start_api_server()
        kubeconfig = f"--kubeconfig={self.kubeconfig}"
        # Port 0 of the insecure one closes it; the secure one has to be another each time.
        common = (kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--port=0")
        self._start(
            "controllers",
            f"{self._bin}/kube-controller-manager",
            *common,
            f"--secure-port={free_port()}",
            f"--cert-dir={self.state}/certs-controllers",
            f"--service-account-private-key-file={self.state}/sa.key",
            f"--root-ca-file={self._certificate}",
            "--use-service-account-credentials",
        )
        self._start(
            "scheduler",
            f"{self._bin}/kube-scheduler",
            *common,
            f"--secure-port={free_port()}",
            f"--cert-dir={self.state}/certs-scheduler",
        )
        node = HERE / "kubernetes_node.py"
        self._start(
            "node", sys.executable, str(node), self.url, self._token, str(self.state), self.network
        )

    def start_api_server(self) -> None:
        """Start the API server alone; returns when it answers."""
        self._start(
            "apiserver",
            f"{self._bin}/kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.state}/certs",
            f"--token-auth-file={self.state}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://lab",
            f"--service-account-key-file={self.state}/sa.key",
            f"--service-account-signing-key-file={self.state}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
        )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._is_ready():
            if time.monotonic() > deadline or self._processes["apiserver"].poll() is not None:
                self.stop()
                log = (self.state / "apiserver.log").read_text()[-4000:]
                raise RuntimeError(f"the API server does not answer: {log}")
            time.sleep(0.1)

    def stop_api_server(self) -> None:
        """Kill the API server alone; what runs goes on."""
        self._processes["apiserver"].kill()
        self._stop("apiserver")

    def stop(self) -> None:
        """Stop everything, pods first."""
        for name in ("node", "scheduler", "controllers", "apiserver", "etcd"):
            if name in self._processes:
                self._stop(name)

    def client(self) -> Client:
        """A client of the administrator."""
        return Client(KubeConfig.from_file(self.kubeconfig))

    def kubeconfig_of(self, account: str, namespace: str = "default") -> Path:
        """A kubeconfig of a service account, which is made if it is not there yet."""
        with self.client() as client:
            body = {"metadata": {"name": account, "namespace": namespace}}
            client.apply(ServiceAccount.from_dict(body), field_manager="lab")
            deadline = time.monotonic() + START_TIMEOUT
            while time.monotonic() < deadline:
                names = client.get(ServiceAccount, account, namespace=namespace).secrets or []
                for reference in names:
                    data = client.get(Secret, reference.name or "", namespace=namespace).data or {}
                    token = base64.b64decode(data["token"]).decode()
                    return self._written_kubeconfig(account, token, namespace)
                time.sleep(0.1)
        raise RuntimeError(f"the service account {account} got no token")

    def _written_kubeconfig(self, user: str, token: str, namespace: str = "default") -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self._certificate)}
        context = {"cluster": "lab", "user": user, "namespace": namespace}
        path = self.state / f"kubeconfig-{user}"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "lab", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": token}}],
                    "contexts": [{"name": "lab", "context": context}],
                    "current-context": "lab",
                }
            )
        )
        return path

    def _is_ready(self) -> bool:
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._token}"}
        )
        tls = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, context=tls, timeout=2) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    def _start(self, name: str, *command: str) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                # If the test run is killed, the cluster ends with it.
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    print(build())

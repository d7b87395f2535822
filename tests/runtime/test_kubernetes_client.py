"""Clients of Kubernetes: which account they have, and what their errors say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from lightkube.resources.apps_v1 import Deployment

from specwatch.config.service import KubernetesAccess
from specwatch.errors import ConfigError, KubernetesError, KubernetesReason
from specwatch.runtime.kubernetes_client import kubernetes_client, kubernetes_errors
from tests.fixtures import Serve
from tests.hostile import Visit

JSON = "Content-Type: application/json\r\n"


def access_to(url: str, folder: Path, **user: object) -> KubernetesAccess:
    """A kubeconfig with one context, ``here``; no authorities are read, which takes long."""
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    context = {"cluster": "lab", "user": "me", "namespace": "serving"}
    content = {
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "me", "user": user or {"token": "hunter2"}}],
        "contexts": [{"name": "here", "context": context}],
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return KubernetesAccess(kubeconfig=path)


def failure(access: KubernetesAccess, timeout: float = 10.0) -> KubernetesError:
    with (
        kubernetes_client(access, timeout=timeout) as client,
        pytest.raises(KubernetesError) as failed,
        kubernetes_errors(client),
    ):
        client.get(Deployment, "vllm")
    return failed.value


def test_account_and_namespace_are_those_of_the_kubeconfig(serve: Serve, tmp_path: Path) -> None:
    def behaviour(visit: Visit) -> None:
        body = {"metadata": {"name": "vllm"}, "spec": {"selector": {}, "template": {}}}
        visit.answer(json.dumps(body).encode(), headers=JSON)

    server = serve(behaviour)
    with kubernetes_client(access_to(server.url, tmp_path)) as client, kubernetes_errors(client):
        assert client.get(Deployment, "vllm").metadata.name == "vllm"
    assert server.paths == ["/apis/apps/v1/namespaces/serving/deployments/vllm"]
    assert server.visits[0].headers["authorization"] == "Bearer hunter2"


@pytest.mark.parametrize(
    ("code", "reason", "retry", "remedy"),
    [
        (401, KubernetesReason.UNAUTHORIZED, False, "check the token"),
        (403, KubernetesReason.FORBIDDEN, False, "a Role has to allow it"),
        (404, KubernetesReason.NOT_FOUND, False, ""),
        (409, KubernetesReason.CONFLICT, True, "changed meanwhile"),
        (422, KubernetesReason.REFUSED, False, ""),
        (429, KubernetesReason.UNREACHABLE, True, ""),
        (503, KubernetesReason.UNREACHABLE, True, ""),
    ],
)
def test_refusals_have_reasons_and_the_servers_words(
    serve: Serve, tmp_path: Path, code: int, reason: KubernetesReason, retry: bool, remedy: str
) -> None:
    status = json.dumps({"kind": "Status", "message": "deployments: no", "code": code}).encode()
    server = serve(lambda visit: visit.answer(status, f"{code} No", JSON))
    error = failure(access_to(server.url, tmp_path))
    assert (error.reason, error.retry) == (reason, retry)
    assert f"{server.url}: deployments: no ({code})" in str(error)
    assert remedy in str(error)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        ("502 Bad Gateway", "Content-Type: text/html\r\n", "502 Bad Gateway"),
        ("502 Bad Gateway", "", "is not Kubernetes"),
        ("200 OK", "Content-Type: text/html\r\n", "is not Kubernetes"),
    ],
)
def test_answer_of_another_server_than_kubernetes_is_no_answer(
    serve: Serve, tmp_path: Path, status: str, headers: str, message: str
) -> None:
    server = serve(lambda visit: visit.answer(b"<html>", status, headers))
    error = failure(access_to(server.url, tmp_path))
    assert error.reason is KubernetesReason.UNREACHABLE
    assert message in str(error)


def test_kind_that_the_server_does_not_know_is_named(serve: Serve, tmp_path: Path) -> None:
    text = "Content-Type: text/plain\r\n"
    server = serve(lambda visit: visit.answer(b"404 page not found", "404 Not Found", text))
    error = failure(access_to(server.url, tmp_path))
    assert (error.reason, error.retry) == (KubernetesReason.NOT_FOUND, False)
    assert "/apis/apps/v1/namespaces/serving/deployments/vllm (404); install" in str(error)


def test_silent_server_is_unreachable_after_the_timeout(serve: Serve, tmp_path: Path) -> None:
    error = failure(access_to(serve(Visit.hang).url, tmp_path), timeout=0.05)
    assert error.reason is KubernetesReason.UNREACHABLE
    assert "timed out" in str(error)


def test_program_of_the_kubeconfig_that_gives_no_token(tmp_path: Path) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/nowhere/token"}
    error = failure(access_to("http://127.0.0.1:9", tmp_path, exec=program))
    assert error.reason is KubernetesReason.UNAUTHORIZED
    assert "/nowhere/token" in str(error)


@pytest.mark.parametrize("text", ["- a list", "a: [", "clusters: []", "clusters: [{name: x}]"])
def test_unusable_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"the kubeconfig {path} "):
        kubernetes_client(KubernetesAccess(kubeconfig=path))


def test_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = access_to("http://127.0.0.1:9", tmp_path).kubeconfig
    with pytest.raises(ConfigError, match="'production' not found"):
        kubernetes_client(KubernetesAccess(kubeconfig=path, context="production"))


def test_neither_account_nor_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"not a pod with a service account, .*absent"):
        kubernetes_client(KubernetesAccess())


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkube", None)
    with pytest.raises(ConfigError, match=r"pip install 'specwatch\[kubernetes\]'"):
        kubernetes_client(KubernetesAccess())

"""Commands know the workloads of pods by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from specwatch.cli import calibration_sources, guard_plan
from specwatch.cli.load import measured_target
from specwatch.cli.options import load
from specwatch.config.loading import Config
from specwatch.config.service import KubernetesService
from specwatch.discovery import pods
from specwatch.errors import ConfigError
from tests.discovery.pods import client_of, pod_of

CHAT = "serving/deployment/chat"
POD = "serving/vllm-0"
OF_CHAT = (("ReplicaSet", "chat-5d8f9c7b6"), {"pod-template-hash": "5d8f9c7b6"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration that guards the workloads of pods in a namespace."""
    path = tmp_path / "specwatch.yml"
    path.write_text(
        f"database: sqlite:///{tmp_path}/specwatch.db\n"
        "discovery: [{kubernetes: {port: 8000, kubeconfig: /k, service: {kind: kubernetes}}}]\n"
    )
    return path


@pytest.fixture
def config(file: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(pods, "kubernetes_client", lambda _: client_of([pod_of(*OF_CHAT)]))
    return load(file)


@pytest.mark.parametrize("name", [CHAT, POD, None])
def test_what_is_guarded_is_the_workload_of_a_pod(config: Config, name: str | None) -> None:
    guarded = guard_plan.guarded(config, name)
    assert guarded.name == CHAT
    assert isinstance(guarded.service, KubernetesService)
    assert guarded.service.workload == "deployment/chat"


def test_what_is_not_guarded_is_refused(
    config: Config, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(click.BadParameter, match=f'has no target "chat".*{CHAT}'):
        guard_plan.guarded(config, "chat")
    monkeypatch.setattr(pods, "kubernetes_client", lambda _: client_of([]))
    with pytest.raises(ConfigError, match="no source has a target now"):
        guard_plan.guarded(config, CHAT)
    file.write_text(
        "discovery: [{file_sd: {files: [/nowhere/*.json]}}, {http_sd: {url: 'http://127.0.0.1:1'}}]\n"
    )
    with pytest.raises(ConfigError, match=r"nothing listens at http://127\.0\.0\.1:1"):
        guard_plan.guarded(load(file), None)


def given(file: Path, **more: Any) -> dict[str, Any]:
    nothing = {"off": None, "on": None, "target": None, "bearer_token_file": None, "database": None}
    return nothing | {"file": file} | more


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "options", [{"target": CHAT}, {"target": POD}, {"on": "http://10.0.0.7:8000"}], ids=str
)
def test_a_pod_is_calibrated_for_its_workload(file: Path, options: dict[str, Any]) -> None:
    """By whose measurements it is judged."""
    sources = calibration_sources.of(given(file, off="http://10.0.0.9:8000", **options))
    assert sources.target == CHAT
    assert sources.servers["--off"].url == "http://10.0.0.9:8000"


@pytest.mark.usefixtures("config")
def test_requests_are_sent_to_pods(file: Path) -> None:
    assert measured_target(given(file, target=POD)).url == "http://10.0.0.7:8000"
    with pytest.raises(ConfigError, match=f"is a workload.*one of its pods: {POD}"):
        measured_target(given(file, target=CHAT))

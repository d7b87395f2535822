"""What installs specwatch in Kubernetes is generated, fits together, and grants the least.

The end-to-end tests hand it to kustomize, Helm and an API server.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from specwatch import __version__
from specwatch.config.loading import parse
from specwatch.generate import kubernetes
from specwatch.generate.kubernetes import manifests
from specwatch.generate.tap import advise
from specwatch.vllm_cli.flags import MIDDLEWARE, RECORD
from specwatch.web.exported_metrics import EXPORTED
from tests.generate.boards import generated
from tests.generate.test_dashboard_queries import parsed, problems

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kustomize/base"
COMPONENTS = DEPLOY / "kustomize/components"
CHART = DEPLOY / "helm/specwatch"
BY_HAND = {"Containerfile", "vllm-tap.Containerfile"}
ANNOTATION = 256 << 10
"""Bytes that the annotations of an object may have."""


@pytest.fixture(autouse=True)
def _generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "dashboards", generated)


@cache
def documents(path: Path) -> list[Any]:
    return list(yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader))


def of_kind(kind: str) -> Any:
    """The only document of that kind in the base."""
    (found,) = (
        document
        for path in BASE.glob("*.yml")
        for document in documents(path)
        if document.get("kind") == kind
    )
    return found


def pod() -> Any:
    return of_kind("StatefulSet")["spec"]["template"]


def patches(component: str) -> list[Any]:
    (kustomization,) = documents(COMPONENTS / component / "kustomization.yml")
    return [
        operation
        for patch in kustomization["patches"]
        for operation in yaml.safe_load(patch["patch"])
    ]


def test_the_folder_holds_what_is_generated_and_nothing_else() -> None:
    there = {
        str(path.relative_to(DEPLOY)): path.read_text()
        for path in DEPLOY.rglob("*")
        if path.is_file()
    }
    assert {path: text for path, text in there.items() if path not in BY_HAND} == manifests()


def test_a_kustomization_has_every_file_beside_it() -> None:
    for kustomization in DEPLOY.rglob("kustomization.yml"):
        (document,) = documents(kustomization)
        generated = [
            file for each in document.get("configMapGenerator", ()) for file in each["files"]
        ]
        named = {*document.get("resources", ()), *document.get("components", ()), *generated}
        assert all((kustomization.parent / name).exists() for name in named)
        beside = {path.name for path in kustomization.parent.iterdir()} - {kustomization.name}
        assert beside <= named, kustomization


def test_all_selectors_are_for_the_pods() -> None:
    labels = pod()["metadata"]["labels"]
    assert of_kind("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("Service")["spec"]["selector"] == labels
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    (spread,) = pod()["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    (monitor,) = documents(COMPONENTS / "monitoring/service_monitor.yml")
    assert monitor["spec"]["selector"]["matchLabels"] == of_kind("Service")["metadata"]["labels"]
    assert monitor["spec"]["jobLabel"] in of_kind("Service")["metadata"]["labels"]
    assert of_kind("Service")["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "specwatch"


def test_ports_are_those_of_the_configuration() -> None:
    (container,) = pod()["spec"]["containers"]
    (port,) = container["ports"]
    (served,) = of_kind("Service")["spec"]["ports"]
    (monitor,) = documents(COMPONENTS / "monitoring/service_monitor.yml")
    names = {
        served["targetPort"],
        *(
            container[f"{kind}Probe"]["httpGet"]["port"]
            for kind in ("startup", "liveness", "readiness")
        ),
        of_kind("NetworkPolicy")["spec"]["ingress"][0]["ports"][0]["port"],
    }
    assert names == {port["name"]}
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [served["name"]]
    text = (BASE / "specwatch.yml").read_text()
    config = parse(text, "specwatch.yml", environ={}, hostname="pod-1")
    assert config.daemon == "specwatch", "the same for a replica that stands by"
    assert (config.listen.host, config.listen.port) == ("0.0.0.0", port["containerPort"])
    assert config.external_url.endswith(f":{served['port']}")


def test_files_of_the_configuration_are_mounted_for_the_user_of_the_image() -> None:
    (container,) = pod()["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["spec"]["volumes"]}
    (claim,) = of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert {*mounts.values()} == {*volumes, claim["metadata"]["name"]}
    assert "configMap" in volumes[mounts[str(Path(container["args"][-1]).parent)]]
    assert "secret" in volumes[mounts["/run/secrets/specwatch"]]
    assert claim["metadata"]["name"] == mounts["/var/lib/specwatch"]
    user, group = (pod()["spec"]["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
    assert f"\nUSER {user}:{group}\n" in (DEPLOY / "Containerfile").read_text()


def test_only_who_acts_may_change_anything() -> None:
    kinds = [
        each["kind"] for path in BASE.glob("*.yml") for each in documents(path) if "kind" in each
    ]
    assert "Role" not in kinds
    role, binding = documents(COMPONENTS / "kubernetes-api/role.yml")
    allowed = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {verb for _, verb in allowed} == {"get", "list"}
    assert (role["kind"], binding["roleRef"]["kind"]) == ("Role", "Role")
    added = [operation["value"] for operation in patches("act")]
    assert {verb for rule in added for verb in rule["verbs"]} == {"patch", "delete"}
    # The chart has the same rules, and those of `act` under a condition.
    chart = (CHART / "templates/role.yml").read_text()
    reading, _, acting = chart.partition("{{- if $.Values.kubernetesApi.act }}")
    acting, end, _ = acting.partition("{{- end }}")
    rules = [
        [yaml.safe_load(line)[0] for line in re.findall(r"^  (- \{api.*)$", text, re.M)]
        for text in (reading, acting)
    ]
    assert end
    assert rules == [role["rules"], added]


def test_rules_and_dashboards_are_those_of_prometheus_and_grafana() -> None:
    (resource,) = documents(CHART / "files/prometheus_rule.yml")
    (rules,) = documents(ROOT / "alerts/specwatch.rules.yml")
    here = json.dumps(resource["spec"]).replace("specwatch.specwatch:9469", "127.0.0.1:9469")
    assert json.loads(here) == rules
    boards = sorted(CHART.glob("files/*.json"))
    assert [board.name for board in boards] == sorted(
        p.name for p in (ROOT / "dashboards").glob("*.json")
    )
    for board in boards:
        assert json.loads(board.read_text()) == json.loads(
            (ROOT / "dashboards" / board.name).read_text()
        )
        applied = json.dumps({"data": {board.name: board.read_text()}})
        assert len(applied) + 1024 < ANNOTATION, board.name


def test_the_address_of_the_daemon_is_as_asked() -> None:
    files = manifests(external_url="https://watch.example")
    assert (
        "https://watch.example/runbook#specwatchdown"
        in files["helm/specwatch/files/prometheus_rule.yml"]
    )
    assert not any("specwatch.specwatch" in text for text in files.values())


@pytest.mark.parametrize("name", ["argo_rollouts.yml", "flagger.yml"])
def test_a_gate_asks_for_what_is_exported(name: str) -> None:
    queries = [
        document["spec"].get("query") or metric["provider"]["prometheus"]["query"]
        for document in documents(DEPLOY / name)
        for metric in document["spec"].get("metrics", [{}])
    ]
    names = {metric.name for metric in EXPORTED}
    for query in queries:
        plain = query.replace("{{args.least}}", "1").replace("{{args.target}}", "chat")
        plain = plain.replace("{{ variables.target }}", "chat")
        assert "{{" not in plain
        assert list(problems(parsed(plain))) == []
        assert set(re.findall(r"specwatch_\w+", plain)) <= names
    assert queries


def test_vllm_gets_the_tap_as_tap_flags_advises() -> None:
    (deployment,) = documents(DEPLOY / "vllm_with_tap.yml")
    spec = deployment["spec"]["template"]["spec"]
    (vllm,), (init,) = spec["containers"], spec["initContainers"]
    major, minor = re.search(r":v(\d+)\.(\d+)", vllm["image"]).groups()
    flags = {
        flag.flag: flag.value for flag in advise((int(major), int(minor)), environment={}).flags
    }
    assert {*flags} == {MIDDLEWARE, RECORD}
    assert [f"{flag}={value}" in vllm["args"] for flag, value in flags.items()] == [True, True]
    assert init["command"][-1] == vllm["env"][0]["value"] == init["volumeMounts"][0]["mountPath"]
    image = (DEPLOY / "Containerfile").read_text()
    folder = Path(next(word for word in init["command"] if word.endswith(".whl"))).parent
    assert f"--wheel-dir {folder} " in image
    assert f"source={folder}," in (DEPLOY / "vllm-tap.Containerfile").read_text()


def test_images_are_of_this_version() -> None:
    versions = {
        version
        for name in (*BY_HAND, "vllm_with_tap.yml", "kustomize/base/stateful_set.yml")
        for version in re.findall(
            r"\bspecwatch(?::|_tap-)(\d+\.\d+\.\d+)\b", (DEPLOY / name).read_text()
        )
    }
    assert versions == {__version__}

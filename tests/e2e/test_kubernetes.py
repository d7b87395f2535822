"""The guard's actuator against a real Kubernetes, whose pods are simulated vLLMs."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from lightkube.codecs import load_all_yaml

from specwatch.actuators.base import Claim
from specwatch.actuators.kubernetes.workload import ANNOTATION
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from specwatch.guard.plan import ProcessState
from tests.e2e.pods import ARGS, PORT, SPECULATION, Balancer, Pods
from tests.e2e.processes import CHECKOUT, DaemonProcess, specwatch
from tests.e2e.switching import prepare
from tests.e2e.waiting import eventually
from tests.lab.kubernetes_cluster import KubernetesCluster
from tests.lab.vllm_server import free_port

ONE = Claim("incident-1")
WITHOUT = ARGS[: -len(SPECULATION)]
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            }
        ]
    }
}


def failure(act: Callable[[], object]) -> ActuatorError:
    with pytest.raises(ActuatorError) as failed:
        act()
    return failed.value


@contextlib.contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Repeat something in another thread while the block runs; its failure is the test's."""
    over, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                act()
                over.wait(0.01)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failures == []


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
def test_speculation_is_switched_off_and_on_again(
    kubernetes_cluster: KubernetesCluster, kind: str
) -> None:
    with Pods(kubernetes_cluster, f"{kind}/there-and-back") as pods, pods.actuator() as actuator:
        before = actuator.status()
        assert before.mode is Mode.ON
        plan = actuator.plan()
        assert (plan.before, plan.after) == (tuple(ARGS), tuple(WITHOUT))
        actuator.disable(ONE)
        assert pods.args() == WITHOUT
        assert pods.speculating() == [False] * 3
        kept = json.loads(pods.annotations()[ANNOTATION])
        assert kept["original"]["args"] == ARGS
        assert kept["incident"] == "incident-1"
        off = actuator.status()
        assert (off.life, off.mode, off.stale) == (ProcessState.UP, Mode.OFF, False)
        assert off.instance != before.instance
        version = pods.object()["metadata"]["generation"]
        actuator.disable(ONE)
        assert pods.object()["metadata"]["generation"] == version
        assert "off already" in actuator.plan().notes[0]
        actuator.enable(ONE)
        assert pods.args() == ARGS
        assert pods.speculating() == [True] * 3
        assert ANNOTATION not in pods.annotations()
        on = actuator.status()
        assert (on.life, on.mode) == (ProcessState.UP, Mode.ON)
        assert on.instance != off.instance


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
def test_pods_that_never_become_ready_are_given_up_and_put_back(
    kubernetes_cluster: KubernetesCluster, kind: str
) -> None:
    more: dict[str, Any] = {"progressDeadlineSeconds": 6} if kind == "deployment" else {}
    fragile = Pods(kubernetes_cluster, f"{kind}/fragile", image="vllm-fragile", **more)
    timeout = "90s" if kind == "deployment" else "10s"
    with fragile as pods, pods.actuator(timeout=timeout) as actuator:
        error = failure(lambda: actuator.disable(ONE))
        assert error.changed
        expected = "deadline is over" if kind == "deployment" else "did not end within 10s"
        assert expected in str(error)
        assert True in pods.speculating()  # the others go on
        actuator.enable(ONE)
        assert pods.args() == ARGS
        assert pods.speculating() == [True] * 3


def test_changes_by_others_are_not_lost(kubernetes_cluster: KubernetesCluster) -> None:
    """Every patch names the version that it is for: one that is overtaken is made again."""
    with Pods(kubernetes_cluster, "deployment/contended") as pods, pods.actuator() as actuator:
        edits = iter(range(10**6))
        other = kubernetes_cluster.client()

        def edit() -> None:
            body = {"metadata": {"labels": {"edit": str(next(edits))}}}
            other.patch(pods.resource, pods.name, body)

        with other, meanwhile(edit):
            actuator.disable(ONE)
        assert pods.speculating() == [False] * 3
        assert pods.object()["metadata"]["labels"]["edit"] == str(next(edits) - 1)


def test_rollout_that_can_never_end_is_seen_in_advance(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    """Without the right to see nodes it is only noted, and put back after its deadline."""
    tight = Pods(
        kubernetes_cluster,
        "deployment/tight",
        replicas=1,
        strategy=ROLLING,
        pod={"affinity": APART},
        progressDeadlineSeconds=6,
    )
    with tight as pods:
        with pods.actuator() as actuator:
            assert "can never roll" in str(failure(actuator.plan))
        allow(kubernetes_cluster, "half-blind", ["get", "patch"])
        kubeconfig = kubernetes_cluster.kubeconfig_of("half-blind")
        with pods.actuator(kubeconfig=kubeconfig) as actuator:
            assert "may not list nodes" in actuator.plan().notes[0]
            assert "deadline is over" in str(failure(lambda: actuator.disable(ONE)))
            assert pods.speculating() == [True]
            actuator.enable(ONE)
            assert pods.args() == ARGS


def test_api_server_may_be_away_for_a_while(kubernetes_cluster: KubernetesCluster) -> None:
    with Pods(kubernetes_cluster, "deployment/patient") as pods, pods.actuator() as actuator:
        thread = threading.Thread(target=actuator.disable, args=(ONE,))
        thread.start()
        eventually(lambda: pods.args() == WITHOUT, what="the patch", within=60, every=0.01)
        kubernetes_cluster.stop_api_server()
        error = failure(actuator.status)
        assert error.retry
        assert "does not answer" in str(error)
        kubernetes_cluster.start_api_server()
        thread.join()
        assert pods.speculating() == [False] * 3


def allow(cluster: KubernetesCluster, account: str, verbs: list[str]) -> None:
    """Give a service account these rights on workloads."""
    role = {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": verbs}
    documents = [
        {"kind": "Role", "metadata": {"name": account}, "rules": [role]},
        {
            "kind": "RoleBinding",
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        },
    ]
    version = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    apply(cluster, yaml.safe_dump_all({**version, **one} for one in documents))


def apply(cluster: KubernetesCluster, text: str) -> None:
    """Create or change the objects of a text, as ``kubectl apply`` does."""
    with cluster.client() as client:
        for one in load_all_yaml(text):
            client.apply(one, namespace="default", field_manager="lab")  # type: ignore[call-overload]


def test_too_few_rights_are_named(kubernetes_cluster: KubernetesCluster) -> None:
    with Pods(kubernetes_cluster, "deployment/guarded", replicas=1) as pods:
        nobody = kubernetes_cluster.kubeconfig_of("nobody")
        with pods.actuator(kubeconfig=nobody) as actuator:
            for act in (
                actuator.plan,
                actuator.status,
                lambda: actuator.disable(ONE),
            ):
                error = failure(act)
                assert 'cannot get resource "deployments"' in str(error)
                assert (error.changed, error.retry) == (False, False)
        allow(kubernetes_cluster, "reader", ["get"])
        with pods.actuator(kubeconfig=kubernetes_cluster.kubeconfig_of("reader")) as actuator:
            assert actuator.status().mode is Mode.ON
            assert "but not patch it: a Role has to allow patch" in str(failure(actuator.plan))
            error = failure(lambda: actuator.disable(ONE))
            assert 'cannot patch resource "deployments"' in str(error)
            assert not error.changed
        assert pods.args() == ARGS


def test_role_of_the_manual_is_enough(kubernetes_cluster: KubernetesCluster) -> None:
    (text,) = re.findall(
        r"```yaml\n(apiVersion: v1\nkind: ServiceAccount.*?)```",
        (CHECKOUT / "docs/guard.md").read_text(),
        re.DOTALL,
    )
    apply(kubernetes_cluster, text.replace("namespace: serving", "namespace: default"))
    with Pods(kubernetes_cluster, "statefulset/vllm", image="vllm-fragile", replicas=1) as pods:
        kubeconfig = kubernetes_cluster.kubeconfig_of("specwatch")
        with pods.actuator(kubeconfig=kubeconfig, timeout="5s") as actuator:
            assert actuator.plan().notes == ()
            assert "did not end within" in str(failure(lambda: actuator.disable(ONE)))
        with pods.actuator(kubeconfig=kubeconfig) as actuator:
            actuator.enable(ONE)  # for this it deletes a pod
        assert pods.speculating() == [True]


@pytest.mark.parametrize("when", ["during the rollout", "afterwards"])
def test_command_put_back_by_another_tool_stays(
    kubernetes_cluster: KubernetesCluster, when: str
) -> None:
    """As Argo CD and Flux do; no failure: the guard sees the mode, and respects it."""
    with Pods(kubernetes_cluster, "deployment/synced") as pods, pods.actuator() as actuator:
        if when == "afterwards":
            actuator.disable(ONE)
            pods.write(ARGS)
        else:
            with kubernetes_cluster.client() as other:

                def put_back() -> None:
                    found = other.get(pods.resource, pods.name).to_dict()
                    spec = found["spec"]["template"]["spec"]
                    if spec["containers"][0]["args"] != ARGS:
                        pods.write(ARGS)

                with meanwhile(put_back):
                    actuator.disable(ONE)
        eventually(lambda: pods.speculating() == [True] * 3, what="it is back", within=60)
        state = actuator.status()
        assert (state.mode, state.stale) == (Mode.ON, False)
        actuator.enable(ONE)
        assert pods.args() == ARGS
        assert ANNOTATION not in pods.annotations()


def test_command_that_its_owner_changed_meanwhile_is_not_overwritten(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    edited = Pods(kubernetes_cluster, "deployment/edited", replicas=1)
    with edited as pods, pods.actuator() as actuator:
        actuator.disable(ONE)
        pods.write([*WITHOUT, "--seed", "7"])
        assert actuator.status().stale
        error = failure(lambda: actuator.enable(ONE))
        assert "was changed since speculation was switched off" in str(error)
        assert not error.changed
        assert pods.args() == [*WITHOUT, "--seed", "7"]


class GuardedDaemon:
    """A daemon with a guard of one workload, and its commands."""

    def __init__(self, pods: Pods, url: str, cluster: KubernetesCluster, folder: Path) -> None:
        self.database = f"sqlite:///{folder}/specwatch.db"
        service = {
            "kind": "kubernetes",
            "workload": pods.workload,
            "timeout": "20s",
            "kubeconfig": str(cluster.kubeconfig),
        }
        config = {
            "database": self.database,
            "targets": [{"name": "chat", "url": url, "interval": "1s", "service": service}],
            "guard": {"mode": "act", "cooldown": "0s", "drain_timeout": "1s"},
        }
        self.config = folder / "specwatch.yml"
        self.daemon = DaemonProcess.configured(folder, self.database, config)

    def run(self, *arguments: str) -> str:
        done = specwatch(*arguments, "--config", str(self.config))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.daemon.status()["targets"][0]["guard"]["state"] or {}
        return found

    def wait_for(self, phase: str) -> dict[str, Any]:
        eventually(
            lambda: self.state().get("phase") == phase,
            what=phase,
            within=120,
            evidence=lambda: (self.state(), self.daemon.log_text()[-4000:]),
        )
        return self.state()


@contextlib.contextmanager
def guarded(
    cluster: KubernetesCluster, folder: Path, image: str
) -> Iterator[tuple[Pods, GuardedDaemon]]:
    """One pod that listens at an address that stays: nothing routes Services here."""
    port = str(free_port())
    args = ["tiny", "--host", "0.0.0.0", "--port", port, *SPECULATION]
    one = Pods(
        cluster,
        "deployment/served",
        image=image,
        replicas=1,
        args=args,
        strategy={"type": "Recreate"},
        progressDeadlineSeconds=6,
    )
    probe = {"httpGet": {"path": "/health", "port": int(port)}}
    one.container["readinessProbe"] = probe
    with one as pods:
        guard = GuardedDaemon(pods, f"http://127.0.0.1:{port}", cluster, folder)
        with guard.daemon:
            guard.wait_for("observing")
            yield pods, guard


def test_guard_switches_and_respects_what_others_do(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    with guarded(kubernetes_cluster, tmp_path, "vllm") as (pods, guard):
        original = pods.args()
        plan = guard.run("guard", "plan", "chat")
        assert "deployment/served of Kubernetes" in plan
        assert "its strategy is Recreate" in plan
        checked = specwatch("check-config", "--config", str(guard.config))
        assert "patch deployment/served in namespace default" in re.sub(r"\s+", " ", checked.stdout)
        guard.run("guard", "disable", "chat", "--by", "ann")
        guard.wait_for("disabled")
        assert pods.speculating() == [False]
        pods.write(original)
        eventually(lambda: guard.state()["phase"] == "observing", what="it is seen", within=90)
        history = guard.run("guard", "history", "chat")
        assert "switched on by another tool" in re.sub(r"\s+", " ", history)
        assert pods.args() == original


def test_pods_behind_one_service_are_not_counted_as_restarts(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    """What a young one had counted before counts once at most, however often it answers."""
    with Pods(kubernetes_cluster, "deployment/balanced", replicas=2) as pods:
        for address in pods.ready():
            body = {"model": "tiny", "prompt": "x", "max_tokens": 64, "ignore_eos": True}
            url = f"http://{address}:{PORT}/v1/completions"
            requests.post(url, json=body, timeout=60).raise_for_status()
        database = f"sqlite:///{tmp_path}/specwatch.db"
        with Balancer(pods, affine=False) as balancer:
            target = {"name": "chat", "url": balancer.url, "interval": "1s"}
            with DaemonProcess.configured(tmp_path, database, {"targets": [target]}) as daemon:
                daemon.wait(
                    lambda found: "several" in {one["kind"] for one in found["problems"]},
                    what="it is a problem",
                )
                daemon.wait(
                    lambda found: found["targets"][0]["scrapes"] > 12, what="pods take turns"
                )
                daemon.stop()
                windows = daemon.windows(target="chat")
        assert sum(window.restarts for window in windows) > 4
        assert sum(window.tally.generation_tokens or 0 for window in windows) <= 64


def test_guard_of_several_replicas_follows_one_and_switches_all(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    """As the manual has it: a Service that stays at one pod, which the rollout replaces, too."""
    pods = Pods(kubernetes_cluster, "deployment/replicas", replicas=2)
    with pods, Balancer(pods, affine=True) as balancer:
        guard = GuardedDaemon(pods, balancer.url, kubernetes_cluster, tmp_path)
        with guard.daemon:
            guard.wait_for("observing")
            guard.run("guard", "disable", "chat", "--by", "ann")
            guard.wait_for("disabled")
            assert pods.speculating() == [False] * 2
            guard.run("guard", "enable", "chat", "--by", "ann")
            guard.wait_for("observing")
            assert pods.speculating() == [True] * 2
            kinds = {problem["kind"] for problem in guard.daemon.status()["problems"]}
            assert "several" not in kinds


def test_guard_puts_a_failed_rollout_back(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    with guarded(kubernetes_cluster, tmp_path, "vllm-fragile") as (pods, guard):
        specwatch("guard", "disable", "chat", "--by", "ann", "--config", str(guard.config))
        held = guard.wait_for("held")
        assert "deadline is over" in held["why"]
        assert pods.speculating() == [True]
        assert ANNOTATION not in pods.annotations()


def test_switch_at_run_time_reaches_one_pod_without_a_rollout(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path
) -> None:
    """Each pod is a target of its own; orders go to its address."""
    flags, environment = prepare(tmp_path, SPECULATION)
    for number in range(1, 255):
        (tmp_path / f"switch/{kubernetes_cluster.network}.{number}").mkdir()
    environment["SPECWATCH_SWITCH_DIRECTORY"] = f"{tmp_path}/switch/$(POD_IP)"
    args = [*WITHOUT, "--middleware", "specwatch_tap.Tap", *flags]
    three = Pods(kubernetes_cluster, "statefulset/switched", args=args)
    three.container["env"] += [{"name": k, "value": v} for k, v in environment.items()]
    with three as pods:
        before = pods.object()["metadata"]["generation"]
        urls = {
            pod["metadata"]["name"]: f"http://{pod['status']['podIP']}:{PORT}"
            for pod in pods.pods()
        }
        switch = {"token_file": str(tmp_path / "token")}
        targets = [
            {"name": n, "url": u, "interval": "1s", "switch": switch} for n, u in urls.items()
        ]
        database = f"sqlite:///{tmp_path}/specwatch.db"
        config = {"database": database, "targets": targets, "guard": {"mode": "act"}}
        with DaemonProcess.configured(tmp_path, database, config) as daemon:

            def phases() -> dict[str, Any]:
                found = daemon.status()["targets"]
                return {t["name"]: (t["guard"]["state"] or {}).get("phase") for t in found}

            calm = dict.fromkeys(urls, "observing")
            eventually(lambda: phases() == calm, what="all are watched", within=60)
            done = specwatch(
                "guard",
                "disable",
                "switched-1",
                "--by",
                "ann",
                "--config",
                str(tmp_path / "specwatch.yml"),
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert phases() == {**calm, "switched-1": "disabled"}
        assert pods.object()["metadata"]["generation"] == before
        assert pods.speculating() == [True] * 3

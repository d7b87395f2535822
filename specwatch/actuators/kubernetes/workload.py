"""One workload: its pods' command is patched, and the rollout watched.

What the owner wrote is kept in an annotation of the workload, beside what was written in its place:
any other command is somebody else's, and stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from specwatch.actuators.base import Claim
from specwatch.actuators.kubernetes import rollout
from specwatch.actuators.kubernetes.container_command import (
    Manifest,
    Rewritten,
    Words,
    container_of,
    variables_of,
    without_speculation,
)
from specwatch.actuators.kubernetes.rollout import LEADER_WORKER_SET
from specwatch.config.service import KubernetesService
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import (
    ActuatorError,
    CannotStrip,
    ConfigError,
    KubernetesError,
    KubernetesReason,
)
from specwatch.guard.plan import Plan, Service, left_over_totals
from specwatch.runtime.kubernetes_client import kubernetes_client, kubernetes_errors

if TYPE_CHECKING:
    from lightkube import Client

ANNOTATION = "specwatch.io/speculation-off"
"""Of the workload, while its pods run without speculation by us: a :class:`Change` as JSON."""
_MOST_CONFLICTS = 5
"""How often a patch is tried that somebody else's change crosses."""
_LOOK_SECONDS = 2.0
"""Between two looks at a rollout."""

_log = structlog.get_logger("specwatch.kubernetes")


class Change(msgspec.Struct, frozen=True):
    """What was written into a container, and what had been there."""

    container: str
    incident: str
    original: Words
    written: Words


class KubernetesWorkload:
    """An actuator for one thread at a time; connects when it is first used."""

    def __init__(
        self,
        service: KubernetesService,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._sleep = sleep
        self._monotonic = monotonic
        self._client: Client | None = None

    def plan(self) -> Plan:
        """What :meth:`disable` would do, with secrets masked."""
        workload = self._read()
        container, change = self._container(workload), change_of(workload)
        name, where = rollout.named(workload), f"container {container['name']}"
        if change is not None and Words.of(container) == change.written:
            return Plan(
                change.original.shown(),
                change.written.shown(),
                (),
                (f"wait for the rollout of {name}, if it still goes on",),
                (f"speculation is off already, by {ANNOTATION} for incident {change.incident}",),
            )
        from lightkube.resources.core_v1 import Node

        # A cluster may have thousands, and this is asked for again and again.
        nodes = self._listed(Node) if rollout.needs_free_node(workload) else ()
        if reasons := [*rollout.refusals(workload, nodes)]:
            raise ActuatorError("; ".join(reasons))
        result = self._without_speculation(workload)
        self._check_rights(workload)
        limit = format_duration(self._service.timeout)
        steps = (
            f"patch {name} in namespace {workload['metadata']['namespace']}: {where} without"
            f" speculation, and the annotation {ANNOTATION} with its command as it is now",
            f"wait for the rollout, {limit} at most",
            "if it fails, write the command back",
        )
        left_over = left_over_totals(one["name"] for one in container.get("env", ()))
        of_rollout = rollout.notes(workload, nodes)
        notes = (*result.notes, *left_over, *of_rollout, *self._scaling_notes(workload))
        return Plan(Words.of(container).shown(), result.words.shown(), (), steps, notes)

    def status(self) -> Service:
        """The workload now, as its controller reports it."""
        workload = self._read()
        progress = rollout.progress_of(workload)
        details = [progress.waits_for] if progress.waits_for else []
        mode: Mode | None = None
        change = change_of(workload)
        try:
            ours = change is not None and Words.of(self._container(workload)) == change.written
            mode = Mode.OFF if ours or not self._rewritten(workload).removed else Mode.ON
        except ActuatorError as error:
            details.append(str(error))
        stale = (
            change is not None
            and mode is not Mode.ON
            and Words.of(self._container(workload)) != change.written
        )
        if stale:
            details.append("its command was changed since speculation was switched off")
        return Service(
            progress.life,
            mode,
            progress.revision or None,
            "; ".join(details),
            stale,
            rollout.interruption_of(workload),
        )

    handover = 0.0
    """A patch of the workload as it was before another daemon's is refused, by its version."""

    def disable(self, claim: Claim) -> None:
        """Write the command without speculation, keep the original, and watch the rollout."""

        def edit(workload: Manifest) -> Words | None:
            container, change = self._container(workload), change_of(workload)
            if change is not None and Words.of(container) == change.written:
                return None
            result = self._without_speculation(workload)
            kept = Change(container["name"], claim.incident, Words.of(container), result.words)
            self._patch(workload, container, result.words, kept, claim)
            return result.words

        self._change(edit)

    def enable(self, claim: Claim) -> None:
        """Write the original command back, and watch the rollout."""

        def edit(workload: Manifest) -> Words | None:
            container, change = self._container(workload), change_of(workload)
            if change is None:
                if not self._rewritten(workload).removed:
                    raise ActuatorError(
                        f"{rollout.named(workload)} has no speculation, and no annotation"
                        f" {ANNOTATION} that keeps a command with it: somebody else removed it"
                    )
                return None
            words = Words.of(container)
            if words == change.written:
                words = change.original
            elif not self._rewritten(workload).removed:
                raise ActuatorError(
                    f"the command of {rollout.named(workload)} was changed since speculation was"
                    " switched off: write the flags of speculation into it yourself (the annotation"
                    f" {ANNOTATION} has them), or remove the annotation"
                )
            self._patch(workload, container, words, None, claim)
            return words

        self._change(edit)

    def close(self) -> None:
        """Close connections; the workload stays as it is."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- what is there

    def _connected(self) -> Client:
        if self._client is None:
            try:
                self._client = kubernetes_client(self._service)
            except ConfigError as error:
                raise ActuatorError(str(error)) from None
        return self._client

    @contextmanager
    def _requests(self, *, changed: bool = False) -> Iterator[Client]:
        """A client whose errors are ActuatorErrors."""
        client = self._connected()
        try:
            with kubernetes_errors(client):
                yield client
        except KubernetesError as error:
            raise ActuatorError(str(error), changed=changed, retry=error.retry) from error

    def _resource(self) -> Any:
        from lightkube.generic_resource import create_namespaced_resource
        from lightkube.resources.apps_v1 import Deployment, StatefulSet

        kind = self._service.workload.partition("/")[0]
        if kind == "leaderworkerset":
            group = "leaderworkerset.x-k8s.io"
            return create_namespaced_resource(group, "v1", LEADER_WORKER_SET, f"{kind}s")
        return Deployment if kind == "deployment" else StatefulSet

    def _read(self) -> Manifest:
        name = self._service.workload.partition("/")[2]
        with self._requests() as client:
            namespace = self._service.namespace or client.namespace
            workload: Manifest = client.get(self._resource(), name, namespace=namespace).to_dict()
        return workload

    def _container(self, workload: Manifest) -> Manifest:
        change = change_of(workload)
        name = self._service.container or (change.container if change else None)
        return container_of(rollout.pod_template(workload)["spec"]["containers"], name)

    def _rewritten(self, workload: Manifest) -> Rewritten:
        container = self._container(workload)

        def config_map(reference: Manifest) -> Mapping[str, str]:
            from lightkube.resources.core_v1 import ConfigMap

            name, namespace = reference["name"], workload["metadata"]["namespace"]
            try:
                with self._requests() as client:
                    return client.get(ConfigMap, name, namespace=namespace).data or {}
            except ActuatorError as error:
                missing = reason_of(error) is KubernetesReason.NOT_FOUND
                if missing and reference.get("optional"):
                    return {}
                message = f"container {container['name']} has values of ConfigMap {name}: {error}"
                raise CannotStrip(message, retry=error.retry) from error

        return without_speculation(container, variables_of(container, config_map))

    def _without_speculation(self, workload: Manifest) -> Rewritten:
        result = self._rewritten(workload)
        if not result.removed:
            raise CannotStrip(f"{rollout.named(workload)} has no speculation in its command")
        return result

    def _listed(self, resource: Any, **where: Any) -> list[Manifest] | None:
        """All objects of a kind; None where this account may not list them, or has none such."""
        try:
            with self._requests() as client:
                return [one.to_dict() for one in client.list(resource, **where)]
        except ActuatorError as error:
            if reason_of(error) in (KubernetesReason.FORBIDDEN, KubernetesReason.NOT_FOUND):
                return None
            raise

    def _scaling_notes(self, workload: Manifest) -> Iterator[str]:
        from lightkube.resources.autoscaling_v1 import HorizontalPodAutoscaler
        from lightkube.resources.policy_v1 import PodDisruptionBudget

        namespace = workload["metadata"]["namespace"]
        return rollout.scaling_notes(
            workload,
            self._listed(HorizontalPodAutoscaler, namespace=namespace) or (),
            self._listed(PodDisruptionBudget, namespace=namespace) or (),
        )

    def _check_rights(self, workload: Manifest) -> None:
        """Raise ActuatorError if this account may not patch the workload."""
        from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

        metadata, kind = workload["metadata"], f"{workload['kind'].lower()}s"
        asked = {key: metadata[key] for key in ("name", "namespace")}
        group = workload["apiVersion"].partition("/")[0]
        asked |= {"group": group, "resource": kind, "verb": "patch"}
        review: Any = SelfSubjectAccessReview.from_dict({"spec": {"resourceAttributes": asked}})
        with self._requests() as client:
            allowed = client.create(review).status.allowed
        if not allowed:
            raise ActuatorError(
                f"this account may read {rollout.named(workload)}, but not patch it: a Role has to"
                f" allow patch on {kind} in namespace {metadata['namespace']}"
            )

    # --- what is changed

    def _patch(
        self,
        workload: Manifest,
        container: Manifest,
        words: Words,
        change: Change | None,
        claim: Claim,
    ) -> None:
        """Write the words if nobody has changed the workload since it was read.

        The lease is checked after that: who is stopped here and goes on later is refused.
        """
        text = None if change is None else msgspec.json.encode(change).decode()
        from lightkube.types import PatchType

        written = {
            "name": container["name"],
            "command": list(words.command) or None,
            "args": list(words.args) or None,
        }
        containers, merge = [written], PatchType.STRATEGIC
        if workload["kind"] == LEADER_WORKER_SET:  # a list of a custom resource is replaced whole
            merge, present = PatchType.MERGE, rollout.pod_template(workload)["spec"]["containers"]
            own = {key: value for key, value in {**container, **written}.items() if value}
            containers = [own if one["name"] == own["name"] else one for one in present]
        spec: dict[str, Any] = {"spec": {"containers": containers}}
        for key in reversed(rollout.template_path(workload)):
            spec = {key: spec}
        version = workload["metadata"]["resourceVersion"]
        body = {
            "metadata": {"resourceVersion": version, "annotations": {ANNOTATION: text}},
            "spec": spec,
        }
        claim.require()
        with self._requests(changed=True) as client:
            client.patch(
                self._resource(),
                workload["metadata"]["name"],
                body,
                patch_type=merge,
                namespace=workload["metadata"]["namespace"],
            )

    def _change(self, edit: Callable[[Manifest], Words | None]) -> None:
        """Edit the workload, and watch its rollout.

        ``edit`` returns what it wrote; None if there was nothing to do.
        """
        for attempt in range(1, _MOST_CONFLICTS + 1):
            before = self._read()
            try:
                words = edit(before)
                break
            except ActuatorError as error:
                reason = reason_of(error)
                if reason is KubernetesReason.CONFLICT and attempt < _MOST_CONFLICTS:
                    continue
                # A patch that was answered with an error has changed nothing.
                lost = reason is KubernetesReason.UNREACHABLE and error.changed
                raise ActuatorError(str(error), changed=lost, retry=error.retry) from error
        known = "" if words is None else rollout.overdue(before)
        self._wait(words or Words.of(self._container(before)), known)

    def _wait(self, words: Words, known: str) -> None:
        """Return at the end of the rollout of ``words``, or once somebody else has changed them.

        ``known`` is when the rollout before it was given up. Raises ActuatorError for a rollout
        that failed or takes too long.
        """
        deadline = self._monotonic() + self._service.timeout
        while True:
            try:
                workload = self._read()
                if Words.of(self._container(workload)) != words:
                    _log.warning("kubernetes_changed_by_others", workload=self._service.workload)
                    return
                progress = rollout.progress_of(workload)
                if progress.failed and rollout.overdue(workload) != known:
                    raise ActuatorError(f"the rollout failed: {progress.waits_for}")
                if not progress.waits_for:
                    return
                waits_for = progress.waits_for
                self._delete_stuck_pods(workload)
            except ActuatorError as error:
                if not error.retry:
                    raise ActuatorError(str(error), changed=True) from error
                waits_for = str(error)
            if self._monotonic() > deadline:
                limit = format_duration(self._service.timeout)
                raise ActuatorError(
                    f"the rollout did not end within {limit}: {waits_for}", changed=True
                )
            self._sleep(_LOOK_SECONDS)

    def _delete_stuck_pods(self, workload: Manifest) -> None:
        """Delete pods that keep a StatefulSet from rolling, which it does not do itself."""
        from lightkube.resources.core_v1 import Pod

        if workload["kind"] != "StatefulSet":
            return
        namespace = workload["metadata"]["namespace"]
        labels = workload["spec"]["selector"].get("matchLabels", {})
        for pod in self._listed(Pod, namespace=namespace, labels=labels) or ():
            if rollout.is_stuck(pod, workload):
                name = pod["metadata"]["name"]
                _log.warning("kubernetes_deletes_stuck_pod", pod=name)
                try:
                    with self._requests() as client:
                        client.delete(Pod, name, namespace=namespace)
                except ActuatorError as error:
                    if reason_of(error) is not KubernetesReason.NOT_FOUND:
                        raise


def change_of(workload: Manifest) -> Change | None:
    """What we wrote into a workload, as its annotation keeps it.

    Raises ActuatorError for an annotation that is not ours.
    """
    text = workload["metadata"].get("annotations", {}).get(ANNOTATION)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Change)
    except msgspec.DecodeError as error:
        raise ActuatorError(
            f"the annotation {ANNOTATION} of {rollout.named(workload)} cannot be read ({error}):"
            " remove it once the command is as it should be"
        ) from None


def reason_of(error: ActuatorError) -> KubernetesReason | None:
    """Why the request behind an error failed; None for an error of another kind."""
    return error.__cause__.reason if isinstance(error.__cause__, KubernetesError) else None

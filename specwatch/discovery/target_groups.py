"""Target groups, the format in which Prometheus is given targets, and the targets in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml
from pydantic import ValidationError

from specwatch.config.discovery import DiscoverySource
from specwatch.config.service import KubernetesService
from specwatch.config.target import Target, TargetOptions
from specwatch.domain.model import PodInstance
from specwatch.errors import DiscoveryError, DiscoveryReason

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the former is faster, and not everywhere
_OF_EACH = {"labels", "group", "metrics_path"}
"""Options that a group may give a target, in place of those of the source."""


class Group(NamedTuple):
    """Targets (``host:port``) with the same labels, and the pod that serves them, if known.

    ``workload`` is ``deployment/NAME`` or another kind that can be restarted; empty without one.
    """

    targets: tuple[str, ...]
    labels: Mapping[str, str]
    pod: PodInstance | None = None
    workload: str = ""


class _WrittenGroup(msgspec.Struct, forbid_unknown_fields=True):
    targets: list[str] | None = None
    labels: dict[str, str] | None = None


def parse_groups(data: bytes, where: str, *, is_yaml: bool = False) -> tuple[Group, ...]:
    """The groups in a list of JSON or YAML; ``where`` begins the message of DiscoveryError."""
    kind = list[_WrittenGroup] | None
    try:
        # In YAML, too, values of labels are text: 8000 is "8000".
        written = (
            msgspec.convert(yaml.load(data, _Loader) or None, kind)  # noqa: S506
            if is_yaml
            else msgspec.json.decode(data, type=kind)
        )
    except (
        yaml.YAMLError,
        msgspec.MsgspecError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DiscoveryError(
            DiscoveryReason.MALFORMED,
            f"{where} is not a list of target groups: {' '.join(str(error).split())}; write it"
            ' like [{"targets": ["10.0.0.7:8000"], "labels": {"zone": "a"}}]',
        ) from None
    return tuple(Group(tuple(group.targets or ()), group.labels or {}) for group in written or ())


class TargetMaker:
    """Makes the targets of one source from its groups, and keeps those that do not change."""

    def __init__(self, source: DiscoverySource) -> None:
        self._source = source
        self._made: dict[object, Target | str] = {}
        self._shared = {
            name: getattr(source.target, name)
            for name in TargetOptions.model_fields.keys() - _OF_EACH
        }

    def targets(self, groups: Iterable[Group]) -> tuple[list[Target], list[str]]:
        """The targets, and a sentence about each that cannot be one."""
        made: dict[object, Target | str] = {}
        for group in groups:
            labels = tuple(group.labels.items())
            for address in group.targets:
                key = (address, labels, group.pod)
                made[key] = self._made.get(key) or self._target(address, group)
        self._made = made
        return (
            [one for one in made.values() if isinstance(one, Target)],
            [one for one in made.values() if isinstance(one, str)],
        )

    def _target(self, address: str, group: Group) -> Target | str:
        source, options = self._source, self._source.target
        given = {name: text for name, text in group.labels.items() if text}
        labels = {name: text for name, text in given.items() if not name.startswith("__")}
        scheme = given.get("__scheme__", source.scheme)
        path = given.get("__metrics_path__", options.metrics_path)
        if "/" in address or not address:
            return f"{address!r} is not an address; write host:port"
        # A prefix of the path is that of the server's other paths, too.
        prefix = path.removesuffix("/metrics")
        own: dict[str, Any] = {
            "name": labels.pop("instance", address),
            "group": labels.pop("group", options.group),
            "labels": {**options.labels, **labels},
            "url": f"{scheme}://{address}{prefix if prefix != path else ''}",
            "metrics_path": "/metrics" if prefix != path else path,
        }
        try:
            target = Target.model_validate(own).model_copy(update=self._shared)
        except ValidationError as error:
            problems = (str(one.get("ctx", {}).get("error", one["msg"])) for one in error.errors())
            return f"{address}: {'; '.join(problems)}"
        if group.pod is None:
            return target
        return target.in_pod(group.pod, self._workload(group, target))

    def _workload(self, group: Group, pod: Target) -> Target | None:
        """What is guarded in place of a pod: its workload, as a target that nothing scrapes."""
        source = self._source.kubernetes
        if source is None or source.service is None or not group.workload:
            return None
        namespace = pod.labels["namespace"]
        service = KubernetesService(
            kind="kubernetes", workload=group.workload, namespace=namespace
        ).model_copy(
            update={
                "kubeconfig": source.kubeconfig,
                "context": source.context,
                "container": source.service.container,
                "timeout": source.service.timeout,
            }
        )
        kind, _, name = group.workload.partition("/")
        return pod.model_copy(
            update={
                "name": f"{namespace}/{group.workload}",
                "url": f"http://{name}.{namespace}.{kind}",
                "labels": {},
                "service": service,
            }
        )


def merged(
    configured: Sequence[Target], sources: Sequence[tuple[str, Iterable[Target]]]
) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Configured targets, then those of sources, each with its title; of several with one name or
    URL the first. Beside them a sentence about each that is left out.
    """
    owners = {key: "the configuration" for target in configured for key in _keys(target)}
    kept, left_out = list(configured), []
    for title, targets in sources:
        for target in targets:
            taken = next((key for key in _keys(target) if key in owners), None)
            if taken is None:
                owners.update(dict.fromkeys(_keys(target), title))
                kept.append(target)
            else:
                left_out.append(
                    f"{target.name} at {target.metrics_url}, from {title}: {taken} is that of a"
                    f" target from {owners[taken]}"
                )
    return tuple(kept), tuple(left_out)


def _keys(target: Target) -> tuple[str, str]:
    return f"the name {target.name}", f"the URL {target.metrics_url}"

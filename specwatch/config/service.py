"""The section ``targets[].service``: how vLLM is run, and so how it is restarted."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, field_validator, model_validator

from specwatch.config.masking import masked
from specwatch.config.sections import AnyPath, Duration, SecretFile, Section, errors_at, within
from specwatch.domain.units import quoted

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,247}\.service")
_WORKLOADS = ("deployment", "statefulset", "leaderworkerset")
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def _a_program(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].startswith("/"):
        raise ValueError(
            "names no program by its full path; write a list, like [/usr/local/bin/switch, off]"
        )
    if any("\0" in word for word in value):
        raise ValueError("has a zero byte, which no command can have")
    return value


Command = Annotated[
    tuple[str, ...], AfterValidator(_a_program), PlainSerializer(masked, when_used="json")
]
"""A program by its full path and its arguments, run without a shell."""
Patience = Annotated[Duration, within(1, 7200)]
"""A timeout in seconds: 1s to 2h."""


class SystemdService(Section):
    """vLLM is a unit of systemd on this machine."""

    kind: Literal["systemd"]
    """Selects this kind of service."""
    unit: str = Field(examples=["vllm.service"])
    """Name of the unit; not a template."""
    scope: Literal["system", "user"] = "system"
    """Whether the unit belongs to the system's manager or to the user's."""
    timeout: Patience = 180.0
    """How long systemd may take for a restart, stopping vLLM included; 1s to 2h."""

    @field_validator("unit")
    @classmethod
    def _a_service(cls, value: str) -> str:
        if not _UNIT.fullmatch(value) or value.startswith((".", "-", "@")):
            raise ValueError(f"{quoted(value)} is not a unit name; write it like vllm.service")
        if value.endswith("@.service"):
            raise ValueError(f"{quoted(value)} is a template; name an instance: vllm@a.service")
        return value


class SupervisedService(Section):
    """vLLM is a child of specwatch: `specwatch run -- vllm serve …`."""

    kind: Literal["supervised"]
    """Selects this kind of service."""


class CommandService(Section):
    """Your commands, each a list of words that is run without a shell."""

    kind: Literal["command"]
    """Selects this kind of service."""
    disable: Command = Field(examples=["[/usr/local/bin/vllm-speculation, 'off']"])
    """Restarts vLLM without speculation."""
    enable: Command = Field(examples=["[/usr/local/bin/vllm-speculation, 'on']"])
    """Restarts vLLM with speculation."""
    status: Command | None = Field(
        default=None, examples=["[/usr/local/bin/vllm-speculation, status]"]
    )
    """Its output begins with `on` or `off`. Default: the configured mode of vLLM is unknown."""
    timeout: Patience = 600.0
    """How long each command may take; 1s to 2h."""


class KubernetesAccess(Section):
    """Which cluster, and as whom.

    Without these keys: the service account of the pod, else `$KUBECONFIG` or `~/.kube/config`.
    """

    kubeconfig: AnyPath | None = Field(default=None, examples=["/etc/specwatch/kubeconfig"])
    """Its path. Default: the pod's service account, else `$KUBECONFIG` or `~/.kube/config`."""
    context: str | None = Field(default=None, examples=["production"])
    """A context of the kubeconfig. Default: its current one."""


class RolloutOptions(Section):
    """vLLM is a container of a Deployment, a StatefulSet or a LeaderWorkerSet."""

    kind: Literal["kubernetes"]
    """Selects this kind of service."""
    container: str | None = Field(default=None, examples=["vllm"])
    """The container that runs vLLM. Default: the one whose command or image is vLLM's."""
    timeout: Patience = 1800.0
    """How long a rollout may take, all pods together; 1s to 2h."""


class KubernetesService(KubernetesAccess, RolloutOptions):
    """vLLM is a container of a Deployment, a StatefulSet or a LeaderWorkerSet."""

    workload: str = Field(examples=["deployment/vllm"])
    """`deployment/NAME`, `statefulset/NAME` or `leaderworkerset/NAME`, whose pods run vLLM."""
    namespace: str | None = Field(default=None, examples=["serving"])
    """Its namespace. Default: that of the service account, or of the kubeconfig's context."""

    @field_validator("workload")
    @classmethod
    def _a_workload(cls, value: str) -> str:
        kind, _, name = value.partition("/")
        if kind.lower() in ("daemonset", "pod", "replicaset"):
            raise ValueError(
                f"{quoted(kind)} cannot be switched by specwatch; use kind: command, or a"
                " Deployment, StatefulSet or LeaderWorkerSet"
            )
        if kind not in _WORKLOADS or not _OBJECT_NAME.fullmatch(name):
            raise ValueError(
                f"{quoted(value)} is not a workload; write deployment/NAME, statefulset/NAME or"
                " leaderworkerset/NAME"
            )
        return value


class SwitchAccess(Section):
    """How orders reach the switch of vLLM, which changes the number of draft tokens while it runs.

    One of the two keys; `specwatch tap flags --switch` prints what vLLM needs.
    """

    directory: AnyPath | None = Field(default=None, examples=["/run/vllm-switch"])
    """The `SPECWATCH_SWITCH_DIRECTORY` of a vLLM on this machine."""
    token_file: SecretFile | None = Field(
        default=None, examples=["/run/credentials/specwatch.service/switch-token"]
    )
    """File with the token of a vLLM that takes orders over HTTP, at the target's `url`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.directory is None) is (self.token_file is None):
            raise errors_at({(): "give directory or token_file, one of them"})
        return self


Service = Annotated[
    SystemdService | SupervisedService | CommandService | KubernetesService,
    Field(discriminator="kind"),
]
"""One of them, selected by ``kind``."""

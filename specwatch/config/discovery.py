"""The section ``discovery``: where targets are found while the daemon runs.

Keys, defaults and meanings are those of Prometheus, so that a section of its configuration can be
taken over.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from specwatch.config.http_access import HttpAccess, timeout_within
from specwatch.config.sections import (
    AnyPath,
    Duration,
    Limit,
    Listen,
    Section,
    each_once,
    errors_at,
    matching,
    not_empty,
    within,
)
from specwatch.config.service import KubernetesAccess, RolloutOptions
from specwatch.config.target import TargetOptions
from specwatch.domain.units import ListenAddress, parse_count, quoted, url_parts

Refresh = Annotated[Duration, within(1, 86400)]
"""Seconds between two looks at a source."""
Port = Annotated[int, BeforeValidator(parse_count), within(1, 65535, str)]


def _pattern(path: Path) -> Path:
    if not re.fullmatch(r"[^*]*(\*[^/]*)?\.(json|yml|yaml|JSON|YML|YAML)", str(path)):
        raise ValueError(
            f"{quoted(str(path))} is not a file of targets; end it with .json, .yml or .yaml, with"
            " at most one * in the last part"
        )
    return path


def _list_url(value: object) -> object:
    url_parts(
        value.partition("?")[0] if isinstance(value, str) else value,
        "http://127.0.0.1:8080/targets",
    )
    return value


_HOST = matching(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", "is not a host name without port")


class FileSource(Section):
    """Files of target groups, as Prometheus reads them (`file_sd_configs`)."""

    files: Annotated[
        tuple[Annotated[AnyPath, AfterValidator(_pattern)], ...],
        not_empty("name a file of targets"),
        each_once("file"),
    ] = Field(examples=["[/etc/specwatch/targets/*.json]"])
    """Files in JSON or YAML; the last part of a path may have one `*`."""
    refresh_interval: Refresh = 5.0
    """Time between two looks for changes; 1s to 1d."""

    def __str__(self) -> str:
        return f"file_sd {', '.join(map(str, self.files))}"


class HttpSource(HttpAccess):
    """Target groups from an HTTP server, as Prometheus reads them (`http_sd_configs`)."""

    url: Annotated[str, BeforeValidator(_list_url)] = Field(
        examples=["http://inventory.example/targets"]
    )
    """Where the list is; not secret."""
    refresh_interval: Refresh = 60.0
    """Time between two requests; 1s to 1d."""
    timeout: Duration = Field(default=None, validate_default=True)
    """How long a request may take. Default: 10s, or the refresh interval where that is shorter."""

    _within_refresh = timeout_within("refresh_interval", "the refresh interval", 10.0)

    @property
    def _called(self) -> str:
        return f"discovery from {self.url}"

    def __str__(self) -> str:
        return f"http_sd {self.url}"


class DnsSource(Section):
    """Records of DNS names, as Prometheus reads them (`dns_sd_configs`); needs the extra `dns`."""

    names: Annotated[
        tuple[Annotated[str, _HOST], ...], not_empty("name what to look up"), each_once("name")
    ] = Field(examples=["[_vllm._tcp.example.com]"])
    """Names to look up."""
    type: Literal["SRV", "A", "AAAA"] = "SRV"
    """Type of the records. SRV records have a port, for the others `port` is required."""
    port: Port | None = Field(default=None, validate_default=True, examples=["8000"])
    """Port of the targets, for A and AAAA."""
    refresh_interval: Refresh = 30.0
    """Time between two look-ups; 1s to 1d."""
    server: Listen | None = Field(default=None, examples=["127.0.0.1:8600"])
    """The DNS server, with its address. Default: those of `/etc/resolv.conf`."""

    @field_validator("port")
    @classmethod
    def _port_without_srv(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and info.data.get("type") in ("A", "AAAA"):
            raise PydanticKnownError("missing")
        return value

    @field_validator("server")
    @classmethod
    def _an_address(cls, value: ListenAddress | None) -> ListenAddress | None:
        try:
            return value and ListenAddress(str(ipaddress.ip_address(value.host)), value.port)
        except ValueError:
            raise ValueError(f"{quoted(str(value))} has no address; write 127.0.0.1:53") from None

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        return f"dns {self.type} {', '.join(self.names)}{port}"


class PodSource(KubernetesAccess):
    """Pods of Kubernetes; needs the extra `kubernetes`, and an account that may list pods.

    A pod is a target named `NAMESPACE/POD` from when it is ready for the first time, or its
    container restarts, until it is deleted. Its labels are `namespace`, `pod`, `container`, `node`,
    and those of the pod.
    """

    namespaces: Annotated[
        tuple[Annotated[str, matching(r"\*|[a-z0-9-]{1,63}", "is not a namespace")], ...],
        each_once("namespace"),
    ] = ()
    """Where to look; `*` is everywhere. Default: the namespace of the account or context."""
    selector: str = Field(default="", examples=["app=vllm"])
    """Which pods, by their labels, as `kubectl get pods --selector` takes it. Default: all."""
    port: int | str = Field(examples=["http"])
    """Name or number of the port; a pod without a port of that name is not a target."""
    service: RolloutOptions | None = None
    """How the Deployments, StatefulSets and LeaderWorkerSets of the pods are restarted. With it
    each of them is guarded as one server, named `NAMESPACE/KIND/NAME`."""
    refresh_interval: Refresh = 5.0
    """Time between two requests; 1s to 1d."""

    @field_validator("port", mode="before")
    @classmethod
    def _name_or_number(cls, value: object) -> int | str:
        if isinstance(value, str) and re.fullmatch(r"(?=.*[a-z])[a-z0-9-]{1,15}", value):
            return value
        number = parse_count(value)
        if number > 65535:
            raise ValueError(f"{number} is not a port; write 1 to 65535, or a port's name")
        return number

    def __str__(self) -> str:
        places = ", ".join(self.namespaces) or "own namespace"
        return f"kubernetes {places}: {self.selector or 'all pods'}, port {self.port}"


class DiscoverySource(Section):
    """A source of targets: one of `file_sd`, `http_sd`, `dns` and `kubernetes`, and what its
    targets have in common."""

    file_sd: FileSource | None = None
    """Files of target groups."""
    http_sd: HttpSource | None = None
    """An HTTP server that lists target groups."""
    dns: DnsSource | None = None
    """Records of DNS names."""
    kubernetes: PodSource | None = None
    """Pods of Kubernetes."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the targets' URLs, unless the label `__scheme__` has another."""
    target_limit: Limit = 2000
    """Targets above which a refresh fails, and those known before stay; 0 means any number."""
    target: TargetOptions = TargetOptions()
    """Options of the targets: those of `targets`, without `url`, `name`, `proxy`
    and `service`. A label that
    the source reports replaces the same one here."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            problem = f"has {' and '.join(given)}" if given else "has no kind"
            raise errors_at({(): f"{problem}; give one of {', '.join(_KINDS)}"})
        if self.target.service is not None:
            message = (
                "belongs to one target; list that target under targets, with its service, or for"
                " the workloads of pods give kubernetes.service"
            )
            raise errors_at({("target", "service"): message})
        if self.target.switch is not None and self.kubernetes and self.kubernetes.service:
            message = "orders each pod by itself; give it, or kubernetes.service, not both"
            raise errors_at({("target", "switch"): message})
        return self

    @property
    def settings(self) -> FileSource | HttpSource | DnsSource | PodSource:
        """What its kind needs."""
        given = (self.file_sd, self.http_sd, self.dns, self.kubernetes)
        return next(settings for settings in given if settings is not None)

    def __str__(self) -> str:
        """Its kind and where it looks: what it is called in every output."""
        return str(self.settings)


_KINDS = ("file_sd", "http_sd", "dns", "kubernetes")

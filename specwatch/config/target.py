"""The section ``targets``: a server to watch, and how to reach it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from specwatch.config.http_access import HttpAccess, timeout_within
from specwatch.config.sections import (
    ByteSize,
    Duration,
    Gpus,
    Limit,
    Name,
    Ratio,
    Section,
    each_once,
    matching,
    not_empty,
    within,
)
from specwatch.config.service import Service, SwitchAccess
from specwatch.domain.model import Objective, PageLimits, PodInstance
from specwatch.domain.units import (
    format_size,
    host_port,
    is_loopback,
    parse_arm,
    parse_engine_url,
    quoted,
    server_address,
)

_MOST_LABELS, _LONGEST_LABEL = 64, 1024
"""Labels of one target, and characters of the value of one."""


DraftTokens = Annotated[int, BeforeValidator(parse_arm)]


class Experiments(Section):
    """An experiment on live traffic: other numbers of draft tokens in short blocks at random times,
    compared with the launch."""

    arms: Annotated[
        tuple[DraftTokens, ...],
        not_empty("name numbers of draft tokens, like [0, 2]"),
        each_once("arm"),
    ] = Field(examples=["[0, 2]"])
    """Numbers of draft tokens beside the launch, which is always an arm. 0 is standby: the drafter
    still runs."""
    share: Annotated[Ratio, within(0.001, 0.5, "{:.1%}".format)] = 0.05
    """Share of the time for other arms than the launch; at most 50%."""
    block: Annotated[Duration, within(8, 3600)] = 60.0
    """How long each arm lasts; 8s to 1h. Where requests take longer than half a minute, 2m or
    more."""
    regret: Annotated[Ratio, within(0.001, 1.0, "{:.1%}".format)] = 0.02
    """Share of the time that slower arms may lose, at most."""
    tune: Literal["off", "observe", "act"] = "off"
    """Whether the best arm at each load becomes a schedule: `observe` proposes it for the launch,
    `act` also uses it between episodes, `off` does neither."""


class TargetOptions(HttpAccess):
    """Options of a target that several targets may share."""

    metrics_path: Annotated[
        str, matching(r"/[^\s#\x00-\x1f]*", "is not a path; write it like /metrics")
    ] = "/metrics"
    """Path of the metrics page, with a query where the server needs one: `/metrics?model=NAME`."""
    group: str = ""
    """The servers that do the same work, such as the replicas behind one router. Default: those
    that serve the same model."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Further labels, shown by the API and by `specwatch_target_info`."""
    interval: Annotated[Duration, within(1, 60)] = 5.0
    """Time between two scrapes; 1s to 1m."""
    timeout: Duration = Field(default=None, validate_default=True)
    """How long a scrape may take. Default: 4s, or the interval where that is shorter."""
    max_page_size: Annotated[ByteSize, within(1 << 10, 1 << 30, format_size)] = 16 << 20
    """Page size above which a scrape fails; 1KiB to 1GiB."""
    sample_limit: Limit = PageLimits().sample_limit
    """Samples of the families that specwatch reads, above which a scrape fails; 0 for no limit."""
    label_limit: Limit = PageLimits().label_limit
    """Labels of a sample, above which a scrape fails; 0 for no limit."""
    label_name_length_limit: Limit = PageLimits().label_name_length_limit
    """Bytes of the name of a label, above which a scrape fails; 0 for no limit."""
    label_value_length_limit: Limit = PageLimits().label_value_length_limit
    """Bytes of the value of a label, above which a scrape fails; 0 for no limit."""
    gpus: Gpus = "auto"
    """GPUs whose memory is recorded: `auto` is all GPUs of this machine for a server on it, else
    none. Needs the extra `gpu`."""
    service: Service | None = None
    """How vLLM is run, by its `kind`. Without it the guard cannot switch speculation."""
    switch: SwitchAccess | None = None
    """How the number of draft tokens is changed while vLLM runs."""
    experiments: Experiments | None = None
    """Whether other numbers of draft tokens are tried on live traffic; needs `switch`."""
    objective: Objective = Objective.E2E
    """What must become faster: whole requests (`e2e`), time per token (`tpot`) or time to
    the first token (`ttft`)."""
    draft_cost_ratio: Ratio = 0.1
    """Cost of a draft token in steps of the target model, assumed until it is measured;
    above 0, at most 1."""

    @field_validator("labels")
    @classmethod
    def _few_and_named(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if len(value) > _MOST_LABELS:
            raise ValueError(f"has {len(value)} labels; give at most {_MOST_LABELS}")
        for name, text in value.items():
            if not name or name.startswith("__") or not name.isprintable():
                raise ValueError(f"{quoted(name)} is not a label; use letters, digits and _")
            if len(text) > _LONGEST_LABEL:
                raise ValueError(
                    f"{quoted(name)} has {len(text)} characters; use at most {_LONGEST_LABEL}"
                )
        return value

    @field_validator("group", "labels")
    @classmethod
    def _of_characters(cls, value: str | Mapping[str, str]) -> str | Mapping[str, str]:
        for text in (value,) if isinstance(value, str) else value.values():
            if re.search("[\0\ud800-\udfff]", text):
                raise ValueError(
                    f"{text!a} has NUL or half of a surrogate pair in it; leave that out"
                )
        return value

    _within_interval = timeout_within("interval", "the interval", 4.0)

    @field_validator("draft_cost_ratio")
    @classmethod
    def _cheaper_than_the_target(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(
                f"{value:g} is not above 0 and at most 1; give what a token of the draft model"
                " costs over one of the target model, like 0.1"
            )
        return value

    @field_validator("experiments")
    @classmethod
    def _possible(cls, value: Experiments | None, info: ValidationInfo) -> Experiments | None:
        if value is None:
            return None
        if info.data.get("switch") is None:
            raise ValueError("needs a switch, to change the number of draft tokens")
        if 8 * info.data.get("interval", 0.0) > value.block:
            raise ValueError(
                "a block needs at least 8 scrapes: make interval shorter, or block longer"
            )
        return value


class Target(TargetOptions):
    """One server to watch."""

    url: Annotated[str, BeforeValidator(parse_engine_url)] = Field(
        examples=["http://127.0.0.1:8000"]
    )
    """Base URL of the server, without `/metrics` and `/v1`."""
    name: Name = Field(default=None, validate_default=True)
    """Name in every output. Default: host and port of the URL; for a loopback URL the host
    is this machine's name."""
    proxy: Annotated[str, BeforeValidator(parse_engine_url)] | None = Field(
        default=None, examples=["http://127.0.0.1:8001"]
    )
    """Base URL of a `specwatch tap proxy` in front of this server."""

    @field_validator("name", mode="wrap")
    @classmethod
    def _default_name(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> str:
        if value is not None:
            return str(handler(value))
        if "url" not in info.data:
            return ""  # the URL's own problem is reported
        host, port = server_address(info.data["url"])
        if is_loopback(host) and info.context:
            host = info.context.hostname
        return str(handler(host_port(host, port)))

    @field_validator("proxy")
    @classmethod
    def _another_server(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value == info.data.get("url"):
            raise ValueError(
                "is the server's own url; give the server's as url, and as proxy that of"
                " `specwatch tap proxy`, or remove it"
            )
        return value

    _pod: PodInstance | None = PrivateAttr(default=None)
    _workload: Target | None = PrivateAttr(default=None)

    @property
    def pod(self) -> PodInstance | None:
        """The pod that serves it, if discovery reported one."""
        return self._pod

    @property
    def workload(self) -> Target | None:
        """The workload of its pod, if that is guarded as one server."""
        return self._workload

    def in_pod(self, pod: PodInstance, workload: Target | None = None) -> Self:
        """The same target, served by a pod, of a workload."""
        target = self.model_copy()
        target._pod, target._workload = pod, workload
        return target

    @property
    def metrics_url(self) -> str:
        """URL of the metrics page."""
        return self.url + self.metrics_path

    @property
    def page_limits(self) -> PageLimits:
        """Limits of its pages, and of its proxy's."""
        return PageLimits(**{name: getattr(self, name) for name in PageLimits._fields})

    @property
    def gpu_indices(self) -> tuple[int, ...] | None:
        """NVML indices of the GPUs that belong to this target; None for all of this machine."""
        if self.gpus == "none":
            return ()
        if self.gpus == "auto":
            return None if is_loopback(server_address(self.url)[0]) else ()
        return self.gpus

    @property
    def _called(self) -> str:
        return f"target {self.name}"

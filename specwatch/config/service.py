"""The section ``targets[].service``: how vLLM is run, and so how it is restarted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from specwatch.config.masking import masked
from specwatch.config.sections import Duration, Section
from specwatch.config.yaml_file import KeyPath
from specwatch.domain.units import format_duration, quoted

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,247}\.service")


def _a_program(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].startswith("/"):
        raise ValueError(
            "names no program by its full path; write a list, like [/usr/local/bin/switch, off]"
        )
    if any("\0" in word for word in value):
        raise ValueError("has a zero byte, which no command can have")
    return value


def _bearable(value: float) -> float:
    if not 1 <= value <= 7200:
        raise ValueError(f"{format_duration(value)} is outside 1s to 2h")
    return value


Command = Annotated[
    tuple[str, ...], AfterValidator(_a_program), PlainSerializer(masked, when_used="json")
]
"""A program by its full path and its arguments, run without a shell."""
Patience = Annotated[Duration, AfterValidator(_bearable)]
"""Seconds that something may take which nobody waits for in vain: 1s to 2h."""


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
    """Commands of your own, each a list of words that is run without a shell."""

    kind: Literal["command"]
    """Selects this kind of service."""
    disable: Command = Field(examples=["[/usr/local/bin/vllm-speculation, 'off']"])
    """Restarts vLLM without speculation."""
    enable: Command = Field(examples=["[/usr/local/bin/vllm-speculation, 'on']"])
    """Restarts vLLM with speculation."""
    status: Command | None = Field(
        default=None, examples=["[/usr/local/bin/vllm-speculation, status]"]
    )
    """Prints first `on` or `off`. Default: how vLLM is set to start is not known."""
    timeout: Patience = 600.0
    """How long each command may take; 1s to 2h."""


_KINDS: dict[str, type[SystemdService | SupervisedService | CommandService]] = {
    "systemd": SystemdService, "supervised": SupervisedService, "command": CommandService,
}  # fmt: skip


def _of_its_kind(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Section):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a mapping, like {kind: systemd, unit: vllm.service}")
    if "kind" not in value:
        raise ValueError('has no kind; add "kind: systemd", or else supervised or command')
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        message = f"{quoted(kind)} is none of 'systemd', 'supervised' or 'command'"
        raise _error([_said(("kind",), message)])
    try:
        return _KINDS[kind].model_validate(value, context=info.context)
    except ValidationError as error:
        known = _KINDS[kind].written_keys()
        raise _error([_of_kind(details, kind, known) for details in error.errors()]) from None


def _of_kind(details: Any, kind: str, known: Mapping[str, FieldInfo]) -> InitErrorDetails:
    """A problem of a service, in words that know its kind: its place alone does not tell it."""
    key = str(details["loc"][-1])
    if details["type"] == "missing":
        example = (known[key].examples or [""])[0]
        return _said(details["loc"], f'has no {key}; add it, like "{key}: {example}"')
    if details["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, known, n=1)
        known_here = f"of a {kind} service; known here: {', '.join(known)}"
        remedy = f'; did you mean "{near[0]}"?' if near else f" {known_here}"
        return _said(details["loc"], f"unknown key{remedy}")
    if details["type"] == "value_error":
        return _said(details["loc"], str(details["ctx"]["error"]))
    return InitErrorDetails(
        type=details["type"],
        loc=details["loc"],
        input=details["input"],
        ctx=details.get("ctx", {}),
    )


def _said(path: KeyPath, message: str) -> InitErrorDetails:
    kind = PydanticCustomError("value_error", "{error}", {"error": message})
    return InitErrorDetails(type=kind, loc=path, input=None)


def _error(lines: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data("", lines)


Service = Annotated[
    SystemdService | SupervisedService | CommandService, BeforeValidator(_of_its_kind)
]
"""Any of them, told apart by ``kind``."""

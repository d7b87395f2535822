"""What is asked over HTTP with credentials and certificates of its own."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import (
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from specwatch.config.sections import SecretFile, Section, read_secret
from specwatch.domain.units import (
    format_duration,
    quoted,
)
from specwatch.errors import ConfigError


class BasicAuth(Section):
    """User name and password of HTTP basic authentication."""

    username: Annotated[str, Field(examples=["specwatch"])]
    """User name."""
    password_file: Annotated[SecretFile, Field(examples=["/run/credentials/password"])]
    """File with the password."""

    @field_validator("username")
    @classmethod
    def _no_colon(cls, value: str) -> str:
        if ":" in value or not value.isprintable():
            raise ValueError("a user name has no colon and no control character")
        return value


class Reached(Protocol):
    """A section that says how servers are reached, and by what right."""

    @property
    def headers(self) -> Mapping[str, SecretStr]:
        """Sent with every request."""

    @property
    def bearer_token_file(self) -> Path | None:
        """Holds the token."""

    @property
    def basic_auth(self) -> BasicAuth | None:
        """User name and password."""

    @property
    def insecure_skip_verify(self) -> bool:
        """Whether any certificate will do."""

    @property
    def ca_file(self) -> Path | None:
        """Authorities that may sign certificates; None for those of the machine."""


def sendable_headers(value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
    """Refuses what no header may be, without saying what it is."""
    for name, secret in value.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError(f"{quoted(name)} is not a header name; use letters, digits and -")
        if not re.fullmatch(r"[\t\x20-\x7e]*", secret.get_secret_value()):
            raise ValueError(f"the value of {name} has characters that no header may have")
    return value


def one_authorization(value: object, info: ValidationInfo) -> object:
    """Of ``bearer_token_file`` and ``basic_auth``, refuses the one that comes second."""
    others = [name for name in info.data.get("headers", {}) if name.lower() == "authorization"]
    if info.field_name == "basic_auth" and info.data.get("bearer_token_file"):
        others.append("bearer_token_file")
    if value is not None and others:
        raise ValueError(f"{others[0]} is given too; keep one way to authorize")
    return value


def ca_file_in_use(value: Path | None, info: ValidationInfo) -> Path | None:
    """Refuses authorities that nobody would ask."""
    if value is not None and info.data.get("insecure_skip_verify"):
        raise ValueError("has no effect beside insecure_skip_verify: true; remove one of them")
    return value


def timeout_within(limit: float, name: str, timeout: float) -> float:
    """Refuses a timeout that is longer than what is called ``name``, or too short; in seconds."""
    if timeout > limit:
        most = format_duration(limit)
        raise ValueError(
            f"{format_duration(timeout)} is longer than {name} {most}; make it at most {most}"
        )
    if timeout < 0.1:
        raise ValueError(f"{format_duration(timeout)} is too short; make it at least 100ms")
    return timeout


def headers_of(section: Reached, what: str) -> dict[str, str]:
    """Headers to send, secrets read from their files now.

    Raises ConfigError, which begins with ``what`` is reached, when a file has gone.
    """
    headers = {name: secret.get_secret_value() for name, secret in section.headers.items()}
    try:
        if section.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {read_secret(section.bearer_token_file)}"
        elif section.basic_auth is not None:
            password = read_secret(section.basic_auth.password_file)
            pair = f"{section.basic_auth.username}:{password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None
    return headers

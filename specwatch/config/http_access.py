"""Credentials and certificates for HTTP requests."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from specwatch.config.sections import ReadableFile, Secret, SecretFile, Section, present_secret
from specwatch.domain.units import format_duration, quoted


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


class HttpAccess(Section):
    """Credentials and certificates for requests to a server."""

    headers: Mapping[str, Secret] = Field(default_factory=dict)
    """Headers sent with every request."""
    bearer_token_file: SecretFile | None = None
    """File with the bearer token to send."""
    basic_auth: BasicAuth | None = None
    """User name and password to send."""
    insecure_skip_verify: bool = False
    """Whether the server's certificate goes unchecked."""
    ca_file: ReadableFile | None = None
    """Certificate authorities (PEM) that may sign the server's certificate. Default: those
    of the machine."""

    @property
    def _called(self) -> str:
        """What messages call the server."""
        raise NotImplementedError

    def request_headers(self) -> dict[str, str]:
        """Headers to send, secrets read from their files now; ConfigError when one has gone."""
        headers = {name: secret.get_secret_value() for name, secret in self.headers.items()}
        if self.bearer_token_file is not None:
            token = present_secret(self.bearer_token_file, self._called)
            headers["Authorization"] = f"Bearer {token}"
        elif self.basic_auth is not None:
            password = present_secret(self.basic_auth.password_file, self._called)
            pair = f"{self.basic_auth.username}:{password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        return headers

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, secret in value.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
                raise ValueError(f"{quoted(name)} is not a header name; use letters, digits and -")
            if not re.fullmatch(r"[\t\x20-\x7e]*", secret.get_secret_value()):
                raise ValueError(f"the value of {name} has characters that no header may have")
        return value

    @field_validator("bearer_token_file", "basic_auth")
    @classmethod
    def _one_authorization(cls, value: object, info: ValidationInfo) -> object:
        others = [name for name in info.data.get("headers", {}) if name.lower() == "authorization"]
        if info.field_name == "basic_auth" and info.data.get("bearer_token_file"):
            others.append("bearer_token_file")
        if value is not None and others:
            raise ValueError(f"{others[0]} is given too; keep one way to authorize")
        return value

    @field_validator("ca_file")
    @classmethod
    def _ca_file_in_use(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("insecure_skip_verify"):
            raise ValueError("has no effect beside insecure_skip_verify: true; remove one of them")
        return value


def timeout_within(key: str, words: str, usual: float) -> Any:
    """A validator of ``timeout``: at most the value of ``key``, which ``words`` name in messages.

    The default is ``usual`` seconds, or that value if it is less.
    """

    def checked(
        value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> float:
        limit: float = info.data.get(key, math.inf)
        if value is None:
            return min(limit, usual)
        timeout = float(handler(value))
        if timeout > limit:
            most = format_duration(limit)
            given = format_duration(timeout)
            raise ValueError(f"{given} is longer than {words} {most}; make it at most {most}")
        if timeout < 0.1:
            raise ValueError(f"{format_duration(timeout)} is too short; make it at least 100ms")
        return timeout

    return field_validator("timeout", mode="wrap")(checked)

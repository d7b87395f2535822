"""The sections ``log``, ``store`` and ``otlp``: how the daemon itself runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from specwatch.config.sections import (
    Count,
    Duration,
    SecretFile,
    Section,
    present_secret,
    within,
)
from specwatch.domain.units import parse_server_url
from specwatch.errors import extra_missing


class Log(Section):
    """How the daemon logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal and `json` elsewhere."""


class Store(Section):
    """How much is kept in memory while the database is unavailable."""

    queue_limit: Count = 100_000
    """Windows kept in memory, at most; further ones are dropped and counted."""


class Otlp(Section):
    """Where the exported metrics are also sent, by OpenTelemetry's protocol over HTTP.

    Needs the extra `otlp`.
    """

    endpoint: Annotated[str, BeforeValidator(parse_server_url)] = Field(
        examples=["http://otel-collector:4318"]
    )
    """Base URL of the collector; `/v1/metrics` is added."""
    interval: Annotated[Duration, within(1, 3600)] = 60.0
    """How often they are sent; 1s to 1h."""
    headers_file: SecretFile | None = None
    """File with headers of each request, on one line as in `OTEL_EXPORTER_OTLP_HEADERS`:
    `api-key=KEY,x-tenant=gpu`. Default: none."""

    @field_validator("endpoint")
    @classmethod
    def _sdk_is_there(cls, value: str) -> str:
        try:
            import opentelemetry.exporter.otlp.proto.http  # noqa: F401
        except ImportError as error:
            raise ValueError(extra_missing("sending by OTLP", "otlp", error)) from None
        return value

    def headers(self) -> Mapping[str, str]:
        """The headers, by their name; ConfigError when their file has gone bad."""
        from opentelemetry.util.re import parse_env_headers

        if self.headers_file is None:
            return {}
        text = present_secret(self.headers_file, "otlp.headers_file")
        return parse_env_headers(text, liberal=True)

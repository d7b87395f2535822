"""Objectives for latency."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from specwatch.config.sections import Duration, Name, Ratio, Section
from specwatch.domain.units import format_amount, format_duration, parse_duration


class Slo(Section):
    """A latency objective: this share of the requests takes at most this long."""

    name: Name = Field(examples=["first-token"])
    """Name of the objective; unique."""
    metric: Literal["ttft", "tpot", "e2e"] = Field(examples=["ttft"])
    """What is limited: time to first token, time per output token, or the whole request."""
    threshold: Annotated[float, BeforeValidator(partial(parse_duration, unit="ms"))] = Field(
        examples=["500ms"]
    )
    """The longest that a good request takes."""
    objective: Ratio = Field(examples=["99%"])
    """Share of the requests that must be good; between 0 and 1."""
    window: Duration = 30 * 86400.0
    """Period of the error budget; 1h to 30d in whole hours."""

    @field_validator("threshold")
    @classmethod
    def _positive(cls, value: float) -> float:
        if not value:
            raise ValueError("is 0s; make it more than 0s")
        return value

    @field_validator("objective")
    @classmethod
    def _share(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError(f"{value:g} is not between 0 and 1; write it like 99% or 0.99")
        return value

    @field_validator("window")
    @classmethod
    def _whole_hours(cls, value: float) -> float:
        if not 3600 <= value <= 30 * 86400 or value % 3600:
            raise ValueError(f"{format_duration(value)} is not 1h to 30d in whole hours")
        return value

    @model_serializer(mode="wrap")
    def _as_written(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if info.mode == "json":
            data["threshold"] = format_amount(self.threshold, "seconds")
        return data

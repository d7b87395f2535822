"""Settings of the tap, from environment variables: vLLM passes no arguments to middleware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specwatch.domain.temperature import DEFAULT_EDGES, checked_edges

BUCKETS = "SPECWATCH_TAP_TEMPERATURE_BUCKETS"
REMOVE_METRICS = "SPECWATCH_TAP_REMOVE_METRICS"

_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """``edges`` are the upper ends of the temperature buckets; ``remove_metrics``
    removes the acceptance record from what the client gets."""

    edges: tuple[float, ...] = DEFAULT_EDGES
    remove_metrics: bool = False


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from ``SPECWATCH_TAP_*``. Raises ValueError that names the variable."""
    edges: tuple[float, ...] = DEFAULT_EDGES
    if text := environment.get(BUCKETS, "").strip():
        try:
            edges = checked_edges(tuple(float(edge) for edge in text.split(",")))
        except ValueError as error:
            raise ValueError(
                f"{BUCKETS}={text!r}: {error}; write ascending numbers like 0,0.3,0.7,1.0"
            ) from None
    switch = environment.get(REMOVE_METRICS, "").strip().lower()
    if switch not in _SWITCH:
        raise ValueError(f"{REMOVE_METRICS}={switch!r}: write 1 or 0")
    return Settings(edges, _SWITCH[switch])

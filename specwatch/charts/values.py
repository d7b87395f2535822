"""What the charts have to be given: the report's values have all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol


class Rate(Protocol):
    """An acceptance rate of the stretch of time that begins at ``start`` (Unix seconds)."""

    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def drafts(self) -> int: ...  # noqa: D102
    @property
    def rate(self) -> float | None: ...  # noqa: D102


class Latencies(Protocol):
    """Latencies, in seconds, of the stretch of time that begins at ``start``, in one mode."""

    @property
    def start(self) -> int: ...  # noqa: D102
    @property
    def mode(self) -> str: ...  # noqa: D102
    @property
    def ttft_p50(self) -> float | None: ...  # noqa: D102
    @property
    def ttft_p99(self) -> float | None: ...  # noqa: D102
    @property
    def tpot_p50(self) -> float | None: ...  # noqa: D102
    @property
    def tpot_p99(self) -> float | None: ...  # noqa: D102
    @property
    def beyond(self) -> Collection[str]: ...  # noqa: D102


class Series(Protocol):
    """Stretches of ``step`` seconds, in order; those without traffic are left out."""

    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def acceptance(self) -> Mapping[str, Sequence[Rate]]: ...  # noqa: D102
    @property
    def latency(self) -> Sequence[Latencies]: ...  # noqa: D102


class Ratio(Protocol):
    """A ratio and its interval, where it has one."""

    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def lower(self) -> float | None: ...  # noqa: D102
    @property
    def upper(self) -> float | None: ...  # noqa: D102
    @property
    def basis(self) -> str: ...  # noqa: D102


class Load(Protocol):
    """A load bin; ``share`` is that of the generated tokens, ``running`` the mean of requests."""

    @property
    def load(self) -> str: ...  # noqa: D102
    @property
    def share(self) -> float: ...  # noqa: D102
    @property
    def running(self) -> float: ...  # noqa: D102
    @property
    def speedup(self) -> Ratio | None: ...  # noqa: D102


class Accepted(Protocol):
    """Drafts that had 0, 1, .. k tokens accepted."""

    @property
    def histogram(self) -> Sequence[int] | None: ...  # noqa: D102


class Temperature(Protocol):
    """A temperature bucket, or ``all``."""

    @property
    def temperature(self) -> str: ...  # noqa: D102
    @property
    def acceptance(self) -> Accepted: ...  # noqa: D102

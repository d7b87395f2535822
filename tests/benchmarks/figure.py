"""What a benchmark found, against its budget and its aim."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

HEADINGS = ("what", "measured", "peer", "ratio", "budget", "aim", "verdict")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; less is better, except where there is neither budget nor aim.

    ``budget`` and ``aim`` are in ``unit``, or, with ``of_peer``, multiples of what the peer needs.
    """

    what: str
    measured: float
    unit: str
    peer: float | None = None
    budget: float | None = None
    aim: float | None = None
    of_peer: bool = False

    @property
    def ratio(self) -> float | None:
        """How much of what the peer needs; None without a peer."""
        return self.measured / self.peer if self.peer else None

    @property
    def verdict(self) -> str:
        """``aim``, ``budget`` or ``over budget``; ``-`` for what is only reported."""
        if self.budget is None:
            return "-"
        if self.of_peer and self.ratio is None:
            return "no peer to compare with"
        value = self.ratio if self.of_peer and self.ratio is not None else self.measured
        if self.aim is not None and value <= self.aim:
            return "within aim"
        return "within budget" if value <= self.budget else "over budget"

    def cells(self) -> tuple[str, ...]:
        """A row under :data:`HEADINGS`."""
        limit_unit = "x peer" if self.of_peer else self.unit
        return (
            self.what,
            _number(self.measured, self.unit),
            _number(self.peer, self.unit),
            "-" if self.ratio is None else f"{self.ratio:.2f}",
            _number(self.budget, limit_unit),
            _number(self.aim, limit_unit),
            self.verdict,
        )

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        values = asdict(self)
        limits = "x peer" if values.pop("of_peer") else self.unit
        return values | {"ratio": self.ratio, "limits": limits, "verdict": self.verdict}


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"

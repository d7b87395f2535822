"""What a benchmark found, against its budget and its aim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

HEADINGS = ("what", "measured", "peer", "ratio", "spread", "budget", "aim", "verdict")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; less is better, except where there is neither budget nor aim.

    ``budget`` and ``aim`` are in ``unit``, or, with ``of_peer``, multiples of what the peer needs.
    ``spread`` is the least and the most of several runs: of the ratio where there is a peer, else
    of what was measured.
    """

    what: str
    measured: float
    unit: str
    peer: float | None = None
    budget: float | None = None
    aim: float | None = None
    of_peer: bool = False
    spread: tuple[float, float] | None = None

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

    @property
    def compared(self) -> float:
        """The value by which runs are ordered: the ratio, or without a peer the measured one."""
        return self.measured if self.ratio is None else self.ratio

    def cells(self) -> tuple[str, ...]:
        """A row under :data:`HEADINGS`."""
        limit_unit = "x peer" if self.of_peer else self.unit
        ends = () if self.spread is None else self.spread
        return (
            self.what,
            _number(self.measured, self.unit),
            _number(self.peer, self.unit),
            "-" if self.ratio is None else f"{self.ratio:.2f}",
            " to ".join(map(_plain, ends)) or "-",
            _number(self.budget, limit_unit),
            _number(self.aim, limit_unit),
            self.verdict,
        )

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        values = asdict(self)
        limits = "x peer" if values.pop("of_peer") else self.unit
        return values | {"ratio": self.ratio, "limits": limits, "verdict": self.verdict}


def middle(runs: Sequence[Figure]) -> Figure:
    """Of several runs of one figure the middle one, the lower of two, with the spread of all."""
    ordered = sorted(runs, key=lambda run: run.compared)
    spread = (ordered[0].compared, ordered[-1].compared) if len(runs) > 1 else None
    return replace(ordered[(len(runs) - 1) // 2], spread=spread)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{_plain(value)} {unit}"


def _plain(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

"""What is wrong, and what an alert then says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.alerts.promtool import Told, Value


@dataclass(frozen=True)
class Fault:
    """What is unlike a healthy world: series that change, or are gone.

    ``traffic`` says that idle traffic silences it, ``speculation`` that speculation being off does.
    ``spare`` are metrics of its expression whose absence does not.
    """

    alert: str
    changes: Mapping[str, Value]
    told: Sequence[Told]
    at: int = 60
    traffic: bool = False
    speculation: bool = False
    spare: frozenset[str] = frozenset()
    begins: int = 0
    """The minute from which on its expression holds."""
    ordered: bool = False
    """Whether it is silent while a person keeps speculation off."""

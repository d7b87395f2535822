"""What the page of each simulated version of vLLM has; the tables are in ``pages.yml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class SimulatedFamily:
    """One family of ``vllm:`` series.

    ``kind`` is ``counter``, ``gauge`` or ``histogram``. ``series`` are (label="value" pairs or
    empty, quantity): a quantity is a path into an engine core, or a number that never changes.
    """

    name: str
    kind: str
    help: str
    series: tuple[tuple[str, str], ...]
    per_engine: bool


@functools.cache
def _tables() -> Any:
    text = resources.files(__package__).joinpath("pages.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def families(engine_version: str, k: int) -> tuple[SimulatedFamily, ...]:
    """All families of a version; ``k`` positions, 0 without speculation."""
    return tuple(
        SimulatedFamily(
            row["name"],
            row.get("kind", "counter"),
            row["help"],
            _series(row, k),
            row.get("per_engine", True),
        )
        for row in _tables()["families"]
        if engine_version in row.get("versions", (engine_version,))
        and (k or not row.get("speculation"))
    )


def _series(row: dict[str, Any], k: int) -> tuple[tuple[str, str], ...]:
    label = row.get("label")
    if label is None:
        return (("", row.get("value", "0")),)
    quantities = row.get("values") or {
        str(position): f"counters.accepted_per_position[{position}]" for position in range(k)
    }
    return tuple((f'{label}="{value}"', quantity) for value, quantity in quantities.items())


def cache_config(
    engine_version: str, *, engine: int, block_size: int, blocks: int, max_model_len: int
) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``, which change with every version."""
    tables = _tables()["cache_config"]
    values = {
        "engine": engine,
        "block_size": block_size,
        "blocks": blocks,
        "tokens": blocks * block_size,
        "concurrency": blocks * block_size / max_model_len,
    }
    labels = {**tables["all"], **tables[engine_version]}
    return {label: text.format_map(values) for label, text in labels.items()}

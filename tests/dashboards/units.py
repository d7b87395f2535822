"""Numbers as Grafana shows them, near enough: "Standard options, unit" in its documentation."""

from __future__ import annotations

import math

_SUFFIXES = {"reqps": "req/s", "ops": "ops/s"}
_TIMES = ((86400.0, "day"), (3600.0, "hour"))


def formatted(value: float, unit: str = "", decimals: int | None = None) -> str:
    """A value with its unit, one of those that our dashboards have."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit in ("", "none"):
        return _rounded(value, decimals)
    if unit == "percentunit":
        return f"{_rounded(value * 100, decimals)}%"
    if unit == "s":
        return _duration(value, decimals)
    if unit == "bytes":
        return _scaled(value, 1024.0, ["", "Ki", "Mi", "Gi", "Ti"], "B", decimals)
    if unit.startswith("suffix:"):
        return f"{_rounded(value, decimals)}{unit.removeprefix('suffix:')}"
    prefixes = ["", "K", "Mil", "Bil", "Tri"]
    return _scaled(value, 1000.0, prefixes, _SUFFIXES.get(unit, ""), decimals)


def _rounded(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _scaled(value: float, base: float, prefixes: list[str], unit: str, decimals: int | None) -> str:
    while abs(value) >= base and len(prefixes) > 1:
        value /= base
        prefixes = prefixes[1:]
    return f"{_rounded(value, decimals)} {prefixes[0]}{unit}".strip()


def _duration(seconds: float, decimals: int | None) -> str:
    size = abs(seconds)
    if size and size < 1e-3:
        return f"{_rounded(seconds * 1e6, decimals)} µs"
    if size and size < 1:
        return f"{_rounded(seconds * 1e3, decimals)} ms"
    if size < 60:
        return f"{_rounded(seconds, decimals)} s"
    if size < 3600:
        return f"{_rounded(seconds / 60, decimals)} mins"
    length, word = next((pair for pair in _TIMES if size >= pair[0]), _TIMES[-1])
    shown = _rounded(seconds / length, decimals)
    return f"{shown} {word}{'' if shown == '1' else 's'}"

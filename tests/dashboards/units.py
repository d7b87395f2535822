"""Numbers as Grafana shows them, near enough: "Standard options, unit" in its documentation."""

from __future__ import annotations

import math
import time

_SUFFIXES = {
    "reqps": "req/s", "rps": "rd/s", "ops": "ops/s", "cps": "c/s", "wps": "wr/s", "iops": "io/s",
    "hertz": "Hz", "pps": "p/s", "rpm": "rpm", "xpm": "/min",
}  # fmt: skip
_TIMES = ((31536000.0, "year"), (604800.0, "week"), (86400.0, "day"), (3600.0, "hour"))


def formatted(value: float, unit: str = "", decimals: int | None = None) -> str:
    """A value with its unit."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "percentunit":
        return f"{_rounded(value * 100, decimals)}%"
    if unit == "percent":
        return f"{_rounded(value, decimals)}%"
    if unit in ("s", "ms", "dtdurations"):
        return _duration(value / 1000 if unit == "ms" else value, decimals)
    if unit in ("bytes", "decbytes"):
        return _scaled(value, 1024.0 if unit == "bytes" else 1000.0, "B", decimals)
    if unit.startswith("dateTime"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
    if unit.startswith(("bool", "suffix:", "prefix:")):
        return _worded(value, unit, decimals)
    if unit in ("", "none"):
        return _rounded(value, decimals)
    return _scaled(value, 1000.0, _SUFFIXES.get(unit, ""), decimals)


def _worded(value: float, unit: str, decimals: int | None) -> str:
    kind, _, word = unit.partition(":")
    if kind == "suffix":
        return f"{_rounded(value, decimals)}{word}"
    if kind == "prefix":
        return f"{word}{_rounded(value, decimals)}"
    yes, no = {"bool_yes_no": ("Yes", "No"), "bool_on_off": ("On", "Off")}.get(
        unit, ("True", "False")
    )
    return yes if value else no


def _rounded(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _scaled(value: float, base: float, unit: str, decimals: int | None) -> str:
    prefixes = ["", "Ki", "Mi", "Gi", "Ti"] if base == 1024 else ["", "K", "Mil", "Bil", "Tri"]
    if unit == "B" and base == 1000:
        prefixes = ["", "k", "M", "G", "T"]
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
    for length, word in _TIMES:
        if size >= length:
            shown = _rounded(seconds / length, decimals)
            return f"{shown} {word}{'' if shown == '1' else 's'}"
    raise AssertionError(seconds)

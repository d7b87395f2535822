"""Parameters of the HTTP API, checked. All raise ConfigError for what cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import QueryParams

from specwatch.domain.model import HOUR, MINUTE
from specwatch.domain.units import format_duration, parse_moment, quoted
from specwatch.errors import ConfigError

MOST_WINDOWS = 10_000
MOST_DECISIONS = 1000
FORMATS = {
    "json": "application/json",
    "html": "text/html",
    "md": "text/markdown",
    "text": "text/plain",
}
"""Media types of the report by the name of the format."""
_LONGEST_REPORT = 92 * 86400.0
"""Seconds: a longer report takes a thread for minutes; the command makes it."""
_DIGITS = 20
"""Digits of the longest number: more would take long to parse."""


def windows_query(query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Arguments of the window reader.

    ``since`` and ``until`` are as :func:`specwatch.domain.units.parse_moment` reads them, dates in
    UTC (default: the last hour), ``length`` is 60 or 3600 s, ``limit`` the number of windows (the
    earliest are given), and ``target``, ``model_name``, ``dimension``, ``value`` and ``daemon``
    select.
    """
    names = ("target", "model_name", "dimension", "value", "daemon")
    chosen = _chosen(query, names, ("length", "limit"), now, since="1h")
    chosen["length"] = int(_one_of("length", query.get("length", str(MINUTE)), (MINUTE, HOUR)))
    chosen["limit"] = _limit(query.get("limit"), MOST_WINDOWS)
    return chosen


def decisions_query(query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Arguments of the reader of verdicts, as :func:`windows_query`; the newest are given.

    ``target`` and ``rule`` select; the default is the last day.
    """
    chosen = _chosen(query, ("target", "rule"), ("limit",), now, since="1d")
    chosen["limit"] = _limit(query.get("limit"), MOST_DECISIONS)
    return chosen


def report_query(query: QueryParams, now: float) -> dict[str, Any]:
    """The period (default: the last week), the targets (None for all) and the format of a report.

    ``target`` may be given several times.
    """
    chosen = _chosen(query, (), ("target", "format"), now, since="7d")
    if chosen["until"] - chosen["since"] > _LONGEST_REPORT:
        most = format_duration(_LONGEST_REPORT)
        raise ConfigError(
            f"since: a report of more than {most} takes long; ask for less, or run specwatch report"
        )
    chosen["format"] = _one_of("format", query.get("format", "json"), FORMATS)
    return {**chosen, "targets": query.getlist("target") or None}


def _chosen(
    query: Mapping[str, str],
    names: tuple[str, ...],
    others: tuple[str, ...],
    now: float,
    *,
    since: str,
) -> dict[str, Any]:
    """The parameters ``names``, and the period, which begins ``since`` ago by default.

    A parameter that is neither of these nor among ``others`` is refused.
    """
    known = (*names, "since", "until", *others)
    for key in query:
        if key not in known:
            raise ConfigError(f"{quoted(key)}: unknown parameter; known are {', '.join(known)}")
    selected: dict[str, Any] = {key: query[key] for key in names if key in query}
    for key, name in selected.items():
        if "\0" in name:  # no database accepts it
            raise ConfigError(f"{key}: {quoted(name)} has a null character; no name has one")
    selected["since"] = _moment("since", query.get("since", since), now)
    selected["until"] = _moment("until", query.get("until", str(now)), now)
    if selected["since"] > selected["until"]:
        raise ConfigError(
            f"since: {quoted(query.get('since', since))} is later than until,"
            f" {quoted(query.get('until', 'now'))}; give an earlier time"
        )
    return selected


def _moment(key: str, text: str, now: float) -> float:
    try:
        return parse_moment(text, now)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _one_of(key: str, text: str, allowed: Iterable[object]) -> str:
    names = list(map(str, allowed))
    if text not in names:
        raise ConfigError(f"{key}: {quoted(text)} is not one of {', '.join(names)}")
    return text


def _limit(text: str | None, most: int) -> int:
    if text is None:
        return most
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise ConfigError(f"limit: {quoted(text)} is not a number from 1 to {most}")
    return int(text)

"""Parameters of a request's query, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwatch.domain.units import parse_moment, quoted
from specwatch.errors import ConfigError


def chosen(
    query: Mapping[str, str],
    names: tuple[str, ...],
    others: tuple[str, ...],
    now: float,
    *,
    since: str,
) -> dict[str, Any]:
    """What selects by name, and the span, which begins ``since`` ago unless it says otherwise.

    Raises ConfigError for it, and for a parameter that is neither that nor among ``others``.
    """
    known = (*names, "since", "until", *others)
    for key in query:
        if key not in known:
            raise ConfigError(f"{quoted(key)}: unknown parameter; known are {', '.join(known)}")
    selected: dict[str, Any] = {key: query[key] for key in names if key in query}
    for key, name in selected.items():
        if "\0" in name:  # which no database takes
            raise ConfigError(f"{key}: {quoted(name)} has a null character; no name has one")
    selected["since"] = _when("since", query.get("since", since), now)
    selected["until"] = _when("until", query.get("until", str(now)), now)
    if selected["since"] > selected["until"]:
        raise ConfigError(
            f"since: {quoted(query.get('since', since))} is later than until,"
            f" {quoted(query.get('until', 'now'))}; give an earlier time"
        )
    return selected


def _when(key: str, text: str, now: float) -> float:
    try:
        return parse_moment(text, now)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None

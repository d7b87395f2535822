"""What a Prometheus has of an engine, as the pages that it scraped.

Prometheus gives all samples of a scrape one timestamp, so that samples of one server with the same
timestamp are one page again. Which labels tell servers apart is seen at the gauge of running
requests: all of its labels but the engine's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import MINUTE, Series
from specwatch.engines.families import FAMILIES, SAMPLES, TAKE_MAXIMUM, series_of

Labels = tuple[tuple[str, str], ...]
"""Labels of a server, by name."""
ResultSeries = tuple[Mapping[str, str], Sequence[tuple[float, str]]]
"""A series as the API gives it: its labels, and its samples as (Unix seconds, value)."""

PRESENCE = tuple(family.exposed for family in FAMILIES if family.quantity == "running")
"""The gauges by which a server is found: of vLLM and of llama.cpp."""
_OWN = frozenset({"__name__", "engine", "model_name"})
"""Labels of those gauges that are not the server's."""
_PLAIN_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Page(NamedTuple):
    """One scrape: when (Unix seconds), and what was read."""

    at: float
    samples: dict[Series, float]


@dataclass
class Server:
    """What was scraped under one set of labels, and in which minutes each model was on its page."""

    labels: Labels
    models: dict[str, MinuteSet] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        """``host:port``, as Prometheus calls it."""
        return dict(self.labels).get("instance", "")

    @property
    def present(self) -> MinuteSet:
        """The minutes with a page."""
        present = MinuteSet()
        for minutes in self.models.values():
            present.update(minutes)
        return present


def presence_selector(selector: str) -> str:
    """The gauges by which servers are found, of those that ``selector`` (``{...}``) picks.

    Raises ValueError for what is no selector.
    """
    text = selector.strip()
    if not (text.startswith("{") and text.endswith("}")) or "\n" in text or "\0" in text:
        raise ValueError(
            f"{json.dumps(selector, ensure_ascii=False)[:80]} is not a selector; write labels in"
            " braces, like '{job=\"vllm\"}'"
        )
    inside = text[1:-1].strip().strip(",").strip()
    names = _matcher("__name__", "=~", "|".join(PRESENCE))
    return "{" + ",".join(filter(None, (names, inside))) + "}"


def page_selector(labels: Labels) -> str:
    """Every sample that we read of the server with these labels."""
    names = _matcher("__name__", "=~", "|".join(SAMPLES))
    return "{" + ",".join((names, *(_matcher(name, "=", value) for name, value in labels))) + "}"


def shown(labels: Labels) -> str:
    """Labels as a selector that a person can give."""
    return "{" + ",".join(_matcher(name, "=", value) for name, value in labels if value) + "}"


def servers(results: Iterable[ResultSeries]) -> list[Server]:
    """The servers of which there is anything, from points that each stand for a minute.

    A point at or before the end of a minute says that the gauge was seen in it. Labels that some
    servers lack are empty for those.
    """
    series = [
        (
            {k: v for k, v in labels.items() if k not in _OWN},
            labels.get("model_name", ""),
            points,
        )
        for labels, points in results
    ]
    names = sorted({name for labels, _, _ in series for name in labels})
    by_labels: dict[Labels, Server] = {}
    for labels, model, points in series:
        key = tuple((name, labels.get(name, "")) for name in names)
        minutes = by_labels.setdefault(key, Server(key)).models.setdefault(model, MinuteSet())
        for time, _ in points:
            minutes.add(int((time - 0.0005) // MINUTE) * MINUTE)
    return sorted(by_labels.values(), key=lambda server: server.labels)


def merged(first: Sequence[Server], second: Sequence[Server]) -> list[Server]:
    """Servers seen in two spans as one list."""
    names = sorted({name for server in (*first, *second) for name, _ in server.labels})
    by_labels: dict[Labels, Server] = {}
    for server in (*first, *second):
        labels = dict(server.labels)
        key = tuple((name, labels.get(name, "")) for name in names)
        into = by_labels.setdefault(key, Server(key))
        for model, minutes in server.models.items():
            into.models.setdefault(model, MinuteSet()).update(minutes)
    return sorted(by_labels.values(), key=lambda server: server.labels)


def pages(
    results: Iterable[ResultSeries], labels: Labels, since: float, until: float
) -> list[Page]:
    """The pages of one server scraped in ``since <= at < until``, by their time.

    ``labels`` are the server's. Samples that differ only in labels that mean nothing to us are
    combined, as on a page.
    """
    of_server = {name for name, _ in labels} | {"__name__"}
    by_time: dict[float, dict[Series, float]] = {}
    for all_labels, points in results:
        own = {name: value for name, value in all_labels.items() if name not in of_server}
        series = series_of(all_labels.get("__name__", ""), own)
        if series is None:
            continue
        takes_maximum = series.quantity in TAKE_MAXIMUM
        for time, text in points:
            if not since <= time < until:
                continue
            samples = by_time.setdefault(time, {})
            value = float(text)
            if series in samples:
                before = samples[series]
                value = max(before, value) if takes_maximum else before + value
            samples[series] = value
    return [Page(time, by_time[time]) for time in sorted(by_time)]


def joined(pages_of_servers: Sequence[Sequence[Page]]) -> list[Page]:
    """The pages of servers that follow one another, in their order.

    In the minute of a change both may have some: of the new one those that came after the old.
    """
    by_minute: dict[int, list[list[Page]]] = {}
    for server_pages in pages_of_servers:
        mine: dict[int, list[Page]] = {}
        for page in server_pages:
            mine.setdefault(int(page.at // MINUTE), []).append(page)
        for minute, minute_pages in mine.items():
            by_minute.setdefault(minute, []).append(minute_pages)
    every: list[Page] = []
    for minute in sorted(by_minute):
        for minute_pages in sorted(by_minute[minute], key=lambda pages: pages[0].at):
            last = every[-1].at if every else -1.0
            every += [page for page in minute_pages if page.at > last]
    return every


def _matcher(name: str, operator: str, value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    plain = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return f"{plain}{operator}{quoted}"

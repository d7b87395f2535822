"""The pages that a Prometheus scraped from engines, put together from its samples.

Prometheus gives all samples of a scrape one timestamp: the samples of one server with the same
timestamp are one page. The labels of a server are those of its gauge of running requests, without
the engine's own labels.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import MINUTE, Series
from specwatch.engines.sample_names import FAMILIES, SAMPLES, repeated, series_of, spellings

Labels = tuple[tuple[str, str], ...]
"""Labels of a server, sorted by name."""
ResultSeries = tuple[Mapping[str, str], Sequence[tuple[float, str]]]
"""A series as the API returns it: its labels, and its samples as (Unix seconds, value)."""

PRESENCE = tuple(
    name
    for family in FAMILIES
    if family.quantity == "running"
    for name in spellings(family.exposed)
)
"""The gauges of running requests of all engines."""
_OWN = frozenset(
    {
        "__name__",
        "engine",
        "model_name",
        "engine_type",
        "tp_rank",
        "pp_rank",
        "dp_rank",
        "moe_ep_rank",
        "priority",
        "pid",
    }
)
"""Labels of those gauges that the engine sets."""
_PLAIN_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class ScrapedPage(NamedTuple):
    """One scrape: its Unix time, and its samples."""

    at: float
    samples: dict[Series, float]


@dataclass
class ScrapedServer:
    """A server by its labels, and the minutes in which each model was on its page.

    ``models`` do not change after the first use of ``present``.
    """

    labels: Labels
    models: dict[str, MinuteSet] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        """Its label ``instance``: ``host:port``."""
        return dict(self.labels).get("instance", "")

    @cached_property
    def present(self) -> MinuteSet:
        """The minutes with a page."""
        return union(self.models.values())


def union(sets: Iterable[MinuteSet]) -> MinuteSet:
    """The minutes that are in any of the sets."""
    minutes = MinuteSet()
    for part in sets:
        minutes.update(part)
    return minutes


def presence_selector(selector: str) -> str:
    """``selector`` (``{...}``), narrowed to the gauges of running requests.

    Raises ValueError for text that is not a selector.
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
    """A selector of all samples that specwatch reads of the server with these labels."""
    names = _matcher("__name__", "=~", _names())
    return "{" + ",".join((names, *(_matcher(name, "=", value) for name, value in labels))) + "}"


@functools.cache
def _names() -> str:
    """A regular expression of the names of all samples, in a quarter of the length of a list."""
    by_engine: dict[str, list[str]] = {}
    for engine, colon, name in (name.partition(":") for name in SAMPLES):
        if colon and not engine.startswith("ray_"):
            by_engine.setdefault(engine, []).append(name)
    written = {
        name
        for engine, names in by_engine.items()
        for own in names
        for name in spellings(f"{engine}:{own}")
    }
    grouped = [f"(ray_)?{engine}[:_]({'|'.join(names)})" for engine, names in by_engine.items()]
    return "|".join([*grouped, *(name for name in SAMPLES if name not in written)])


def shown(labels: Labels) -> str:
    """Labels as a selector that an operator can use."""
    return "{" + ",".join(_matcher(name, "=", value) for name, value in labels if value) + "}"


def servers_of(results: Iterable[ResultSeries]) -> list[ScrapedServer]:
    """The servers in a result, whose points each mean that a minute has a page.

    A point at or before the end of a minute belongs to that minute. Labels that some servers lack
    are empty for those.
    """
    return merged(
        ScrapedServer(
            tuple((name, value) for name, value in labels.items() if name not in _OWN),
            {
                labels.get("model_name", ""): MinuteSet(
                    int((time - 0.0005) // MINUTE) * MINUTE for time, _ in points
                )
            },
        )
        for labels, points in results
    )


def merged(parts: Iterable[ScrapedServer]) -> list[ScrapedServer]:
    """Servers with all labels of the parts; parts with equal labels are one server."""
    parts = list(parts)
    names = sorted({name for server in parts for name, _ in server.labels})
    by_labels: dict[Labels, ScrapedServer] = {}
    for server in parts:
        labels = dict(server.labels)
        key = tuple((name, labels.get(name, "")) for name in names)
        models = by_labels.setdefault(key, ScrapedServer(key)).models
        for model, minutes in server.models.items():
            models.setdefault(model, MinuteSet()).update(minutes)
    return sorted(by_labels.values(), key=lambda server: server.labels)


def pages_of(
    results: Iterable[ResultSeries], labels: Labels, since: float, until: float
) -> list[ScrapedPage]:
    """The pages of one server scraped in ``since <= at < until``, sorted by time.

    ``labels`` are the server's. Samples that differ only in labels that specwatch does not use are
    combined, as on a page.
    """
    of_server = {name for name, _ in labels} | {"__name__"}
    by_time: dict[float, dict[Series, float]] = {}
    for all_labels, points in results:
        own = {name: value for name, value in all_labels.items() if name not in of_server}
        series = series_of(all_labels.get("__name__", ""), own)
        if series is None:
            continue
        for time, text in points:
            if not since <= time < until:
                continue
            samples = by_time.setdefault(time, {})
            value = float(text)
            if series in samples:
                value = repeated(series, samples[series], value)
            samples[series] = value
    return [ScrapedPage(time, by_time[time]) for time in sorted(by_time)]


def joined(pages_of_servers: Sequence[Sequence[ScrapedPage]]) -> list[ScrapedPage]:
    """The pages of servers that follow one another, sorted by time.

    If both have pages in the minute of a change, those of the new one after the old one's count.
    """
    by_minute: dict[int, list[list[ScrapedPage]]] = {}
    for server_pages in pages_of_servers:
        mine: dict[int, list[ScrapedPage]] = {}
        for page in server_pages:
            mine.setdefault(int(page.at // MINUTE), []).append(page)
        for minute, minute_pages in mine.items():
            by_minute.setdefault(minute, []).append(minute_pages)
    pages: list[ScrapedPage] = []
    for minute in sorted(by_minute):
        for minute_pages in sorted(by_minute[minute], key=lambda of_server: of_server[0].at):
            last = pages[-1].at if pages else -1.0
            pages += [page for page in minute_pages if page.at > last]
    return pages


def _matcher(name: str, operator: str, value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    plain = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return f"{plain}{operator}{quoted}"

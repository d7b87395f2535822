"""Statuses and windows as a daemon has them, and its HTTP surface over them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec.structs import replace

from specwatch.domain.model import Gauges, Histogram, Mode, SeriesId, Source, Tally, Window
from specwatch.runtime.http_server import HttpServer
from specwatch.status import DaemonStatus, LeaseStatus, StoreStatus, TargetStatus
from specwatch.web import api, exporter
from tests.report import sample
from tests.segments import segment

NOW = 1_700_000_040.0
"""Some time inside a minute that began 20 s before."""

HOSTILE = '[red]x[/red] \x1b[31m"\\\n{le="1"} \u202e\u0085' + "y" * 10_000


_TTFT = Histogram((0.1, 0.5), (50, 49, 1), 12.0)


def minute(
    start: int,
    *,
    target: str = "chat",
    model_name: str = "llama",
    temperature: str = "all",
    drafts: int = 100,
    ttft: Histogram | None = _TTFT,
    mode: Mode = Mode.ON,
) -> Window:
    """A minute in which of four drafted tokens two were accepted, whatever the number of drafts."""
    return Window(
        series=SeriesId("left", target, model_name, segment(temperature)),
        start=start,
        length=60,
        mode=mode,
        tally=Tally(
            drafts=drafts,
            draft_tokens=4 * drafts,
            accepted_tokens=2 * drafts,
            accepted_per_position=(drafts, drafts, 0, 0),
            requests={"stop": 7, "length": 2},
            preemptions=1,
            ttft=ttft,
            tpot=Histogram((0.01, 0.02), (10, 10, 0), 0.2),
        ),
        gauges=Gauges(
            sampled_seconds=60.0, busy_seconds=30.0, running_seconds=90.0, kv_cache_usage_max=0.25
        ),
        server_drafts=drafts,
        source_drafts=drafts,
        observed_seconds=60.0,
        scrapes_ok=12,
    )


def whole(start: int = 1_699_999_980, **changes: Any) -> Window:
    """Of all temperatures and two minutes, all that an engine says; ``changes`` of the tally."""
    one = minute(start)
    counted = replace(
        one.tally,
        prompt_tokens=2400,
        generation_tokens=360,
        preemptions=6,
        prefix_cache_queries=2000,
        prefix_cache_hits=500,
        **changes,
    )
    sampled = Gauges(
        sampled_seconds=100.0,
        busy_seconds=50.0,
        running_seconds=250.0,
        waiting_seconds=50.0,
        running_max=7,
        kv_cache_usage_max=0.25,
    )
    return replace(one, tally=counted, gauges=sampled, observed_seconds=120.0)


def of_tap(
    start: int,
    temperature: str,
    *,
    drafts: int,
    of: int,
    server: int,
    target: str = "chat",
    model_name: str = "llama",
    records: Mapping[str, int] | None = None,
    source: Source = Source.TAP,
) -> Window:
    """A minute of a bucket: ``of`` drafts that the tap saw in all, ``server`` those there were."""
    one = minute(
        start, target=target, model_name=model_name, temperature=temperature, drafts=drafts
    )
    tally = replace(
        one.tally,
        records={"record": 5} if records is None else records,
        uncovered={"several": 2},
        request_acceptance=Histogram((0.5, 1.0), (1, 4, 0), 4.0),
    )
    return replace(one, tally=tally, source=source, server_drafts=server, source_drafts=of)


def target(name: str = "chat", **changes: Any) -> TargetStatus:
    """A target that is scraped well."""
    known: dict[str, Any] = {
        "models": {"llama": Mode.ON},
        "engine_version": "0.32.0",
        "last_scrape": NOW - 3,
        "last_success": NOW - 3,
        "scrape_seconds": 0.0042,
        "scrapes": 10,
        "recent": (minute(1_699_999_980, target=name),),
    }
    known |= changes
    ends = (window.start + window.length for window in known["recent"])
    known.setdefault("last_window", max(ends, default=None))
    return TargetStatus(name, "http://127.0.0.1:8000", 5.0, **known)


STANDBY = LeaseStatus(standby=True, holder="http://birch:9469", since=NOW - 600, left=6.0)
"""Of a process that stands by."""


def daemon(*targets: TargetStatus, **changes: Any) -> DaemonStatus:
    """A daemon in good health with these targets, or with one."""
    known: dict[str, Any] = {
        "daemon": "left",
        "version": "0.1.0",
        "started": NOW - 600,
        "now": NOW,
        "targets": targets or (target(),),
        "store": StoreStatus("SQLite database /var/lib/specwatch/specwatch.db", written=12),
        "ready": True,
    }
    return DaemonStatus(**{**known, **changes})


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class Surface:
    """A daemon's HTTP surface; what it shows can be changed while it serves."""

    def __init__(self, *, monitored: bool = True) -> None:
        self.show()
        self.server = HttpServer(
            api.application(
                lambda: self.status,
                lambda **selection: self.windows(**selection),
                lambda **selection: self.verdicts(**selection),
                exporter.registry(lambda: self.status),
                lambda **chosen: self.report(**chosen),
                steps=lambda **selection: self.steps(**selection),
                hosts=lambda: self.hosts,
                monitored=monitored,
                token=lambda: self.token(),
            ),
            "127.0.0.1",
            0,
            bounded=True,
            name="surface",
        )

    def show(self) -> None:
        """Show one target in good health, of which nothing is stored."""
        self.status = daemon()
        self.windows: Any = lambda **_: iter(())
        self.verdicts: Any = lambda **_: []
        self.steps: Any = lambda **_: []
        self.report: Any = lambda **_: sample.full()
        self.hosts: tuple[str, ...] = ("*",)
        self.token: Callable[[], str | None] = lambda: None

    @property
    def url(self) -> str:
        return self.server.url

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answer(response.status, _lower(response.headers), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def serving(surface: Surface | None = None) -> Iterator[Surface]:
    """A surface that listens on a free port."""
    surface = surface or Surface()
    surface.server.start()
    try:
        yield surface
    finally:
        assert surface.server.stop()

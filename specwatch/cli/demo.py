"""``specwatch demo``: the whole loop against a simulated vLLM."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import structlog
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specwatch.cli import options
from specwatch.config.loading import from_targets
from specwatch.daemon.daemon import Daemon
from specwatch.domain import acceptance, buckets, histogram, merge
from specwatch.domain.model import ALL_TEMPERATURES, Histogram, Tally
from specwatch.rules.summary import Json
from specwatch.simulator.server import SimulatedServer
from specwatch.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulator.workload import SimulatedTraffic
from specwatch.store.readers import Reader
from specwatch.wording import figures

_RATE = 3.0
_DOWNTIME = 1.5
_TEMPERATURES = ((0.0, 0.4), (0.2, 0.2), (0.6, 0.2), (1.0, 0.2))
_TAP = "specwatch.tap.Tap"
_COLUMNS = ("acceptance", "tokens/step", "TTFT p50", "mean TPOT")
_SETTLE = 3.0
"""Seconds at the start of a phase that do not count: answers begun before it end in it."""


class _Phase(NamedTuple):
    """A part of the demo: what happens, for how many seconds of the whole at full length."""

    title: str
    seconds: float
    begin: Callable[[SimulatedServer], None]


_PHASES = (
    _Phase("predictable text, speculation on", 28, lambda server: None),
    _Phase(
        "creative text, drafts are rejected", 24, lambda server: server.set_acceptance_scale(0.07)
    ),
    _Phase(
        "creative text, vLLM restarted without speculation",
        22,
        lambda server: server.restart(speculation=False, downtime=_DOWNTIME),
    ),
)


@dataclass
class _Seen:
    """What the daemon saw in one phase."""

    title: str
    mode: str = "-"
    tallies: dict[str, Tally] = field(default_factory=dict)
    """What was counted, by temperature bucket; all of it under ``all``."""
    coverage: float | None = None
    """Share of all drafts until then that the tap saw."""

    def row(self) -> Json:
        """Figures, latencies in seconds."""
        return {
            "phase": self.title,
            "speculation": self.mode,
            **_figures_of(self.tallies.get(ALL_TEMPERATURES, Tally())),
            "coverage": self.coverage,
            "temperatures": [
                {"temperature": bucket, **_figures_of(tally)}
                for bucket, tally in sorted(
                    self.tallies.items(), key=lambda item: buckets.order_of(item[0])
                )
                if bucket != ALL_TEMPERATURES and tally.requests
            ],
        }


@click.command(name="demo")
@click.option("--duration", default=75.0, show_default=True, help="Seconds to watch, about.")
@options.json_option
def command(duration: float, as_json: bool) -> None:
    """Start a simulated vLLM and the daemon on free ports, and show what the daemon sees.

    Text turns from predictable to creative, then vLLM is restarted without speculation. It ends
    by itself and leaves nothing behind.
    """
    if not 15 <= duration <= 240:
        raise click.UsageError(f"--duration {duration:g}: expected 15 to 240 seconds")
    console = Console(stderr=as_json, highlight=False, no_color=options.no_color() or None)
    with tempfile.TemporaryDirectory(prefix="specwatch-demo-") as folder:
        report = _Demo(duration, console, Path(folder)).run()
    if as_json:
        options.print_json(report)


class _Demo:
    def __init__(self, duration: float, console: Console, folder: Path) -> None:
        self._scale = duration / sum(phase.seconds for phase in _PHASES)
        self._console = console
        self._events: list[str] = []
        structlog.configure(processors=[self._note], cache_logger_on_first_use=False)
        self._server = SimulatedServer(
            SimulatedSettings(
                model="simulated-70b",
                port=0,
                speculation=SimulatedSpeculation(k=4),
                record="summary",
                middleware=(_TAP,),
                traffic=SimulatedTraffic(rate=_RATE, temperatures=_TEMPERATURES, output_tokens=60),
            )
        )
        self._folder = folder
        self._seen: list[_Seen] = []
        self._engine_drafts = 0
        self._minutes: dict[tuple[str, int], Tally] = {}
        """What each minute counted by temperature."""

    def run(self) -> Json:
        with self._server:
            config = from_targets(
                [self._server.url],
                environ=os.environ,
                hostname="demo",
                settings={
                    "database": f"sqlite:///{self._folder / 'specwatch.db'}",
                    "listen": "127.0.0.1:0",
                },
            )
            target = config.targets[0].model_copy(update={"interval": 1.0, "timeout": 1.0})
            daemon = Daemon(config.model_copy(update={"targets": (target,)}), environ={})
            daemon.start()
            try:
                self._introduce(daemon)
                self._watch(daemon)
            finally:
                self._engine_drafts += self._drafts()
                daemon.stop()
            return self._conclude(daemon)

    def _introduce(self, daemon: Daemon) -> None:
        self._console.print(
            f"[bold]specwatch demo[/bold]: a simulated vLLM at {self._server.url}"
            f" ({_RATE:g} requests a second, k = 4)\nwith the tap, watched by a daemon at"
            f" {daemon.http.url}"
            f" (try {daemon.http.url}/metrics). Press Ctrl-C to end it early.\n",
            soft_wrap=True,
        )

    def _watch(self, daemon: Daemon) -> None:
        live = Live(console=self._console, auto_refresh=False, transient=True)
        terminal = self._console.is_terminal
        if terminal:
            live.start()
        try:
            for phase in _PHASES:
                for left in self._run_phase(phase, daemon):
                    if terminal:
                        live.update(self._picture(left), refresh=True)
                if not terminal:
                    self._console.print(_sentence(self._seen[-1].row()), soft_wrap=True)
        except KeyboardInterrupt:
            self._console.print("ended early")
        finally:
            if terminal:
                live.stop()

    def _run_phase(self, phase: _Phase, daemon: Daemon) -> Iterator[float]:
        """Yield the seconds that are left of the phase, a few times a second."""
        if len(self._seen) == 2:
            self._engine_drafts += self._drafts()
        phase.begin(self._server)
        seen = _Seen(phase.title)
        self._seen.append(seen)
        begun = time.monotonic()
        length = phase.seconds * self._scale
        before: dict[str, Tally] | None = None
        while (left := begun + length - time.monotonic()) > 0:
            total, mode = self._cumulative(daemon)
            if before is None and length - left >= min(_SETTLE, length / 4):
                before = total
            if before is not None:
                seen.tallies = {
                    bucket: _since(tally, before.get(bucket, Tally()))
                    for bucket, tally in total.items()
                }
            seen.coverage = _coverage(total)
            seen.mode = mode
            yield left
            time.sleep(0.25)

    def _picture(self, left: float) -> Group:
        events = Table.grid(padding=(0, 1))
        for event in self._events[-6:]:
            events.add_row(Text(event, style="dim"))
        now = Text(f"{self._seen[-1].title}: {left:.0f} s left", style="bold")
        return Group(now, Text(), self._table(), Text(), Text("log", style="bold"), events)

    def _table(self) -> Table:
        table = _empty_table("phase", "speculation", *_COLUMNS)
        for seen in self._seen:
            row = seen.row()
            table.add_row(seen.title, seen.mode, *_cells(row))
        return table

    def _show_temperatures(self, row: Json) -> None:
        if not row["temperatures"]:
            return
        table = _empty_table("temperature", "requests", *_COLUMNS)
        for bucket in row["temperatures"]:
            requests = figures.number(bucket["requests"])
            table.add_row(bucket["temperature"], requests, *_cells(bucket))
        self._console.print(
            f"By temperature, {row['phase']} (the tap covers {figures.percent(row['coverage'])}"
            " of drafts):",
            soft_wrap=True,
        )
        self._console.print(table)
        self._console.print()

    def _conclude(self, daemon: Daemon) -> Json:
        reader = Reader.of(daemon.config.database.connect_url())
        windows = [
            window
            for window in reader.windows(since=0, until=time.time() + 60)
            if window.series.temperature == ALL_TEMPERATURES
        ]
        reader.close()
        stored = sum(window.tally.drafts or 0 for window in windows)
        rows = [seen.row() for seen in self._seen]
        if self._console.is_terminal:
            self._console.print(self._table())
            self._console.print()
        self._show_temperatures(rows[0])
        self._console.print(
            f"{len(windows)} one-minute window{'s' * (len(windows) != 1)} stored, with {stored:,}"
            f" of the {self._engine_drafts:,} drafts that the engine counted"
            " (nobody sees what it counts between the last scrape and its end).",
            soft_wrap=True,
        )
        self._judge(rows)
        self._console.print(
            "Beside a real vLLM: specwatch run --target http://127.0.0.1:8000", soft_wrap=True
        )
        return {
            "simulated": True,
            "phases": rows,
            "windows": len(windows),
            "drafts_stored": stored,
            "drafts_counted_by_engine": self._engine_drafts,
        }

    def _judge(self, rows: list[Json]) -> None:
        with_drafts, without = (
            next((row["tpot_mean"] for row in rows if row["phase"] == phase.title), None)
            for phase in _PHASES[1:]
        )
        if with_drafts and without:
            says = "faster without" if without < with_drafts else "faster with"
            self._console.print(
                f"For this creative text the simulated vLLM is {says} speculation: mean TPOT"
                f" {figures.seconds(with_drafts)} with, {figures.seconds(without)} without.",
                soft_wrap=True,
            )

    def _cumulative(self, daemon: Daemon) -> tuple[dict[str, Tally], str]:
        """All that the daemon has counted by bucket, and the mode now."""
        target = daemon.status(current=True).targets[0]
        for window in target.current:
            self._minutes[window.series.temperature, window.start] = window.tally
        total: dict[str, Tally] = {}
        for (bucket, _), counted in self._minutes.items():
            total[bucket] = merge.merge_tallies(total.get(bucket, Tally()), counted)
        return total, next(map(str, target.models.values()), "-")

    def _drafts(self) -> int:
        with self._server.synced() as engine:
            return engine.tally().drafts or 0

    def _note(self, _logger: Any, level: str, event: MutableMapping[str, Any]) -> str:
        keys = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "exc_info"))
        self._events.append(f"{level:7} {event['event']} {keys}"[:110])
        raise structlog.DropEvent


def _coverage(total: dict[str, Tally]) -> float | None:
    """The share that the buckets have of all drafts; a record comes at the end of its request."""
    whole = total.get(ALL_TEMPERATURES, Tally()).drafts
    parts = (tally.drafts or 0 for bucket, tally in total.items() if bucket != ALL_TEMPERATURES)
    return sum(parts) / whole if whole else None


def _since(total: Tally, before: Tally) -> Tally:
    return Tally(
        drafts=_less(total.drafts, before.drafts),
        draft_tokens=_less(total.draft_tokens, before.draft_tokens),
        accepted_tokens=_less(total.accepted_tokens, before.accepted_tokens),
        requests={r: n - before.requests.get(r, 0) for r, n in total.requests.items()},
        ttft=_less_histogram(total.ttft, before.ttft),
        tpot=_less_histogram(total.tpot, before.tpot),
    )


def _less(total: int | None, before: int | None) -> int | None:
    return None if total is None else total - (before or 0)


def _less_histogram(total: Histogram | None, before: Histogram | None) -> Histogram | None:
    if total is None or before is None or total.bounds != before.bounds:
        return total
    counts = tuple(a - b for a, b in zip(total.counts, before.counts, strict=True))
    return Histogram(total.bounds, counts, total.sum - before.sum)


def _at(observed: Histogram | None, q: float) -> float | None:
    found = None if observed is None else histogram.quantile(observed, q)
    return None if found is None else found.value


def _figures_of(counted: Tally) -> Json:
    return {
        "acceptance_rate": acceptance.acceptance_rate(counted),
        "mean_acceptance_length": acceptance.mean_acceptance_length(counted),
        "requests": sum(counted.requests.values()),
        "ttft_p50": _at(counted.ttft, 0.5),
        "ttft_p99": _at(counted.ttft, 0.99),
        "tpot_mean": counted.tpot and histogram.mean(counted.tpot),
        "tpot_p99": _at(counted.tpot, 0.99),
    }


def _cells(row: Json) -> tuple[str, ...]:
    return (
        figures.percent(row["acceptance_rate"]),
        figures.number(row["mean_acceptance_length"], 2),
        figures.seconds(row["ttft_p50"]),
        figures.seconds(row["tpot_mean"]),
    )


def _empty_table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table


def _sentence(row: Json) -> str:
    return (
        f"{row['phase']}: speculation {row['speculation']},"
        f" acceptance {figures.percent(row['acceptance_rate'])},"
        f" {figures.number(row['mean_acceptance_length'], 2)} tokens a step,"
        f" TTFT p50 {figures.seconds(row['ttft_p50'])},"
        f" mean TPOT {figures.seconds(row['tpot_mean'])},"
        f" {row['requests']} requests"
    )

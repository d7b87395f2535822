"""``specwatch demo``: a simulated vLLM, watched by a daemon."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, nullcontext
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
from specwatch.cli.terminal import new_console
from specwatch.config.loading import Config
from specwatch.config.target import Experiments
from specwatch.daemon.daemon import Daemon
from specwatch.domain import acceptance, buckets, histogram, merge
from specwatch.domain.model import ALL, MINUTE, Histogram, Moment, Segment, Tally
from specwatch.domain.switchback import LAUNCH, STANDBY
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedTraffic
from specwatch.store.readers import Reader
from specwatch.wording import experiment as wording
from specwatch.wording import figures
from specwatch_tap import MIDDLEWARE
from specwatch_tap.settings import SWITCH_DIRECTORY

_CLIENTS = 6
_K = 4
_DOWNTIME = 1.5
_TEMPERATURES = ((0.0, 0.4), (0.2, 0.2), (0.6, 0.2), (1.0, 0.2))
_SETTLE = 3.0
"""Seconds at the start of a phase that do not count: answers begun before it end in them."""
_BLOCK = 4.7
"""Seconds of a block of the experiment: each lasts five, as the daemon looks once a second."""
_KNOWN_AFTER = 20.0
"""Seconds after which the first minute of the daemon ends. Before that the experiment waits."""
_EPISODES = 7
"""With six the interval is almost twice as wide."""


class _Phase(NamedTuple):
    """A part of the demo; ``seconds`` are those of a demo of 117 seconds."""

    title: str
    seconds: float
    begin: Callable[[SimulatedServer], None]


_EXPERIMENT = _Phase("creative, experiment", 87, lambda server: None)
_PHASES = (
    _Phase("predictable text", 12, lambda server: None),
    _Phase("creative text", 10, lambda server: server.set_acceptance_scale(0.03)),
    _EXPERIMENT,
    _Phase(
        "creative, restarted",
        8,
        lambda server: server.restart(speculation=False, downtime=_DOWNTIME),
    ),
)


@dataclass
class _Observed:
    """Counts of the daemon in one phase."""

    title: str
    mode: str = "-"
    tallies: dict[Segment, Tally] = field(default_factory=dict)
    """By temperature bucket; the total is ``all``."""
    coverage: float | None = None
    """Share of all drafts so far that the tap saw."""

    def row(self) -> dict[str, Any]:
        """Figures, latencies in seconds."""
        ordered = sorted(self.tallies.items(), key=lambda item: buckets.order_of(item[0]))
        return {
            "phase": self.title,
            "speculation": self.mode,
            **_figures_of(self.tallies.get(ALL, Tally())),
            "coverage": self.coverage,
            "temperatures": [
                {"temperature": bucket.value, **_figures_of(tally)}
                for bucket, tally in ordered
                if bucket != ALL and tally.requests
            ],
        }


@click.command(name="demo")
@click.option(
    "--duration",
    type=click.FloatRange(15, 240),
    default=117.0,
    show_default=True,
    help="Greatest length in seconds.",
)
@options.json_option
def command(duration: float, as_json: bool) -> None:
    """Start a simulated vLLM and the daemon on free ports, and show what the daemon sees.

    The text changes from predictable to creative. An experiment then measures what 0 draft tokens
    would gain, and ends once that is known. At last vLLM is restarted without speculation. The demo
    ends by itself and deletes its files.
    """
    if math.isnan(duration):  # which click takes for a number in any range
        raise click.BadParameter("nan is not in the range 15<=x<=240.", param_hint="'--duration'")
    with tempfile.TemporaryDirectory(prefix="specwatch-demo-") as folder:
        report = _Demo(duration, new_console(stderr=as_json), Path(folder)).run()
    if as_json:
        options.print_json(report)


class _Demo:
    def __init__(self, duration: float, console: Console, folder: Path) -> None:
        self._scale = duration / sum(phase.seconds for phase in _PHASES)
        self._console = console
        self._events: list[str] = []
        structlog.configure(processors=[self._note])
        logging.disable()  # that scrapes are skipped on a busy machine is in the log
        (folder / "switch").mkdir(mode=0o700)
        os.environ[SWITCH_DIRECTORY] = str(folder / "switch")  # the tap reads it
        self._server = SimulatedServer(
            SimulatedSettings(
                model="simulated-70b",
                port=0,
                speculation=SimulatedSpeculation(k=_K, schedule=((1, 64, _K),)),
                record="summary",
                middleware=(MIDDLEWARE,),
                switch_directory=folder / "switch",
                traffic=SimulatedTraffic(
                    concurrency=_CLIENTS, temperatures=_TEMPERATURES, output_tokens=80
                ),
            )
        )
        self._folder = folder
        self._phases: list[_Observed] = []
        self._engine_drafts = 0
        self._experiment: ExperimentStatus | None = None
        self._true_paces: list[tuple[float, float]] = []
        self._minutes: dict[tuple[Segment, int], Tally] = {}
        """Counts by temperature bucket and minute."""

    def run(self) -> dict[str, Any]:
        with self._server:
            self._ahead = (-time.time() - _KNOWN_AFTER * self._scale) % MINUTE
            daemon = Daemon(self._config(), environ={}, now=self._now)
            daemon.start()
            try:
                self._print(
                    f"[bold]specwatch demo[/bold]: a simulated vLLM at {self._server.url}"
                    f" ({_CLIENTS} requests at a time, k = {_K})\nwith the tap, watched by a daemon"
                    f" at {daemon.http.url} (try {daemon.http.url}/metrics). Press Ctrl-C to end"
                    " it early.\n"
                )
                self._watch(daemon)
            finally:
                self._engine_drafts += self._drafts()
                daemon.stop()
            return self._conclude(daemon)

    def _config(self) -> Config:
        target = {
            "url": self._server.url,
            "interval": "1s",
            "timeout": "1s",
            "switch": {"directory": str(self._folder / "switch")},
        }
        database = f"sqlite:///{self._folder / 'specwatch.db'}"
        config = options.load(None, [target], database=database, listen="127.0.0.1:0")
        # Shorter than a file may ask for: here requests take two seconds.
        short = Experiments.model_construct(arms=(0,), share=0.5, regret=1.0, block=_BLOCK)
        changes = {"experiments": short, "interval": 0.5}
        targets = tuple(one.model_copy(update=changes) for one in config.targets)
        return config.model_copy(update={"targets": targets})

    def _now(self) -> Moment:
        """The clock of the daemon, by which a minute ends when the experiment is to begin."""
        return Moment(time.time() + self._ahead, time.monotonic())

    def _watch(self, daemon: Daemon) -> None:
        live = Live(console=self._console, auto_refresh=False, transient=True)
        terminal = self._console.is_terminal
        try:
            with live if terminal else nullcontext():
                for phase in _PHASES:
                    for left in self._run_phase(phase, daemon):
                        if terminal:
                            live.update(self._picture(daemon, left), refresh=True)
                    if not terminal:
                        row = self._phases[-1].row()
                        self._print(
                            f"{row['phase']}: speculation {row['speculation']},"
                            f" acceptance {figures.percent(row['acceptance_rate'])},"
                            f" {figures.number(row['mean_acceptance_length'], 2)} tokens a step,"
                            f" TTFT p50 {figures.seconds(row['ttft_p50'])},"
                            f" mean TPOT {figures.seconds(row['tpot_mean'])},"
                            f" {row['requests']} requests"
                        )
        except KeyboardInterrupt:
            self._print("ended early")

    def _run_phase(self, phase: _Phase, daemon: Daemon) -> Iterator[float]:
        """Yield the remaining seconds of the phase, a few times a second."""
        if len(self._phases) == len(_PHASES) - 1:  # a restart sets the counters back
            self._engine_drafts += self._drafts()
        phase.begin(self._server)
        observed = _Observed(phase.title)
        self._phases.append(observed)
        begun = time.monotonic()
        length = phase.seconds * self._scale
        before: dict[Segment, Tally] | None = None
        while (left := begun + length - time.monotonic()) > 0:
            total, mode = self._cumulative(daemon)
            if before is None and length - left >= min(_SETTLE, length / 4):
                before = total
            if before is not None:
                observed.tallies = {
                    bucket: _since(tally, before.get(bucket, Tally()))
                    for bucket, tally in total.items()
                }
            observed.coverage = _coverage(total)
            observed.mode = "on/standby" if phase is _EXPERIMENT else mode
            if phase is _EXPERIMENT and self._is_known(daemon):
                return
            yield left
            time.sleep(0.25)

    def _is_known(self, daemon: Daemon) -> bool:
        """Whether the experiment has enough episodes; notes what it has, and what is true."""
        self._experiment = daemon.status().targets[0].experiment
        with self._server.synced() as engine:
            batch = engine.running
            paces = engine.true_pace(batch), engine.true_pace(batch, 0)
        self._true_paces.append((batch * paces[0], batch * paces[1]))
        known = self._experiment
        return known is not None and known.arm == LAUNCH and known.episodes >= _EPISODES

    def _true_speedup(self) -> float:
        """Of standby over the launch, at the batches that there were."""
        launch, standby = (sum(paces) for paces in zip(*self._true_paces, strict=True))
        return launch / standby if standby else math.nan

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _picture(self, daemon: Daemon, left: float) -> Group:
        events = Table.grid(padding=(0, 1))
        for event in self._events[-6:]:
            events.add_row(Text(event, style="dim", no_wrap=True, overflow="ellipsis"))
        now = Text(f"{self._phases[-1].title}: {left:.0f} s left", style="bold")
        phases = _table(("phase", "speculation"), [phase.row() for phase in self._phases])
        running = daemon.status().targets[0].experiment
        standing = "" if running is None else wording.standing(running, self._now().wall)
        experiment = Text(f"experiment: {standing}")
        log = Text("log", style="bold")
        return Group(now, Text(), phases, Text(), experiment, Text(), log, events)

    def _conclude(self, daemon: Daemon) -> dict[str, Any]:
        with closing(Reader.of(daemon.config.database.connect_url())) as reader:
            windows = [
                window
                for window in reader.windows(since=0, until=self._now().wall + 60)
                if window.series.segment == ALL
            ]
        stored = sum(window.tally.drafts or 0 for window in windows)
        rows = [phase.row() for phase in self._phases]
        if self._console.is_terminal:
            self._console.print(_table(("phase", "speculation"), rows))
            self._console.print()
        first = rows[0]
        if first["temperatures"]:
            self._print(
                f"By temperature, {first['phase']} (the tap covers"
                f" {figures.percent(first['coverage'])} of drafts):"
            )
            self._console.print(_table(("temperature", "requests"), first["temperatures"]))
            self._console.print()
        self._print(
            f"{figures.counted(len(windows), 'one-minute window')} stored, with {stored:,} of the"
            f" {self._engine_drafts:,} drafts that the engine counted (those between the last"
            " scrape and its end are not seen)."
        )
        with_drafts, without = (
            next((row["tpot_mean"] for row in rows if row["phase"] == phase.title), None)
            for phase in (_PHASES[1], _PHASES[-1])
        )
        if with_drafts and without:
            answer = "faster without" if without < with_drafts else "faster with"
            self._print(
                f"For this creative text the simulated vLLM is {answer} speculation: mean TPOT"
                f" {figures.seconds(with_drafts)} with, {figures.seconds(without)} without."
            )
        known = self._experiment
        if known is not None:
            speedup = known.speedups.get(STANDBY)
            answer = wording.comparison(STANDBY, LAUNCH, speedup, known.episodes)
            self._print(
                f"On this traffic: {answer}. The truth of the simulation is"
                f" {self._true_speedup():.2f}."
            )
        self._print("Beside a real vLLM: specwatch run --target http://127.0.0.1:8000")
        return {
            "simulated": True,
            "phases": rows,
            "windows": len(windows),
            "drafts_stored": stored,
            "drafts_counted_by_engine": self._engine_drafts,
            "experiment": known
            and {
                "arm": STANDBY,
                "speedup": known.speedups.get(STANDBY),
                "episodes": known.episodes,
                "true_speedup": self._true_speedup(),
            },
        }

    def _cumulative(self, daemon: Daemon) -> tuple[dict[Segment, Tally], str]:
        """All counts of the daemon by bucket, and the mode now."""
        target = daemon.status(current=True).targets[0]
        for window in target.current:
            self._minutes[window.series.segment, window.start] = window.tally
        total: dict[Segment, Tally] = {}
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


def _coverage(total: dict[Segment, Tally]) -> float | None:
    """The share of the buckets in all drafts; a record comes at the end of its request."""
    whole = total.get(ALL, Tally()).drafts
    parts = (tally.drafts or 0 for bucket, tally in total.items() if bucket != ALL)
    return sum(parts) / whole if whole else None


def _since(total: Tally, before: Tally) -> Tally:
    """The counts in ``total`` that are not in ``before``."""
    changes: dict[str, Any] = {
        "requests": {r: n - before.requests.get(r, 0) for r, n in total.requests.items()}
    }
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        count = getattr(total, name)
        changes[name] = None if count is None else count - (getattr(before, name) or 0)
    for name in ("ttft", "tpot"):
        whole, part = getattr(total, name), getattr(before, name)
        if whole is not None and part is not None and whole.bounds == part.bounds:
            counts = tuple(a - b for a, b in zip(whole.counts, part.counts, strict=True))
            whole = Histogram(whole.bounds, counts, whole.sum - part.sum)
        changes[name] = whole
    return Tally(**changes)


def _quantile(observed: Histogram | None, q: float) -> float | None:
    return getattr(observed and histogram.quantile(observed, q), "value", None)


def _figures_of(counted: Tally) -> dict[str, Any]:
    return {
        "acceptance_rate": acceptance.acceptance_rate(counted),
        "mean_acceptance_length": acceptance.mean_acceptance_length(counted),
        "requests": sum(counted.requests.values()),
        "ttft_p50": _quantile(counted.ttft, 0.5),
        "ttft_p99": _quantile(counted.ttft, 0.99),
        "tpot_mean": counted.tpot and histogram.mean(counted.tpot),
        "tpot_p99": _quantile(counted.tpot, 0.99),
    }


def _table(names: tuple[str, ...], rows: Sequence[dict[str, Any]]) -> Table:
    """A column for each of these names, and for the figures that all rows have."""
    headers = (*names, "accepted", "tok/step", "TTFT p50", "mean TPOT")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for place, header in enumerate(headers):
        table.add_column(header, justify="right" if place else "left", no_wrap=place > 0)
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in names),
            figures.percent(row["acceptance_rate"]),
            figures.number(row["mean_acceptance_length"], 2),
            figures.seconds(row["ttft_p50"]),
            figures.seconds(row["tpot_mean"]),
        )
    return table

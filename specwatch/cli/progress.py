"""Progress of a command on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console
from rich.text import Text

from specwatch.cli.terminal import new_console
from specwatch.wording.figures import counted, moment, span
from specwatch.wording.text import LONGEST_SENTENCE, shown

_LINE_SECONDS, _SEARCH_SECONDS = 15.0, 3.0
"""Time between lines of a backfill, and of its search for servers."""


class _TimeLeft(progress.TimeRemainingColumn):
    def render(self, task: progress.Task) -> Text:
        time_left = super().render(task)
        return time_left.append(" left") if time_left else time_left


class ProgressBar:
    """A bar with the running step, and lines about finished ones; both with the time left."""

    def __init__(
        self,
        *columns: progress.ProgressColumn,
        console: Console | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``columns`` are shown after the bar; ``console`` replaces that of standard error."""
        self._monotonic = monotonic
        self._began = monotonic()
        self._done, self._total = 0.0, 0.0
        self._console = console or new_console(stderr=True)
        columns = columns or (progress.TaskProgressColumn(),)
        self._columns = (*columns, _TimeLeft())
        self._bar: progress.Progress | None = None

    @contextmanager
    def over(self, total: float | None) -> Iterator[None]:
        """Show progress until the end of the block; :meth:`step` may set the total later."""
        self._began, self._done, self._total = self._monotonic(), 0.0, total or 0.0
        if not self._console.is_terminal:
            yield
            return
        columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn())
        bar = progress.Progress(*columns, *self._columns, console=self._console, transient=True)
        bar.add_task("starting", total=total, rate="-")
        with bar:
            self._bar = bar
            yield
        self._bar = None

    def step(
        self,
        doing: str,
        ended: float | None = None,
        *,
        completed: float | None = None,
        total: float | None = None,
        rate: str = "-",
    ) -> None:
        """Show what runs now, and how much has ended: since the last call, or ``completed``."""
        self._done = self._done + (ended or 0.0) if completed is None else completed
        self._total = self._total if total is None else total
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0],
                description=shown(doing),
                advance=ended,
                completed=completed,
                total=total,
                rate=rate,
            )

    def note(self, text: str) -> None:
        """Print a line about something that ended; without a bar, with the time left."""
        text = shown(text, LONGEST_SENTENCE)
        if self._bar is None and 0 < self._done < self._total:
            left = (self._monotonic() - self._began) * (self._total / self._done - 1)
            text += f", about {span(left)} left"
        self._console.print(text, soft_wrap=True, markup=False)


class BackfillProgress(ProgressBar):
    """The progress of a backfill in hours; in a pipe a line every 15 seconds."""

    def __init__(
        self, console: Console | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """``console`` replaces that of standard error."""
        super().__init__(
            progress.MofNCompleteColumn(),
            progress.TextColumn("hours, {task.fields[rate]}"),
            console=console,
            monotonic=monotonic,
        )
        self._hours = self._ended = self._minutes = 0
        self._last_line = monotonic()
        self.last: tuple[str, int] | None = None
        """Target and hour that were finished last."""

    @contextmanager
    def over(self, total: float | None) -> Iterator[None]:
        """Show progress until the end of the block."""
        self._hours = int(total or 0)
        self._last_line = self._monotonic()
        with super().over(total):
            yield

    def hour(self, target: str, hour: int, minutes: int) -> None:
        """Count a finished hour of a target, with the number of its minutes that were written."""
        self._ended += 1
        self._minutes += minutes
        self.last = (target, hour)
        rate = f"{self._ended / max(self._monotonic() - self._began, 0.001):.3g} hours a second"
        self.step(f"{shown(target)} {moment(hour)}", 1, rate=rate)
        if self._bar is None and self._due(_LINE_SECONDS):
            self.note(
                f"{target} {moment(hour)}: {self._ended} of {counted(self._hours, 'hour')},"
                f" {counted(self._minutes, 'minute')} written, {rate}"
            )

    def looked(self, reached: int) -> None:
        """Print up to which Unix time servers were searched."""
        if self._due(_SEARCH_SECONDS):
            self.note(f"looking for servers: until {moment(reached)}")

    def _due(self, seconds: float) -> bool:
        """Whether the last line was printed at least ``seconds`` ago."""
        if self._monotonic() - self._last_line < seconds:
            return False
        self._last_line = self._monotonic()
        return True

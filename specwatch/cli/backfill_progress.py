"""How far a backfill is: a bar on a terminal, now and then a line elsewhere; on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console

from specwatch.wording.figures import counted
from specwatch.wording.moments import moment
from specwatch.wording.text import LONGEST_SENTENCE, shown

_EVERY = 15.0
"""Seconds between lines."""
_EVERY_LOOK = 3.0
"""Seconds between lines while servers are looked for."""


class Progress:
    """Told of each hour that has ended, and of what else is worth a line."""

    def __init__(
        self,
        console: Console | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``console`` in place of standard error's."""
        # Which heeds NO_COLOR itself.
        self._console = console or Console(stderr=True, highlight=False)
        self._monotonic = monotonic
        self._bar: rich.progress.Progress | None = None
        self._task = rich.progress.TaskID(0)
        self._hours = self._done = self._minutes = 0
        self._begun = 0.0
        self._told = monotonic()
        self.at: tuple[str, int] | None = None
        """The target and the hour that ended last."""

    @contextmanager
    def over(self, hours: int) -> Iterator[None]:
        """Show progress until the end of the block."""
        self._hours, self._begun = hours, self._monotonic()
        self._told = self._begun
        if not self._console.is_terminal:
            yield
            return
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("hours, {task.fields[rate]}"),
            rich.progress.TimeRemainingColumn(),
        )
        with rich.progress.Progress(*columns, console=self._console, transient=True) as bar:
            self._bar = bar
            self._task = bar.add_task("starting", total=hours, rate="-")
            yield
        self._bar = None

    def hour(self, target: str, hour: int, minutes: int) -> None:
        """An hour of a target has ended, in which so many minutes were written."""
        self._done += 1
        self._minutes += minutes
        self.at = (target, hour)
        if self._bar is not None:
            doing = f"{shown(target)} {moment(hour)}"
            self._bar.update(self._task, description=doing, advance=1, rate=self._rate())
        elif self._monotonic() - self._told >= _EVERY:
            self._told = self._monotonic()
            self.note(
                f"{target} {moment(hour)}: {self._done} of {counted(self._hours, 'hour')},"
                f" {counted(self._minutes, 'minute')} written, {self._rate()}"
            )

    def looked(self, at: int) -> None:
        """The search for servers has come to a time."""
        if self._monotonic() - self._told >= _EVERY_LOOK:
            self._told = self._monotonic()
            self.note(f"looking for servers: until {moment(at)}")

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._console.print(shown(text, LONGEST_SENTENCE), soft_wrap=True, markup=False)

    def _rate(self) -> str:
        seconds = max(self._monotonic() - self._begun, 0.001)
        return f"{self._done / seconds:.3g} hours a second"

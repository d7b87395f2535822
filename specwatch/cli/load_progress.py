"""How far a load is: a bar on a terminal, plain lines elsewhere; on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console

from specwatch.wording.text import LONGEST_SENTENCE, shown


class Progress:
    """Told of steps and of what ended."""

    def __init__(self, console: Console | None = None) -> None:
        """``console`` in place of standard error's."""
        # Which heeds NO_COLOR itself.
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: rich.progress.Progress | None = None
        self._task = rich.progress.TaskID(0)

    @contextmanager
    def over(self, slices: int) -> Iterator[None]:
        """Show progress until the end of the block."""
        if not self._console.is_terminal:
            yield
            return
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        with rich.progress.Progress(*columns, console=self._console, transient=True) as bar:
            self._bar, self._task = bar, bar.add_task("starting", total=slices)
            yield
        self._bar = None

    def step(self, doing: str, slices: int) -> None:
        """What runs now, and how many slices have ended since the last call."""
        if self._bar is not None:
            self._bar.update(self._task, description=doing, advance=slices)

    def note(self, text: str) -> None:
        """Something that ended."""
        self._console.print(shown(text, LONGEST_SENTENCE), soft_wrap=True, markup=False)

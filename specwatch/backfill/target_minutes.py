"""The minutes of a target that Prometheus has, and those that the store has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.backfill.prometheus_pages import union
from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import Window
from specwatch.store.contexts import storable
from specwatch.store.stored_minutes import Hold


class TargetMinutes:
    """The minutes of a target in Prometheus and in the store, by model name in the store."""

    def __init__(
        self,
        present: Mapping[str, MinuteSet],
        known: Mapping[str, MinuteSet],
        span: tuple[int, int],
        unnamed: str,
        *,
        held_by: Hold | None = None,
        gone: Sequence[Hold] = (),
    ) -> None:
        """``span`` is the first second and that after the last."""
        self._by_model = present
        self.present = union(present.values())
        """Minutes with a page."""
        self._known = dict(known)
        self._since, self.until = span
        self.unnamed = unnamed
        self.held_by, self.gone = held_by, gone
        self.ours = MinuteSet()
        """Minutes that a backfill wrote: their counts end with their last page in Prometheus."""

    def missing(self, hour: int) -> MinuteSet:
        """Minutes of an hour that have a page and lack a model in the store."""
        lacking = MinuteSet()
        for model, minutes in self._by_model.items():
            here = minutes.of_hour(hour).within(self._since, self.until)
            lacking.update(here.without(self._known.get(model, MinuteSet())))
        return lacking

    def lacks(self, hour: int) -> bool:
        """Whether any minute of an hour is missing."""
        return bool(len(self.missing(hour)))

    def is_taken(self, model: str, minute: int) -> bool:
        """Whether a minute of a model is in the store, or is counted in a later window."""
        return minute in self._known.get(model, ())

    def take(self, windows: Sequence[Window], *, ours: bool) -> None:
        """Note minutes that are in the store now, written by this backfill if ``ours``."""
        for window in windows:
            model = storable(window.series.model_name)
            self._known.setdefault(model, MinuteSet()).add(window.start)
            if ours:
                self.ours.add(window.start)

"""Which minutes of a target Prometheus has, and which the store has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import Window
from specwatch.store.contexts import storable
from specwatch.store.stored_minutes import Hold


class TargetMinutes:
    """What Prometheus has of a target, and what the store has, by model as the store calls it."""

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
        self.present = MinuteSet()
        """Minutes with a page."""
        for minutes in present.values():
            self.present.update(minutes)
        self._known = dict(known)
        self._since, self.until = span
        self.unnamed = unnamed
        self.held_by, self.gone = held_by, gone
        self.ours = MinuteSet()
        """Minutes that were filled in: what follows them in Prometheus follows them exactly."""

    def missing(self, hour: int) -> MinuteSet:
        """Minutes of an hour with a page, of which a model is not in the store."""
        lacking = MinuteSet()
        for model, minutes in self._by_model.items():
            here = minutes.of_hour(hour).within(self._since, self.until)
            lacking.update(here.without(self._known.get(model, MinuteSet())))
        return lacking

    def lacks(self, hour: int) -> bool:
        """Whether any minute of an hour is missing."""
        return bool(len(self.missing(hour)))

    def is_taken(self, model: str, minute: int) -> bool:
        """Whether a minute of a model is in the store, or counted in what is."""
        return minute in self._known.get(model, ())

    def take(self, windows: Sequence[Window], *, ours: bool) -> None:
        """Note minutes that are in the store now, by us or by another."""
        for window in windows:
            model = storable(window.series.model_name)
            self._known.setdefault(model, MinuteSet()).add(window.start)
            if ours:
                self.ours.add(window.start)

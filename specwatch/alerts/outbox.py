"""What one Alertmanager has yet to be told: a state, not a queue, so that it cannot grow behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specwatch.alerts.alert import Alert, Key, posted

REMEMBERED = 3600.0
"""Seconds for which an end is kept for an Alertmanager that cannot be told of it."""
LIFETIME = 4
"""Resends that an alert outlives its sender by: then Alertmanager ends it by itself."""
MOST_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class _Ended:
    alert: Alert
    at: float
    version: int


@dataclass(frozen=True, slots=True)
class Letter:
    """What to send now; ``version`` is what :meth:`Outbox.told` wants back."""

    version: int
    alerts: tuple[dict[str, object], ...]


class Outbox:
    """The alerts that fire, and those that ended lately; times are Unix seconds.

    An end is repeated for as long as the alert might have lived on: an Alertmanager whose clock is
    behind takes an end in its own future for no end.
    """

    def __init__(
        self, *, resend: float, labels: Mapping[str, str], generator_url: str | None = None
    ) -> None:
        """``resend``: seconds between two letters; ``labels`` are added to every alert."""
        self._lifetime = LIFETIME * resend
        self._labels = labels
        self._generator_url = generator_url
        self._firing: dict[Key, Alert] = {}
        self._ended: dict[Key, _Ended] = {}
        self._version = self._told = 0

    @property
    def firing(self) -> int:
        """Alerts that fire."""
        return len(self._firing)

    @property
    def is_behind(self) -> bool:
        """Whether something changed that was not told yet."""
        return self._version > self._told

    def set(self, alerts: Sequence[Alert], now: float) -> bool:
        """These fire now, and no others; returns whether one began or ended.

        Other annotations, whose numbers may change all the time, are no news: they go with the
        next letter.
        """
        firing = {alert.key: alert for alert in alerts}
        if firing.keys() == self._firing.keys():
            self._firing = firing
            return False
        self._version += 1
        for key, alert in self._firing.items():
            if key not in firing:
                self._ended[key] = _Ended(alert, now, self._version)
        for key in firing:
            self._ended.pop(key, None)
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._firing = firing
        return True

    def letter(self, now: float) -> Letter | None:
        """What there is to say at ``now``; None when that is nothing."""
        self._forget(now)
        alerts = [self._posted(alert, now, now + self._lifetime) for alert in self._firing.values()]
        alerts += [self._posted(ended.alert, now, ended.at) for ended in self._ended.values()]
        if not alerts:
            self._told = self._version
            return None
        return Letter(self._version, tuple(alerts))

    def told(self, letter: Letter) -> None:
        """The letter has arrived."""
        self._told = max(self._told, letter.version)

    def _posted(self, alert: Alert, now: float, ends_at: float) -> dict[str, object]:
        return posted(
            alert,
            now=now,
            ends_at=ends_at,
            labels=self._labels,
            generator_url=self._generator_url,
        )

    def _forget(self, now: float) -> None:
        for key, ended in list(self._ended.items()):
            arrived = ended.version <= self._told
            if now >= ended.at + (self._lifetime if arrived else max(REMEMBERED, self._lifetime)):
                del self._ended[key]

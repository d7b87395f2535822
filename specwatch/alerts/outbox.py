"""What one Alertmanager still has to receive: a state, not a queue, so that it stays small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specwatch.alerts.alert import Alert, Key, posted

REMEMBERED = 3600.0
"""Seconds for which the end of an alert is kept for an Alertmanager that cannot be reached."""
LIFETIME = 4
"""Resend intervals after which Alertmanager ends an alert that is not sent again."""
MOST_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class _Ended:
    alert: Alert
    at: float
    version: int


@dataclass(frozen=True, slots=True)
class Message:
    """What to send now; pass it to :meth:`Outbox.delivered` once it has arrived."""

    version: int
    alerts: tuple[dict[str, object], ...]


class Outbox:
    """The alerts that fire, and those that ended recently; times are Unix seconds.

    An end is repeated for as long as the alert might have gone on: an Alertmanager whose clock is
    behind keeps an alert firing whose end lies in its own future.
    """

    def __init__(self, *, resend: float, labels: Mapping[str, str]) -> None:
        """``resend``: seconds between two messages; ``labels`` are added to every alert."""
        self._lifetime = LIFETIME * resend
        self._labels = labels
        self._firing: dict[Key, Alert] = {}
        self._seen: dict[Key, float] = {}
        self._ended: dict[Key, _Ended] = {}
        self._version = self._delivered = 0

    @property
    def firing(self) -> int:
        """Alerts that fire."""
        return len(self._firing)

    @property
    def is_behind(self) -> bool:
        """Whether something changed that was not delivered yet."""
        return self._version > self._delivered

    def set(self, alerts: Sequence[Alert], now: float) -> bool:
        """These fire now, and no others but those that keep firing; returns whether one began or
        ended.

        Changed annotations, whose numbers may change all the time, wait for the next message.
        """
        firing = {alert.key: alert for alert in alerts}
        self._seen |= dict.fromkeys(firing, now)
        for key, alert in self._firing.items():
            if now < self._seen[key] + alert.keep_firing_for:
                firing.setdefault(key, alert)
        self._seen = {key: self._seen[key] for key in firing}
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

    def message(self, now: float) -> Message | None:
        """What to send at ``now``; None if nothing fires and no end has to be repeated."""
        self._forget(now)
        alerts = [
            self._posted(alert, now, now + self._lifetime + alert.found_after)
            for alert in self._firing.values()
        ]
        alerts += [self._posted(ended.alert, now, ended.at) for ended in self._ended.values()]
        if not alerts:
            self._delivered = self._version
            return None
        return Message(self._version, tuple(alerts))

    def delivered(self, message: Message) -> None:
        """The message has arrived."""
        self._delivered = max(self._delivered, message.version)

    def _posted(self, alert: Alert, now: float, ends_at: float) -> dict[str, object]:
        return posted(alert, now=now, ends_at=ends_at, labels=self._labels)

    def _forget(self, now: float) -> None:
        for key, ended in list(self._ended.items()):
            arrived = ended.version <= self._delivered
            lifetime = self._lifetime + ended.alert.found_after
            if now >= ended.at + (lifetime if arrived else max(REMEMBERED, lifetime)):
                del self._ended[key]

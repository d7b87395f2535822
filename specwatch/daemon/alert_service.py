"""Sends the alerts that fire to every configured Alertmanager."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from specwatch.alerts.firing import alerts_of
from specwatch.config.loading import Config
from specwatch.status import PagerStatus, TargetStatus

if TYPE_CHECKING:
    from specwatch.alerts.sender import Alertmanagers

_END_SECONDS = 1.0


class AlertService:
    """Sends alerts to the configured Alertmanagers; nothing waits for them."""

    def __init__(self, config: Config) -> None:
        self._section = config.alertmanager
        self._alertmanagers = self._connect()

    def configure(self, config: Config) -> None:
        """Send to those of another configuration; the old ones get what they still miss."""
        if config.alertmanager == self._section:
            return
        before, self._section = self._alertmanagers, config.alertmanager
        self._alertmanagers = self._connect()
        if before is not None:
            threading.Thread(target=before.close, args=(_END_SECONDS,), daemon=True).start()

    @property
    def active(self) -> bool:
        """Whether any Alertmanager is configured."""
        return self._alertmanagers is not None

    def send(self, targets: Iterable[TargetStatus]) -> None:
        """Exactly the alerts of these targets fire now."""
        if self._alertmanagers is not None and self._section is not None:
            runbook = self._section.runbook_url
            self._alertmanagers.set(
                [alert for target in targets for alert in alerts_of(target, runbook)]
            )

    def status(self) -> tuple[PagerStatus, ...]:
        """How each delivery goes."""
        return () if self._alertmanagers is None else self._alertmanagers.status()

    def close(self) -> None:
        """Try again to deliver what was not delivered."""
        if self._alertmanagers is not None:
            self._alertmanagers.close(_END_SECONDS)

    def _connect(self) -> Alertmanagers | None:
        if self._section is None:
            return None
        from specwatch.alerts.sender import Alertmanagers  # requests takes memory

        return Alertmanagers(self._section)

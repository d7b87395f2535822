"""Sends what fires to every Alertmanager, whether the others answer or not."""

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
    """Tells the configured Alertmanagers; nothing waits for them."""

    def __init__(self, config: Config) -> None:
        self._section = config.alertmanager
        self._alertmanagers = self._made()

    def configure(self, config: Config) -> None:
        """Tell those of another configuration; the others are told what they have not heard."""
        if config.alertmanager == self._section:
            return
        before, self._section = self._alertmanagers, config.alertmanager
        self._alertmanagers = self._made()
        if before is not None:
            threading.Thread(target=before.close, args=(_END_SECONDS,), daemon=True).start()

    @property
    def listened_to(self) -> bool:
        """Whether there is anybody to tell."""
        return self._alertmanagers is not None

    def tell(self, targets: Iterable[TargetStatus]) -> None:
        """Exactly what these say fires now."""
        if self._alertmanagers is not None and self._section is not None:
            book = self._section.runbook_url
            self._alertmanagers.set(
                [alert for target in targets for alert in alerts_of(target, book)]
            )

    def status(self) -> tuple[PagerStatus, ...]:
        """How each delivery goes."""
        if self._alertmanagers is None:
            return ()
        return tuple(
            PagerStatus(
                url=manager.url,
                firing=manager.firing,
                behind=manager.behind,
                last_success=manager.last_success,
                failing_since=manager.failing_since,
                error=manager.last_error,
                sent=manager.sent,
                failures={str(reason): count for reason, count in manager.failures.items()},
            )
            for manager in self._alertmanagers.status()
        )

    def close(self) -> None:
        """Try once more to tell what was not told."""
        if self._alertmanagers is not None:
            self._alertmanagers.close(_END_SECONDS)

    def _made(self) -> Alertmanagers | None:
        if self._section is None:
            return None
        from specwatch.alerts.sender import Alertmanagers  # requests takes memory

        return Alertmanagers(self._section)

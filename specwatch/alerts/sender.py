"""Sends the alerts that fire to every Alertmanager, each in its own thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import structlog

from specwatch.alerts.alert import Alert, Links, PostError, PostReason
from specwatch.alerts.firing import alerts_of
from specwatch.alerts.outbox import Message, Outbox
from specwatch.config.guard import DEFAULT_URL, Alertmanager
from specwatch.status import PagerStatus, TargetStatus

_log = structlog.get_logger("specwatch.alertmanager")
FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
END_SECONDS = 1.0
"""How long what was not delivered is tried at the end."""


class Alertmanagers:
    """All Alertmanagers of a configuration; safe to use from several threads.

    What fires is declared, not queued: each Alertmanager gets the latest state at once, again
    every ``resend`` seconds, and after a failure with exponential delays. One that hangs delays
    neither the caller nor the others. If specwatch dies, alerts end by themselves after four
    times ``resend``.
    """

    def __init__(
        self,
        section: Alertmanager | None,
        external_url: str = DEFAULT_URL,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``section``: None for no Alertmanagers; ``external_url``: that of the configuration."""
        self._now = now
        self._section: Alertmanager | None = None
        self._links = Links()
        self._senders: list[_Sender] = []
        self.configure(section, external_url)

    def configure(self, section: Alertmanager | None, external_url: str = DEFAULT_URL) -> None:
        """Send to other Alertmanagers; the former ones get what they still miss."""
        if section is not None:
            runbook = section.runbook_url or f"{external_url}/runbook"
            self._links = Links(runbook, external_url, section.grafana_url)
        if section == self._section:
            return
        former, self._section = self._senders, section
        self._senders = (
            [_Sender(section, url, self._now) for url in section.urls] if section else []
        )
        if former:
            threading.Thread(target=_finish, args=(former, END_SECONDS), daemon=True).start()

    def send(self, targets: Sequence[TargetStatus]) -> None:
        """Exactly the alerts of these targets fire now."""
        if self._section is not None:
            now, links = self._now(), self._links
            workloads = {target.name: target for target in targets if target.pods}
            alerts = [
                alert
                for target in targets
                for alert in alerts_of(target, links, now, workloads.get(target.workload))
            ]
            self.set(alerts)

    def set(self, alerts: Sequence[Alert]) -> None:
        """Exactly these alerts fire now; does not wait for their delivery."""
        now = self._now()
        for sender in self._senders:
            sender.set(alerts, now)

    def status(self) -> tuple[PagerStatus, ...]:
        """How each delivery goes, in the order of the configuration."""
        return tuple(sender.status() for sender in self._senders)

    def close(self, timeout: float = END_SECONDS) -> None:
        """Try again to deliver what was not delivered, ``timeout`` seconds in all; then end.

        What fires goes on firing, until another daemon takes over or it ends by itself.
        """
        _finish(self._senders, timeout)


def _finish(senders: Sequence[_Sender], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for sender in senders:
        sender.finish()
    for sender in senders:
        sender.join(max(deadline - time.monotonic(), 0.0))


class _Sender:
    """One Alertmanager, and the thread that sends to it."""

    def __init__(self, section: Alertmanager, url: str, now: Callable[[], float]) -> None:
        from specwatch.alerts.client import AlertPost  # requests takes memory

        self._url = url
        self._now = now
        self._resend = section.resend
        self._outbox = Outbox(resend=section.resend, labels=section.labels)
        self._post = AlertPost(section, url)
        self._last_success: float | None = None
        self._failing_since: float | None = None
        self._last_error: PostError | None = None
        self._sent = 0
        self._failures: dict[PostReason, int] = {}
        self._delay = 0.0
        self._due = 0.0
        """When to send next, by the monotonic clock."""
        self._finishing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
        self._thread.start()

    def set(self, alerts: Sequence[Alert], now: float) -> None:
        with self._changed:
            if self._outbox.set(alerts, now):
                if self._last_error is None:
                    self._due = 0.0
                self._changed.notify()

    def status(self) -> PagerStatus:
        with self._changed:
            return PagerStatus(
                url=self._url,
                firing=self._outbox.firing,
                behind=self._outbox.is_behind,
                last_success=self._last_success,
                failing_since=self._failing_since,
                error=None if self._last_error is None else str(self._last_error),
                sent=self._sent,
                failures={str(reason): count for reason, count in self._failures.items()},
            )

    def finish(self) -> None:
        with self._changed:
            self._finishing = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        with self._changed:
            behind, error = self._outbox.is_behind, self._last_error
        if behind:
            detail = "no answer in time" if error is None else str(error)
            _log.warning("alerts_given_up", url=self._url, detail=detail)

    def _run(self) -> None:
        last = False
        while not last:
            with self._changed:
                message = self._next_message()
                last = self._finishing
            if message is not None:
                self._deliver(message)
        self._post.close()

    def _next_message(self) -> Message | None:
        """Wait until there is something to send; at the end, what was not delivered, or None."""
        while not self._finishing:
            message = self._outbox.message(self._now())
            left = self._due - time.monotonic()
            if message is not None and left <= 0:
                return message
            self._changed.wait(None if message is None else left)
        return self._outbox.message(self._now()) if self._outbox.is_behind else None

    def _deliver(self, message: Message) -> None:
        try:
            self._post.send(message.alerts)
        except PostError as error:
            with self._changed:
                self._failed(error)
        else:
            with self._changed:
                self._arrived(message)

    def _arrived(self, message: Message) -> None:
        self._outbox.delivered(message)
        if self._last_error is not None:
            _log.info("alerts_delivered_again", url=self._url)
        self._last_error = self._failing_since = None
        self._delay = 0.0
        self._sent += 1
        self._last_success = self._now()
        self._due = 0.0 if self._outbox.is_behind else time.monotonic() + self._resend

    def _failed(self, error: PostError) -> None:
        self._failures[error.reason] = self._failures.get(error.reason, 0) + 1
        if self._last_error is None or self._last_error.reason != error.reason:
            _log.warning(
                "alerts_not_delivered", url=self._url, reason=error.reason, detail=str(error)
            )
        self._last_error = error
        if self._failing_since is None:
            self._failing_since = self._now()
        longest = min(LONGEST_DELAY, self._resend)
        self._delay = min(max(FIRST_DELAY, 2 * self._delay), longest)
        # Random, so that not all daemons try again in the same moment.
        self._due = time.monotonic() + self._delay * random.uniform(0.5, 1.0)

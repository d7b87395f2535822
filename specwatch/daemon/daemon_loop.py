"""Runs one daemon after another in a process: each has what it knows from the database."""

from __future__ import annotations

from collections.abc import Callable

from specwatch.config.loading import Config
from specwatch.daemon.daemon import Daemon
from specwatch.status import DaemonStatus


class DaemonLoop:
    """A daemon, and once that has lost its lease, the next one, which stands by.

    What a daemon has in memory is out of date when another process has taken over.
    """

    def __init__(self, new_daemon: Callable[[Config], Daemon], config: Config) -> None:
        self._new_daemon = new_daemon
        self._daemon = new_daemon(config)
        self._stop_asked = False

    def status(self) -> DaemonStatus:
        """That of the present daemon."""
        return self._daemon.status()

    def ask_to_stop(self) -> None:
        """End ``run`` soon; safe in a signal handler."""
        self._stop_asked = True
        self._daemon.ask_to_stop()

    def ask_to_reload(self) -> None:
        """Read the configuration again soon; safe in a signal handler."""
        self._daemon.ask_to_reload()

    def run(self) -> None:
        """Watch or stand by until asked to stop. Raises ConfigError as :meth:`Daemon.run` does."""
        while self._daemon.run() and not self._stop_asked:
            self._daemon = self._new_daemon(self._daemon.configured)
            if self._stop_asked:  # while there was no daemon to ask
                self._daemon.ask_to_stop()

"""The folder of written reports, and the book of what was sent of them: ``deliveries.json``.

A report is in the book before it is made, so that one that could not be made is noticed. The book
is written after each attempt, so that a run that was killed continues where it stopped. A run that
is killed after a server accepted a report and before the book is written sends it again, with the
same Message-ID or Idempotency-Key.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, field

from specwatch.config.report import Delivery
from specwatch.errors import ConfigError, DeliveryError, SpecwatchError
from specwatch.status import DeliveryStatus
from specwatch.wording.text import LONGEST_SENTENCE, shown

if TYPE_CHECKING:
    from specwatch.report.messages import Outgoing  # the daemon does not need it

BOOK = "deliveries.json"
DELAYS = (10.0, 30.0, 80.0)
"""Seconds between the attempts of one run."""
UNANSWERED = 2
"""Times that a report is posted to a server which takes it and does not answer, in all."""
_NAME = re.compile(r"report-\d{4}-\d{2}-\d{2}")
_FORMAT = 1
_REMEDY = "; see report.directory, and that the user that runs specwatch may write there"


class Sent(Struct, kw_only=True):
    """One report by one channel; times are Unix seconds. ``done`` are recipients that have it.

    ``unanswered`` counts the attempts in which a server received all of it and did not answer.
    ``later`` says that a failed attempt may work later without a change.
    """

    delivered_at: float | None = None
    attempts: int = 0
    error: str | None = None
    done: tuple[str, ...] = ()
    unanswered: int = 0
    later: bool = True

    @property
    def unconfirmed(self) -> bool:
        """Whether it was sent and will never be confirmed."""
        return self.delivered_at is None and self.unanswered >= UNANSWERED

    @property
    def missing(self) -> bool:
        """Whether it is still to be sent."""
        return self.delivered_at is None and not self.unconfirmed


class DeliveredReport(Struct, kw_only=True):
    """One report: ``name`` is that of its files, without what tells the format in ``formats``.

    ``since`` and ``until`` are those of its period as Unix times. ``error`` says why it could not
    be made; then there are no files.
    """

    name: str
    made: float
    since: float | None = None
    until: float | None = None
    formats: tuple[str, ...] = ("json",)
    error: str | None = None
    channels: dict[str, Sent] = field(default_factory=dict)


class Book(Struct, kw_only=True):
    """All reports that are kept, the newest last."""

    format: int = _FORMAT
    reports: list[DeliveredReport] = field(default_factory=list)

    @property
    def newest(self) -> DeliveredReport | None:
        """The one that was made last."""
        return self.reports[-1] if self.reports else None


class Channel(Protocol):
    """A mail server or a webhook."""

    def send(self, outgoing: Outgoing, done: Sequence[str]) -> None:
        """Send to all but those who are ``done``; raises DeliveryError or ConfigError."""


class Reports:
    """A folder of reports and their book."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[Book]:
        """The book, locked against other processes; makes the folder.

        Raises DeliveryError when it cannot be read or another process has it, ConfigError when it
        is damaged.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                text = f"another process is delivering the reports in {self.folder}; wait for it"
                raise DeliveryError(text, retry=True) from None
            yield self.book()
        finally:
            os.close(descriptor)

    def book(self) -> Book:
        """What was sent so far; DeliveryError when it cannot be read, ConfigError when it is
        damaged."""
        path = self.folder / BOOK
        try:
            book = msgspec.json.decode(path.read_bytes(), type=Book)
        except FileNotFoundError:
            return Book()
        except OSError as error:
            raise self._unusable(error) from None
        except msgspec.MsgspecError:
            book = Book(format=0)
        if book.format != _FORMAT:
            raise ConfigError(
                f"{path} is damaged, or of another version of specwatch, so it is not known what"
                " was sent; check whether the last report arrived, and remove the file"
            )
        return book

    def keep(self, book: Book) -> None:
        """Write the book."""
        self.write(BOOK, msgspec.json.format(msgspec.json.encode(book), indent=2))

    def write(self, name: str, data: bytes) -> Path:
        """Replace a file atomically; DeliveryError when that fails."""
        path, fresh = self.folder / name, self.folder / f".{name}.new"
        try:
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise self._unusable(error) from None
        return path

    def read(self, entry: DeliveredReport) -> bytes:
        """The JSON of a report; ConfigError when it has gone."""
        path = self.folder / f"{entry.name}.json"
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}; the report cannot be sent again without it: run"
                " `specwatch report --deliver` after its day, which makes another"
            ) from None

    def forget(self, book: Book, before: float) -> None:
        """Remove reports that were made before a Unix time, but never the newest."""
        for entry in [entry for entry in book.reports[:-1] if entry.made < before]:
            self.drop(book, entry)

    def drop(self, book: Book, entry: DeliveredReport) -> None:
        """Remove a report and its files."""
        if _NAME.fullmatch(entry.name):
            for path in self.folder.glob(f"{entry.name}.*"):
                with suppress(OSError):
                    path.unlink()
        book.reports.remove(entry)

    def _unusable(self, error: OSError) -> DeliveryError:
        where = error.filename or self.folder
        return DeliveryError(f"{where}: {error.strerror}{_REMEDY}", retry=True)


def deliver(
    outgoing: Outgoing,
    entry: DeliveredReport,
    channels: Mapping[str, Channel],
    *,
    keep: Callable[[], None],
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Send to the channels that do not have it; returns whether nothing is missing.

    What may work later is tried again after 10, 30 and 80 seconds. ``keep`` writes
    the book, after each attempt.
    """
    sent = {name: entry.channels.get(name, Sent()) for name in channels}
    # Channels that were removed from the configuration are forgotten.
    entry.channels = sent
    keep()
    waiting = [name for name, one in sent.items() if one.missing]
    for delay in (*DELAYS, None):
        waiting = [
            name
            for name in waiting
            if _attempt(outgoing, channels[name], sent[name], keep=keep, now=now)
        ]
        if not waiting or delay is None:
            break
        sleep(delay)
    return not any(one.missing for one in sent.values())


def _attempt(
    outgoing: Outgoing,
    channel: Channel,
    sent: Sent,
    *,
    keep: Callable[[], None],
    now: Callable[[], float],
) -> bool:
    """Send once; returns whether to try again soon."""
    sent.attempts += 1
    sent.later = False
    try:
        channel.send(outgoing, sent.done)
    except DeliveryError as error:
        sent.unanswered += error.sent
        sent.error, sent.later = str(error), error.retry and not sent.unconfirmed
        sent.done = tuple(dict.fromkeys((*sent.done, *error.done)))
    except ConfigError as error:
        sent.error = str(error)
    else:
        sent.delivered_at, sent.error = now(), None
    keep()
    return sent.later


class DeliveryMonitor:
    """The state of deliveries, which another process makes, for the daemon to show."""

    def __init__(self) -> None:
        self._read: tuple[Path, int, Book | str] | None = None

    def status(self, section: Delivery | None) -> tuple[DeliveryStatus, ...]:
        """The state of each channel; empty if no report was begun or none is configured.

        If the book cannot be read, every channel counts as undelivered.
        """
        if section is None:
            return ()
        folder = section.directory
        try:
            changed = os.stat(folder / BOOK).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            changed = -1  # and reading it says why
        if self._read is None or self._read[:2] != (folder, changed):
            try:
                book: Book | str = Reports(folder).book()
            except SpecwatchError as error:
                book = shown(str(error), LONGEST_SENTENCE)
            self._read = folder, changed, book
        state = self._read[2]
        if isinstance(state, str):
            return tuple(DeliveryStatus(name, True, None, state) for name in section.channels)
        return tuple(status for status in _statuses(state) if status.channel in section.channels)


def _statuses(book: Book) -> Iterator[DeliveryStatus]:
    newest = book.newest
    if newest is None:
        return
    for name, sent in newest.channels.items():
        before = [
            entry.channels[name].delivered_at for entry in book.reports if name in entry.channels
        ]
        last = max((time for time in before if time is not None), default=None)
        error = newest.error or sent.error
        if error is not None and sent.unconfirmed:
            error = f"sent, never confirmed: {error}"
        text = None if error is None else shown(error, LONGEST_SENTENCE)
        yield DeliveryStatus(name, sent.missing, last, text)

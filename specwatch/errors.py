"""Every error that specwatch raises on purpose.

::

    SpecwatchError
    ├── ConfigError          the configuration cannot be used; says where, what, and the remedy
    ├── ScrapeError          one look at a server failed; carries a reason from a closed list
    │   └── PageError        the server answered, but not with a page that can be read
    ├── StoreError           the database cannot be used now
    │   ├── StoreUnavailable    gone, locked, read-only or full: the same write may work later
    │   │   └── StoreMalformed  its file is damaged; a daemon puts it aside
    │   └── SchemaMismatch      migrated by another version of specwatch: only a person can help
    ├── ActuatorError        vLLM could not be restarted, or it cannot be known how
    │   └── CannotStrip         its command line cannot be rewritten safely; says why
    ├── DeliveryError        a report did not reach somebody; says what the server said
    ├── KubernetesError      the API of Kubernetes refused a request, or did not answer
    ├── DiscoveryError       a source of targets cannot be read; carries a reason
    ├── NoAnswer             an expected peer (daemon, server) is not there
    └── TooLittle            a measurement ran, and did not measure all that it should have
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar


def extra_missing(what: str, extra: str, error: ImportError) -> str:
    """Why ``what`` cannot be done without an extra of specwatch, and how to install it."""
    return f"{what} needs the extra `{extra}` ({error}): pip install 'specwatch[{extra}]'"


class SpecwatchError(Exception):
    """Base of all errors raised on purpose; ``str()`` is a sentence for a person."""

    retry = False
    """Whether the same call may succeed later without anybody changing anything."""


Reason = TypeVar("Reason", bound=enum.StrEnum)


class ReasonedError(SpecwatchError, Generic[Reason]):
    """An error with a reason from a closed list."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigError(SpecwatchError):
    """The configuration, or a command's arguments, cannot be used."""


class ScrapeReason(enum.StrEnum):
    """Why a scrape failed: the closed set of ``reason`` labels of scrape failures."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP_STATUS = "http_status"
    TOO_LARGE = "too_large"
    SAMPLE_LIMIT = "sample_limit"
    LABEL_LIMIT = "label_limit"
    LABEL_NAME_LENGTH_LIMIT = "label_name_length_limit"
    LABEL_VALUE_LENGTH_LIMIT = "label_value_length_limit"
    TRUNCATED = "truncated"
    NOT_METRICS = "not_metrics"
    MALFORMED = "malformed"
    DUPLICATE_SERIES = "duplicate_series"
    NOT_A_NUMBER = "not_a_number"
    INCONSISTENT = "inconsistent"
    SEVERAL_SERVERS = "several_servers"
    NO_ENGINE = "no_engine"
    CREDENTIALS = "credentials"


NO_ANSWER = frozenset(
    {
        ScrapeReason.REFUSED,
        ScrapeReason.UNREACHABLE,
        ScrapeReason.TIMEOUT,
        ScrapeReason.HTTP_STATUS,
        ScrapeReason.TRUNCATED,
        ScrapeReason.NOT_METRICS,
        ScrapeReason.NO_ENGINE,
    }
)
"""With these the engine did not answer; with the others it did, and specwatch cannot use it."""


class ScrapeError(ReasonedError[ScrapeReason]):
    """One look at a server failed."""

    retry = True

    def __init__(self, reason: ScrapeReason, message: str, status: int | None = None) -> None:
        """``status`` is that of HTTP, where the server answered with another than 200."""
        super().__init__(reason, message)
        self.status = status


class PageError(ScrapeError):
    """The server answered with something that is not a usable metrics page."""


class StoreError(SpecwatchError):
    """The database cannot be used."""


class StoreUnavailable(StoreError):
    """The database is gone, locked, read-only or full."""

    retry = True


class StoreMalformed(StoreUnavailable):
    """SQLite reports that the database file is damaged."""


class SchemaMismatch(StoreError):
    """The database was migrated by another version of specwatch."""


class LeaseLost(StoreError):
    """Another process watches as the daemon of this name now."""


class NoAnswer(SpecwatchError):
    """A peer that was expected to answer did not."""

    retry = True


class TooLittle(SpecwatchError):
    """A measurement ran, and did not measure all that it should have."""


class DeliveryError(SpecwatchError):
    """A report did not reach all that it was for.

    ``done`` are those of the recipients that it did reach; ``sent`` says that the server has all
    of it and never answered.
    """

    def __init__(
        self, message: str, *, retry: bool, done: tuple[str, ...] = (), sent: bool = False
    ) -> None:
        super().__init__(message)
        self.retry = retry
        self.done = done
        self.sent = sent


class KubernetesReason(enum.StrEnum):
    """Why a request to the API of Kubernetes failed."""

    UNREACHABLE = "unreachable"
    """It does not answer, or not now."""
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    """The object was changed since it was read."""
    REFUSED = "refused"
    """Any other refusal, such as that of an admission webhook."""


class KubernetesError(ReasonedError[KubernetesReason]):
    """A request to the API of Kubernetes failed; the message says which and why."""

    def __init__(self, reason: KubernetesReason, message: str) -> None:
        super().__init__(reason, message)
        self.retry = reason in (KubernetesReason.UNREACHABLE, KubernetesReason.CONFLICT)


class DiscoveryReason(enum.StrEnum):
    """Why a source of targets cannot be read."""

    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TARGET_LIMIT = "target_limit"
    NOT_FOUND = "not_found"
    """The name does not exist."""
    HTTP_STATUS = "http_status"
    CREDENTIALS = "credentials"
    TIMEOUT = "timeout"
    TLS = "tls"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


class DiscoveryError(ReasonedError[DiscoveryReason]):
    """A source of targets cannot be read: the targets that it had stay."""

    retry = True


class ActuatorError(SpecwatchError):
    """A server could not be switched.

    ``changed`` tells whether it was, or may have been, touched before that: files written, or a
    restart begun.
    """

    def __init__(self, message: str, *, changed: bool = False, retry: bool = False) -> None:
        super().__init__(message)
        self.changed = changed
        self.retry = retry


class CannotStrip(ActuatorError):
    """Speculation cannot be removed safely from a command line; the message says why."""

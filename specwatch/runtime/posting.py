"""What posting to somebody else's server needs: certificates checked, failures told plainly."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterable
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter

SHOWN = 300
"""Characters of what a server said, at most."""


class TlsAdapter(HTTPAdapter):
    """Checks certificates as a context says, and not by the authorities that requests brings."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        if tls.verify_mode == ssl.CERT_NONE:  # as the configuration says, which is warning enough
            warnings.filterwarnings("ignore", category=urllib3.exceptions.InsecureRequestWarning)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Give the pool the context."""
        super().init_poolmanager(*args, ssl_context=self._tls, **options)

    def cert_verify(self, *_options: Any) -> None:
        """Leave it to the context."""


def chain(error: BaseException) -> Iterable[BaseException]:
    """The error and all that it stands for: requests and urllib3 wrap what happened."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            waiting += [cause.__cause__, cause.__context__, getattr(cause, "reason", None)]
            waiting += cause.args
    return seen


def root(error: BaseException) -> BaseException:
    """The one that says most."""
    return next(
        (cause for cause in chain(error) if isinstance(cause, OSError) and cause.errno), error
    )


def masked(text: str, secrets: Iterable[str]) -> str:
    """What somebody else said, short, on one line, and without the secrets that they were told."""
    for secret in sorted(filter(None, set(secrets)), key=len, reverse=True):
        text = text.replace(secret, "***")
    plain = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(plain.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def secrets_in(headers: Iterable[str]) -> set[str]:
    """Values of headers, and those without the scheme before them."""
    return {part for value in headers for part in (value, value.split(" ", 1)[-1])}

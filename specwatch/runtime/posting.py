"""What HTTP clients based on requests share: certificates, and why a request failed."""

from __future__ import annotations

import enum
import ssl
import warnings
from collections.abc import Iterable
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

SHOWN = 300
"""Characters of a server's answer that a message quotes at most."""


class _TlsAdapter(HTTPAdapter):
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


def new_session(tls: ssl.SSLContext | None) -> requests.Session:
    """A session that checks certificates by ``tls``, and does not use the environment's proxies."""
    session = requests.Session()
    session.trust_env = False
    if tls is not None:
        session.mount("https://", _TlsAdapter(tls))
    return session


def chain(error: BaseException) -> Iterable[BaseException]:
    """The error and its causes: requests and urllib3 wrap what happened."""
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
    """The cause that says most."""
    return next(
        (cause for cause in chain(error) if isinstance(cause, OSError) and cause.errno), error
    )


class Unreached(enum.StrEnum):
    """Why a request had no answer."""

    TIMEOUT = "timeout"
    TLS = "tls"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


def unreached(
    error: BaseException,
    where: str,
    *,
    detail: str,
    timeout: float,
    server: str = "it",
    ca_option: str = "in ca_file",
) -> tuple[Unreached, str]:
    """Why ``where`` gave no answer, and a sentence with what to do.

    ``detail`` is the text of the error, ``timeout`` the limit in seconds, ``server`` the name of
    the program that should listen.
    """
    causes = list(chain(error))
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return Unreached.TIMEOUT, (
            f"{where} did not answer within {timeout:g} s; is it hung, behind a firewall, or of"
            " another protocol on this port?"
        )
    if any(isinstance(cause, requests.exceptions.SSLError | ssl.SSLError) for cause in causes):
        return Unreached.TLS, (
            f"no secure connection to {where}: {detail}; name the authority {ca_option}, or the"
            " host as its certificate does"
        )
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return Unreached.REFUSED, f"nothing listens at {where}; is {server} up, on this port?"
    sentence = f"cannot reach {where}: {detail}; check its host name and the network"
    return Unreached.UNREACHABLE, sentence


def masked(text: str, secrets: Iterable[str]) -> str:
    """A server's text, short, on one line, and without the secrets that were sent to it."""
    for secret in sorted(filter(None, set(secrets)), key=len, reverse=True):
        text = text.replace(secret, "***")
    plain = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(plain.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def secrets_in(headers: Iterable[str]) -> set[str]:
    """Values of headers, and those without the scheme before them."""
    return {part for value in headers for part in (value, value.split(" ", 1)[-1])}

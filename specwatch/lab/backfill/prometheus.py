"""A client of the HTTP API of Prometheus, which Thanos and Mimir have as well.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import requests
import urllib3
from pydantic import BeforeValidator

from specwatch import __version__
from specwatch.config.http_access import HttpAccess
from specwatch.config.sections import Duration
from specwatch.domain.units import parse_server_url
from specwatch.errors import ConfigError, NoAnswer, SpecwatchError
from specwatch.lab.backfill.prometheus_pages import ResultSeries
from specwatch.runtime.posting import (
    Unreached,
    chain,
    masked,
    new_session,
    root,
    secrets_in,
    unreached,
)
from specwatch.runtime.tls import context_for

LARGEST_ANSWER = 8 << 20
"""Bytes of one answer, decompressed; decoding takes ten times as much memory."""
_CHUNK = 64 << 10
_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)
_LONGEST_DELAY = 60.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_LIMITS = ("too many", "too large", "too long", "limit", "exceed", "timed out")
"""Words in the message of a server that was asked for too much at once."""
_HINTS = {
    401: "give credentials: --bearer-token-file, or --user and --password-file",
    403: "give other credentials, or the tenant, like --header 'X-Scope-OrgID: NAME'",
    404: "give the base URL of the API: Mimir's ends in /prometheus",
    405: "give the base URL of the API, as a data source in Grafana has it",
}


class Access(HttpAccess):
    """Where the API is, and how to connect; ``timeout`` is that of one query in seconds."""

    url: Annotated[str, BeforeValidator(parse_server_url)]
    timeout: Duration = 130.0
    """Longer than Prometheus's own limit of two minutes, so that its error arrives."""

    @property
    def _called(self) -> str:
        return "prometheus"


class TooMuch(SpecwatchError):
    """The answer is too large for the server or for specwatch: a smaller query may work."""


class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Result(msgspec.Struct, gc=False):
    result: list[_Series]


class _ErrorAnswer(msgspec.Struct, gc=False, kw_only=True):
    """The JSON of an error."""

    error: str = ""
    error_type: str = msgspec.field(default="", name="errorType")


class _Answer(_ErrorAnswer, gc=False, kw_only=True):
    status: str
    data: _Result | None = None
    warnings: list[str] = []
    """Why something may be missing; other remarks are in `infos`."""


_DECODER = msgspec.json.Decoder(_Answer)


class _Again(SpecwatchError):
    """A retry may work, in ``after`` seconds if the server says when."""

    def __init__(self, detail: str, after: float | None = None) -> None:
        super().__init__(detail)
        self.after = after


class Prometheus:
    """A client of one API, with one query at a time over a kept connection.

    Temporary failures are retried for half a minute. Every method raises NoAnswer if they go on,
    ConfigError if the server refuses the client or the query, and TooMuch.
    """

    def __init__(
        self,
        access: Access,
        *,
        parameters: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``parameters`` are sent with each query."""
        self._access = access
        self._parameters = dict(parameters or {})
        self._sleep = sleep
        self._session = new_session(context_for(access, access.url, "prometheus"))

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return self._access.url

    def query(self, expr: str, time: float) -> list[ResultSeries]:
        """The series of a query at a time (Unix seconds)."""
        return self._ask("query", {"query": expr, "time": f"{time:.3f}"})

    def query_range(self, expr: str, since: float, until: float, step: float) -> list[ResultSeries]:
        """The series of a query at ``since``, and every ``step`` seconds until ``until``."""
        parameters = {"start": f"{since:.3f}", "end": f"{until:.3f}", "step": f"{step:g}"}
        return self._ask("query_range", {"query": expr, **parameters})

    def close(self) -> None:
        """Disconnect."""
        self._session.close()

    def _ask(self, what: str, parameters: Mapping[str, str]) -> list[ResultSeries]:
        for delay in (*_DELAYS, None):
            try:
                return self._once(what, parameters)
            except _Again as error:
                if delay is None:
                    raise NoAnswer(str(error)) from None
                self._sleep(max(delay, error.after or 0.0))
        raise AssertionError("the last try ends it")

    def _once(self, what: str, parameters: Mapping[str, str]) -> list[ResultSeries]:
        headers = self._access.request_headers()
        try:
            with self._session.post(
                f"{self.url}/api/v1/{what}",
                data={**parameters, **self._parameters},
                headers={"User-Agent": f"specwatch/{__version__}", **headers},
                timeout=self._access.timeout,
                verify=not self._access.insecure_skip_verify,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = _body(response)
                if response.status_code == requests.codes.ok:
                    return self._read(body, headers)
                raise self._refusal(response, body, headers)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise self._failure(error, headers) from None  # the cause may hold a secret

    def _read(self, body: bytes, headers: Mapping[str, str]) -> list[ResultSeries]:
        secrets = secrets_in(headers.values())
        try:
            answer = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            start = body[:200].lstrip()
            excerpt = masked(start.decode("utf-8", "replace"), secrets)[:80]
            if _is_markup(body):
                excerpt = "a web page"
            if start[:1] == b"{" and not body.rstrip().endswith(b"}"):
                raise _Again(
                    f"the answer of {self.url} broke off after {len(body)} bytes"
                ) from None
            raise ConfigError(
                f"{self.url} answered something that is not the API of Prometheus"
                f" ({excerpt}); give the base URL of the"
                " API, as a data source in Grafana has it; Mimir's ends in /prometheus"
            ) from None
        if answer.status != "success" or answer.data is None:
            raise ConfigError(
                f"{self.url} answered {answer.status}: {masked(answer.error, secrets)}"
            )
        if answer.warnings:
            excerpt = masked("; ".join(answer.warnings), secrets)
            raise _Again(f"{self.url} gave only a part of the answer: {excerpt}")
        return [
            (series.metric, series.values if series.value is None else [series.value])
            for series in answer.data.result
        ]

    def _refusal(
        self, response: requests.Response, body: bytes, headers: Mapping[str, str]
    ) -> SpecwatchError:
        status = response.status_code
        try:
            answer = msgspec.json.decode(body, type=_ErrorAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = _ErrorAnswer(
                error="a web page" if _is_markup(body) else body.decode("utf-8", "replace")
            )
        message = masked(answer.error, secrets_in(headers.values()))
        line = f"{self.url} answered {status}" + (f": {message}" if message else "")
        limited = status in (400, 413, 422, 500, 503) and any(
            word in answer.error.lower() for word in _LIMITS
        )
        if status in (413, 422) or answer.error_type == "timeout" or limited:
            return TooMuch(line)
        if status in _AGAIN:
            return _Again(line, _seconds(response.headers.get("Retry-After")))
        if 300 <= status < 400:
            return ConfigError(f"{line}; a redirect is not followed, give the address it leads to")
        hint = _HINTS.get(status)
        if status == 400:
            hint = "see that --selector is one, like '{job=\"vllm\"}'"
        return ConfigError(line if hint is None else f"{line}; {hint}")

    def _failure(self, error: Exception, headers: Mapping[str, str]) -> SpecwatchError:
        url, detail = self.url, masked(str(root(error)), secrets_in(headers.values()))
        kinds = [type(cause) for cause in chain(error)]
        if any(issubclass(kind, requests.Timeout | TimeoutError) for kind in kinds):
            seconds = f"{self._access.timeout:g} s"
            if requests.ConnectTimeout in kinds:
                return _Again(f"no connection to {url} within {seconds}; is the host up?")
            return TooMuch(f"{url} did not answer within {seconds}; is it hung or overloaded?")
        if requests.exceptions.InvalidHeader in kinds:
            return ConfigError(f"prometheus: --header: {detail}")
        broken = requests.exceptions.ChunkedEncodingError, urllib3.exceptions.ProtocolError
        if any(issubclass(kind, broken) for kind in kinds) and not isinstance(
            error, requests.ConnectionError
        ):
            return _Again(f"the answer of {url} broke off; did it stop meanwhile?")
        why, sentence = unreached(
            error,
            url,
            detail=detail,
            timeout=self._access.timeout,
            server="Prometheus",
            ca_option="with --ca-file",
        )
        return ConfigError(sentence) if why is Unreached.TLS else _Again(sentence)


def _body(response: requests.Response) -> bytes:
    """The answer, decompressed. Raises TooMuch beyond the limit."""
    parts: list[bytes] = []
    size = 0
    for piece in response.iter_content(_CHUNK):
        size += len(piece)
        if size > LARGEST_ANSWER:
            raise TooMuch(f"an answer is longer than {LARGEST_ANSWER >> 20} MiB")
        parts.append(piece)
    return b"".join(parts)


def _is_markup(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"


def _seconds(text: str | None) -> float | None:
    """The seconds of Retry-After, if it is a number."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_DELAY) if math.isfinite(seconds) else None

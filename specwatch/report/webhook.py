"""A webhook: Slack and its like take the answers, any other program the whole report."""

from __future__ import annotations

import io
import json
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from urllib.parse import urlsplit

import requests
import urllib3

from specwatch import __version__
from specwatch.config.report import Webhook
from specwatch.domain.units import host_port, server_address
from specwatch.errors import DeliveryError
from specwatch.report.letter import Letter
from specwatch.runtime.posting import SHOWN, TlsAdapter, chain, masked, root, secrets_in
from specwatch.runtime.tls import context_for

_HINTS = {
    400: "; it does not understand the report: is kind right?",
    401: "; give credentials: bearer_token_file or basic_auth",
    403: "; the webhook is not allowed any more, or never was: make another",
    404: "; the webhook does not exist; create one and configure its URL",
    410: "; the webhook was removed: make another, and put its address into the configuration",
    413: "; the report is too large for it: use kind slack, or fewer targets",
}
_LATER = (408, 425, 429)


class Hook:
    """Posts to the address of a section; as a channel of reports.

    Proxies and credentials of the process's environment are not used.
    """

    def __init__(self, section: Webhook) -> None:
        self._section = section

    def send(self, letter: Letter, done: Sequence[str]) -> None:
        """Post the report; raises DeliveryError or ConfigError."""
        url, headers = self._section.address(), self._section.request_headers()
        tls = context_for(self._section, url, f"report.webhooks ({self._section.name})")
        body = io.BytesIO(self._body(letter))
        # By which a program knows what it has already.
        known = {"Idempotency-Key": letter.id, "X-Specwatch-Delivery": letter.id}
        try:
            self._post(url, {**known, **headers}, tls, body)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as e:
            error = self._failure(e, url, headers)
            # What timed out before, such as a connection, left some of it unread.
            error.sent = _is_timeout(e) and 0 < len(body.getbuffer()) == body.tell()
            raise error from None  # the cause may hold a secret

    def probe(self, timeout: float) -> str:
        """Connect, and post nothing.

        Returns a sentence on what was found; raises DeliveryError or ConfigError.
        """
        url = self._section.address()
        headers = self._section.request_headers()
        tls = context_for(self._section, url, f"report.webhooks ({self._section.name})")
        host, port = server_address(url)
        try:
            with closing(
                socket.create_connection((host, port), min(timeout, self._section.timeout))
            ) as plain:
                if tls is not None:
                    tls.wrap_socket(plain, server_hostname=host).close()
        except OSError as error:
            raise self._failure(error, url, headers) from None
        return "it can be reached; nothing was posted"

    def _body(self, letter: Letter) -> bytes:
        if self._section.kind == "json":
            return letter.json
        return json.dumps({"text": letter.chat}).encode()

    def _post(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, body: io.BytesIO
    ) -> None:
        own = {"Content-Type": "application/json", "User-Agent": f"specwatch/{__version__}"}
        with requests.Session() as session:
            session.trust_env = False
            if tls is not None:
                session.mount("https://", TlsAdapter(tls))
            with session.post(
                url,
                data=body,
                headers={**own, "Accept-Encoding": "identity", **headers},
                timeout=self._section.timeout,
                verify=not self._section.insecure_skip_verify,
                allow_redirects=False,
                stream=True,  # an answer may be of any size
            ) as response:
                if not 200 <= response.status_code < 300:
                    raise self._refusal(response, url, headers)

    def _refusal(
        self, response: requests.Response, url: str, headers: Mapping[str, str]
    ) -> DeliveryError:
        status = response.status_code
        said = response.raw.read(SHOWN * 4).decode("utf-8", "replace")
        quoted = f" ({masked(said, _secrets(url, headers))})" if said.strip() else ""
        retry = status in _LATER or status >= 500
        hint = _HINTS.get(status, "; it may be well again later" if retry else "")
        if 300 <= status < 400:
            hint = "; a redirect is not followed, give the address that it leads to"
        return DeliveryError(f"{_shown(url)} answered {status}{quoted}{hint}", retry=retry)

    def _failure(self, error: Exception, url: str, headers: Mapping[str, str]) -> DeliveryError:
        where, said = _shown(url), masked(str(root(error)), _secrets(url, headers))
        causes = list(chain(error))
        if _is_timeout(error):
            detail = f"{where} did not answer within {self._section.timeout:g} s; is it hung, or"
            return DeliveryError(f"{detail} behind a firewall?", retry=True)
        if any(isinstance(each, requests.exceptions.SSLError | ssl.SSLError) for each in causes):
            detail = f"no secure connection to {where}: {said}; name the authority in ca_file, or"
            return DeliveryError(f"{detail} the host as its certificate does", retry=False)
        if any(isinstance(each, ConnectionRefusedError) for each in causes):
            return DeliveryError(f"nothing listens at {where}; is it up, on this port?", retry=True)
        if any(isinstance(each, ValueError) for each in causes[:1]):
            return DeliveryError(
                f"{where} cannot be posted to: {said}; correct its address and headers", retry=False
            )
        detail = f"cannot reach {where}: {said}; check its host name and the network"
        return DeliveryError(detail, retry=True)


def _is_timeout(error: Exception) -> bool:
    return any(isinstance(each, requests.Timeout | TimeoutError) for each in chain(error))


def _shown(url: str) -> str:
    """The server only: who knows the rest may post."""
    parts = urlsplit(url)
    host, port = server_address(url)
    return f"{parts.scheme}://{host_port(host, port) if parts.port else host}"


def _secrets(url: str, headers: Mapping[str, str]) -> Iterable[str]:
    parts = urlsplit(url)
    pieces = [piece for piece in parts.path.split("/") if len(piece) >= 8]
    rest = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return {url, *(each for each in (rest, parts.path, parts.query) if len(each) > 1), *pieces,
            *secrets_in(headers.values())}  # fmt: skip

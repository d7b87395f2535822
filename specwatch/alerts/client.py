"""HTTP client of one Alertmanager: it accepts a message, or there is a reason why not."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence

import requests
import urllib3

from specwatch import __version__
from specwatch.alerts.alert import PostError, PostReason
from specwatch.config.guard import Alertmanager
from specwatch.errors import ConfigError
from specwatch.runtime.posting import SHOWN, masked, new_session, root, secrets_in, unreached
from specwatch.runtime.tls import context_for

_PATH = "/api/v2/alerts"
_HINTS = {
    401: "; give credentials: bearer_token_file or basic_auth",
    403: "; give other credentials: these may not send alerts",
    404: "; is this the base URL of an Alertmanager of version 0.16 or later?",
}


class AlertPost:
    """Posts to one Alertmanager, one message at a time, over a connection that is kept.

    Proxies and credentials of the process's environment are not used.
    """

    def __init__(self, section: Alertmanager, url: str) -> None:
        self._section = section
        self._url = url
        self._session: requests.Session | None = None
        self._tls: ssl.SSLContext | None = None

    def send(self, alerts: Sequence[Mapping[str, object]]) -> None:
        """Returns once they were accepted; raises PostError."""
        headers: dict[str, str] = {}
        try:
            # Read for each message, so that a rotated token or authority is picked up.
            headers = self._section.request_headers()
            tls = context_for(self._section, self._url, "alertmanager")
        except ConfigError as error:
            raise PostError(PostReason.CREDENTIALS, str(error)) from error
        for name, value in headers.items():
            if any(ord(char) > 0xFF for char in value):
                raise PostError(
                    PostReason.CREDENTIALS,
                    f"alertmanager: the {name} has characters that no header may have; see that"
                    " its file holds the right secret",
                )
        try:
            self._send(alerts, headers, tls)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self.close()
            failure = self._failure(error, headers)
        else:
            return
        # Out here it does not have the cause with it: that holds secrets, and half a connection.
        raise failure

    def close(self) -> None:
        """Close the connection; the next message opens another."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _send(
        self,
        alerts: Sequence[Mapping[str, object]],
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
    ) -> None:
        own = {"Content-Type": "application/json", "User-Agent": f"specwatch/{__version__}"}
        with self._session_for(tls).post(
            self._url + _PATH,
            data=json.dumps(alerts).encode(),
            headers={**own, "Accept-Encoding": "identity", **headers},
            timeout=self._section.timeout,
            verify=not self._section.insecure_skip_verify,
            allow_redirects=False,
            stream=True,  # an answer may be of any size
        ) as response:
            if response.status_code == requests.codes.ok:
                response.raw.read(SHOWN)  # nothing, usually: then the connection is kept
                return
            raise self._refusal(response, headers)

    def _session_for(self, tls: ssl.SSLContext | None) -> requests.Session:
        if self._session is None or tls is not self._tls:
            self.close()
            self._session, self._tls = new_session(tls), tls
        return self._session

    def _refusal(self, response: requests.Response, headers: Mapping[str, str]) -> PostError:
        status = response.status_code
        body = response.raw.read(SHOWN * 4).decode("utf-8", "replace")
        hint = _HINTS.get(status, "")
        if 300 <= status < 400:
            hint = "; a redirect is not followed, give the address that it leads to"
        rejected = 400 <= status < 500 and status not in (408, 429)
        reason = PostReason.REJECTED if rejected else PostReason.HTTP_STATUS
        quoted = f" ({_masked(body, headers)})" if body.strip() else ""
        return PostError(reason, f"{self._url} answered {status}{quoted}{hint}")

    def _failure(self, error: Exception, headers: Mapping[str, str]) -> PostError:
        detail = _masked(str(root(error)), headers)
        if isinstance(error, requests.exceptions.InvalidHeader):
            return PostError(PostReason.CREDENTIALS, f"alertmanager: headers: {detail}")
        why, sentence = unreached(
            error, self._url, detail=detail, timeout=self._section.timeout, server="Alertmanager"
        )
        return PostError(PostReason(why), sentence)


def _masked(text: str, headers: Mapping[str, str]) -> str:
    return masked(text, secrets_in(headers.values()))

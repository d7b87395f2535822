"""Reports are sent by a mail server to each recipient, and to webhooks."""

from __future__ import annotations

import io
import json
import smtplib
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from urllib.parse import urlsplit

import requests
import urllib3

from specwatch import __version__
from specwatch.config.report import Email, Webhook, mailbox
from specwatch.domain.units import host_port, server_address
from specwatch.errors import ConfigError, DeliveryError
from specwatch.report.messages import Outgoing
from specwatch.runtime.posting import (
    SHOWN,
    Unreached,
    chain,
    masked,
    new_session,
    root,
    secrets_in,
    unreached,
)
from specwatch.runtime.tls import context_for
from specwatch.wording.text import shown

_MOST_NAMED = 3
_LONGEST_NAME = 320
"""Characters of an address of mail, at most."""
_LONG_LINES = SMTP.clone(max_line_length=200)
_Refused = Mapping[str, tuple[int, bytes]]


def message_of(outgoing: Outgoing, section: Email) -> EmailMessage:
    """The summary as text and as HTML with pictures, and the whole page as a file.

    A header stays one line whatever a model is called: ``email`` ensures that.
    """
    plain = all(text.isascii() for text in (outgoing.subject, section.from_, *section.to))
    # A subject of more than 78 characters would begin with an empty line; encoded words must.
    message = EmailMessage(_LONG_LINES if plain else SMTP)
    sender = mailbox(section.from_)
    message["From"] = sender
    message["To"] = [mailbox(address) for address in section.to]
    message["Subject"] = outgoing.subject
    message["Date"] = format_datetime(datetime.fromtimestamp(outgoing.made, UTC))
    message["Message-ID"] = f"<{outgoing.id}@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_sendable(outgoing.text))
    message.add_alternative(_sendable(outgoing.mail.html), subtype="html")
    _, page = message.iter_parts()
    for name, picture in outgoing.mail.pictures.items():
        page.add_related(
            picture, "image", "png", cid=f"<{name}>", disposition="inline", filename=f"{name}.png"
        )
    if section.attach:
        message.add_attachment(
            _sendable(outgoing.html), subtype="html", filename=f"{outgoing.name}.html"
        )
    return message


class Mail:
    """Sends by the mail server of a section; as a channel of reports."""

    def __init__(self, section: Email, hostname: str) -> None:
        """``hostname`` is how this machine introduces itself."""
        self._section = section
        # A strict server does not accept a name without a domain.
        self._name = hostname if "." in hostname else "[127.0.0.1]"

    @property
    def where(self) -> str:
        """The URL of the server, which holds no secret."""
        return self._section.smtp

    def send(self, outgoing: Outgoing, done: Sequence[str]) -> None:
        """Send to all but those who are ``done``; raises DeliveryError or ConfigError."""
        addresses = [mailbox(address).addr_spec for address in self._section.to]
        waiting = [address for address in addresses if address not in done]
        if not waiting:
            return
        message = message_of(outgoing, self._section)
        sender = mailbox(self._section.from_).addr_spec
        with self._failures(), self._session(self._section.timeout) as session:
            refused = session.send_message(message, from_addr=sender, to_addrs=waiting)
        if refused:
            taken = tuple(address for address in waiting if address not in refused)
            raise self._not_for(refused, taken)

    def probe(self, timeout: float) -> str:
        """Connect and introduce ourselves, log in if a user name is configured, and send nothing.

        Returns the result as a sentence; raises DeliveryError or ConfigError.
        """
        with self._failures(), self._session(min(timeout, self._section.timeout)) as session:
            encrypted = isinstance(session.sock, ssl.SSLSocket)
        text = "encrypted" if encrypted else "not encrypted"
        login = "" if self._section.username is None else ", takes the password"
        return f"it answers, {text}{login}"

    @contextmanager
    def _session(self, timeout: float) -> Iterator[smtplib.SMTP]:
        section, password = self._section, self._section.password()
        session = self._connected(timeout)
        try:
            session.ehlo()
            offered = session.has_extn("starttls")
            if section.starttls == "required" and not section.encrypted and not offered:
                raise DeliveryError(
                    f"{section.smtp} does not offer STARTTLS, which starttls: required asks for;"
                    " name the port that does (587), or use smtps://",
                    retry=False,
                )
            if section.starttls != "none" and not section.encrypted and offered:
                session.starttls(context=self._tls())
                session.ehlo()
            if section.username is not None:
                private = isinstance(session.sock, ssl.SSLSocket)
                if not private and not section.may_send_password_in_plain:
                    raise DeliveryError(
                        f"{section.smtp} does not offer STARTTLS, and the password is not sent in"
                        " clear text; use smtps://, or starttls: none on a trusted network",
                        retry=False,
                    )
                session.login(section.username, password)
            yield session
        finally:
            # The report was accepted or refused by now: how the session ends does not matter.
            with suppress(smtplib.SMTPException, OSError):
                session.quit()
            session.close()

    def _connected(self, timeout: float) -> smtplib.SMTP:
        server, name = self._section.server, self._name
        if self._section.encrypted:
            return smtplib.SMTP_SSL(
                server.host, server.port, name, timeout=timeout, context=self._tls()
            )
        return smtplib.SMTP(server.host, server.port, name, timeout=timeout)

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._section.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"report.email.ca_file {self._section.ca_file} cannot be used"
                f" ({error.strerror or error}); give a file of certificates in PEM format"
            ) from None

    def _not_for(self, refused: _Refused, taken: tuple[str, ...]) -> DeliveryError:
        named = [
            f"{shown(address, _LONGEST_NAME)} ({code} {self._quoted(text)})"
            for address, (code, text) in list(refused.items())[:_MOST_NAMED]
        ]
        more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        return DeliveryError(
            f"{self._section.smtp} does not accept mail for {', '.join(named)}{more}; correct"
            " report.email.to, or let that server relay for this machine",
            retry=any(code < 500 for code, _ in refused.values()),
            done=taken,
        )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong becomes a DeliveryError that says what to do."""
        try:
            yield
        except smtplib.SMTPRecipientsRefused as error:
            raise self._not_for(error.recipients, ()) from None
        except smtplib.SMTPResponseException as error:
            raise self._refusal(error) from None
        except (smtplib.SMTPException, OSError, UnicodeError) as error:
            raise self._failure(error) from None

    def _refusal(self, error: smtplib.SMTPResponseException) -> DeliveryError:
        text = f"{error.smtp_code} {self._quoted(error.smtp_error)}".strip()
        what, remedy = {
            smtplib.SMTPAuthenticationError: (
                "refuses the login",
                "correct username and the contents of password_file",
            ),
            smtplib.SMTPSenderRefused: (
                f"does not accept mail from {self._section.from_}",
                "correct report.email.from, or give username",
            ),
            smtplib.SMTPDataError: ("does not accept the report", "ask its administrator"),
        }.get(type(error), ("refuses the session", "ask its administrator"))
        # Codes from 500 mean that the same will be refused again: RFC 5321, 4.2.1.
        retry = not 500 <= error.smtp_code < 600
        return DeliveryError(f"{self._section.smtp} {what} ({text}); {remedy}", retry=retry)

    def _failure(self, error: Exception) -> DeliveryError:
        url, text = self._section.smtp, self._quoted(str(error))
        if isinstance(error, smtplib.SMTPNotSupportedError):
            detail = f"{url} does not support what is configured: {text}"
            return DeliveryError(f"{detail}; remove username, or use another server", retry=False)
        if isinstance(error, smtplib.SMTPServerDisconnected) and not _is_timeout(error):
            return DeliveryError(f"{url} closed the connection: {text}; see its log", retry=True)
        return _unreachable(error, url, text, self._section.timeout)

    def _quoted(self, text: bytes | str) -> str:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        try:
            return masked(plain, [self._section.password()])
        except ConfigError:
            return masked(plain, [])


def _sendable(text: str) -> str:
    """Text that any charset of mail can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


_HINTS = {
    400: "; it does not understand the report; check kind",
    401: "; give credentials: bearer_token_file or basic_auth",
    403: "; the webhook is not allowed; create another and configure its URL",
    404: "; the webhook does not exist; create one and configure its URL",
    410: "; the webhook was removed; create another and configure its URL",
    413: "; the report is too large for it: use kind slack, or fewer targets",
}
_LATER = (408, 425, 429)


class Hook:
    """Posts to the address of a section; as a channel of reports.

    Proxies and credentials of the process's environment are not used.
    """

    def __init__(self, section: Webhook) -> None:
        self._section = section

    def send(self, outgoing: Outgoing, done: Sequence[str]) -> None:
        """Post the report; raises DeliveryError or ConfigError."""
        url, headers = self._section.address(), self._section.request_headers()
        tls = context_for(self._section, url, f"report.webhooks ({self._section.name})")
        body = io.BytesIO(self._body(outgoing))
        # A receiver recognises a report that it has already.
        ids = {"Idempotency-Key": outgoing.id, "X-Specwatch-Delivery": outgoing.id}
        try:
            self._post(url, {**ids, **headers}, tls, body)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as e:
            error = self._failure(e, url, headers)
            # If the timeout came earlier, such as while connecting, some of it was not read.
            error.sent = _is_timeout(e) and 0 < len(body.getbuffer()) == body.tell()
            raise error from None  # the cause may hold a secret

    def probe(self, timeout: float) -> str:
        """Connect, and post nothing.

        Returns the result as a sentence; raises DeliveryError or ConfigError.
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

    def _body(self, outgoing: Outgoing) -> bytes:
        if self._section.kind == "json":
            return outgoing.json
        return json.dumps(outgoing.chat).encode()

    def _post(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, body: io.BytesIO
    ) -> None:
        own = {"Content-Type": "application/json", "User-Agent": f"specwatch/{__version__}"}
        with (
            new_session(tls) as session,
            session.post(
                url,
                data=body,
                headers={**own, "Accept-Encoding": "identity", **headers},
                timeout=self._section.timeout,
                verify=not self._section.insecure_skip_verify,
                allow_redirects=False,
                stream=True,  # an answer may be of any size
            ) as response,
        ):
            if not 200 <= response.status_code < 300:
                raise self._refusal(response, url, headers)

    def _refusal(
        self, response: requests.Response, url: str, headers: Mapping[str, str]
    ) -> DeliveryError:
        status = response.status_code
        text = response.raw.read(SHOWN * 4).decode("utf-8", "replace")
        quoted = f" ({masked(text, _secrets(url, headers))})" if text.strip() else ""
        retry = status in _LATER or status >= 500
        hint = _HINTS.get(status, "; it may work again later" if retry else "")
        if 300 <= status < 400:
            hint = "; a redirect is not followed, give the address that it leads to"
        return DeliveryError(f"{_shown(url)} answered {status}{quoted}{hint}", retry=retry)

    def _failure(self, error: Exception, url: str, headers: Mapping[str, str]) -> DeliveryError:
        where, text = _shown(url), masked(str(root(error)), _secrets(url, headers))
        if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):
            detail = f"{where} cannot be posted to: {text}; correct its address and headers"
            return DeliveryError(detail, retry=False)
        return _unreachable(error, where, text, self._section.timeout)


def _unreachable(error: Exception, where: str, text: str, timeout: float) -> DeliveryError:
    """Why a server was not reached, of which ``text`` is the error's own words, and what to do."""
    why, sentence = unreached(error, where, detail=text, timeout=timeout)
    return DeliveryError(sentence, retry=why is not Unreached.TLS)


def _is_timeout(error: Exception) -> bool:
    return any(isinstance(cause, requests.Timeout | TimeoutError) for cause in chain(error))


def _shown(url: str) -> str:
    """The server only: with the rest of the address anybody may post."""
    parts = urlsplit(url)
    host, port = server_address(url)
    return f"{parts.scheme}://{host_port(host, port) if parts.port else host}"


def _secrets(url: str, headers: Mapping[str, str]) -> Iterable[str]:
    parts = urlsplit(url)
    pieces = [piece for piece in parts.path.split("/") if len(piece) >= 8]
    address = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return {
        url,
        *(part for part in (address, parts.path, parts.query) if len(part) > 1),
        *pieces,
        *secrets_in(headers.values()),
    }

"""A mail server over SMTP: it takes the report for each of its readers, or says why not."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from specwatch.config.report import Email, mailbox
from specwatch.errors import ConfigError, DeliveryError
from specwatch.report.letter import Letter
from specwatch.runtime.posting import chain, masked
from specwatch.wording.text import shown

_MOST_NAMED = 3
_LONGEST_NAME = 320
"""Characters of an address of mail, at most."""
_LONG_LINES = SMTP.clone(max_line_length=200)
_Refused = Mapping[str, tuple[int, bytes]]


def message_of(letter: Letter, section: Email) -> EmailMessage:
    """The report as text and as HTML, of which a mail program shows the better that it can.

    What stands in its headers is one line whatever models are called: ``email`` sees to it.
    """
    plain = all(text.isascii() for text in (letter.subject, section.from_, *section.to))
    # A subject of more than 78 characters would begin with an empty line; encoded words must.
    message = EmailMessage(_LONG_LINES if plain else SMTP)
    sender = mailbox(section.from_)
    message["From"] = sender
    message["To"] = [mailbox(each) for each in section.to]
    message["Subject"] = letter.subject
    message["Date"] = format_datetime(datetime.fromtimestamp(letter.made, UTC))
    message["Message-ID"] = f"<{letter.id}@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_sendable(letter.text))
    message.add_alternative(_sendable(letter.html), subtype="html")
    if section.attach:
        message.add_attachment(
            _sendable(letter.html), subtype="html", filename=f"{letter.name}.html"
        )
    return message


class Mail:
    """Sends by the mail server of a section; as a channel of reports."""

    def __init__(self, section: Email, hostname: str) -> None:
        """``hostname`` is how this machine introduces itself."""
        self._section = section
        # Without a domain it is none that a strict server takes.
        self._name = hostname if "." in hostname else "[127.0.0.1]"

    @property
    def where(self) -> str:
        """The URL of the server, which holds no secret."""
        return self._section.smtp

    def send(self, letter: Letter, done: Sequence[str]) -> None:
        """Send to all but those who are ``done``; raises DeliveryError or ConfigError."""
        addresses = [mailbox(each).addr_spec for each in self._section.to]
        waiting = [each for each in addresses if each not in done]
        if not waiting:
            return
        message = message_of(letter, self._section)
        sender = mailbox(self._section.from_).addr_spec
        with self._failures(), self._session(self._section.timeout) as session:
            refused = session.send_message(message, from_addr=sender, to_addrs=waiting)
        if refused:
            taken = tuple(each for each in waiting if each not in refused)
            raise self._not_for(refused, taken)

    def probe(self, timeout: float) -> str:
        """Connect and introduce ourselves, log in where that is asked for, and send nothing.

        Returns a sentence on what was found; raises DeliveryError or ConfigError.
        """
        with self._failures(), self._session(min(timeout, self._section.timeout)) as session:
            encrypted = isinstance(session.sock, ssl.SSLSocket)
        said = "encrypted" if encrypted else "not encrypted"
        login = "" if self._section.username is None else ", takes the password"
        return f"it answers, {said}{login}"

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
                self._require_privacy(session)
                session.login(section.username, password)
            yield session
        finally:
            # It has taken the report by now, or has not: how it says goodbye is no matter.
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

    def _require_privacy(self, session: smtplib.SMTP) -> None:
        if isinstance(session.sock, ssl.SSLSocket) or self._section.may_send_password_in_plain:
            return
        raise DeliveryError(
            f"{self._section.smtp} does not offer STARTTLS, and the password is not sent in clear"
            " text; use smtps://, or starttls: none on a trusted network",
            retry=False,
        )

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
            f"{shown(address, _LONGEST_NAME)} ({code} {self._said(text)})"
            for address, (code, text) in list(refused.items())[:_MOST_NAMED]
        ]
        more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        return DeliveryError(
            f"{self._section.smtp} does not take mail for {', '.join(named)}{more}; correct"
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
        said = f"{error.smtp_code} {self._said(error.smtp_error)}".strip()
        what = {
            smtplib.SMTPAuthenticationError: "does not let us in",
            smtplib.SMTPSenderRefused: f"takes no mail from {self._section.from_}",
            smtplib.SMTPDataError: "does not take the report",
        }.get(type(error), "does not serve us")
        remedy = {
            smtplib.SMTPAuthenticationError: "; correct username and what is in password_file",
            smtplib.SMTPSenderRefused: "; correct report.email.from, or give username",
        }.get(type(error), "; ask its administrator")
        # Codes from 500 mean that the same will be refused again: RFC 5321, 4.2.1.
        retry = not 500 <= error.smtp_code < 600
        return DeliveryError(f"{self._section.smtp} {what} ({said}){remedy}", retry=retry)

    def _failure(self, error: Exception) -> DeliveryError:
        url, said = self._section.smtp, self._said(str(error))
        if any(isinstance(each, TimeoutError) for each in chain(error)):
            seconds = f"{self._section.timeout:g} s"
            detail = f"{url} did not answer within {seconds}; is a firewall between, or is this"
            return DeliveryError(f"{detail} a port for smtps://?", retry=True)
        if isinstance(error, ssl.SSLError):
            detail = f"no secure connection to {url}: {said}; name the authority in ca_file, and"
            return DeliveryError(f"{detail} the host as its certificate does", retry=False)
        if isinstance(error, ConnectionRefusedError):
            detail = f"nothing listens at {url}; is the mail server up, on this port?"
            return DeliveryError(detail, retry=True)
        if isinstance(error, smtplib.SMTPNotSupportedError):
            detail = f"{url} cannot do what is asked of it: {said}"
            return DeliveryError(f"{detail}; leave out username, or name another", retry=False)
        if isinstance(error, smtplib.SMTPServerDisconnected):
            return DeliveryError(f"{url} closed the connection: {said}; see its log", retry=True)
        if isinstance(error, socket.gaierror):
            detail = f"cannot find {self._section.server.host}: {said}"
            return DeliveryError(f"{detail}; correct report.email.smtp", retry=True)
        detail = f"cannot reach {url}: {said}; check its host name and the network"
        return DeliveryError(detail, retry=True)

    def _said(self, text: bytes | str) -> str:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        try:
            return masked(plain, [self._section.password()])
        except ConfigError:
            return masked(plain, [])


def _sendable(text: str) -> str:
    """Text that any charset of mail can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")

"""A real mail server on this machine that keeps what it is given, and fails as it is told to."""

from __future__ import annotations

import email
import email.policy
import ssl
from email.message import EmailMessage
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.lab.vllm_server import free_port


class Letterbox:
    """What came, and how the server behaves; a handler of aiosmtpd."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[str], EmailMessage]] = []
        self.logins: list[tuple[str, str]] = []
        self.encrypted: list[bool] = []
        self.refused: dict[str, str] = {}
        """Addresses, and what is answered to them."""
        self.answers: list[str] = []
        """To the next reports; ``hang up`` before the answer to one."""

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: Any
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer == "hang up":
            server.transport.close()
            return "421 gone"
        if answer.startswith("250"):
            content = envelope.content
            assert isinstance(content, bytes)
            message = email.message_from_bytes(content, policy=email.policy.default)
            assert isinstance(message, EmailMessage)
            self.encrypted.append(session.ssl is not None)
            self.sent.append((str(envelope.mail_from), sorted(envelope.rcpt_tos), message))
        return answer

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"hunter2", handled=False)


class MailServer(Controller):
    """Listens on a free port; as a context manager."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, login: bool = False) -> None:
        self.box = Letterbox()
        super().__init__(
            self.box,
            hostname="127.0.0.1",
            port=free_port(),
            tls_context=tls,
            authenticator=self.box.authenticate if login else None,
            auth_require_tls=False,
            ready_timeout=60.0,
        )

    def reset(self) -> None:
        """Have an empty box again, and no faults."""
        self.box = self.handler = Letterbox()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

"""A mail arrives whole, once, for all who are named; or it is said who did not get it and why."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.config.report import Email
from specwatch.errors import DeliveryError
from specwatch.pages.mail_html import mail_html
from specwatch.pages.report_html import report_html
from specwatch.report.mail_and_webhooks import Mail, message_of
from specwatch.report.messages import Outgoing
from tests.fixtures import CERTIFICATE
from tests.hostile import deaf_port
from tests.lab.vllm_server import free_port
from tests.report import sample
from tests.report.conftest import MADE, StartMail, outgoing_of

TO = ("Ops, night & day <ops@example.com>", "boss@example.org")
BOTH = ["boss@example.org", "ops@example.com"]


def section(url: str, **keys: Any) -> Email:
    result = {"smtp": url, "from": "Specwatch <specwatch@gpu.example>", "to": TO, **keys}
    return Email.model_validate({"timeout": "20s", **result})


def mail(url: str, **keys: Any) -> Mail:
    return Mail(section(url, **keys), "gpu-7")


def refused(mail: Mail, outgoing: Outgoing, *done: str) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        mail.send(outgoing, done)
    assert "hunter2" not in str(caught.value)
    return caught.value


def part(message: EmailMessage, kind: str) -> str:
    result = message.get_body((kind,))
    assert result is not None
    text: str = result.get_content()
    return text.replace("\r\n", "\n")


def test_it_arrives_as_text_and_html_with_pictures_and_the_page_attached(
    outgoing: Outgoing, start_mail: StartMail
) -> None:
    server = start_mail()
    mail(server.url).send(outgoing, ())
    ((sender, receivers, message),) = server.box.sent
    assert (sender, receivers) == ("specwatch@gpu.example", BOTH)
    assert message["From"] == "Specwatch <specwatch@gpu.example>"
    assert [address.addr_spec for address in message["To"].addresses] == [
        "ops@example.com",
        BOTH[0],
    ]
    assert message["Subject"] == outgoing.subject
    assert message["Date"].datetime.timestamp() == MADE
    assert message["Auto-Submitted"] == "auto-generated"
    assert part(message, "plain") == outgoing.text
    assert part(message, "html").rstrip("\n") == outgoing.mail.html
    (attached,) = message.iter_attachments()
    assert attached.get_filename() == "report-2026-11-09.html"
    assert attached.get_content_type() == "text/html"
    assert attached.get_content().rstrip() == outgoing.html
    pictures = {
        one["Content-ID"]: one for one in message.walk() if one.get_content_maintype() == "image"
    }
    assert list(pictures) == ["<forest>"]
    assert pictures["<forest>"].get_content() == outgoing.mail.pictures["forest"]
    assert pictures["<forest>"].get_content_disposition() == "inline"
    related = [one.get_content_type() for one in message.walk() if one.is_multipart()]
    assert related == ["multipart/mixed", "multipart/alternative", "multipart/related"]


def test_a_real_report_arrives_whole(start_mail: StartMail) -> None:
    report = sample.partial()
    body, whole = mail_html(report), report_html(report)
    server = start_mail()
    mail(server.url).send(dataclasses.replace(outgoing_of(report), mail=body, html=whole), ())
    ((_, _, message),) = server.box.sent
    pictures = {
        one["Content-ID"].strip("<>"): one.get_content()
        for one in message.walk()
        if one.get_content_maintype() == "image"
    }
    assert pictures == body.pictures
    assert pictures
    assert all(f"cid:{name}" in part(message, "html") for name in pictures)
    (attached,) = message.iter_attachments()
    assert attached.get_content().replace("\r\n", "\n").rstrip() == whole.rstrip()


def test_without_the_attachment_it_is_an_alternative_only(outgoing: Outgoing) -> None:
    message = message_of(outgoing, section("smtp://h", attach=False))
    assert message.get_content_type() == "multipart/alternative"
    assert list(message.iter_attachments()) == []


def test_the_same_report_has_the_same_id_and_another_has_not(outgoing: Outgoing) -> None:
    one = section("smtp://h")
    result = message_of(outgoing, one)["Message-ID"]
    assert result.endswith("@gpu.example>")
    assert message_of(outgoing, one)["Message-ID"] == result
    assert message_of(outgoing_of(sample.empty()), one)["Message-ID"] != result


def test_hostile_names_are_text_and_no_header(start_mail: StartMail) -> None:
    """A model's name can add neither a header nor a recipient."""
    report = sample.hostile()
    (first, *_) = report.targets
    evil = "x\r\nBcc: eve@example.net\r\n\r\n<script>\U0001f98a"
    alone = replace(report, targets=(replace(first, target=evil, model_name=evil),))
    server = start_mail()
    for item in (report, alone):
        outgoing = outgoing_of(item)
        mail(server.url).send(outgoing, ())
        _, receivers, message = server.box.sent[-1]
        assert receivers == BOTH
        assert message["Bcc"] is None
        assert message["Subject"] == outgoing.subject
        assert len(outgoing.subject) < 200
        assert outgoing.subject.isprintable()
    assert r"x\r\nBcc: eve" in server.box.sent[-1][2]["Subject"]


def test_it_is_encrypted_where_the_server_offers_it(
    outgoing: Outgoing, start_mail: StartMail, server_tls: ssl.SSLContext, password: Path
) -> None:
    server = start_mail(tls=server_tls, login=True)
    login = {"username": "specwatch", "password_file": password, "ca_file": CERTIFICATE}
    mail(server.url, **login).send(outgoing, ())
    assert server.box.encrypted == [True]
    assert server.box.logins == [("specwatch", "hunter2")]
    assert mail(server.url, **login).probe(2) == "it answers, encrypted, takes the password"
    assert len(server.box.sent) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(
    outgoing: Outgoing, start_mail: StartMail, server_tls: ssl.SSLContext
) -> None:
    server = start_mail(tls=server_tls)
    error = refused(mail(server.url), outgoing)
    assert str(error).startswith(f"no secure connection to {server.url}: ")
    assert "ca_file" in str(error)
    assert (error.retry, server.box.sent) == (False, [])
    mail(server.url, starttls="none").send(outgoing, ())
    assert server.box.encrypted == [False]


def test_what_has_to_be_encrypted_is_not_sent_otherwise(
    outgoing: Outgoing, start_mail: StartMail
) -> None:
    server = start_mail()
    error = refused(mail(server.url, starttls="required"), outgoing)
    assert "does not offer STARTTLS, which starttls: required asks for" in str(error)
    assert (error.retry, server.box.sent) == (False, [])


def test_a_password_is_not_sent_for_all_to_read(
    outgoing: Outgoing, start_mail: StartMail, password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the server is on this machine, or the configuration says so."""
    server = start_mail(login=True)
    login: dict[str, Any] = {"username": "specwatch", "password_file": password}
    mail(server.url, **login).send(outgoing, ())
    monkeypatch.setattr("specwatch.config.report.is_loopback", lambda _: False)
    error = refused(mail(server.url, **login), outgoing)
    assert "the password is not sent in clear text" in str(error)
    assert (len(server.box.logins), error.retry) == (1, False)
    mail(server.url, **login, starttls="none").send(outgoing, ())
    assert len(server.box.sent) == 2


def test_a_wrong_password_is_not_tried_again(
    outgoing: Outgoing, start_mail: StartMail, tmp_path: Path
) -> None:
    server = start_mail(login=True)
    (tmp_path / "wrong").write_text("wrong-secret")
    error = refused(mail(server.url, username="u", password_file=tmp_path / "wrong"), outgoing)
    assert str(error).startswith(f"{server.url} refuses the login (535 ")
    assert error.retry is False
    assert "wrong-secret" not in str(error)


def test_who_was_refused_is_named_and_the_others_have_it(
    outgoing: Outgoing, start_mail: StartMail
) -> None:
    server = start_mail()
    server.box.refused = {"boss@example.org": "550 no such mailbox"}
    error = refused(mail(server.url), outgoing)
    assert "boss@example.org (550 no such mailbox)" in str(error)
    assert (error.retry, error.done) == (False, ("ops@example.com",))
    assert [receivers for _, receivers, _ in server.box.sent] == [["ops@example.com"]]
    server.box.refused = {"boss@example.org": "450 greylisted"}
    error = refused(mail(server.url), outgoing, "ops@example.com")
    assert (error.retry, error.done) == (True, ())
    server.box.refused = {}
    mail(server.url).send(outgoing, ("ops@example.com",))
    assert [receivers for _, receivers, _ in server.box.sent[1:]] == [["boss@example.org"]]
    mail(server.url).send(outgoing, tuple(BOTH))
    assert len(server.box.sent) == 2


@pytest.mark.parametrize(
    ("answer", "retry", "message"),
    [
        ("554 looks like spam", False, "does not accept the report (554 looks like spam)"),
        ("451 no room", True, "does not accept the report (451 no room)"),
        ("hang up", True, "closed the connection: "),
    ],
)
def test_what_the_server_says_to_the_report_is_told(
    outgoing: Outgoing, start_mail: StartMail, answer: str, retry: bool, message: str
) -> None:
    server = start_mail()
    server.box.answers = [answer]
    error = refused(mail(server.url), outgoing)
    assert message in str(error)
    assert error.retry is retry
    mail(server.url).send(outgoing, ())
    assert len(server.box.sent) == 1


@contextmanager
def nobody() -> Iterator[str]:
    yield f"smtp://127.0.0.1:{free_port()}"


@contextmanager
def deaf() -> Iterator[str]:
    with deaf_port() as port:
        yield f"smtp://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("server", "message"),
    [(nobody, "nothing listens at smtp://"), (deaf, "did not answer within 0.2 s; is it hung")],
)
def test_a_server_that_is_not_there_may_be_later(
    outgoing: Outgoing, server: Any, message: str
) -> None:
    with server() as url:
        patient = section(url).model_copy(update={"timeout": 0.2})
        error = refused(Mail(patient, "gpu-7"), outgoing)
    assert message in str(error)
    assert error.retry is True

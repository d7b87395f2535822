"""The section report in a file: read whole, or refused with each problem's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.config.loading import Config
from specwatch.config.report import (
    Delivery,
    Email,
    mailbox,
    parse_mailbox,
    parse_report_url,
    parse_smtp_url,
)
from specwatch.errors import ConfigError
from tests.config.files import one_target, valid


def section(config: Config) -> Delivery:
    assert config.report is not None
    return config.report


def test_secrets_reach_their_place(folder: Path) -> None:
    report = section(valid("report/valid.yml", folder))
    mail = report.email
    assert mail is not None
    assert (str(mail.server), mail.encrypted, mail.password()) == (
        "mail.example:25",
        False,
        "pass-hunter2",
    )
    assert mailbox(mail.from_).display_name == "Specwatch, at night"
    assert mailbox(mail.from_).addr_spec == "specwatch@example.com"
    slack, archive = report.webhooks
    assert slack.address() == "https://hooks.example/services/T0/B0/hunter2"
    assert slack.request_headers() == {"X-Scope": "scope-hunter2"}
    assert archive.address() == "https://archive.example/in?key=hunter2"
    assert report.channels == ["email", "webhook", "archive"]


def test_without_a_report_section_nothing_is_delivered() -> None:
    assert one_target().report is None
    state = "/var/lib/specwatch:/var/lib/other"
    report = section(one_target("report: {}", STATE_DIRECTORY=state))
    assert report.directory == Path("/var/lib/specwatch/reports")
    assert (report.since, report.formats) == (7 * 86400.0, ("html", "json"))
    assert (report.email, report.webhooks, report.channels) == (None, (), [])


def test_a_secret_file_that_has_gone_is_an_error_when_it_is_used(folder: Path) -> None:
    report = section(valid("report/valid.yml", folder))
    assert report.email is not None
    (folder / "password").unlink()
    (folder / "hook").write_text("none")
    with pytest.raises(ConfigError, match=r"report\.email\.password_file: cannot read .*password"):
        report.email.password()
    with pytest.raises(
        ConfigError, match=r"report\.webhooks \(webhook\): url_file: must be an HTTP"
    ):
        report.webhooks[0].address()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a.b+c@host", "a.b+c@host"),
        ("<ops@example.com>", "ops@example.com"),
        ('"Ops, by night" <ops@example.com>', "Ops, by night <ops@example.com>"),
        ("Größe <ops@example.com>", "Größe <ops@example.com>"),
    ],
)
def test_a_mail_address_may_have_a_display_name(written: str, read: str) -> None:
    assert parse_mailbox(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ops",
        "a@b@c",
        "a b@c",
        "a@b\nBcc: c@d",
        "X\r\nBcc: e <a@b>",
        "a@b,c@d",
        ".a@b",
        "a..b@c",
        "ä@b",
        "a@ä",
        "a@-b",
        "<a@b",
        7,
    ],
)
def test_an_invalid_mail_address_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"address|control character"):
        parse_mailbox(written)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("smtp://mail.example", "smtp://mail.example:25"),
        ("SMTPS://mail.example/", "smtps://mail.example:465"),
        ("smtp://[::1]:2525", "smtp://[::1]:2525"),
    ],
)
def test_a_mail_server_has_its_usual_port(written: str, read: str) -> None:
    assert parse_smtp_url(written) == read
    made = Email.model_validate({"smtp": written, "from": "a@b", "to": "a@b"})
    assert str(made.server) == read.partition("://")[2]


@pytest.mark.parametrize(
    "written",
    [
        "mail.example:25",
        "http://h",
        "smtp://",
        "smtp://h:0",
        "smtp://h:x",
        "smtp://h/x",
        "smtp://h?x=1",
        "smtp://a b",
        "smtp://h\n",
        25,
    ],
)
def test_an_invalid_smtp_url_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"smtp|query"):
        parse_smtp_url(written)


def test_where_the_report_can_be_opened_may_have_a_query_and_no_credentials() -> None:
    url = "https://reports.example.com/{name}.html?user=ops&view=all"
    assert parse_report_url(url) == url
    assert section(one_target(f"report: {{url: '{url}'}}")).url == url
    for wrong in (
        "reports.example.com",
        "https://u:hunter2@h/",
        "https://h/?a b",
        "https://h/#top",
    ):
        with pytest.raises(ValueError, match=r"http|credentials|percent-encode") as caught:
            parse_report_url(wrong)
        assert "hunter2" not in str(caught.value)

"""The section report in a file: read whole, or refused with each problem's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specwatch.config.loading import Config, load, parse
from specwatch.config.report import Delivery, Email, mailbox, parse_mailbox, parse_smtp_url
from specwatch.errors import ConfigError

FULL = """\
targets: [{url: 'http://h'}]
report:
  since: 14d
  directory: reports
  keep: 90d
  formats: [json, md]
  email:
    smtp: SMTP://mail.example
    from: Specwatch, at night <specwatch@example.com>
    to: [ops@example.com, boss@example.com]
    username: specwatch
    password_file: password
    starttls: required
    ca_file: ca.pem
    subject: "[gpu] {answer}"
    attach: false
    timeout: 10s
  webhooks:
    - {url_file: hook, headers: {X-Scope: scope-hunter2}}
    - {name: archive, url: 'https://archive.example/in?key=hunter2', kind: json, timeout: 1m}
"""
INVALID = {
    "report: yes": ["2: report: expected a mapping of keys to values, found text"],
    "report: {since: 5m, keep: 1h, formats: [html], derectory: x}": [
        '2: report.derectory: unknown key; did you mean "directory"?',
        "2: report.formats: lacks json, of which a report is made that is sent again; add it",
        "2: report.keep: 1h is too short; make it at least 1d",
        "2: report.since: 5m is outside 1h to 400d",
    ],
    "report: {email: {}}": [
        '2: report.email.from: is missing; add it, like "from: specwatch@example.com"',
        '2: report.email.smtp: is missing; add it, like "smtp: smtp://mail.example:587"',
        '2: report.email.to: is missing; add it, like "to: [ops@example.com]"',
    ],
    "report: {email: {smtp: 'smtp://u:hunter2@h', from: ops, to: []}}": [
        '2: report.email.from: "ops" is not an e-mail address; write it like ops@example.com',
        "2: report.email.smtp: holds credentials; move them to username and password_file",
        "2: report.email.to: is empty; give at least one address, or remove the section email",
    ],
    "report: {email: {smtp: 'smtps://h', from: a@b, to: [a@b, A@B], starttls: required, username:"
    " u, subject: '{model}', ca_file: no}}": [
        "2: report.email.ca_file: cannot read FOLDER/no: No such file or directory; create it, or"
        " correct the path",
        "2: report.email.starttls: is for smtp://; smtps:// is encrypted from the beginning",
        '2: report.email.subject: "{model}" has braces that are neither {answer} nor {date}',
        '2: report.email.to: "A@B" is given twice; list each address once',
        "2: report.email: has a username and no password_file; name the file with its password",
    ],
    "report: {email: {smtp: 'smtp://h', from: a@b, to: a@b, password_file: password, starttls:"
    " none, ca_file: ca.pem, timeout: 0s}}": [
        "2: report.email.ca_file: has no effect beside starttls: none; remove one of them",
        "2: report.email.password_file: requires username",
        "2: report.email.timeout: 0s is outside 1s to 2h",
    ],
    "report: {webhooks: [{}, {url: 'ftp://hunter2'}, {name: email, url_file: password}, {kind:"
    " teams, url: 'http://h/', url_file: hook}]}": [
        "2: report.webhooks[0]: has no address; add \"url_file: FILE\", which keeps it secret, or"
        " url",
        "2: report.webhooks[1].url: must be an HTTP(S) URL without credentials, fragment or"
        " spaces",
        '2: report.webhooks[2].name: "email" is the name of the mail; give another',
        "2: report.webhooks[2].url_file: the content of FOLDER/password must be an HTTP(S)"
        " URL without credentials, fragment or spaces",
        "2: report.webhooks[3].kind: \"teams\" is none of 'slack' or 'json'",
    ],
    "report: {webhooks: [{url: 'http://h/', url_file: hook}]}": [
        "2: report.webhooks[0].url_file: url is given too; keep one of them",
    ],
    "report: {webhooks: [{url: 'http://h/'}, {url: 'http://i/'}]}": [
        '2: report.webhooks[1]: "webhook" is the name of webhooks[0] too; give another',
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text("pass-hunter2\n")
    (tmp_path / "ca.pem").write_text("certificate")
    (tmp_path / "hook").write_text("https://hooks.example/services/T0/B0/hunter2\n")
    return tmp_path


def full(folder: Path) -> Config:
    (folder / "specwatch.yml").write_text(FULL)
    return load(folder / "specwatch.yml", environ={}, hostname="gpu-7")


def section(config: Config) -> Delivery:
    assert config.report is not None
    return config.report


def test_every_key_reaches_its_place(folder: Path) -> None:
    report = section(full(folder))
    assert (report.since, report.keep) == (14 * 86400.0, 90 * 86400.0)
    assert (report.directory, report.formats) == (folder / "reports", ("json", "md"))
    mail = report.email
    assert mail is not None
    assert (mail.smtp, str(mail.server), mail.encrypted) == (
        "smtp://mail.example:25", "mail.example:25", False,
    )  # fmt: skip
    assert mailbox(mail.from_).display_name == "Specwatch, at night"
    assert mailbox(mail.from_).addr_spec == "specwatch@example.com"
    assert mail.to == ("ops@example.com", "boss@example.com")
    assert (mail.username, mail.password(), mail.starttls) == (
        "specwatch", "pass-hunter2", "required",
    )  # fmt: skip
    assert (mail.ca_file, mail.subject, mail.attach) == (
        folder / "ca.pem", "[gpu] {answer}", False,
    )  # fmt: skip
    assert mail.timeout == 10.0
    slack, archive = report.webhooks
    assert slack.address() == "https://hooks.example/services/T0/B0/hunter2"
    assert (slack.kind, slack.request_headers()) == ("slack", {"X-Scope": "scope-hunter2"})
    assert archive.address() == "https://archive.example/in?key=hunter2"
    assert (archive.kind, archive.timeout) == ("json", 60.0)
    assert report.channels == ["email", "webhook", "archive"]


def test_without_a_word_nothing_is_delivered() -> None:
    text = "targets: [{url: 'http://h'}]\n"
    assert parse(text, "f", environ={}, hostname="h").report is None
    environ = {"STATE_DIRECTORY": "/var/lib/specwatch:/var/lib/other"}
    report = section(parse(f"{text}report: {{}}", "f", environ=environ, hostname="h"))
    assert report.directory == Path("/var/lib/specwatch/reports")
    assert (report.since, report.formats) == (7 * 86400.0, ("html", "json"))
    assert (report.email, report.webhooks, report.channels) == (None, (), [])


@pytest.mark.parametrize("text", INVALID)
def test_what_is_wrong_is_refused_with_its_place(text: str, folder: Path) -> None:
    whole = f"targets: [{{url: 'http://h'}}]\n{text}\n"
    with pytest.raises(ConfigError) as caught:
        parse(whole, "f", environ={}, hostname="h", folder=folder)
    lines = sorted(str(caught.value).splitlines())
    assert lines == sorted(f"f:{each.replace('FOLDER', str(folder))}" for each in INVALID[text])
    assert "hunter2" not in str(caught.value)


def test_no_face_of_the_configuration_shows_a_secret(folder: Path) -> None:
    config = full(folder)
    public = config.public()
    for face in (repr(config), str(config), json.dumps(public), config.model_dump_json()):
        assert "hunter2" not in face
    assert public["report"]["email"]["from"] == "Specwatch, at night <specwatch@example.com>"
    assert public["report"]["webhooks"][1]["url"] == "***"


def test_a_secret_that_went_away_is_said_when_it_is_needed(folder: Path) -> None:
    report = section(full(folder))
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
def test_an_address_of_mail(written: str, read: str) -> None:
    assert parse_mailbox(written) == read


@pytest.mark.parametrize(
    "written",
    ["", "ops", "a@b@c", "a b@c", "a@b\nBcc: c@d", "X\r\nBcc: e <a@b>", "a@b,c@d", ".a@b", "a..b@c",
     "ä@b", "a@ä", "a@-b", "<a@b", 7],
)  # fmt: skip
def test_no_other_address_is_taken(written: object) -> None:
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
    ["mail.example:25", "http://h", "smtp://", "smtp://h:0", "smtp://h:x", "smtp://h/x",
     "smtp://h?x=1", "smtp://a b", "smtp://h\n", 25],
)  # fmt: skip
def test_no_other_mail_server_is_taken(written: object) -> None:
    with pytest.raises(ValueError, match="smtp"):
        parse_smtp_url(written)

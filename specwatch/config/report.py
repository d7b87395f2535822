"""The section ``report``: where the weekly report is kept, and to whom it is sent."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from email.headerregistry import Address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specwatch.config.http_access import HttpAccess
from specwatch.config.sections import (
    AnyPath,
    Duration,
    ReadableFile,
    Secret,
    SecretFile,
    Section,
    Surroundings,
    default_from,
    each_once,
    errors_at,
    not_empty,
    present_secret,
    read_secret,
    state_folder,
    unlike_names,
    within,
)
from specwatch.config.service import Patience
from specwatch.domain.units import (
    ListenAddress,
    host_port,
    is_loopback,
    parse_name,
    parse_server_url,
    quoted,
    url_parts,
)
from specwatch.errors import ConfigError

EMAIL = "email"
"""The name of the mail channel."""
_HOUR, _DAY = 3600.0, 86400.0
_PORTS = {"smtp": 25, "smtps": 465}
_LOCAL_PART = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_MAILBOX = re.compile(
    rf"(?P<only>{_LOCAL_PART}@{_DOMAIN}(?:\.{_DOMAIN})*)"
    rf"|(?P<name>[^<>]*?) ?<(?P<address>{_LOCAL_PART}@{_DOMAIN}(?:\.{_DOMAIN})*)>"
)
_PLACES = {"answer", "date"}
_FORMATS = ("html", "json", "md")


def parse_mailbox(value: object) -> str:
    """An address of mail, such as ``ops@example.com`` or ``Operations <ops@example.com>``."""
    shown = quoted(value)
    if not isinstance(value, str) or not (match := _MAILBOX.fullmatch(value)):
        raise ValueError(f"{shown} is not an e-mail address; write it like ops@example.com")
    if not value.isprintable() or len(value) > 320:
        raise ValueError(f"{shown} has a control character, or more than 320 characters")
    name = (match["name"] or "").strip('"').strip()
    return f"{name} <{match['address']}>" if name else match["only"] or match["address"]


def mailbox(text: str) -> Address:
    """An address from :func:`parse_mailbox` for a header of :mod:`email`."""
    name, separator, rest = text.rpartition(" <")
    return Address(name, addr_spec=rest.removesuffix(">") if separator else text)


def parse_smtp_url(value: object) -> str:
    """``smtp://host``, ``smtp://host:587`` or ``smtps://host``; credentials are refused."""
    example = "smtp://mail.example:587"
    parts = url_parts(value, example, ("smtp", "smtps"), "username and password_file")
    host = parts.hostname or ""
    if parts.path not in ("", "/") or not re.fullmatch(r"[A-Za-z0-9._:-]+", host):
        raise ValueError(f"{quoted(value)} is not a host and a port; write it like {example}")
    return f"{parts.scheme}://{host_port(host, parts.port or _PORTS[parts.scheme])}"


def parse_report_url(value: object) -> str:
    """A URL, which may have a query and ``{name}``; credentials are refused."""
    base, mark, query = str(value).partition("?")
    if not query.isprintable() or set(query) & set(" @") or "#" in str(value):
        raise ValueError("has a fragment, or a space or @ in its query; percent-encode these")
    return f"{parse_server_url(base)}{mark}{query}"


class Email(Section):
    """The mail server that takes the report, and the recipients."""

    smtp: Annotated[str, BeforeValidator(parse_smtp_url)] = Field(
        examples=["smtp://mail.example:587"]
    )
    """`smtp://HOST:PORT`, or `smtps://HOST:PORT` for a connection that is encrypted from its
    beginning."""
    from_: Annotated[str, BeforeValidator(parse_mailbox)] = Field(
        alias="from", examples=["specwatch@example.com"]
    )
    """Sender."""
    to: Annotated[
        tuple[Annotated[str, BeforeValidator(parse_mailbox)], ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        not_empty("give at least one address, or remove the section email"),
        each_once("address", lambda text: mailbox(text).addr_spec.lower()),
    ] = Field(examples=["[ops@example.com]"])
    """Recipients: a list, or a single address."""
    username: str | None = None
    """User name at the mail server. Default: no login."""
    password_file: SecretFile | None = Field(default=None, validate_default=True)
    """File with the password; needed with `username`."""
    starttls: Literal["auto", "required", "none"] = Field(default="auto")
    """`auto` encrypts where the server offers it, `required` sends nothing without, `none`
    never encrypts. A password is sent unencrypted only with `none`, or to this machine."""
    ca_file: ReadableFile | None = None
    """Certificate authorities (PEM) that may sign the server's certificate. Default: those
    of the machine."""
    subject: str = "specwatch: {answer}, {date}"
    """Subject; `{answer}` and `{date}` are filled in."""
    attach: bool = True
    """Whether the whole report is attached as an HTML file; the mail itself has a summary and the
    worst five targets."""
    timeout: Patience = 30.0
    """How long the server may take to answer; 1s to 2h."""

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted from its beginning."""
        return self.smtp.startswith("smtps:")

    @property
    def server(self) -> ListenAddress:
        """Host and port."""
        parts = urlsplit(self.smtp)
        return ListenAddress(parts.hostname or "", parts.port or _PORTS[parts.scheme])

    @property
    def may_send_password_in_plain(self) -> bool:
        """Whether a password may be sent unencrypted."""
        return self.starttls == "none" or is_loopback(self.server.host)

    def password(self) -> str:
        """The password, read from its file now; ConfigError when that has gone."""
        if self.password_file is None:
            return ""
        return present_secret(self.password_file, "report.email.password_file")

    @field_validator("username")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and (not value or not value.isprintable()):
            raise ValueError("is empty or has a control character; leave it out for no login")
        return value

    @field_validator("password_file")
    @classmethod
    def _of_somebody(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        username = info.data.get("username")
        if value is None and username is not None:
            raise ValueError("has a username and no password_file; name the file with its password")
        if value is not None and "username" in info.data and username is None:
            raise ValueError("requires username")
        return value

    @field_validator("starttls")
    @classmethod
    def _not_twice(cls, value: str, info: ValidationInfo) -> str:
        if value == "required" and str(info.data.get("smtp", "")).startswith("smtps:"):
            raise ValueError("is for smtp://; smtps:// is encrypted from the beginning")
        return value

    @field_validator("ca_file")
    @classmethod
    def _ca_file_in_use(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        plain = str(info.data.get("smtp", "smtps:")).startswith("smtp:")
        if value is not None and plain and info.data.get("starttls") == "none":
            raise ValueError("has no effect beside starttls: none; remove one of them")
        return value

    @field_validator("subject")
    @classmethod
    def _one_line(cls, value: str) -> str:
        try:
            fields = [field[1:] for field in string.Formatter().parse(value)]
        except ValueError:
            fields = [("{", "", None)]
        places = {"".join(filter(None, field)) for field in fields if field[0] is not None}
        if places - _PLACES:
            raise ValueError(f"{quoted(value)} has braces that are neither {{answer}} nor {{date}}")
        if not value.strip() or not value.isprintable() or len(value) > 200:
            raise ValueError("must be one line of 1 to 200 printable characters")
        return value


class Webhook(HttpAccess):
    """A URL that the report is posted to."""

    name: Annotated[str, BeforeValidator(parse_name)] = "webhook"
    """Name in messages and metrics; unique."""
    url: Secret | None = Field(default=None, examples=["https://hooks.slack.com/services/..."])
    """The URL, which is masked in every output. Give this or `url_file`."""
    url_file: SecretFile | None = None
    """File with the URL."""
    kind: Literal["slack", "json"] = "slack"
    """`slack` posts a summary in the format of Slack and Mattermost, `json` the whole report."""
    timeout: Patience = 10.0
    """How long the server may take for an answer; 1s to 2h."""

    @field_validator("name")
    @classmethod
    def _not_mail(cls, value: str) -> str:
        if value == EMAIL:
            raise ValueError(f"{quoted(EMAIL)} is the name of the mail; give another")
        return value

    @field_validator("url")
    @classmethod
    def _usable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _require_hook(value.get_secret_value())
        return value

    @field_validator("url_file")
    @classmethod
    def _holds_one(cls, value: Path | None) -> Path | None:
        if value is not None:
            try:
                _require_hook(read_secret(value))
            except ValueError as error:
                raise ValueError(f"the content of {value} {error}") from None
        return value

    @model_validator(mode="after")
    def _one_address(self) -> Webhook:
        if self.url is not None and self.url_file is not None:
            raise errors_at({("url_file",): "url is given too; keep one of them"})
        if self.url is None and self.url_file is None:
            raise ValueError('has no address; add "url_file: FILE", which keeps it secret, or url')
        return self

    def address(self) -> str:
        """The URL, read from its file now; ConfigError when that has gone bad."""
        if self.url_file is None:
            return "" if self.url is None else self.url.get_secret_value()
        try:
            url = read_secret(self.url_file)
            _require_hook(url)
        except ValueError as error:
            raise ConfigError(f"report.webhooks ({self.name}): url_file: {error}") from None
        return url

    @property
    def _called(self) -> str:
        return f"report.webhooks ({self.name})"


def _require_hook(url: str) -> None:
    """Refuse anything but a URL, without quoting it: most of it is a secret."""
    try:
        # What the path and the query of a server may not have, those of a hook may.
        parse_server_url(re.split(r"[?#]", url.replace("@", "%40"))[0])
        parts = urlsplit(url)
        fit = "@" not in parts.netloc and not parts.fragment and url.isprintable()
    except ValueError:
        fit = False
    if not fit:
        raise ValueError("must be an HTTP(S) URL without credentials, fragment or spaces")


def _reports_folder(surroundings: Surroundings) -> Path:
    return state_folder(surroundings.environ, surroundings.folder) / "reports"


class Delivery(Section):
    """Where the weekly report is written and sent."""

    since: Annotated[Duration, within(_HOUR, 400 * _DAY)] = 7 * _DAY
    """Period of the report; 1h to 400d."""
    directory: Annotated[AnyPath, default_from(_reports_folder)] = Field(
        default=None, validate_default=True
    )
    """Folder of the written reports. Default: `reports` beside the default database."""
    keep: Annotated[Duration, within(_DAY)] = 400 * _DAY
    """Age at which a written report is removed; at least 1d."""
    formats: tuple[Literal["html", "json", "md"], ...] = ("html", "json")
    """Formats to write; `json` is required, as a report is sent again from it."""
    url: Annotated[str, BeforeValidator(parse_report_url)] | None = Field(
        default=None, examples=["https://reports.example.com/{name}.html"]
    )
    """Where people open the report, for links in mail and chat; `{name}` is replaced by the name of
    its files. Default: no link."""
    email: Email | None = None
    """Recipients by e-mail. Default: none."""
    webhooks: Annotated[tuple[Webhook, ...], unlike_names("webhooks")] = ()
    """URLs that it is posted to."""

    @field_validator("formats")
    @classmethod
    def _json_among_them(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "json" not in value:
            raise ValueError("lacks json, of which a report is made that is sent again; add it")
        return tuple(name for name in _FORMATS if name in value)

    @property
    def channels(self) -> Sequence[str]:
        """Names of its channels, mail first."""
        mail = [] if self.email is None else [EMAIL]
        return [*mail, *(webhook.name for webhook in self.webhooks)]

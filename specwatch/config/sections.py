"""The sections of the configuration, each a frozen model that checks itself.

What defaults and relative paths depend on comes in as the validation context,
:class:`Surroundings`. Messages never hold a secret, nor any value that may turn out to be one.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from specwatch.config.yaml_file import KeyPath
from specwatch.domain.shard import Shard, parse_shard
from specwatch.domain.units import (
    ListenAddress,
    format_duration,
    format_size,
    masked_url,
    parse_count,
    parse_duration,
    parse_edges,
    parse_gpus,
    parse_host_name,
    parse_listen,
    parse_name,
    parse_ratio,
    parse_size,
    quoted,
)
from specwatch.errors import ConfigError

_LARGEST_SECRET = 1 << 16
SERVICE_FOLDER, SERVICE_STATE = Path("/etc/specwatch"), Path("/var/lib/specwatch")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What defaults and relative paths depend on."""

    environ: Mapping[str, str]
    hostname: str
    folder: Path


def read_secret(path: Path) -> str:
    """The line of text in a secret's file; raises ValueError for anything else in it."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_SECRET + 1)
    except OSError as error:
        raise ValueError(cannot_read(path, error)) from None
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; write the secret as one line") from None
    if not text or len(data) > _LARGEST_SECRET or not text.isprintable():
        raise ValueError(f"{path} does not hold one line of text; write the secret as one line")
    return text


def present_secret(path: Path, where: str) -> str:
    """The secret in a file that was valid before; ConfigError, which begins with ``where``, if it
    has gone bad."""
    try:
        return read_secret(path)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def cannot_read(path: Path, error: OSError) -> str:
    """A sentence about a file that could not be opened, with the remedy."""
    remedy = {
        FileNotFoundError: "create it, or correct the path",
        PermissionError: "make it readable for the user that runs specwatch, or use sudo",
        IsADirectoryError: "name a file",
    }.get(type(error), "see that it can be read")
    return f"cannot read {path}: {error.strerror}; {remedy}"


def _path(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("expected the path of a file")
    surroundings = info.context
    return surroundings.folder / value if surroundings else Path(value)


def _secret_file(path: Path) -> Path:
    read_secret(path)
    return path


def _readable_file(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ValueError(cannot_read(path, error)) from None
    return path


Name = Annotated[str, BeforeValidator(parse_name)]
Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")
]
"""Seconds, which a file writes like ``90s`` or ``1h30m``."""
ByteSize = Annotated[
    int, BeforeValidator(parse_size), PlainSerializer(format_size, when_used="json")
]
Count = Annotated[int, BeforeValidator(parse_count)]
Limit = Annotated[int, BeforeValidator(partial(parse_count, least=0))]
"""A maximum number; 0 means no limit."""
Ratio = Annotated[float, BeforeValidator(parse_ratio)]
Listen = Annotated[
    ListenAddress,
    BeforeValidator(parse_listen),
    PlainSerializer(ListenAddress.__str__, when_used="json"),
]
HostName = Annotated[str, BeforeValidator(parse_host_name)]
Edges = Annotated[tuple[float, ...], BeforeValidator(parse_edges)]
ShardOfTargets = Annotated[
    Shard, BeforeValidator(parse_shard), PlainSerializer(Shard.__str__, when_used="json")
]
Gpus = Annotated[tuple[int, ...] | Literal["auto", "none"], BeforeValidator(parse_gpus)]
DatabaseUrl = Annotated[
    SecretStr,
    PlainSerializer(lambda url: masked_url(url.get_secret_value()), when_used="json"),
]
Secret = Annotated[SecretStr, PlainSerializer(lambda _: "***", when_used="json")]
SecretFile = Annotated[Path, BeforeValidator(_path), AfterValidator(_secret_file)]
ReadableFile = Annotated[Path, BeforeValidator(_path), AfterValidator(_readable_file)]
AnyPath = Annotated[Path, BeforeValidator(_path)]


def within(
    least: float, most: float = math.inf, form: Callable[[Any], str] = format_duration
) -> AfterValidator:
    """Refuses amounts outside ``least`` to ``most``, which ``form`` writes; by default seconds."""

    def checked(value: Any) -> Any:
        if least <= value <= most:
            return value
        if math.isinf(most):
            raise ValueError(f"{form(value)} is too short; make it at least {form(least)}")
        if not least:
            raise ValueError(f"{form(value)} is too long; make it at most {form(most)}")
        raise ValueError(f"{form(value)} is outside {form(least)} to {form(most)}")

    return AfterValidator(checked)


def state_folder(environ: Mapping[str, str], folder: Path = Path()) -> Path:
    """The folder for state: that of the service if the configuration is the service's."""
    if given := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    # Who has no home directory may run the service all the same.
    return SERVICE_STATE if folder == SERVICE_FOLDER else platformdirs.user_state_path("specwatch")


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused.

    Each field of one has a docstring for users, in Markdown: the manual lists the keys with them.
    """

    # Before 2.10 pydantic warns of names that begin with "model_".
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=()
    )

    @classmethod
    def written_keys(cls) -> Mapping[str, FieldInfo]:
        """The fields by what a file calls them, inherited ones last."""
        names = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
        fields = sorted(cls.model_fields.items(), key=lambda item: names.index(item[0]))
        return {field.alias or name: field for name, field in fields}


def errors_at(messages: Mapping[KeyPath, str]) -> ValidationError:
    """An error for a validator to raise, with places inside the validated value."""
    return ValidationError.from_exception_data(
        "",
        [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{error}", {"error": message}),
                loc=path,
                input=None,
            )
            for path, message in messages.items()
        ],
    )


def matching(pattern: str, problem: str) -> AfterValidator:
    """Refuses text that a pattern does not match as a whole; ``problem`` follows the text."""

    def checked(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{quoted(value)} {problem}")
        return value

    return AfterValidator(checked)


def not_empty(remedy: str) -> AfterValidator:
    """Refuses an empty list."""

    def checked(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError(f"is empty; {remedy}")
        return value

    return AfterValidator(checked)


def each_once(what: str, key: Callable[[Any], object] = str) -> AfterValidator:
    """Refuses a list that has two entries with one ``key``; ``what`` is what an entry is."""

    def checked(value: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [key(entry) for entry in value]
        for index, entry in enumerate(value):
            if keys[index] in keys[:index]:
                raise ValueError(f"{quoted(entry)} is given twice; list each {what} once")
        return value

    return AfterValidator(checked)


def unlike_names(where: str) -> AfterValidator:
    """Refuses two sections of one name; ``where`` is what their list is called."""

    def checked(value: tuple[Any, ...]) -> tuple[Any, ...]:
        first: dict[str, int] = {}
        problems: dict[KeyPath, str] = {}
        for index, section in enumerate(value):
            other = first.setdefault(section.name, index)
            if other != index:
                message = f"{quoted(section.name)} is the name of {where}[{other}] too"
                problems[(index, "name")] = f"{message}; give another"
        if problems:
            raise errors_at(problems)
        return value

    return AfterValidator(checked)


def default_from(default: Callable[[Surroundings], object]) -> BeforeValidator:
    """A default that depends on the surroundings."""

    def given(value: object, info: ValidationInfo) -> object:
        return default(info.context) if value is None and info.context else value

    return BeforeValidator(given)


def nearest(value: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name."""
    near = difflib.get_close_matches(value, known, n=1)
    return f"did you mean {quoted(near[0])}?" if near else f"known here: {', '.join(known)}"


def moved(error: ValidationError, place: Callable[[KeyPath], KeyPath]) -> ValidationError:
    """The same error with each of its places mapped by ``place``."""
    lines = []
    for details in error.errors(include_url=False):
        line = InitErrorDetails(
            type=details["type"],
            loc=place(details["loc"]),
            input=details["input"],
            ctx=details.get("ctx", {}),
        )
        if details["type"] == "value_error":
            context = {"error": str(details["ctx"]["error"])}
            line["type"] = PydanticCustomError("value_error", "{error}", context)
        lines.append(line)
    return ValidationError.from_exception_data(error.title, lines)


class Database(Section):
    """Where windows are kept: a URL, or a URL and the file that holds its password."""

    url: DatabaseUrl = Field(examples=["postgresql+psycopg://specwatch@db.example/fleet"])
    """`sqlite:////path/to/file.db` or `postgresql+psycopg://USER@HOST/NAME`."""
    password_file: SecretFile | None = None
    """File with the password, for a URL that names a user and no password."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, bool | int | float | list):
            raise ValueError("expected a URL, or a mapping of url and password_file")
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _known_database(cls, value: SecretStr) -> SecretStr:
        # Messages show no more than the scheme: the rest may be a password.
        scheme, separator, rest = value.get_secret_value().partition("://")
        remedy = "write sqlite:////path/to/file.db or postgresql+psycopg://USER@HOST/NAME"
        if not separator:
            raise ValueError(f"is not a database URL; {remedy}")
        if scheme == "sqlite":
            if not rest.startswith("/") or rest.partition("?")[0] in ("/", "/:memory:"):
                raise ValueError(f"names no database file; {remedy}")
            return value
        if scheme not in ("postgresql+psycopg", "postgresql", "postgres"):
            raise ValueError(f"{quoted(scheme)} is not a database that specwatch knows; {remedy}")
        url = f"postgresql+psycopg://{rest}"
        try:
            parts = urlsplit(url)
            readable = parts.port != 0 and "@" not in parts.path and parts.netloc.count("@") < 2
        except ValueError:
            readable = False
        if not readable:
            raise ValueError(
                "has no valid host and port; percent-encode / @ : in its password,"
                " or move the password to password_file"
            )
        return SecretStr(url)

    @field_validator("password_file")
    @classmethod
    def _one_password(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        url = info.data.get("url")
        if value is not None and url is not None:
            parts = urlsplit(url.get_secret_value())
            if parts.scheme == "sqlite":
                raise ValueError("SQLite has no password; remove the key")
            if parts.password is not None:
                raise ValueError("the URL has a password too; remove one of them")
            if not parts.username:
                raise ValueError("the URL names no user; write postgresql+psycopg://USER@HOST/NAME")
        return value

    def connect_url(self) -> str:
        """SQLAlchemy's URL with the password in it; ConfigError when its file has gone bad."""
        url = self.url.get_secret_value()
        if self.password_file is None:
            return url
        password = present_secret(self.password_file, "database.password_file")
        user, sign, rest = url.partition("@")
        return f"{user.removesuffix(':')}:{quote(password, safe='')}{sign}{rest}"

    def shown(self) -> str:
        """The URL, its password masked."""
        return masked_url(self.url.get_secret_value())


class Retention(Section):
    """How long history is kept."""

    minutes: Annotated[Duration, within(7200)] = 14 * 86400.0
    """How long one-minute windows are kept; at least 2h."""
    hours: Duration = 400 * 86400.0
    """How long hourly roll-ups are kept; at least as long as `minutes`."""

    @model_validator(mode="after")
    def _hours_outlive_minutes(self) -> Self:
        if self.hours < self.minutes:
            kept = format_duration(self.minutes)
            message = f"{format_duration(self.hours)} is shorter than minutes, {kept}"
            raise errors_at({("hours",): f"{message}; make it at least {kept}"})
        return self


class Baselines(Section):
    """How long baselines hold."""

    max_age: Annotated[Duration, within(3600)] = 30 * 86400.0
    """Age at which a measurement without speculation is no longer used; at least 1h."""

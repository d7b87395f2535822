"""Scalars of the configuration: text in a file, and the value that it means.

Each ``parse_*`` takes what YAML gave and raises ``ValueError`` with a sentence that says what was
found, what was expected and what to write instead. None of them ever sees a secret except
:func:`masked_url`, which exists to hide one.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from specwatch_tap.temperature import checked_edges

_UNITS_OF_TIME = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(
    r"".join(rf"(?:(?P<{u}>[0-9]+(?:\.[0-9]+)?){u}(?![a-z]))?" for u in _UNITS_OF_TIME)
)
_LONGEST = 36_500 * 86_400_000
_UNITS_OF_SIZE = {
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
    "B": 1,
}
_SIZE = re.compile(r"([0-9]+) ?([KMG]iB|[kMG]B|B)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def quoted(value: object) -> str:
    """A value as an error message shows it, cut at 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:56] + ' …"'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_duration(value: object, unit: Literal["ms", "s"] = "s") -> float:
    """Seconds in ``500ms``, ``5s``, ``1h30m``, ``14d``; between 0 and 36500 days.

    ``unit`` is the probable unit of a number without one.
    """
    if _is_number(value) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        meant, others = {"s": ("seconds", "ms"), "ms": ("milliseconds", "s")}[unit]
        raise ValueError(
            f'{value} has no unit; write "{value}{unit}" for {meant}, or use {others}, m, h, d'
        )
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        raise ValueError(
            f"{quoted(value)} is not a duration; write it like 500ms, 5s, 30m, 1h30m or 14d"
        )
    milliseconds = sum(
        (Decimal(n) * _UNITS_OF_TIME[unit] for unit, n in match.groupdict().items() if n),
        Decimal(0),
    )
    if milliseconds > _LONGEST:
        raise ValueError(f"{quoted(value)} is too long; write at most 36500d")
    return float(milliseconds / 1000)


def parse_moment(text: str, now: float, zone: tzinfo | None = UTC) -> float:
    """Unix seconds in ``2026-11-19``, ``2026-11-19T14:30Z`` (ISO 8601), ``2026-11-19 14:30 UTC``,
    in a duration before ``now`` such as ``30m``, or in ``1700000000``.

    A date or time without an offset is one of ``zone``, None for local time.
    """
    try:
        moment = float(text)
    except ValueError:
        moment = math.nan
    if math.isfinite(moment):
        return moment
    with suppress(ValueError):
        return now - parse_duration(text)
    try:
        date = datetime.fromisoformat(text.replace(" UTC", "Z"))
        return (date if date.tzinfo else date.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        example = f"{datetime.fromtimestamp(now, zone):%Y-%m-%dT%H:%M}"
        raise ValueError(
            f"{quoted(text)} is not a date or time such as {example}, a duration before now such as"
            f" 30m, or a Unix time such as {now:.0f}"
        ) from None


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads as ``seconds``, to the millisecond."""
    left = round(seconds * 1000)
    parts = []
    for unit, milliseconds in _UNITS_OF_TIME.items():
        count, left = divmod(left, milliseconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """Bytes in ``16MiB``, ``500kB``, ``4096B``."""
    if _is_number(value) or (isinstance(value, str) and value.isascii() and value.isdigit()):
        raise ValueError(f'{value} has no unit; write "{value}B" for bytes, or use kB, MiB, GiB')
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{quoted(value)} is not a size; write it like 16MiB, 500kB or 4096B")
    return int(match[1]) * _UNITS_OF_SIZE[match[2]]


def format_size(size: int) -> str:
    """The shortest text that :func:`parse_size` reads as ``size`` bytes."""
    return min(
        (f"{size // scale}{unit}" for unit, scale in _UNITS_OF_SIZE.items() if size % scale == 0),
        key=len,
    )


def parse_count(value: object, least: int = 1) -> int:
    """A whole number, not below ``least``; text is read too, since ``${NAME}`` gives text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{quoted(value)} is not a whole number of at least {least}")
    return value


def parse_ratio(value: object) -> float:
    """The number in ``0.5``, ``50%`` or ``-5%``."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.removesuffix("%")):
        number = Decimal(value.removesuffix("%"))
        return _finite(number / 100 if value.endswith("%") else number, value)
    return _parse_number(value, "0.5 or 50%")


def parse_amount(value: object, unit: str) -> float:
    """An amount of a metric, in its unit: ``80ms`` where that is ``seconds``, ``50%`` or ``0.5``
    where it is ``ratio``, and a plain number elsewhere."""
    if unit == "seconds":
        return parse_duration(value)
    return parse_ratio(value) if unit == "ratio" else _parse_number(value, "20")


def format_amount(amount: float, unit: str) -> str | float:
    """The shortest that :func:`parse_amount` reads as ``amount``."""
    if unit != "seconds":
        return int(amount) if amount.is_integer() else amount
    milliseconds = amount * 1000
    if abs(milliseconds - round(milliseconds)) < 1e-6:
        return format_duration(amount)
    return f"{format(Decimal(f'{milliseconds:.12g}'), 'f')}ms"


def _parse_number(value: object, like: str) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if not isinstance(value, Decimal) and not _is_number(value):
        raise ValueError(f"{quoted(value)} is not a number; write it like {like}")
    return _finite(Decimal(str(value)), value)


def _finite(number: Decimal, shown: object) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{quoted(shown)} is not a finite number")
    return value


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens; port 0 lets the system choose. IPv6 hosts stand without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_url(host: str, port: int) -> str:
    """Base URL for a client on this machine of a server that listens on ``host`` and ``port``."""
    anywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    return f"http://{host_port(anywhere.get(host, host), port)}"


_HOST_NAME = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def parse_host_name(value: object) -> str:
    """A host name without port, in lower case; ``*.example.com`` is all below it, ``*`` any."""
    name = str(value).lower().removesuffix(".")
    if not isinstance(value, str) or not _HOST_NAME.fullmatch(name):
        raise ValueError(
            f"{quoted(value)} is not a host name without port; write it like gpu-7.example.com,"
            " *.example.com, or * for any"
        )
    return name


def parse_listen(value: object) -> ListenAddress:
    """The address in ``127.0.0.1:9469``, ``localhost:0`` or ``[::1]:9469``."""
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]:]*):([0-9]+)", str(value))
    if match is None:
        raise ValueError(
            f"{quoted(value)} is not an address to listen on;"
            " write HOST:PORT, like 127.0.0.1:9469 or [::1]:9469"
        )
    host, port = match[1], int(match[2][:6])
    if not host:
        raise ValueError(
            f"{quoted(value)} has no host; write 127.0.0.1:{port} for this machine only,"
            f" 0.0.0.0:{port} for every network"
        )
    if port > 65535:
        raise ValueError(f"{quoted(value)} has a port above 65535; choose one from 0 to 65535")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{quoted(value)} has no IPv6 address between its brackets") from None
    elif not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        raise ValueError(f"{quoted(value)} has characters that no host name has")
    return ListenAddress(host, port)


def parse_name(value: object) -> str:
    """Text fit for a metric label: 1 to 128 characters, none of them a control character."""
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not text; put it in quotes")
    if not value.strip() or value != value.strip():
        raise ValueError(f"{quoted(value)} is empty or has spaces around it; write a plain name")
    if len(value) > 128:
        raise ValueError(f"is {len(value)} characters long; use at most 128")
    if any(unicodedata.category(character).startswith("C") for character in value):
        raise ValueError(f"{quoted(value)} has a control character; use printable ones only")
    return value


def url_parts(
    value: object,
    example: str,
    schemes: tuple[str, str] = ("http", "https"),
    credentials: str = "basic_auth",
) -> SplitResult:
    """A URL with a host, of one of two schemes; messages never show credentials, which belong in
    the keys ``credentials``."""
    first, second = (f"{scheme}://" for scheme in schemes)
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a URL; write it like {example}")
    # Before anything that shows the URL.
    if "@" in value:
        raise ValueError(f"holds credentials; move them to {credentials}")
    if "?" in value or "#" in value:
        raise ValueError("has a query or fragment; give the server's base URL only")
    shown = quoted(value)
    if not value.isprintable() or " " in value:
        raise ValueError(f"{shown} has a space or a control character; percent-encode it")
    if not value.lower().startswith((first, second)):
        hint = "" if "://" in value else f"; write {quoted(first + value)}"
        raise ValueError(f"{shown} does not begin with {first} or {second}{hint}")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{shown} has no valid host and port") from None
    if not host or port == 0:
        raise ValueError(f"{shown} has no host or port 0; write it like {example}")
    return parts


def parse_server_url(value: object) -> str:
    """A server's base URL, without trailing slash or ``/metrics``; credentials are refused."""
    parts = url_parts(value, "http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/metrics").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(':')}{path}"


def parse_engine_url(value: object) -> str:
    """The base URL of a server that answers as OpenAI does: not where its API begins."""
    url = parse_server_url(value)
    base = url.removesuffix("/v1")
    if base != url:
        raise ValueError(f"{quoted(url)} is where the API begins; give the server's, {base}")
    return url


def server_address(url: str) -> tuple[str, int]:
    """Host and port of a URL that :func:`parse_server_url` gave."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Whether a connection to ``host`` stays on this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def masked_url(url: str) -> str:
    """``url`` with passwords, keys and tokens replaced by ``***``."""
    # Greedy up to the last @, so that a password with / or @ in it does not show.
    start = "//" if "//" in url else "^"
    hidden = re.sub(rf"({start}[^:/@]*):.*@", r"\1:***@", url, count=1, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][a-z_]*(?:password|token|key)=)[^&#]*", r"\1***", hidden)


def parse_edges(value: object) -> tuple[float, ...]:
    """Upper edges of temperature buckets: ascending, not negative, 1 to 20 of them."""
    if not isinstance(value, list | tuple) or not all(_is_number(edge) for edge in value):
        raise ValueError(f"{quoted(value)} is not a list of numbers, like [0, 0.3, 0.7, 1.0]")
    return checked_edges(tuple(map(float, value)))


def parse_arm(value: object) -> int:
    """A number of draft tokens, from 0 to 64. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 64:
        raise ValueError(f"{value!r} is not a number of draft tokens; write 0 to 64")
    return value


def parse_gpus(value: object) -> str | tuple[int, ...]:
    """``auto``, ``none``, or the NVML indices of GPUs, each once."""
    if value in ("auto", "none"):
        return str(value)
    if not isinstance(value, Iterable) or isinstance(value, str | dict):
        raise ValueError(f"{quoted(value)} is not auto, none or a list of GPU indices, like [0, 1]")
    indices = tuple(value)
    if not all(_is_number(i) and isinstance(i, int) and 0 <= i < 1024 for i in indices):
        raise ValueError(f"{quoted(value)} has an entry that is not a GPU index; use 0, 1, ...")
    if len(set(indices)) < len(indices):
        raise ValueError(f"{quoted(value)} names a GPU twice; list each once")
    return indices

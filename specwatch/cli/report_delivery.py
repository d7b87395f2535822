"""``specwatch report --deliver``: writes the report of the last days to a folder, and sends it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from specwatch.cli import options
from specwatch.config.loading import Config
from specwatch.config.report import EMAIL, Delivery
from specwatch.domain.model import HOUR
from specwatch.errors import ConfigError, DeliveryError
from specwatch.report.deliveries import Book, Channel, DeliveredReport, Reports, Sent, deliver
from specwatch.report.messages import MailBody, Outgoing, chat, subject
from specwatch.report.model import Report
from specwatch.wording.figures import counted, moment, span
from specwatch.wording.text import clean

_SAME = 20 * 3600.0
"""Seconds in which no second report is made: the first one is delivered to those who lack it."""
_UNFINISHED = "it is being made, or its making was cut off; see `journalctl -u specwatch-report`"
_ELSEWHERE = {"since", "until", "targets", "form", "output", "schema", "database"}
_EXAMPLE = 'report: {email: {smtp: "smtp://mail.example:587", from: ..., to: [...]}}'
_sleep = time.sleep


@dataclass(frozen=True, slots=True)
class Means:
    """What a delivery needs from outside: the report, its renderers, and clocks."""

    make: Callable[[Config, float, float, float], Report]
    """The report for a configuration, by Unix times: since, until, and now."""
    html: Callable[[Report], str]
    markdown: Callable[[Report], str]
    summary: Callable[[Report], str]
    mail: Callable[[Report, str | None, bool], MailBody]
    """The summary as text, and as HTML with a link and a word about the attached report."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = field(default_factory=lambda: _sleep)
    hostname: Callable[[], str] = socket.gethostname


def run(file: Path | None, by: Means, *, deliver: bool, retry: bool, as_json: bool) -> None:
    """Deliver a report as configured; with ``retry`` the last one to those who lack it.

    Exits with 1 when a delivery failed that may succeed later, with 2 when all failed ones need a
    correction first.
    """
    if not deliver:
        raise click.UsageError("--retry is for --deliver; give both")
    for name, option in options.given_options(click.get_current_context()).items():
        if name in _ELSEWHERE:
            raise click.UsageError(
                f"{option} and --deliver exclude each other: what is delivered is in the"
                " configuration's section report"
            )
    config = options.load(file)
    section = section_of(config)
    began = by.now()
    entry = delivered(config, section, by, retry=retry)
    missing = [] if entry is None else [one for one in entry.channels.values() if one.missing]
    if as_json:
        options.print_json(_as_json(section, entry, ok=not missing))
    else:
        _show(section, entry, began)
    if missing:
        raise click.exceptions.Exit(1 if any(one.later for one in missing) else 2)


def section_of(config: Config) -> Delivery:
    """The section ``report``. Raises ConfigError without one."""
    if config.report is None:
        raise ConfigError(
            "the configuration has no recipients of reports; add the section report, like"
            f" {_EXAMPLE}"
        )
    return config.report


def delivered(
    config: Config, section: Delivery, by: Means, *, retry: bool = False
) -> DeliveredReport | None:
    """Make and deliver a report, or what is missing of the last one; how it stands then.

    None with ``retry`` and no report. Raises ConfigError, DeliveryError, StoreError and
    WorkerLostError.
    """
    from specwatch.report.mail_and_webhooks import Hook, Mail

    channels: dict[str, Channel] = {webhook.name: Hook(webhook) for webhook in section.webhooks}
    if section.email is not None:
        channels = {EMAIL: Mail(section.email, by.hostname()), **channels}
    reports = Reports(section.directory)
    with reports.locked() as book:
        entry = book.newest
        if entry is None and retry:
            return None
        if entry is not None and entry.error is not None:
            reports.drop(book, entry)
            entry = None
        now = by.now()
        # Kept: another one would have the same name, or be made by the same run of the timer.
        if entry is None or not (
            retry or entry.name == _name(now) or 0 <= now - entry.made < _SAME
        ):
            entry = _made(config, section, by, reports, book)
        data = reports.read(entry)
        try:
            report = msgspec.json.decode(data, type=Report)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{reports.folder / entry.name}.json is damaged, or of another version of"
                f" specwatch ({error}); remove it, and {entry.name} from deliveries.json"
            ) from None
        url = section.url and section.url.replace("{name}", entry.name)
        mail = section.email
        outgoing = Outgoing(
            name=entry.name,
            made=entry.made,
            subject=subject(mail.subject if mail else "{answer}", report),
            text=by.summary(report),
            html=by.html(report),
            mail=by.mail(report, url, mail is not None and mail.attach),
            chat=chat(report, url),
            json=data,
        )
        deliver(
            outgoing, entry, channels, keep=lambda: reports.keep(book), now=by.now, sleep=by.sleep
        )
        return entry


def _name(now: float) -> str:
    return f"report-{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


def _made(
    config: Config, section: Delivery, by: Means, reports: Reports, book: Book
) -> DeliveredReport:
    """Put a report into the book, make it, and write its files.

    If that fails, the reason stays in the book.
    """
    now = by.now()
    until = now // HOUR * HOUR
    entry = DeliveredReport(
        name=_name(now),
        made=now,
        since=until - section.since,
        until=until,
        formats=section.formats,
        error=_UNFINISHED,
        channels={name: Sent() for name in section.channels},
    )
    book.reports.append(entry)
    reports.keep(book)
    try:
        report = by.make(config, until - section.since, until, now)
        for kind in section.formats:
            if kind == "json":
                data = msgspec.json.format(msgspec.json.encode(report), indent=2)
            else:
                text = by.html(report) if kind == "html" else by.markdown(report)
                data = text.encode("utf-8", "replace")
            reports.write(f"{entry.name}.{kind}", data)
    except Exception as error:
        entry.error = f"it could not be made: {error or type(error).__name__}"
        with suppress(DeliveryError):  # a full disk: _UNFINISHED is stored already
            reports.keep(book)
        raise
    entry.error = None
    reports.forget(book, now - section.keep)
    reports.keep(book)
    return entry


def _files(section: Delivery, entry: DeliveredReport) -> list[str]:
    return [str(section.directory / f"{entry.name}.{kind}") for kind in entry.formats]


def _as_json(section: Delivery, entry: DeliveredReport | None, *, ok: bool) -> dict[str, Any]:
    return {
        "ok": ok,
        "report": entry and entry.name,
        **{name: getattr(entry, name, None) for name in ("made", "since", "until")},
        "files": [] if entry is None else _files(section, entry),
        "channels": [
            {"channel": name, **msgspec.to_builtins(sent), "unconfirmed": sent.unconfirmed}
            for name, sent in (entry.channels if entry else {}).items()
        ],
    }


def _show(section: Delivery, entry: DeliveredReport | None, began: float) -> None:
    """Say how it stands; what was made before a Unix time is kept, and was not written now."""
    if entry is None:
        click.echo("there is no report yet; `specwatch report --deliver` makes one")
        return
    period = "report"
    if entry.since is not None and entry.until is not None:
        period = f"report of {span(entry.until - entry.since)}"
    click.echo(f"{period}, made {moment(entry.made)}")
    kept = "written" if entry.made >= began else f"kept from {moment(entry.made)}"
    for path in _files(section, entry):
        click.echo(f"{kept}: {clean(path)}")
    for name, sent in entry.channels.items():
        if sent.delivered_at is not None:
            mail = section.email if name == EMAIL else None
            to = "" if mail is None else f" to {clean(', '.join(mail.to))}"
            click.echo(f"{clean(name)}: delivered {moment(sent.delivered_at)}{to}")
        else:
            what = "SENT, NEVER CONFIRMED" if sent.unconfirmed else "NOT DELIVERED"
            error = clean(sent.error or "nothing was tried")
            attempts = counted(sent.attempts, "attempt")
            click.echo(f"{clean(name)}: {what} after {attempts}: {error}", err=True)
    missing = [sent for sent in entry.channels.values() if sent.missing]
    if missing:
        first = "" if any(sent.later for sent in missing) else "correct what is said above, and "
        click.echo(
            f"{first}send what is missing with `specwatch report --deliver --retry`; confirmed"
            " deliveries are left out",
            err=True,
        )

"""Servers that take reports, and a report to send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.report.messages import MailBody, Outgoing, chat, subject
from specwatch.report.model import Report
from tests.report import sample
from tests.report.hooks import Receiver
from tests.report.smtp import MailServer

MADE = 1_793_577_600.0 + 7 * 86400 + 300
"""Monday 9 November 2026, 00:05 UTC."""
NAME = "report-2026-11-09"
StartMail = Callable[..., MailServer]


def html(report: Report) -> str:
    """Stands for the page: one long line, as pages have."""
    return f"<!doctype html><p>{len(report.targets)} answers</p>{'<b>é</b>' * 500}"


def markdown(report: Report) -> str:
    return "# Report\n\n" + "\n".join(target.answer.sentence for target in report.targets) + "\n"


def mail(report: Report, url: str | None = None, attached: bool = True) -> MailBody:
    return MailBody(f"<!doctype html><p>{len(report.targets)} é</p>", {"forest": b"\x89PNG"})


def outgoing_of(report: Report) -> Outgoing:
    return Outgoing(
        name=NAME,
        made=MADE,
        subject=subject("specwatch: {answer}, {date}", report),
        text=markdown(report),
        html=html(report),
        mail=mail(report),
        chat=chat(report),
        json=msgspec.json.encode(report),
    )


@pytest.fixture(scope="session")
def outgoing() -> Outgoing:
    return outgoing_of(sample.full())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database; tests of what Postgres does itself ask for one."""
    return f"sqlite:///{tmp_path}/state/specwatch.db"


@pytest.fixture(scope="session")
def plain_mail() -> Iterator[MailServer]:
    """A server without TLS and login, as most tests want it."""
    with MailServer() as server:
        yield server


@pytest.fixture
def start_mail(plain_mail: MailServer) -> Iterator[StartMail]:
    """``start_mail(tls, login)``: a mail server with an empty box; each has one without options."""
    with ExitStack() as stack:

        def start(**options: Any) -> MailServer:
            if options:
                return stack.enter_context(MailServer(**options))
            plain_mail.reset()
            return plain_mail

        yield start


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    return file

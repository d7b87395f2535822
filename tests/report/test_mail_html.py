"""What is in a mail: little enough for every mail program, and pictures that all of them show."""

from __future__ import annotations

import struct
from unittest import mock

import pytest

from specwatch.pages.mail_html import mail_html
from specwatch.report import charts
from specwatch.report.messages import MailBody
from tests.report import page, sample

GMAIL_CUTS_AT = 102_000
URL = "https://reports.example.com/report-2026-11-09.html"


@pytest.fixture(scope="module")
def hostile() -> MailBody:
    return mail_html(sample.hostile())


@pytest.fixture(scope="module")
def fifty() -> MailBody:
    """Of fifty targets; its pictures are not drawn, which would take longer than all else."""
    with mock.patch.object(charts, "png", return_value=b""):
        return mail_html(sample.many(50), url=URL)


@pytest.fixture(params=["hostile", "fifty"])
def body(request: pytest.FixtureRequest) -> MailBody:
    found: MailBody = request.getfixturevalue(request.param)
    return found


def test_it_is_whole_in_gmail(body: MailBody) -> None:
    assert len(body.html.encode()) < GMAIL_CUTS_AT / 2
    assert all(len(picture) < 100_000 for picture in body.pictures.values())


def test_it_needs_no_style_sheet_and_nothing_from_elsewhere(body: MailBody) -> None:
    root = page.read(body.html)
    names = {one.name for one in root.all()}
    assert not names & {"style", "svg", "script", "link", "iframe", "form"}
    sources = [one.attributes["src"] for one in root.all("img")]
    assert sorted(sources) == sorted(f"cid:{name}" for name in body.pictures)
    assert all(one.attributes["alt"] for one in root.all("img"))


def test_pictures_are_png_and_twice_as_dense_as_shown(hostile: MailBody) -> None:
    assert hostile.pictures
    for picture in hostile.pictures.values():
        assert picture.startswith(b"\x89PNG\r\n")
        (width,) = struct.unpack(">I", picture[16:20])
        assert width == 2 * 520


def test_the_worst_five_of_fifty_are_in_it_and_the_others_are_counted(
    fifty: MailBody,
) -> None:
    root = page.read(fifty.html)
    names = [one.text.partition(",")[0] for one in root.all("h2")]
    assert names == [f"gpu-{number:02}.example.com:8000" for number in (1, 4, 7, 10, 13)]
    assert sorted(fifty.pictures) == ["forest", *(f"over-time-{n}" for n in range(1, 6))]
    assert "Of 50 targets, 17 lose 328 server hours with speculation" in root.words
    assert "45 more targets, the worst are above. Open the whole report, or the" in root.words
    assert root.links == {"Open the whole report": URL}


@pytest.mark.parametrize(
    ("url", "attached", "words"),
    [
        (None, True, "The whole report is attached."),
        (URL, False, "Open the whole report."),
        (None, False, "specwatch report prints the whole report."),
    ],
)
def test_it_says_where_the_whole_report_is(url: str | None, attached: bool, words: str) -> None:
    body = mail_html(sample.partial(), url=url, attached=attached, pictures=False)
    assert words in page.read(body.html).words


def test_without_fonts_there_are_no_pictures_of_missing_text() -> None:
    assert charts.has_fonts()
    body = mail_html(sample.partial(), pictures=False)
    assert body.pictures == {}
    assert "<img" not in body.html

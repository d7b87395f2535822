"""``/api/v1/report``, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from specwatch.errors import ConfigError, StoreUnavailable
from specwatch.report.model import Report
from tests.report import sample
from tests.web.statuses import NOW, Surface, daemon, serving

PATH = "/api/v1/report"
DAY = 86400.0


@pytest.fixture(scope="module")
def server() -> Iterator[Surface]:
    with serving() as surface:
        yield surface


class Reports:
    """A reader that remembers what it was asked for."""

    def __init__(self, answer: Report | Exception) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def __call__(self, **chosen: Any) -> Report:
        self.asked = chosen
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def reports(server: Surface) -> Reports:
    server.status = daemon()
    server.report = Reports(sample.full())
    return server.report


def test_json_is_the_report_and_the_default(server: Surface, reports: Reports) -> None:
    answer = server.get(PATH)
    assert answer.json
    assert msgspec.json.decode(answer.body, type=Report) == sample.full()
    assert reports.asked == {
        "since": NOW - 7 * DAY, "until": NOW, "now": NOW, "targets": None,
    }  # fmt: skip


def test_period_and_targets_are_handed_on(server: Surface, reports: Reports) -> None:
    server.get(f"{PATH}?since=2d&until=1699999000&target=a&target=b%20c")
    assert reports.asked == {
        "since": NOW - 2 * DAY, "until": 1699999000.0, "now": NOW, "targets": ["a", "b c"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("form", "media_type", "start"),
    [
        ("json", "application/json", b"{"),
        ("text", "text/plain; charset=utf-8", b"specwatch report\n"),
        ("md", "text/markdown; charset=utf-8", b"# "),
        ("html", "text/html; charset=utf-8", b"<!doctype html>"),
    ],
)
def test_each_format_has_its_media_type(
    server: Surface, reports: Reports, form: str, media_type: str, start: bytes
) -> None:
    answer = server.get(f"{PATH}?format={form}")
    assert (answer.status, answer.headers["content-type"]) == (200, media_type)
    assert answer.body[: len(start)].lower() == start.lower()


def test_a_page_may_load_and_run_nothing(server: Surface, reports: Reports) -> None:
    reports.answer = sample.hostile()
    answer = server.get(f"{PATH}?format=html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy
    assert b"<script" not in answer.body.lower()
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?sinse=7d", ["sinse", "known are since, until, target, format"]),
        ("?since=soon", ["since", "soon", "such as 30m"]),
        ("?since=1d&until=2d", ["later than until"]),
        ("?since=93d", ["92d", "specwatch report"]),
        ("?format=pdf", ["format", "pdf", "json, html, md, text"]),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    server: Surface, reports: Reports, query: str, words: list[str]
) -> None:
    answer = server.get(PATH + query)
    assert answer.status == 400
    assert all(word in answer.json["error"] for word in words)
    assert not reports.asked


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("no target x"), 400), (StoreUnavailable("it is locked"), 503)],
    ids=["unknown target", "no database"],
)
def test_what_the_reader_refuses_is_told(
    server: Surface, reports: Reports, error: Exception, status: int
) -> None:
    reports.answer = error
    answer = server.get(PATH)
    assert (answer.status, answer.json) == (status, {"error": str(error)})

"""The runbook as the daemon serves it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from specwatch.alerts.alert import runbook_anchor
from specwatch.config.rules import DEFAULT_RULES
from specwatch.generate.alerts import runbook_sections
from specwatch.generate.runbook import Section
from specwatch.pages.runbook_html import runbook_html
from tests.report import page
from tests.web.statuses import Surface, serving


@pytest.fixture(scope="module")
def surface() -> Iterator[Surface]:
    with serving() as result:
        yield result


def test_it_is_a_page_with_all_sections_under_their_anchors(surface: Surface) -> None:
    answer = surface.get("/runbook")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    read = page.read(answer.body.decode())
    anchors = [section.attributes["id"] for section in read.all("section")]
    assert anchors == [runbook_anchor(section.name) for section in runbook_sections()]
    for section in runbook_sections():
        assert section.do.replace("`", "") in read.text
    rules = {element.attributes["id"] for element in read.all("span") if "id" in element.attributes}
    assert rules >= {rule.name for rule in DEFAULT_RULES}, "dashboards link to rules by name"


def test_head_and_other_methods(surface: Surface) -> None:
    full, head = surface.get("/runbook"), surface.get("/runbook", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(full.body))
    assert surface.get("/runbook", "POST").status == 405


def test_it_needs_nothing_from_elsewhere_and_fits_dark_and_light() -> None:
    text = runbook_html(runbook_sections())
    read = page.read(text)
    page.require_alone(read)
    assert read.links
    assert not re.search(r"url\(|@import|https?://(?!URL)", re.sub(r"<p>.*?</p>", "", text))
    assert "color-scheme: light dark" in text


def test_whatever_is_in_a_section_is_text() -> None:
    hostile = '</p><script>alert(1)</script>" onload="x" & `<b>`'
    read = page.read(runbook_html([Section(hostile, hostile, hostile, hostile, hostile)]))
    assert not list(read.all("script", "b"))
    assert all("onload" not in element.attributes for element in read.all())
    assert read.count("code")
    assert "<script>alert(1)</script>" in read.text


def test_a_backtick_alone_is_just_one() -> None:
    read = page.read(runbook_html([Section("A", "info", "a ` b", "c", "d")]))
    assert "a ` b" in read.text
    assert not read.count("code")

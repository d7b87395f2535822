"""The runbook as the daemon serves it."""

from __future__ import annotations

import re

from specwatch.alerts.alert import runbook_anchor
from specwatch.config.rules import DEFAULT_RULES
from specwatch.generate.alerts import runbook_sections
from specwatch.generate.runbook import Section
from specwatch.pages.runbook_html import runbook_html
from tests.report import page
from tests.web.statuses import Surface


def test_it_is_a_page_with_all_sections_that_needs_nothing_from_elsewhere(surface: Surface) -> None:
    answer = surface.get("/runbook")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    read = page.read(answer.body.decode())
    sections = runbook_sections()
    anchors = [section.attributes["id"] for section in read.all("section")]
    assert anchors == [runbook_anchor(section.name) for section in sections]
    for section in sections:
        assert section.do.replace("`", "") in read.text
    page.require_alone(read)
    assert read.links
    text = re.sub(r"<p>.*?</p>", "", answer.body.decode())
    assert not re.search(r"url\(|@import|https?://(?!URL)", text)
    assert "color-scheme: light dark" in text
    rules = {element.attributes["id"] for element in read.all("span") if "id" in element.attributes}
    assert rules >= {rule.name for rule in DEFAULT_RULES}, "dashboards link to rules by name"


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

from __future__ import annotations

import itertools
import re

import pytest
from jinja2 import UndefinedError
from msgspec.structs import replace

from specwatch.pages.environment import coded, render
from specwatch.pages.report_html import report_html
from tests.report import page, sample
from tests.report.page import Element


@pytest.fixture(scope="module", params=["full", "empty", "partial", "broken numbers"])
def html(request: pytest.FixtureRequest) -> str:
    return report_html(sample.ALL[request.param]())


@pytest.fixture(scope="module")
def root(html: str) -> Element:
    return page.read(html)


def test_it_is_one_file_without_scripts_for_light_dark_and_paper(root: Element) -> None:
    page.require_alone(root)
    (style,) = root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    assert "var(" not in style.text
    assert "@media screen and (prefers-color-scheme: dark)" in style.text
    assert "@media print" in style.text


def test_headings_are_in_order_and_ids_are_unique(root: Element) -> None:
    levels = [int(item.name[1]) for item in root.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = {element.attributes.get("id") for element in root.all()}
    for entry in root.all():
        for name in ("aria-labelledby", "aria-describedby"):
            for id_ in entry.attributes.get(name, "").split():
                assert id_ in ids


def test_tables_have_captions_and_headers(root: Element) -> None:
    for table in root.all("table"):
        assert next(table.all("caption")).text.strip()
        rows = list(table.all("tr"))
        assert {element.attributes.get("scope") for element in rows[0].all("th")} == {"col"}
        width = len(list(rows[0].all("th")))
        assert len(rows) > 1, "not an empty table"
        for row in rows[1:]:
            assert [item.attributes.get("scope") for item in row.all("th")] == ["row"]
            assert len(list(row.all("th", "td"))) == width


def test_wide_tables_can_be_scrolled_by_keyboard_and_have_names_of_their_own(root: Element) -> None:
    regions = [element for element in root.all() if element.attributes.get("role") == "region"]
    names = [region.attributes["aria-label"] for region in regions]
    assert len(set(names)) == len(names)
    assert all(region.attributes.get("tabindex") == "0" for region in regions)


def test_charts_are_told_in_words(root: Element) -> None:
    for figure in root.all("figure"):
        assert next(figure.all("figcaption")).text.strip()
        for svg in figure.all("svg"):
            assert svg.attributes["role"] == "img"
            assert next(svg.all("desc")).text


def test_no_number_is_told_that_is_none(html: str) -> None:
    assert not re.search(r"[>\s\"(](nan|[-+]?inf|None)[<\s\"%)]", html)


def test_many_targets_have_a_table_that_leads_to_them() -> None:
    models = tuple(sample.blank(f"gpu-{number}") for number in range(12))
    root = page.read(report_html(replace(sample.full(), targets=models)))
    links = [element.attributes["href"] for element in root.all("a")]
    assert len(links) == 12
    assert links[11] == "#target-12"
    assert len(list(root.all("section"))) == 1 + 12


def test_code_is_what_stands_between_backticks_and_escaped() -> None:
    assert coded("run `a <b>` & wait") == "run <code>a &lt;b&gt;</code> &amp; wait"
    assert coded("one ` <i>") == "one ` &lt;i&gt;"


def test_a_template_that_lacks_a_value_fails() -> None:
    with pytest.raises(UndefinedError):
        render("report.html.j2", title="x")

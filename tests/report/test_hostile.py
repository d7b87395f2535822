"""Whatever a model, a target or a rule is called: it stays a name, in every format."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from specwatch.pages.report_html import report_html
from specwatch.report.markdown import markdown
from specwatch.report.model import Report, schema
from specwatch.report.text import plain
from tests.report import page, sample
from tests.report.page import Element
from tests.report.test_markdown import KNOWN_INLINE, inline, tokens

NAMES = {
    "all at once": sample.HOSTILE,
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>\"'` &lt;b&gt; ]]> --> <!--",
    "tables": "a | b || c \\| d\n| --- | --- |\n| x | y |",
    "control": "a\r\nb\u2028c\u2029d\x0be\x85f \x1b[31mred\x1b[0m\x07\x08\x00\x7f\x9b2J",
    "invisible": "abc\u202egnp.exe\u202c \u2066x\u2069 \u200f\u200e\u061c\u200b\ufeff\u00ad",
    "emoji": "🦙🚀 👩‍👩‍👧‍👦 ❤️ 🇩🇪 Z" + "\u0354\u035a\u033b" * 40,
    "links": "[a](javascript:alert(1)) ![b](http://x/y) **d** {{ 7 * 7 }} %(x)s",
    "blank": "  ",
}
BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


@pytest.fixture(scope="module", params=NAMES)
def report(request: pytest.FixtureRequest) -> Report:
    """One model in which every text is such a name."""
    return _one(NAMES[request.param])


def _one(name: str) -> Report:
    """The first model, with some hours of its series: drawings of more show nothing else."""
    report = sample.hostile(name)
    (model, *_) = report.targets
    acceptance = {label: points[:4] for label, points in model.series.acceptance.items()}
    series = replace(model.series, acceptance=acceptance, latency=model.series.latency[:4])
    return replace(report, targets=(replace(model, series=series),))


@pytest.fixture(scope="module")
def harmless() -> Element:
    return page.read(report_html(_one("chat")))


def test_text_moves_no_cursor_and_turns_no_line(report: Report) -> None:
    text = plain(report, 80)
    assert unprintable(text) == set()
    assert len(text) < 200_000


def test_html_has_the_elements_of_any_other_report(report: Report, harmless: Element) -> None:
    """A name adds no element and no attribute, closes none, and leads nowhere."""
    root = page.read(report_html(report))
    page.require_alone(root)
    assert list(elements(root)) == list(elements(harmless))
    assert unprintable(root.text) == set()
    assert len(root.text) < 200_000, "ten kilobytes are not said a hundred times"


def elements(parent: Element) -> Iterator[str]:
    """Yield the names of all but code, which names may contain, and the parts of charts."""
    for child in parent.children:
        if isinstance(child, Element) and child.name != "code":
            yield child.name
            if child.name != "svg":
                yield from elements(child)


def test_markdown_keeps_a_row_in_a_line(report: Report) -> None:
    """Every table has as many cells in each row as in its head, and no markup from a name."""
    text = markdown(report)
    assert unprintable(text) == set()
    assert {token.type for token in inline(tokens(text))} <= KNOWN_INLINE
    assert len(text) < 200_000
    rows = 0
    for table in tables(text):
        widths = {len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) for row in table}
        assert len(widths) == 1, table[:3]
        rows += len(table)
    assert rows > 10


def tables(text: str) -> Iterator[list[str]]:
    """Runs of lines that are rows."""
    for block in text.split("\n\n"):
        if block.startswith("|"):
            yield block.split("\n")


def unprintable(text: str) -> set[str]:
    """Characters that move the cursor, turn the direction of writing or break a line."""
    return {
        c
        for c in text
        if c != "\n" and (unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") or c in BIDI)
    }


@pytest.mark.parametrize("name", ["full", "hostile"])
def test_json_is_what_its_schema_says(name: str) -> None:
    report = getattr(sample, name)()
    encoded = msgspec.json.encode(report)
    assert msgspec.json.decode(encoded, type=Report) == report
    definitions = schema()["$defs"]
    assert {"Answer", "Segment", "ModelReport"} < set(definitions)
    assert set(json.loads(encoded)) == set(definitions["Report"]["properties"])

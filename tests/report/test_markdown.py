"""As a reader of CommonMark with GitHub's tables sees it."""

from __future__ import annotations

import functools
import itertools

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

from specwatch.domain.model import TEMPERATURE, Segment
from specwatch.report.markdown import markdown
from tests.report import sample

KNOWN = {
    "heading_open",
    "heading_close",
    "paragraph_open",
    "paragraph_close",
    "inline",
    "hr",
    "bullet_list_open",
    "bullet_list_close",
    "list_item_open",
    "list_item_close",
    "table_open",
    "table_close",
    "thead_open",
    "thead_close",
    "tbody_open",
    "tbody_close",
    "tr_open",
    "tr_close",
    "th_open",
    "th_close",
    "td_open",
    "td_close",
}
KNOWN_INLINE = {"text", "text_special", "code_inline", "strong_open", "strong_close", "softbreak"}


@functools.cache
def tokens(text: str) -> list[Token]:
    """What it is read as; nobody changes it."""
    return MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)


def inline(found: list[Token]) -> list[Token]:
    return [child for item in found for child in item.children or ()]


def headings(text: str) -> list[tuple[str, str]]:
    result = tokens(text)
    return [
        (item.tag, "".join(c.content for c in result[at + 1].children or ()))
        for at, item in enumerate(result)
        if item.type == "heading_open"
    ]


def rows(text: str) -> list[list[str]]:
    made: list[list[str]] = []
    result = tokens(text)
    for at, item in enumerate(result):
        if item.type == "tr_open":
            made.append([])
        if item.type in ("td_open", "th_open"):
            made[-1].append("".join(c.content for c in result[at + 1].children or ()))
    return made


@pytest.mark.parametrize("name", ["full", "empty", "partial", "broken numbers"])
def test_it_is_headings_in_order_sentences_lists_and_tables(name: str) -> None:
    """No HTML, no picture, no link, no code block: whatever name there is."""
    text = markdown(sample.ALL[name]())
    result = tokens(text)
    assert {item.type for item in result} <= KNOWN
    assert {token.type for token in inline(result)} <= KNOWN_INLINE
    levels = [int(tag[1]) for tag, _ in headings(text)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


NAMES = (
    "a|b",
    "`x`",
    "``",
    "`",
    "a\\",
    "\\|",
    "**b**",
    "_i_",
    "~~s~~",
    "<b>",
    "&lt;",
    "# h",
    "- l",
    "1. l",
    "> q",
    "![i](u)",
    "[l](u)",
    "<http://u>",
    "http://example.com",
    "@team",
    "a`b|c`d",
    "---",
    "===",
    "+ l",
    "$x$",
    ":smile:",
    "#12",
    "x\n\n# h",
    "|---|",
)


def test_a_name_is_read_as_it_is() -> None:
    """In a heading, in the cell of a table, and in a sentence."""
    row = sample.full().targets[0].segments[0]
    models = tuple(
        replace(
            sample.blank(name, outcome="even"),
            segments=(replace(row, segment=Segment(TEMPERATURE, name)),),
            health=replace(sample.blank().health, warnings=(name,)),
        )
        for name in NAMES
    )
    text = markdown(replace(sample.full(), targets=models))
    titles = [heading for _, heading in headings(text)]
    firsts = [row[0].replace("¦", "|") for row in rows(text)]
    for name in NAMES:
        expected = name.replace("\n", "\\n")
        assert any(title.startswith(expected) for title in titles), name
        # Between backticks is code, where a bar would end the cell.
        plain = expected if expected.count("`") % 2 else expected.replace("`", "")
        assert firsts.count(plain) >= 2, f"{name}: among all targets, and among temperatures"
    assert {token.type for token in inline(tokens(text))} <= KNOWN_INLINE

"""A report on a terminal: the answer first, aligned, within its columns, and clean."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from specwatch.report import columns
from specwatch.report.columns import Bar, Line, TerminalCell
from specwatch.report.text import lines, plain
from tests.report import sample


def _texts(found: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in found]


@pytest.mark.parametrize("name", sample.ALL)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    for width in (40, 120):
        for text in _texts(list(lines(sample.ALL[name](), width, bar="█"))):
            assert columns.columns(text) <= width
            assert text.isprintable()


def test_models_of_one_target_are_told_apart_in_the_overview() -> None:
    first, second, _ = sample.full().targets
    second = msgspec.structs.replace(second, target=first.target)
    report = msgspec.structs.replace(sample.full(), targets=(first, second))
    rows = [text for text in plain(report, 120).split("\n") if "U h " in text or "er h " in text]
    assert [row.partition("  ")[0] for row in rows] == [
        "chat-70b Qwen/Qwen2.5-Coder-32B-Instruct",
        "chat-70b meta-llama/Llama-3.3-70B-Instruct",
    ]


def test_bars_are_as_long_as_what_they_stand_for_with_a_mark_where_asked() -> None:
    rows = [[TerminalCell("a")], [TerminalCell("b")], [TerminalCell("c")]]
    bars = [Bar(2.0, mark=1.0), Bar(0.5, mark=1.0), Bar(None)]
    result = _texts(list(columns.table(["x"], rows, 19, bars=bars)))
    assert result == ["x", "a ########|#######", "b ####    |", "c"]


def test_the_first_column_gives_way_and_then_the_last_ones_go() -> None:
    rows = [[TerminalCell("a-long-name-of-something"), TerminalCell("1234"), TerminalCell("56789")]]
    wide, narrow, least = (
        _texts(list(columns.table(["name", "one", "two"], rows, width)))[1]
        for width in (40, 25, 14)
    )
    assert wide == "a-long-name-of-something 1234 56789"
    assert narrow == "a-long-name... 1234 56789"[: len(narrow)]
    assert "56789" not in least
    assert "1234" in least


def test_columns_in_which_nothing_is_known_and_such_without_a_header_are_left_out() -> None:
    rows = [[TerminalCell("a"), TerminalCell("-"), TerminalCell("hidden"), TerminalCell("1")]]
    assert _texts(list(columns.table(["x", "gone", "", "y"], rows, 40))) == ["x y", "a 1"]


def test_optional_columns_go_first_and_make_room_for_bars() -> None:
    rows = [[TerminalCell("a" * 8), TerminalCell("123"), TerminalCell("456")]]
    table = partial(columns.table, ["x", "one", "two"], rows, optional=[1])
    assert _texts(list(table(16)))[1] == "aaaaaaaa 123 456"
    assert _texts(list(table(15)))[1] == "aaaaaaaa 456"
    assert _texts(list(table(24, bars=[Bar(1.0)])))[1] == "aaaaaaaa 456 " + 10 * "#"


def test_paragraphs_are_wrapped() -> None:
    for text, width, expected in (
        ("one two three", 8, ["one two", "  three"]),
        ("  one two three", 9, ["  one two", "    three"]),
        ("x" * 10, 4, ["xxxx", "  xx", "  xx", "  xx"]),
        ("日本語 日本", 6, ["日本語", "  日本"]),
        ("a\nb", 80, [r"a\nb"]),
        ("", 80, []),
    ):
        assert list(columns.wrapped(text, width, indent=2)) == expected


def test_wide_characters_are_cut_by_their_columns() -> None:
    assert columns.cut("日本語日本語", 7) == "日本..."
    assert columns.cut("abc", 3) == "abc"

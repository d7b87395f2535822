"""Tables and sentences fit their width."""

from __future__ import annotations

import pytest

from specwatch.cli.terminal import Columns, paragraph, table
from tests.cli.conftest import texts

COLUMNS: Columns[str] = {
    "load": lambda row: row,
    "arm": lambda row: f"arm {row}",
    "speedup": lambda _: "1.42x",
    "nothing": lambda _: "-",
    "requests": lambda row: f"{row}00",
    "verdict": lambda _: "pays",
}


def shown(width: int) -> list[str]:
    return texts(
        table(COLUMNS, ["1", "64"], width, keys=2, details=lambda row: [(f"  of {row}", "dim")])
    )


def test_columns_that_do_not_fit_go_below_with_the_keys_repeated() -> None:
    assert shown(50) == [
        "load     arm  speedup  requests  verdict",
        "1      arm 1    1.42x       100     pays",
        "  of 1",
        "64    arm 64    1.42x      6400     pays",
        "  of 64",
    ]
    assert shown(25) == [
        "load     arm  speedup",
        "1      arm 1    1.42x",
        "64    arm 64    1.42x",
        "load     arm  requests",
        "1      arm 1       100",
        "64    arm 64      6400",
        "load     arm  verdict",
        "1      arm 1     pays",
        "  of 1",
        "64    arm 64     pays",
        "  of 64",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_sentence_is_wrapped_and_indented_by_two_more(width: int) -> None:
    sentence = f"{'word ' * 100}\x1b[31mend"
    lines, styles = zip(*paragraph(f"  {sentence}", "red", width), strict=True)
    assert max(map(len, lines)) <= width < max(map(len, lines)) + len(" word")
    assert lines[0].startswith("  word")
    assert all(line.startswith("    word") for line in lines[1:-1])
    assert " ".join(map(str.strip, lines)) == sentence.replace("\x1b", "\\x1b")
    assert set(styles) == {"red"}
    assert list(paragraph("short")) == [("short", "")]

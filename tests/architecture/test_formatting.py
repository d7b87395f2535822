"""The formatter decides on every line: none is kept from it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("specwatch", "tap", "tests", "migrations")
KEPT_FROM_IT = ("# fmt: " + "skip", "# fmt: " + "off")


def test_no_line_is_kept_from_the_formatter() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if any(mark in line for mark in KEPT_FROM_IT)
    ]
    assert not found

"""A pytest plugin: renders are compared with files, which ``make golden`` rewrites.

``golden("report/weekly.md", text)`` fails where ``tests/golden/report/weekly.md`` differs. After a
change that is wanted, ``make golden`` writes what is rendered now; the diff is reviewed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite the files of tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(name, text)``: the text is that of the file of this name."""

    def check(name: str, text: str) -> None:
        file = FOLDER / name
        if request.config.getoption("golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"{file} is missing: make golden writes it"
        assert text == file.read_text(), f"{name} differs; if that is wanted: make golden"

    return check

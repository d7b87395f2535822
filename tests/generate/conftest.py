"""What generates is run several times, and its templates compiled once."""

from __future__ import annotations

from functools import cache

import pytest

from specwatch.generate import environment


@pytest.fixture(scope="session", autouse=True)
def _templates_are_compiled_once() -> None:
    made = environment._environment()
    made.from_string = cache(made.from_string)  # type: ignore[method-assign]

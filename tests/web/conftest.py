"""One HTTP surface for all tests of this folder, which makes every page anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specwatch.web import status_route
from tests.web.statuses import Surface, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Surface]:
    """The surface, as the test before left it."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("_STATUS_SECONDS", "_PAGE_SECONDS", "_HISTORY_SECONDS"):
            patched.setattr(status_route, name, -1.0)
        surface = Surface()
    with serving(surface) as running:
        yield running


@pytest.fixture
def surface(server: Surface) -> Surface:
    """As at first, whatever the test before did."""
    server.show()
    return server

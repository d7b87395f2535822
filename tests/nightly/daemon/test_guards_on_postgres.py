"""What holds of several daemons that guard a target, with Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon.stores import GuardDatabase
from tests.daemon.test_guard_service import *  # noqa: F403
from tests.postgres import PostgresServer


@pytest.fixture(scope="module")
def guard_database(postgres: PostgresServer) -> Iterator[GuardDatabase]:
    made = GuardDatabase(postgres.new_url())
    yield made
    made.close()

"""A guard whose daemon is killed, or loses its database, at every point of an incident."""

from __future__ import annotations

import pytest

from tests.daemon.guard_stories import (
    require_restarts_though_killed,
    require_restarts_without_database,
    require_standby_though_killed,
)
from tests.daemon.stores import NewLiving

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


def test_a_guard_that_is_killed_restarts_no_more_than_without(new_living: NewLiving) -> None:
    require_restarts_though_killed(new_living)


def test_without_a_database_nothing_begins_and_what_began_is_finished(
    new_living: NewLiving,
) -> None:
    require_restarts_without_database(new_living)


def test_a_guard_with_a_switch_never_restarts(new_living: NewLiving) -> None:
    require_standby_though_killed(new_living)

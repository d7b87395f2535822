"""What a judge remembers changes nothing that it decides, in hundreds of random minutes."""

from __future__ import annotations

import pytest

from tests.rules.test_remembered import check_remembered


@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_changes_nothing(seed: int) -> None:
    assert check_remembered(seed, 200) > 20

"""Ranks that are alike, by many chances."""

from __future__ import annotations

import pytest

from tests.domain.test_ranks import hour, outliers


@pytest.mark.parametrize("seed", range(3, 40))
def test_alike_ranks_do_not_stand_out(seed: int) -> None:
    assert outliers(hour([0.5] * 8, seed=seed)) == []
    assert outliers(hour([0.5] * 8, drafts=30, seed=seed)) == []

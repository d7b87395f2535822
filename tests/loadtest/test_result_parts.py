"""The servers in results are called what they are."""

from __future__ import annotations

import pytest

from specwatch.domain.model import Environment, Mode
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.result_parts import subject_of


@pytest.mark.parametrize(
    ("fingerprint", "k"),
    [("c-4", 4), ("c-4 matches", 4), ("c-schedule 1a2b", None), ("c-0", None), (None, None)],
)
def test_the_number_of_draft_tokens_is_known_where_drafts_vary_too(
    fingerprint: str | None, k: int | None
) -> None:
    server = MeasuredModel("m", "m", Mode.ON, Environment(None, fingerprint))
    assert subject_of(server, target="t", url="http://h").k == k

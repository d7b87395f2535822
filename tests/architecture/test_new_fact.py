"""A new fact takes few files of the product, from the page of an engine to the report."""

from __future__ import annotations

import pytest

from tests.architecture.new_fact import FACTS, NewFact, prove


@pytest.mark.parametrize("fact", FACTS, ids=[fact.name for fact in FACTS])
def test_it_takes_few_files(fact: NewFact) -> None:
    prove(fact)
    assert len(fact.files) <= fact.most_files

"""Acceptance figures follow from counts of drafts and tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.acceptance import (
    acceptance_rate,
    accepted_length_histogram,
    mean_acceptance_length,
)
from specwatch.domain.model import Tally
from specwatch.scrape import tally
from tests.pages import CAPTURES, read

SPECULATING = [path for path in CAPTURES if path.match("vllm-*") and "spec-off" not in path.name]


def of_page(path) -> Tally:
    problems: list[str] = []
    (samples,) = tally.parts_of(read(path.read_bytes())).models.values()
    counts = tally.tally_of(samples, problems)
    assert problems == []
    return counts


@pytest.mark.parametrize("path", SPECULATING, ids=lambda path: path.stem)
def test_the_histogram_of_a_real_page_adds_up(path):
    """All drafts are in it, and all accepted tokens."""
    counts = of_page(path)
    lengths = accepted_length_histogram(
        counts.drafts, counts.accepted_per_position, counts.accepted_tokens
    )
    assert lengths is not None
    assert sum(lengths) == counts.drafts
    assert sum(j * count for j, count in enumerate(lengths)) == counts.accepted_tokens


def test_the_figures_of_a_real_page():
    counts = of_page(next(path for path in CAPTURES if path.name.endswith("draft-k4.3.prom")))
    assert acceptance_rate(counts) == 3582 / 6304
    assert mean_acceptance_length(counts) == 1 + 3582 / 1576
    lengths = accepted_length_histogram(1576, counts.accepted_per_position)
    assert lengths == (398, 229, 154, 135, 660)


@given(st.integers(1, 8).flatmap(lambda k: st.lists(st.integers(0, k)).map(lambda a: (k, a))))
def test_the_histogram_is_that_of_the_accepted_lengths(drafts_of_k):
    k, accepted = drafts_of_k
    per_position = [sum(length > index for length in accepted) for index in range(k)]
    lengths = accepted_length_histogram(len(accepted), per_position, sum(accepted))
    assert lengths == tuple(accepted.count(j) for j in range(k + 1))


@pytest.mark.parametrize(
    ("drafts", "per_position", "accepted"),
    [
        (3, (4, 1), None),  # more drafts kept the first token than there were
        (3, (1, 2), None),  # the second token without the first
        (3, (2, -1), None),
        (3, (2, 1), 4),  # the positions hold another sum than the total
        (None, (2, 1), 3),
        (3, None, 3),
    ],
)
def test_contradictions_and_silence_give_no_histogram(drafts, per_position, accepted):
    assert accepted_length_histogram(drafts, per_position, accepted) is None


@pytest.mark.parametrize(
    ("counts", "rate", "length"),
    [
        (Tally(), None, None),
        (Tally(drafts=0, draft_tokens=0, accepted_tokens=0), None, None),
        (Tally(drafts=4, draft_tokens=8, accepted_tokens=0), 0.0, 1.0),
        (Tally(drafts=4, draft_tokens=8, accepted_tokens=8), 1.0, 3.0),
        (Tally(draft_tokens=8, accepted_tokens=2), 0.25, None),
        (Tally(drafts=4, draft_tokens=8), None, None),
    ],
)
def test_rates_are_known_only_where_something_was_drafted(counts, rate, length):
    assert acceptance_rate(counts) == rate
    assert mean_acceptance_length(counts) == length

"""The speedup that is expected is that of the paper, and alpha is what alpha is elsewhere."""

from __future__ import annotations

import random

import pytest

from specwatch.domain.acceptance import acceptance_rate, mean_acceptance_length
from specwatch.domain.model import Tally
from specwatch.lab.advise import speedup


def test_the_closed_form_of_the_paper() -> None:
    """tau = (1 - a^(k+1)) / (1 - a), equation 1."""
    for chance in (0.1, 0.5, 0.9, 0.99):
        for k in (1, 3, 7, 16):
            assert speedup.tokens_per_step(chance, k) == pytest.approx(
                (1 - chance ** (k + 1)) / (1 - chance)
            )
    assert speedup.tokens_per_step(1.0, 5) == 6
    assert speedup.tokens_per_step(0.0, 5) == 1


@pytest.mark.parametrize("most", [1, 4])
def test_no_k_is_best_above_the_most_that_a_draft_has(most: int) -> None:
    assert speedup.expected_speedup(0.9, 3, 0.01, most).best_k == most
    assert speedup.expected_speedup(0.9, 3, 0.01, 0).best_k is None


@pytest.mark.parametrize("k", [1, 3, 5, 16])
def test_both_ways_to_tau_agree(k: int) -> None:
    """1 + k alpha of the counts is what the chance at each position gives."""
    for acceptance in speedup.ACCEPTANCES:
        expected = speedup.expected_speedup(acceptance, k, 0.1)
        assert expected.mean_length == pytest.approx(1 + k * acceptance)
        assert speedup.tokens_per_step(expected.per_token, k) == pytest.approx(expected.mean_length)
        assert expected.speedup == pytest.approx(expected.mean_length / (1 + 0.1 * k))
        if k == 1:
            assert expected.per_token == pytest.approx(acceptance)
        else:
            assert expected.per_token > acceptance


def test_alpha_is_what_a_server_would_count() -> None:
    """Drafts whose tokens are kept with the chance found have this alpha and tau, as counted."""
    expected, k, chance = speedup.expected_speedup(0.6, 4, 0.1), 4, random.Random(1)
    drafts, accepted = 40_000, 0
    for _ in range(drafts):
        for _ in range(k):
            if chance.random() >= expected.per_token:
                break
            accepted += 1
    tally = Tally(drafts=drafts, draft_tokens=k * drafts, accepted_tokens=accepted)
    assert acceptance_rate(tally) == pytest.approx(0.6, abs=0.01)
    assert mean_acceptance_length(tally) == pytest.approx(expected.mean_length, rel=0.02)


def test_the_best_k_is_better_than_its_neighbours_and_grows_with_acceptance() -> None:
    ks = []
    for acceptance in speedup.ACCEPTANCES:
        expected = speedup.expected_speedup(acceptance, 5, 0.1)
        for other in (expected.best_k - 1, expected.best_k + 1):
            if 1 <= other <= speedup.MOST_TOKENS:
                length = speedup.tokens_per_step(expected.per_token, other)
                assert length / (1 + 0.1 * other) <= expected.best_speedup
        assert expected.best_speedup >= expected.speedup * (1 - 1e-12)
        ks.append(expected.best_k)
    assert ks == sorted(ks)
    assert ks[0] < ks[-1]


@pytest.mark.parametrize("k", [1, 5, 12])
def test_break_even_is_at_the_cost_of_a_draft_token(k: int) -> None:
    for cost in (0.01, 0.1, 0.4):
        assert speedup.acceptance_for(1, k, cost) == pytest.approx(cost)
        for gain in (1.0, 1.3):
            alpha = speedup.acceptance_for(gain, k, cost)
            assert (1 + k * alpha) / (1 + k * cost) == pytest.approx(gain)

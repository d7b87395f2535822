"""What speedup to expect before anything is measured.

With k draft tokens per step, and a draft token that costs c plain steps of the target::

    S = tau / (1 + k c)        tau = 1 + k alpha

alpha is the acceptance rate as everywhere here: accepted / draft tokens, an average over the k
positions. To say anything of another k, one more assumption is needed: that a token is accepted
with the same chance a wherever it stands, if all before it were (alpha in the paper, where it is
beta's mean)::

    tau = (1 - a^(k+1)) / (1 - a)        alpha = (a + a^2 + ... + a^k) / k

Both hold where checking k + 1 tokens takes no longer than computing one: at low load, as reading
the weights is what takes the time. Source: Leviathan, Kalman, Matias, *Fast Inference from
Transformers via Speculative Decoding* (2023), equation 1 and theorem 3.8.
"""

from __future__ import annotations

import math

from specwatch.advise.model import Expected
from specwatch.core.breakeven import prior_speedup

ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MOST_TOKENS = 10
"""The largest k that is looked at: nobody reports that more pays."""
MOST_DRAFTED = 1024
"""The largest k that anything is computed for."""
_TURNS = 60


def tokens_per_step(per_token: float, k: int) -> float:
    """tau = 1 + a + a^2 + ... + a^k, which is (1 - a^(k+1)) / (1 - a)."""
    if not 0 < per_token < 1:
        return 1 + k * per_token
    return -math.expm1((k + 1) * math.log(per_token)) / (1 - per_token)


def per_token(acceptance: float, k: int) -> float:
    """Return the a whose average over k positions, (a + ... + a^k) / k, is ``acceptance``."""
    low, high = 0.0, 1.0
    for _ in range(_TURNS):
        middle = (low + high) / 2
        if (tokens_per_step(middle, k) - 1) / k < acceptance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def best_k(chance: float, draft_cost: float, most: int = MOST_TOKENS) -> tuple[int, float]:
    """Return the k from 1 to ``most`` of the highest speedup, and that speedup."""
    speedups = {
        k: prior_speedup(tokens_per_step(chance, k), k, draft_cost) for k in range(1, most + 1)
    }
    best = max(speedups, key=lambda k: (speedups[k], -k))
    return best, speedups[best]


def at(acceptance: float, k: int, draft_cost: float, most: int = MOST_TOKENS) -> Expected:
    """Return what to expect at one acceptance rate, alpha at this k.

    ``most`` is the largest k of which something can be said; no best one with 0.
    """
    chance = per_token(acceptance, k)
    length = 1 + k * acceptance
    best = best_k(chance, draft_cost, most) if draft_cost and most else None
    return Expected(
        acceptance=acceptance,
        per_token=chance,
        mean_length=length,
        speedup=prior_speedup(length, k, draft_cost),
        best_k=None if best is None else best[0],
        best_speedup=None if best is None else best[1],
    )


def table(k: int, draft_cost: float, most: int = MOST_TOKENS) -> tuple[Expected, ...]:
    """Return what to expect at each of :data:`ACCEPTANCES`; ``most`` as in :func:`at`."""
    return tuple(at(acceptance, k, draft_cost, most) for acceptance in ACCEPTANCES)


def acceptance_for(speedup: float, k: int, draft_cost: float) -> float:
    """Return the alpha that gives a speedup; above 1 where no acceptance does.

    For 1, the break-even, it is c.
    """
    return (speedup * (1 + k * draft_cost) - 1) / k

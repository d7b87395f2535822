"""The number of draft tokens, and the expected speedup.

With k draft tokens per step, and a draft token that costs c plain steps of the target::

    S = tau / (1 + k c)        tau = 1 + k alpha

alpha is the acceptance rate: accepted / draft tokens, the average over the k positions. To compute
it for another k, each position is assumed to have the same probability a that its token is accepted
if all before it were::

    tau = (1 - a^(k+1)) / (1 - a)        alpha = (a + a^2 + ... + a^k) / k

Both hold at low load, where verifying k + 1 tokens takes as long as computing one, as the time is
that of reading the weights. Source: Leviathan, Kalman, Matias, *Fast Inference from
Transformers via Speculative Decoding* (2023), equation 1 and theorem 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specwatch.domain.breakeven import DRAFT_COST_RATIO, prior_speedup
from specwatch.lab.advise.advice import LLAMA, Expected, Finding, Level, ServerPlan, reported
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.methods import LOOKUPS

ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MOST_TOKENS = 10
"""The largest k to compare: no report says that more pays."""
MOST_DRAFTED = 1024
"""The largest k to compute anything for."""
COMMON_K = 5
WORTH_IT = 1.3
"""Lowest speedup that is worth the effort."""
HEAD_COST = 0.05
"""Assumed cost of a head of unknown size: about one layer of the target and its output head, as an
EAGLE-3 head of Llama 3.1 8B has 0.43 of its 8.03 billion parameters, by its config.json."""
_TYPICAL = 0.7
_AT_ONCE = frozenset({"medusa", "mlp_speculator", "dflash", "dspark"})
"""Methods that draft all k tokens in one pass."""
_WORTH_A_LOOK = 1.05
_MOST_USUAL = 7
_PAPER = "[L] equation 1 and theorem 3.8, as expected at low load"


def tokens_per_step(per_token: float, k: int) -> float:
    """tau = 1 + a + a^2 + ... + a^k, which is (1 - a^(k+1)) / (1 - a)."""
    if not 0 < per_token < 1:
        return 1 + k * per_token
    return -math.expm1((k + 1) * math.log(per_token)) / (1 - per_token)


def chance_per_token(acceptance: float, k: int) -> float:
    """The a whose average over k positions, (a + ... + a^k) / k, is ``acceptance``."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (tokens_per_step(middle, k) - 1) / k < acceptance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def expected_speedup(
    acceptance: float, k: int, draft_cost: float, most: int = MOST_TOKENS
) -> Expected:
    """The expected speedup at an acceptance rate alpha and this k.

    ``most`` is the largest k to compare; with 0, or if drafts cost nothing, there is no best k.
    """
    chance = chance_per_token(acceptance, k)
    speedups = {
        other: prior_speedup(tokens_per_step(chance, other), other, draft_cost)
        for other in range(1, most + 1 if draft_cost else 1)
    }
    best = max(speedups, key=lambda other: (speedups[other], -other), default=None)
    return Expected(
        acceptance=acceptance,
        per_token=chance,
        mean_length=1 + k * acceptance,
        speedup=prior_speedup(1 + k * acceptance, k, draft_cost),
        best_k=best,
        best_speedup=None if best is None else speedups[best],
    )


def acceptance_for(speedup: float, k: int, draft_cost: float) -> float:
    """The alpha for a speedup (for 1, the break-even: c); above 1 if it cannot be reached."""
    return (speedup * (1 + k * draft_cost) - 1) / k


@dataclass(frozen=True, slots=True)
class DraftCost:
    """The cost of a draft token in plain steps of the target; ``assumed`` if it is not known."""

    steps: float
    assumed: bool = False


def draft_cost(
    method: str, k: int, target: Candidate, draft: Candidate | None, plan: ServerPlan
) -> DraftCost:
    """c, the cost of a draft token in plain steps of the target.

    The time of a step at low load is that of reading the weights that one token uses, so c is the
    ratio of bytes read, on the GPU that reads most.
    """
    assumed = DraftCost(DRAFT_COST_RATIO if method == "draft_model" else HEAD_COST, assumed=True)
    shape, read = target.architecture, target.read_per_step
    if method in LOOKUPS:
        return DraftCost(0.0)
    # A head uses the output head of the target too, which has 16 bits.
    output_head = 2 * shape.vocabulary * shape.hidden_size / read if shape and read else 0.0
    if method == "mtp" and draft is None:
        layers = len(shape.layers) if shape else 0
        return DraftCost(1 / layers + output_head) if layers else assumed
    # The size in the name of a head is that of its target.
    if draft is None or not read or (draft.is_guessed and method != "draft_model"):
        return assumed
    if not draft.read_per_step:
        return assumed
    ratio = draft.read_per_step / read
    if plan.draft_parallel == 1:
        ratio *= plan.parallel()
    if method in ("eagle", "mtp"):
        ratio += output_head
    return DraftCost(ratio / k if method in _AT_ONCE else ratio)


def largest_k(method: str, k: int, target: Candidate, draft: Candidate | None) -> int:
    """The largest k whose speedup can be computed; 0 if not known.

    The acceptance of layers that run repeatedly, or at positions without a head, is not known.
    """
    if method == "mtp":
        shape = (draft or target).architecture
        layers = 0 if shape is None else shape.mtp_layers
        return min(layers, MOST_TOKENS) if k <= layers else 0
    if method in ("medusa", "mlp_speculator"):
        shape = None if draft is None else draft.architecture
        return min((shape and shape.positions) or 0, MOST_TOKENS)
    return MOST_TOKENS


def usual_k(method: str, target: Candidate, draft: Candidate | None) -> int:
    """The k of the draft, or of the layers for prediction, if it is fixed; else 5."""
    if method == "mtp" and draft is None and target.architecture is not None:
        return target.architecture.mtp_layers or COMMON_K
    shape = None if draft is None else draft.architecture
    if shape is None:
        return COMMON_K
    if method == "dspark":
        return shape.keys.optional("block_size", most=MOST_DRAFTED) or COMMON_K
    return (shape.positions if method in ("medusa", "mlp_speculator") else None) or COMMON_K


def k_findings(
    method: str, k: int, cost: DraftCost, expected: Sequence[Expected], plan: ServerPlan
) -> Iterator[Finding]:
    """Findings on the range of k, and on whether speculation can pay with this draft."""
    if plan.k is not None and plan.k > MOST_DRAFTED:
        digits = f"{plan.k!s:.12}{'...' if len(str(plan.k)) > 12 else ''}"
        yield Finding(
            "k",
            "wrong",
            f"k = {digits} is far too large: this advice is for {MOST_DRAFTED:,}",
            remedy=f"start with {COMMON_K}, and measure with specwatch calibrate",
        )
    # Heads and layers for prediction have a fixed number.
    elif plan.k is not None and (
        method not in ("suffix", "medusa", "mtp") or (method == "mtp" and k > _MOST_USUAL)
    ):
        level, text, source = _k_range(k, at_most=plan.server == "llama.cpp")
        remedy = "" if level == "ok" else f"start with {COMMON_K}; see specwatch calibrate"
        if method == "mtp" and level != "ok":
            remedy = "start with the number of layers that the target has"
        yield Finding("k", level, f"k = {k}: {text}", "", source, remedy)
    if cost.steps:
        yield _break_even(k, cost)
    else:
        yield Finding(
            "k",
            "note",
            "a step whose lookup finds nothing drafts nothing, and gains nothing",
            "the speedups expected are those of the steps that draft",
            "arithmetic",
            "specwatch shows the share of steps that draft in your traffic",
        )
    typical = next((item for item in expected if item.acceptance == _TYPICAL), None)
    if typical is None or typical.best_k is None or typical.best_speedup is None:
        return
    # Reports advise against more than 7, for reasons that this model does not include.
    if (
        typical.best_speedup > 1
        and typical.best_k <= max(k, _MOST_USUAL)
        and (typical.best_speedup / typical.speedup > _WORTH_A_LOOK)
    ):
        yield Finding(
            "k",
            "note",
            f"at acceptance {_TYPICAL} k = {typical.best_k} is expected to be best:"
            f" {typical.best_speedup:.2f}x, against {typical.speedup:.2f}x with k = {k}",
            "if every position is accepted equally often",
            f"an assumed cost; {_PAPER}" if cost.assumed else _PAPER,
            f"compare k = {typical.best_k}: specwatch bench compare",
        )


def _k_range(k: int, *, at_most: bool) -> tuple[Level, str, str]:
    if at_most and k >= 3:
        return "ok", "the most that llama-server drafts: it stops when the draft is unsure", LLAMA
    if k <= 2:
        return "doubt", "below 3 the overhead of a step dominates", reported("T")
    if k <= _MOST_USUAL:
        return "ok", "in the usual range, 3 to 7", reported("G")
    if k == 8:
        text = "the upper end: 3 to 7 is usual, above 8 acceptance collapsed"
        return "note", text, reported("GT")
    if k <= 10:
        text = "pays at high acceptance only; above 8 it collapsed in one report"
        return "doubt", text, reported("TP")
    return "doubt", "more than in any report of a gain", reported("TP")


def _break_even(k: int, cost: DraftCost) -> Finding:
    even, worth = acceptance_for(1, k, cost.steps), acceptance_for(WORTH_IT, k, cost.steps)
    text = f"a draft token costs {cost.steps:.2g} times a step of the target"
    reason = "a lower bound, from reading its weights: small drafts cost more"
    source = _PAPER
    if cost.assumed:
        text = f"a draft token is assumed to cost {cost.steps:.2g} times a step of the target"
        reason = "a usual cost, as the size of the draft or of the target is not known"
        source = f"an assumed cost; {_PAPER}"
    if even >= 1:
        text += ": no acceptance can compensate that"
        return Finding("k", "wrong", text, reason, source, "take a smaller draft, or quantize it")
    level: Level = "doubt" if worth > 0.9 else "note" if worth > _TYPICAL else "ok"
    reach = f"{worth:.0%}" if worth < 1 else "out of reach"
    return Finding(
        "k",
        level,
        f"{text}: break-even at {even:.0%} acceptance, worth it ({WORTH_IT}x) at {reach}",
        reason,
        f"{source}; {WORTH_IT}x: reported [P]",
        "" if level == "ok" else "take a smaller draft, or fewer draft tokens",
    )

"""How many tokens to draft, and what speedup to expect before anything is measured.

With k draft tokens per step, and a draft token that costs c plain steps of the target::

    S = tau / (1 + k c)        tau = 1 + k alpha

alpha is the acceptance rate: accepted / draft tokens, an average over the k positions. For another
k, one more assumption is needed: that a token is accepted with the same chance a at each position,
if all before it were::

    tau = (1 - a^(k+1)) / (1 - a)        alpha = (a + a^2 + ... + a^k) / k

Both hold at low load, where checking k + 1 tokens takes no longer than computing one, as reading
the weights is what takes the time. Source: Leviathan, Kalman, Matias, *Fast Inference from
Transformers via Speculative Decoding* (2023), equation 1 and theorem 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specwatch.advise.advice import LLAMA, Expected, Finding, Level, ServerPlan, reported
from specwatch.advise.candidate import Candidate
from specwatch.advise.methods import LOOKUPS
from specwatch.domain.breakeven import DRAFT_COST_RATIO, prior_speedup

ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MOST_TOKENS = 10
"""The largest k that is compared: nobody reports that more pays."""
MOST_DRAFTED = 1024
"""The largest k that anything is computed for."""
COMMON_K = 5
WORTH_IT = 1.3
"""A speedup below this is not worth the effort."""
HEAD_COST = 0.05
"""Of a head whose size is not known: about one layer of the target and its output head. Assumed:
an EAGLE-3 head of Llama 3.1 8B has 0.43 of its 8.03 billion parameters, by its config.json."""
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
    """Return the a whose average over k positions, (a + ... + a^k) / k, is ``acceptance``."""
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
    """Return what to expect at an acceptance rate alpha at this k.

    ``most`` is the largest k to compare; with 0, and where drafts cost nothing, there is no best.
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
    """Return the alpha that gives a speedup (for 1, the break-even, c); above 1 where none does."""
    return (speedup * (1 + k * draft_cost) - 1) / k


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What a draft token costs in plain steps of the target; ``assumed`` where nothing tells."""

    steps: float
    assumed: bool = False


def draft_cost(
    method: str, k: int, target: Candidate, draft: Candidate | None, plan: ServerPlan
) -> DraftCost:
    """Return c, what a draft token costs in plain steps of the target.

    The time of a step at low load is that of reading the weights of one token, so c is the share
    of bytes read, on the GPU that has most to read.
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
    """Return the largest k whose speedup can be expected; 0 where that is not known.

    What is accepted from layers that run again, or at positions that a head lacks, is not known.
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
    """Return the k of a draft, or of layers for prediction, with one of its own; else 5."""
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
    """Yield whether k is in range, and whether speculation can pay at all with this draft."""
    if plan.k is not None and plan.k > MOST_DRAFTED:
        digits = f"{plan.k!s:.12}{'...' if len(str(plan.k)) > 12 else ''}"
        yield Finding(
            "k", "wrong",
            f"k = {digits} is beyond any use: what follows is for {MOST_DRAFTED:,}",
            remedy=f"start with {COMMON_K}, and let specwatch calibrate tell",
        )  # fmt: skip
    # Heads and the layers of a target have a number of their own.
    elif plan.k is not None and (
        method not in ("suffix", "medusa", "mtp") or (method == "mtp" and k > _MOST_USUAL)
    ):
        level, text, source = _k_range(k, at_most=plan.server == "llama.cpp")
        remedy = "" if level == "ok" else f"start with {COMMON_K}, and let specwatch calibrate tell"
        if method == "mtp" and level != "ok":
            remedy = "start with the number of layers that the target brings"
        yield Finding("k", level, f"k = {k}: {text}", "", source, remedy)
    if cost.steps:
        yield _break_even(k, cost)
    else:
        yield Finding(
            "k", "note", "a step whose lookup finds nothing drafts nothing, and gains nothing",
            "the speedups expected are those of the steps that draft", "arithmetic",
            "let specwatch tell which share of the steps drafts in your traffic",
        )  # fmt: skip
    typical = next((item for item in expected if item.acceptance == _TYPICAL), None)
    if typical is None or typical.best_k is None or typical.best_speedup is None:
        return
    # Reports speak against more than 7, which this model knows nothing of.
    if typical.best_speedup > 1 and typical.best_k <= max(k, _MOST_USUAL) and (
        typical.best_speedup / typical.speedup > _WORTH_A_LOOK
    ):  # fmt: skip
        yield Finding(
            "k", "note",
            f"at acceptance {_TYPICAL} k = {typical.best_k} is expected to be best:"
            f" {typical.best_speedup:.2f}x, against {typical.speedup:.2f}x with k = {k}",
            "if every position is accepted alike",
            f"an assumed cost; {_PAPER}" if cost.assumed else _PAPER,
            f"compare k = {typical.best_k}: specwatch bench compare",
        )  # fmt: skip


def _k_range(k: int, *, at_most: bool) -> tuple[Level, str, str]:
    if at_most and k >= 3:
        return "ok", "the most that llama-server drafts: it stops where the draft is unsure", LLAMA
    if k <= 2:
        return "doubt", "below 3 the overhead of a step dominates", reported("T")
    if k <= _MOST_USUAL:
        return "ok", "in the usual range, 3 to 7", reported("G")
    if k == 8:
        text = "the upper end: 3 to 7 is usual, above 8 acceptance collapsed"
        return "note", text, reported("GT")
    if k <= 10:
        text = "pays at high acceptance only; above 8 it collapsed for others"
        return "doubt", text, reported("TP")
    return "doubt", "more than anyone reports to pay", reported("TP")


def _break_even(k: int, cost: DraftCost) -> Finding:
    even, worth = acceptance_for(1, k, cost.steps), acceptance_for(WORTH_IT, k, cost.steps)
    text = f"a draft token costs {cost.steps:.2g} times a step of the target"
    reason = "the least it can cost, as reading its weights does: small drafts cost more"
    source = _PAPER
    if cost.assumed:
        text = f"a draft token is assumed to cost {cost.steps:.2g} times a step of the target"
        reason = "a usual cost, as the size of what drafts, or of the target, is not known"
        source = f"an assumed cost; {_PAPER}"
    if even >= 1:
        text += ": no acceptance makes up for that"
        return Finding("k", "wrong", text, reason, source, "take a smaller draft, or quantize it")
    level: Level = "doubt" if worth > 0.9 else "note" if worth > _TYPICAL else "ok"
    reach = f"{worth:.0%}" if worth < 1 else "out of reach"
    return Finding(
        "k", level,
        f"{text}: break-even at {even:.0%} acceptance, worth it ({WORTH_IT}x) at {reach}",
        reason, f"{source}; {WORTH_IT}x: reported [P]",
        "" if level == "ok" else "take a smaller draft, or fewer draft tokens",
    )  # fmt: skip

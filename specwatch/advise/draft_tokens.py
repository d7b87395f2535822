"""How many tokens to draft, and what that is expected to bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specwatch.advise.asked import Asked
from specwatch.advise.candidate import Candidate
from specwatch.advise.expected import MOST_DRAFTED, MOST_TOKENS, acceptance_for
from specwatch.advise.methods import LOOKUPS
from specwatch.advise.model import Expected, Finding, Level
from specwatch.advise.sources import LLAMA, reported
from specwatch.core.breakeven import DRAFT_COST_RATIO

COMMON_K = 5
WORTH_IT = 1.3
"""A speedup below this is not worth shipping."""
_TYPICAL = 0.7
HEAD_COST = 0.05
"""Of a head whose size is not known: about one layer of the target and its output head. Assumed:
an EAGLE-3 head of Llama 3.1 8B has 0.43 of its 8.03 billion parameters, by its config.json."""
_AT_ONCE = frozenset({"medusa", "mlp_speculator", "dflash", "dspark"})
"""Methods that draft all k tokens in one pass."""
_TWO_BYTES = 2
_WORTH_A_LOOK = 1.05
_MOST_USUAL = 7
_PAPER = "[L] equation 1 and theorem 3.8, as expected at low load"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a draft token costs in plain steps of the target; ``assumed`` where nothing tells."""

    steps: float
    assumed: bool = False


def draft_cost(
    method: str, k: int, target: Candidate, draft: Candidate | None, asked: Asked
) -> Cost:
    """Return c, what a draft token costs in plain steps of the target.

    The time of a step at low load is that of reading the weights of one token, so c is the share
    of bytes read, on the GPU that has most to read.
    """
    computed = _computed(method, k, target, draft, asked)
    if computed is not None:
        return Cost(computed)
    return Cost(DRAFT_COST_RATIO if method == "draft_model" else HEAD_COST, assumed=True)


def _computed(
    method: str, k: int, target: Candidate, draft: Candidate | None, asked: Asked
) -> float | None:
    """The same, None where the size of either is not known."""
    if method in LOOKUPS:
        return 0.0
    read = target.read_per_step
    if method == "mtp" and draft is None:
        layers = 0 if target.architecture is None else len(target.architecture.layers)
        return 1 / layers + _output_head(target) if layers else None
    # The size in the name of a head is that of its target.
    named = draft is not None and draft.guessed and method != "draft_model"
    if draft is None or not draft.read_per_step or not read or named:
        return None
    ratio = draft.read_per_step / read
    if asked.draft_parallel() == 1:
        ratio *= asked.parallel()
    if method in ("eagle", "mtp"):
        ratio += _output_head(target)
    return ratio / k if method in _AT_ONCE else ratio


def _output_head(target: Candidate) -> float:
    """The share of a step that the target's output head takes, which a head uses too."""
    shape = target.architecture
    if shape is None or not target.read_per_step:
        return 0.0
    return _TWO_BYTES * shape.vocabulary * shape.hidden_size / target.read_per_step


def most_k(method: str, k: int, target: Candidate, draft: Candidate | None) -> int:
    """Return the largest k of which a speedup can be expected; 0 where that is not known.

    What is kept of layers that run again, or of positions that a head lacks, follows from nothing.
    """
    if method == "mtp":
        shape = (draft or target).architecture
        layers = 0 if shape is None else shape.mtp_layers
        return min(layers, MOST_TOKENS) if k <= layers else 0
    if method in ("medusa", "mlp_speculator"):
        shape = None if draft is None else draft.architecture
        return min((shape and shape.positions) or 0, MOST_TOKENS)
    return MOST_TOKENS


def findings(
    method: str, k: int | None, cost: Cost, expected: Sequence[Expected], asked: Asked
) -> Iterator[Finding]:
    """Yield whether k is in range, and whether speculation can pay at all with this draft."""
    if k is None:
        return
    if asked.k is not None and asked.k > MOST_DRAFTED:
        yield _too_many(asked.k)
    # Heads and the layers of a target have a number of their own.
    elif (
        asked.k is not None
        and method not in ("suffix", "medusa")
        and (method != "mtp" or k > _MOST_USUAL)
    ):
        yield _range(method, k, at_most=asked.server == "llama.cpp")
    if cost.steps:
        yield _break_even(k, cost)
    else:
        yield Finding(
            topic="k",
            level="note",
            text="a step whose lookup finds nothing drafts nothing, and gains nothing",
            reason="the speedups expected are those of the steps that draft",
            source="arithmetic",
            remedy="let specwatch tell which share of the steps drafts in your traffic",
        )
    best = next((each for each in expected if each.acceptance == _TYPICAL), None)
    if best is not None and best.best_k is not None and best.best_speedup is not None:
        gain = best.best_speedup / best.speedup
        # Reports speak against more than 7, which this model knows nothing of.
        pays = best.best_speedup > 1
        if pays and gain > _WORTH_A_LOOK and best.best_k <= max(k, _MOST_USUAL):
            yield Finding(
                topic="k",
                level="note",
                text=f"at acceptance {_TYPICAL} k = {best.best_k} is expected to be best:"
                f" {best.best_speedup:.2f}x, against {best.speedup:.2f}x with k = {k}",
                reason="if every position is accepted alike",
                source=f"an assumed cost; {_PAPER}" if cost.assumed else _PAPER,
                remedy=f"compare k = {best.best_k}: specwatch bench compare",
            )


def _range(method: str, k: int, *, at_most: bool) -> Finding:
    level, text, source = _judged(k, at_most=at_most)
    remedy = "" if level == "ok" else f"start with {COMMON_K}, and let specwatch calibrate tell"
    if method == "mtp" and level != "ok":
        remedy = "start with the number of layers that the target brings"
    return Finding(
        topic="k",
        level=level,
        text=f"k = {k}: {text}",
        source=source,
        remedy=remedy,
    )


def _too_many(k: int) -> Finding:
    return Finding(
        topic="k",
        level="wrong",
        text=f"k = {k!s:.12}{'...' if len(str(k)) > 12 else ''} is beyond any use: what follows is"
        f" for {MOST_DRAFTED:,}",
        remedy=f"start with {COMMON_K}, and let specwatch calibrate tell",
    )


def _judged(k: int, *, at_most: bool) -> tuple[Level, str, str]:
    if at_most and k >= 3:
        return "ok", "the most that llama-server drafts: it stops where the draft is unsure", LLAMA
    if k <= 2:
        return "doubt", "below 3 the overhead of a step dominates", reported("T")
    if k <= _MOST_USUAL:
        return "ok", "in the usual range, 3 to 7", reported("G")
    if k == 8:
        said = "the upper end: 3 to 7 is usual, above 8 acceptance collapsed"
        return "note", said, reported("GT")
    if k <= 10:
        said = "pays at high acceptance only; above 8 it collapsed for others"
        return "doubt", said, reported("TP")
    return "doubt", "more than anyone reports to pay", reported("TP")


def _break_even(k: int, cost: Cost) -> Finding:
    even, worth = acceptance_for(1, k, cost.steps), acceptance_for(WORTH_IT, k, cost.steps)
    said = f"a draft token costs {cost.steps:.2g} times a step of the target"
    reason = "the least it can cost, as reading its weights does: small drafts cost more"
    paper = _PAPER
    if cost.assumed:
        said = f"a draft token is assumed to cost {cost.steps:.2g} times a step of the target"
        reason = "a usual cost, as the size of what drafts, or of the target, is not known"
        paper = f"an assumed cost; {_PAPER}"
    if even >= 1:
        return Finding(
            topic="k",
            level="wrong",
            text=f"{said}: no acceptance makes up for that",
            reason=reason,
            source=paper,
            remedy="take a smaller draft, or quantise it",
        )
    level: Level = "doubt" if worth > 0.9 else "note" if worth > _TYPICAL else "ok"
    reach = f"{worth:.0%}" if worth < 1 else "out of reach"
    return Finding(
        topic="k",
        level=level,
        text=f"{said}: break-even at {even:.0%} acceptance, worth it ({WORTH_IT}x) at {reach}",
        reason=reason,
        source=f"{paper}; {WORTH_IT}x: reported [P]",
        remedy="" if level == "ok" else "take a smaller draft, or fewer draft tokens",
    )

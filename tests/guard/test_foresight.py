"""What the guard expects of speculation while it is off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.core.sample import Sample
from specwatch.guard.foresight import predicted_speedup
from specwatch.model import Histogram, Objective
from tests.core.minutes import baseline, off, on

REQUESTS = 10


def asked(sample: Sample, first: float) -> Sample:
    """With requests that waited so many seconds for their first tokens, each."""
    counted = replace(
        sample.tally,
        generation_tokens=(sample.tally.generation_tokens or 0) + REQUESTS,
        prompt_tokens=300 * REQUESTS,
        ttft=Histogram((), (REQUESTS,), REQUESTS * first),
        output_length=Histogram((), (REQUESTS,), 100.0 * REQUESTS),
    )
    return replace(sample, tally=counted)


@pytest.mark.parametrize(
    ("objective", "speedup"),
    [(Objective.TPOT, 1.25), (Objective.E2E, (50 + 20) / (40 + 60))],
)
def test_what_is_predicted_is_the_objective(objective: Objective, speedup: float) -> None:
    """Tokens come faster with speculation (50 s of them in 40), the first ones at 6 s, not 2."""
    known = baseline([asked(off(at), 2.0) for at in range(20)])
    past = [asked(on(at, tpot=0.04), 6.0) for at in range(60, 120)]
    present = [asked(off(at), 2.0) for at in range(120, 135)]
    found = predicted_speedup(past, present, known, objective)
    assert found is not None
    assert found.value == pytest.approx(speedup, rel=0.02)
    assert found.above(1.0) is (speedup > 1)
    assert found.below(1.0) is (speedup < 1)

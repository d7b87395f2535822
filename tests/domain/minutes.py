"""Minutes of one model with known truth: a pace, and how many tokens were drafted and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from specwatch.domain.baseline import Baseline, BaselineKey, Measurement, Origin, choose, measured
from specwatch.domain.model import MINUTE, Environment, Gauges, Histogram, Mode, Tally
from specwatch.domain.sample import Sample
from tests.segments import in_segments

K = 4
KEY = BaselineKey("chat", "tiny")


def gauges(load: float) -> Gauges:
    """A whole minute of so many running requests."""
    return Gauges(MINUTE, MINUTE, MINUTE * load, 0.0, running_max=round(load))


def timed(tpot: float, tokens: float) -> Tally:
    """So many tokens after the first of their requests, each so many seconds after the last."""
    between = Histogram((), (round(tokens),), tokens * tpot)
    return Tally(inter_token=between, generation_tokens=round(tokens))


def off(n: int, *, tpot: float = 0.05, tokens: int = 1000, load: float = 4.0) -> Sample:
    """Minute number ``at``, without speculation."""
    return Sample(n * MINUTE, MINUTE, Mode.OFF, timed(tpot, tokens), gauges(load))


def on(
    n: int,
    *,
    tpot: float = 0.05,
    drafts: int = 400,
    accepted: int = 600,
    plain_steps: int = 0,
    load: float = 4.0,
    buckets: Mapping[str, tuple[int, int]] | None = None,
) -> Sample:
    """Minute number ``at``, with speculation of K tokens a draft.

    ``plain_steps`` are decoding steps for which nothing was found to draft; ``buckets`` are drafts
    and accepted tokens by temperature.
    """
    whole = msgspec.structs.replace(
        timed(tpot, drafts + plain_steps + accepted),
        drafts=drafts,
        draft_tokens=K * drafts,
        accepted_tokens=accepted,
    )
    parts = {
        label: Tally(drafts=count, draft_tokens=K * count, accepted_tokens=kept)
        for label, (count, kept) in (buckets or {}).items()
    }
    return Sample(
        n * MINUTE, MINUTE, Mode.ON, whole, gauges(load), Environment(), in_segments(parts)
    )


def per_request(sample: Sample, requests: int = 20) -> Sample:
    """The same from a server that says no more than the TPOT of each finished request."""
    pace = sample.pace
    assert pace is not None
    tpot = Histogram((), (requests,), requests * pace.seconds / pace.tokens)
    return replace(sample, tally=msgspec.structs.replace(sample.tally, inter_token=None, tpot=tpot))


def measurements(samples: Sequence[Sample], origin: Origin = Origin.WINDOWS) -> list[Measurement]:
    """What samples without speculation measure."""
    return measured(KEY, origin, samples)


def baseline(samples: Sequence[Sample]) -> Baseline:
    """The baseline that samples without speculation are."""
    return choose(measurements(samples), Environment(), now=0.0)

"""``python -m tests.worlds.coverage``: how often intervals hold, and how often alarms are false.

Minutes with correlated noise go through the comparison and the verdict that the daemon uses. Their
speedup is given, so nothing is simulated but noise: in step times, in traffic and in acceptance.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator

from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.baseline import Baseline, BaselineKey, Origin, measured
from specwatch.domain.counterfactual import Memory
from specwatch.domain.model import ALL, MINUTE, Gauges, Histogram, Mode, Tally
from specwatch.domain.sample import Sample
from specwatch.rules.evidence import Evidence
from specwatch.rules.history import PACED
from specwatch.rules.verdicts import Verdict, judge

START = 1_795_003_200
PLAIN = 0.04
"""Seconds per token without speculation."""
SIGMA = 0.10
"""Of a minute's step times, as a share."""
HISTORY = PACED // MINUTE
RULE = next(rule for rule in DEFAULT_RULES if rule.name == "net-negative")


def noise(correlation: float, chance: random.Random) -> Iterator[float]:
    """Factors of step times, minute by minute, with mean 1."""
    state = chance.gauss(0, SIGMA)
    while True:
        yield math.exp(state - SIGMA**2 / 2)
        fresh = math.sqrt(1 - correlation**2) * SIGMA
        state = correlation * state + chance.gauss(0, fresh)


def sample(minute: int, pace: float, mode: Mode, chance: random.Random) -> Sample:
    """A minute of unlike traffic at so many seconds a token."""
    requests = max(1, round(chance.gauss(12, 3)))
    tokens = 120 * requests
    steps = tokens // 2
    on = mode is Mode.ON
    counted = Tally(
        drafts=steps if on else None,
        draft_tokens=4 * steps if on else None,
        accepted_tokens=tokens - steps if on else None,
        prompt_tokens=200 * requests,
        generation_tokens=tokens + requests,
        requests={"stop": requests},
        ttft=Histogram((), (requests,), 0.05 * requests),
        inter_token=Histogram((), (steps if on else tokens,), pace * tokens),
        output_length=Histogram((), (requests,), 120.0 * requests),
    )
    gauges = Gauges(sampled_seconds=60.0, busy_seconds=60.0, running_seconds=120.0)
    return Sample(START + minute * MINUTE, MINUTE, mode, counted, gauges)


def baseline(chance: random.Random) -> Baseline:
    """Exact: what is asked is whether the minutes' own noise is understood."""
    minutes = [sample(n - 500, PLAIN, Mode.OFF, chance) for n in range(120)]
    measurements = measured(BaselineKey("t", "m"), Origin.WINDOWS, minutes)
    return Baseline({measurement.load_bin: measurement for measurement in measurements})


def covered(correlation: float, window: int, runs: int) -> float:
    """Share of 95 % intervals over so many minutes that hold the truth."""
    hits = 0
    for seed in range(runs):
        chance = random.Random(f"{correlation}/{window}/{seed}")
        known, factors = baseline(chance), noise(correlation, chance)
        minutes = [sample(n, PLAIN / 1.3 * next(factors), Mode.ON, chance) for n in range(HISTORY)]
        interval = _evidence(minutes, known).compared(60.0 * window).interval()
        truth = (PLAIN * 120 + 0.05) / (PLAIN / 1.3 * 120 + 0.05)
        hits += interval is not None and interval.lower <= truth <= interval.upper
    return hits / runs


def false_alarms(correlation: float, speedup: float, hours: int) -> int:
    """How often ``net-negative`` is newly in breach within so many hours of a constant speedup."""
    chance = random.Random(f"{correlation}/{speedup}")
    known, factors = baseline(chance), noise(correlation, chance)
    minutes: list[Sample] = []
    memory: Memory = {}
    before, alarms = None, 0
    for n in range(60 * hours):
        minutes.append(sample(n, PLAIN / speedup * next(factors), Mode.ON, chance))
        del minutes[:-HISTORY]
        decisions = judge(
            RULE,
            _evidence(minutes, known, memory),
            target="t",
            model_name="m",
            segment=ALL,
            before=before,
            draft_cost_ratio=0.1,
        )
        was = before is not None and before.verdict is Verdict.BREACH
        alarms += decisions.verdict is Verdict.BREACH and not was
        before = decisions
    return alarms


def _evidence(minutes: list[Sample], known: Baseline, memory: Memory | None = None) -> Evidence:
    end = minutes[-1].start + MINUTE
    return Evidence(minutes, baseline=known, reference={}, now=float(end), memory=memory)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.coverage", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="intervals of each kind")
    parser.add_argument("--hours", type=int, default=300, help="of constant speedup, of each kind")
    asked = parser.parse_args()
    print(f"share of {asked.runs} intervals of 95 % that hold the truth, step times +-{SIGMA:.0%}")
    print("lag-1 correlation   10 minutes   30 minutes   60 minutes")
    for correlation in (0.0, 0.3, 0.6, 0.9):
        shares = [covered(correlation, window, asked.runs) for window in (10, 30, 60)]
        print(
            f"{correlation:17.1f}   " + "   ".join(f"{share:10.1%}" for share in shares), flush=True
        )
    print(f"\nfalse alarms of net-negative in {asked.hours} h")
    print("lag-1 correlation       S = 1.00      S = 1.02      S = 1.05")
    for correlation in (0.0, 0.3, 0.6):
        counts = [false_alarms(correlation, speedup, asked.hours) for speedup in (1.0, 1.02, 1.05)]
        print(
            f"{correlation:17.1f}   " + "   ".join(f"{count:11d}" for count in counts), flush=True
        )


if __name__ == "__main__":
    main()

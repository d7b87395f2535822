"""The result of a sweep over temperatures: acceptance, speedup, zones.

Acceptance depends on the temperature, the cost of a step on the batch. So each temperature has its
own tau, from its own requests, and all share the o(L) of the whole sweep.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specwatch.domain import breakeven
from specwatch.domain.baseline import Baseline
from specwatch.domain.experiments import Estimate, Line, ProbeTemperature, Zone
from specwatch.domain.interval import LEAST_SAMPLES, Interval
from specwatch.domain.model import load_bin_label
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.lab.loadtest.acceptance import (
    DraftCounts,
    acceptance_of,
    drawn,
    length_interval,
    linear,
)
from specwatch.lab.loadtest.calibration import Stage, failures_of
from specwatch.lab.loadtest.requests import Answer
from specwatch.lab.loadtest.result_parts import distribution_of, estimate_of
from specwatch.wording import figures

RECORDS_FLAG = "--per-request-spec-decode-metrics summary"
"""The option with which vLLM's answers carry a record."""

_OTHERS = "others used the server meanwhile, so that the load is not known"

Source = Literal["records", "counters"]


@dataclass(slots=True)
class Sweep:
    """What has been measured so far."""

    stage: Stage
    source: Source
    parts: dict[float, list[DraftCounts]]
    """Drafts by temperature."""
    answers: dict[float, list[Answer]]
    alone: bool | None = None
    complete: bool = False
    problems: list[str] = field(default_factory=list)
    """Why it is not complete, as words."""
    notes: list[str] = field(default_factory=list)


class StepCost(NamedTuple):
    """The cost of a step at the load of a sweep, relative to the baseline there.

    ``drafting`` is the share of steps that drafted, ``kept`` the share of their tokens that was
    used: the tokens of a step after the end of an answer are discarded.
    """

    load_bin: int
    step: Interval
    acceptance: Interval
    """The break-even acceptance."""
    drafting: float
    kept: float


def cost_of(sweep: Sweep, baseline: Baseline) -> StepCost | str:
    """The cost of a step, or why it is not known, as words."""
    if sweep.alone is False:
        return _OTHERS
    samples = sweep.stage.samples
    assessment = breakeven.assess(samples, baseline)
    if not assessment.bins:
        if baseline and (shortfall := shortfall_of(sweep)) is not None:
            return shortfall
        bins = {sample.load_bin for sample in samples if sample.load_bin is not None}
        if baseline and bins:
            measured, own = (
                ", ".join(map(load_bin_label, sorted(known))) for known in (baseline.bins, bins)
            )
            return f"the baseline is for load {measured}, and this was {own}"
        return assessment.missing or "no baseline"
    most = max(assessment.bins, key=lambda load: load.share)
    inside = [sample for sample in samples if sample.load_bin == most.load_bin]
    steps = math.fsum(sample.steps or 0.0 for sample in inside)
    drafts = sum(sample.tally.drafts or 0 for sample in inside)
    accepted = sum(sample.tally.accepted_tokens or 0 for sample in inside)
    return StepCost(
        most.load_bin,
        most.step_cost,
        most.acceptance,
        min(drafts / steps, 1.0),
        most.acceptance_length / (1 + accepted / steps),
    )


def shortfall_of(sweep: Sweep) -> str | None:
    """Why the cost of a step cannot be computed with any baseline, as words; None if it can."""
    if sweep.alone is False:
        return _OTHERS
    paced = sum(sample.pace is not None for sample in sweep.stage.samples)
    if paced >= LEAST_SAMPLES:
        return None
    return f"tokens came in {paced} slices, {LEAST_SAMPLES} are needed; give more --requests"


def line_of(cost: StepCost | str, draft_cost_ratio: float) -> Line:
    """The break-even line: measured, else from the assumed cost of a draft token."""
    if isinstance(cost, str):
        return Line(acceptance=Estimate(value=draft_cost_ratio), basis="assumed")
    acceptance = estimate_of(cost.acceptance)
    return Line(acceptance=acceptance, basis="measured", load=load_bin_label(cost.load_bin))


def temperatures_of(
    sweep: Sweep, cost: StepCost | str, draft_cost_ratio: float, *, seed: int = 0
) -> tuple[ProbeTemperature, ...]:
    """The results of each temperature, in ascending order."""
    line = draft_cost_ratio if isinstance(cost, str) else cost
    return tuple(
        _temperature(temperature, sweep, line, seed) for temperature in sorted(sweep.parts)
    )


def problems_of(sweep: Sweep) -> list[str]:
    """Why a sweep is not complete, as words."""
    problems = list(sweep.problems)
    for temperature, answers in sorted(sweep.answers.items()):
        if failures := failures_of(answers):
            problems.append(f"temperature {temperature:g}: {failures}")
    good = any(answer.ok for answers in sweep.answers.values() for answer in answers)
    if sweep.complete and good and not any(sweep.parts.values()):
        problems.append(
            f"the acceptance is not known: no response carried a record ({RECORDS_FLAG})"
        )
    return problems


def notes_of(sweep: Sweep) -> list[str]:
    """Notes on the figures, as words."""
    notes = []
    if sweep.source != "records":
        notes.append(
            "acceptance is from the server's counters, as its answers carry no record: from blocks"
            f" in which it counted no other requests ({RECORDS_FLAG}, from vLLM 0.29, is better)"
        )
    notes += sweep.notes
    most = max(sweep.answers.values(), key=len, default=())
    distinct = len({answer.ask.prompt for answer in most})
    if distinct != len(most):
        notes.append(
            f"{figures.counted(distinct, 'distinct prompt')}, each sent more than once: intervals"
            " are computed over prompts, not requests"
        )
    notes += _few(sweep)
    parts = [part for own in sweep.parts.values() for part in own]
    recorded, counted = sum(part.drafts or 0 for part in parts), sweep.stage.total.drafts
    if sweep.source == "records" and sweep.alone and counted not in (None, recorded):
        # A response of llama.cpp does not tell which of its steps had no draft.
        what = "steps" if sweep.stage.engine.engine is LLAMACPP else "drafts"
        notes.append(
            f"the records have {figures.number(recorded)} {what}, and the server counted"
            f" {figures.number(counted)} drafts"
        )
    if sweep.stage.cached is not None:
        notes.append(
            f"TTFT is that of prompts of which {sweep.stage.cached:.0%} came from the prefix cache:"
            " each is sent at every temperature"
        )
    return notes


def _few(sweep: Sweep) -> Iterator[str]:
    """Notes if drafts are missing, or too few for an interval."""
    units = {temperature: len(drawn(parts)) for temperature, parts in sorted(sweep.parts.items())}
    without = [f"{key:g}" for key, count in units.items() if sweep.parts[key] and not count]
    if without:
        yield f"nothing was drafted at temperature {', '.join(without)}"
    few = [f"{key:g}" for key, count in units.items() if 0 < count < LEAST_SAMPLES]
    if few:
        what = "prompts" if sweep.source == "records" else "blocks of prompts"
        yield (
            f"no interval at temperature {', '.join(few)}: fewer than {LEAST_SAMPLES} {what}; give"
            " more --requests, and more prompts (--prompts)"
        )


def _temperature(
    temperature: float, sweep: Sweep, cost: StepCost | float, seed: int
) -> ProbeTemperature:
    answers, parts = sweep.answers[temperature], sweep.parts[temperature]
    good = [answer for answer in answers if answer.ok]
    acceptance = acceptance_of(parts, seed=seed)
    speedup = None
    if isinstance(cost, StepCost):
        length = length_interval(parts, drafting=cost.drafting, seed=seed)
        speedup = None if length is None else linear(length, 0.0, cost.kept).over(cost.step)
    return ProbeTemperature(
        temperature=temperature,
        requests=len(good),
        errors=dict(Counter(str(answer.error) for answer in answers if not answer.ok)),
        tokens=sum(answer.tokens or 0 for answer in good),
        source=sweep.source if acceptance is not None else "none",
        acceptance=acceptance,
        ttft=distribution_of(answer.ttft for answer in good),
        tpot=distribution_of(answer.tpot for answer in good),
        speedup=None if speedup is None else estimate_of(speedup),
        zone=_zone(speedup, acceptance.rate if acceptance is not None else None, cost),
    )


def _zone(speedup: Interval | None, rate: Estimate | None, cost: StepCost | float) -> Zone:
    """``wins`` or ``loses`` only if the whole interval is on one side of the line."""
    if isinstance(cost, StepCost):
        if speedup is None:
            return "unknown"
        return "wins" if speedup.above(1.0) else "loses" if speedup.below(1.0) else "near"
    if rate is None or rate.lower is None or rate.upper is None:
        return "unknown"
    return "wins" if rate.lower > cost else "loses" if rate.upper < cost else "near"

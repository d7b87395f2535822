"""The report as plain values: ``--format json`` prints it, and all other formats are made from it.

Times are Unix seconds, durations and latencies seconds, rates and shares 0 to 1, speedups ratios.
None means not known. Its JSON schema is :func:`schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import ALL, Mode, Segment
from specwatch.report.estimates import (
    Amount,
    Bounds,
    Crossing,
    Quantiles,
    Ratio,
    ReportAcceptance,
    ReportBestK,
    ReportLatency,
    WhatIf,
)
from specwatch.report.experiment_model import Experiment, LiveExperiment

FORMAT = 1
"""Incremented when programs that read reports have to be changed."""

Outcome = Literal["pays", "not_worth_it", "even", "loses", "off", "no_traffic", "unknown"]
"""``pays``: the whole interval is above 1; ``not_worth_it``: the same, but below 1.3; ``even``: it
contains 1; ``loses``: it is below 1; ``off``: speculation did not run; ``unknown``: it ran, and its
speedup was not measured."""


class ReportAnswer(Struct, frozen=True, kw_only=True):
    """Did speculation pay. ``hours_saved`` are hours of the server, ``gpu_hours_saved`` those times
    its GPUs; negative if hours were lost. ``missing`` is why nothing was measured."""

    outcome: Outcome
    sentence: str
    recommendation: str
    speedup: Ratio | None = None
    objective: Literal["e2e", "tpot", "ttft"] | None = None
    """Of the overall speedup; those by segment, load and draft tokens are per token."""
    change: str = ""
    """The recommended change that gains most, in a few words; empty if none gains 5 %."""
    gain: float | None = None
    """What it gains: 0.24 means that the same work would be done 1.24 times as fast."""
    missing: str | None = None
    hours_saved: Amount | None = None
    gpu_hours_saved: Amount | None = None
    gpus: int | None = None
    winning_segments: tuple[Segment, ...] = ()
    losing_segments: tuple[Segment, ...] = ()
    winning_loads: tuple[str, ...] = ()
    losing_loads: tuple[str, ...] = ()


class ReportTraffic(Struct, frozen=True, kw_only=True):
    """How much there was. ``seconds`` are those that were watched, by mode; ``busy_on`` and
    ``busy_off`` those with a running request, with speculation and without."""

    requests: int
    prompt_tokens: int
    generation_tokens: int
    seconds: Mapping[Mode, float]
    busy_on: float
    busy_off: float
    requests_before: int | None = None
    generation_tokens_before: int | None = None


class ReportSegment(Struct, frozen=True, kw_only=True):
    """One segment. ``share`` is that of the requests of its dimension (of all requests 1); only
    temperatures have latencies of single requests, others the mean ``tpot``, over tokens."""

    segment: Segment
    requests: int
    share: float | None
    acceptance: ReportAcceptance
    acceptance_before: float | None
    ttft: ReportLatency
    tpot: ReportLatency
    speedup: Ratio | None = None


class ReportLoad(Struct, frozen=True, kw_only=True):
    """One load bin, with speculation. ``share`` is that of the generated tokens; ``running`` the
    mean of running requests while any ran."""

    load: str
    share: float
    busy: float
    running: float
    acceptance_rate: float | None
    speedup: Ratio | None = None
    step_cost: Ratio | None = None
    break_even_acceptance: Ratio | None = None
    tpot_on: Quantiles | None = None
    tpot_off: Quantiles | None = None


class WorstHour(Struct, frozen=True, kw_only=True):
    """The hour with the most requests beyond the objective."""

    start: int
    requests: float
    bad: float


class ReportObjective(Struct, frozen=True, kw_only=True):
    """A service-level objective. ``spent`` is the share of its budget that the period used up,
    ``budget_left`` the share left at the end, over its ``window``. ``bad`` requests were certainly
    too slow; of ``unknown`` ones that is not known."""

    name: str
    metric: str
    threshold: float
    objective: float
    window: float
    requests: float
    bad: float
    unknown: float = 0.0
    spent: float | None
    budget_left: float | None
    worst_hour: WorstHour | None = None


class ReportGoodput(Struct, frozen=True, kw_only=True):
    """Requests that met all objectives, in all modes, or with speculation or without it.

    ``offered`` are all requests a second of the ``watched`` seconds, outages included; ``met``
    those a second that met all objectives, ``share`` their share; None if no request was
    measured against an objective. Modes are not compared at equal load.
    """

    mode: Literal["all", "on", "off"]
    requests: float
    watched: float
    offered: float | None
    met: Bounds | None
    share: Bounds | None


class ReportStep(Struct, frozen=True, kw_only=True):
    """A step of the guard."""

    at: float
    phase: str
    reason: str


class ReportIncident(Struct, frozen=True, kw_only=True):
    """An incident of the guard; ``ended`` is None while it lasts.

    ``ordered_by`` is the operator who ordered it, None if the guard acted by itself.
    ``would_have_acted`` is whether only ``guard.mode`` kept the guard from acting.
    """

    id: str
    began: float
    ended: float | None
    cause: str
    outcome: str
    steps: tuple[ReportStep, ...]
    seconds_off: float = 0.0
    ordered_by: str | None = None
    would_have_acted: bool = False


class ReportBreach(Struct, frozen=True, kw_only=True):
    """How often and how long a rule was in breach."""

    rule: str
    segment: Segment
    severity: str
    count: int
    seconds: float
    last: float


class Gap(Struct, frozen=True, kw_only=True):
    """A time in which specwatch did not watch, or speculation did not run."""

    start: float
    end: float


class Health(Struct, frozen=True, kw_only=True):
    """Whether the figures are reliable. Of the ``expected`` seconds the server was watched for
    ``observed`` and did not answer for ``down``; the others were not watched. ``coverage`` is the
    share of the server's drafts whose temperature is known; ``gaps`` are the longest of
    ``gap_count``."""

    expected: float
    observed: float
    down: float = 0.0
    scrapes_ok: int
    scrapes_failed: int
    restarts: int
    coverage: float | None
    source: str | None
    uncovered: dict[str, int] = {}
    gap_count: int = 0
    gaps: tuple[Gap, ...] = ()
    warnings: tuple[str, ...] = ()


class ReportSide(Struct, frozen=True, kw_only=True):
    """Some hours before or after a change; ``beyond`` and ``buckets`` as in :class:`Quantiles`."""

    hours: float
    acceptance_rate: float | None
    mean_length: float | None
    tpot_mean: float | None = None
    tpot_p50: float | None
    tpot_p99: float | None
    speedup: Ratio | None = None
    beyond: tuple[str, ...] = ()
    buckets: dict[str, Bounds] = {}


class ReportChange(Struct, frozen=True, kw_only=True):
    """A change of the server's version, configuration or draft length: ``what`` says which."""

    at: float
    what: str
    before: ReportSide
    after: ReportSide


class AcceptancePoint(Struct, frozen=True, kw_only=True):
    """The drafts of one point of time, of one temperature bucket."""

    start: int
    drafts: int
    rate: float | None


class LatencyPoint(Struct, frozen=True, kw_only=True):
    """Latencies in one mode; ``beyond`` names those beyond the last bound, which have its value."""

    start: int
    mode: str
    requests: int
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    beyond: tuple[str, ...] = ()


class SpeedupPoint(Struct, frozen=True, kw_only=True):
    """The measured speedup of one point of time, without an interval."""

    start: int
    value: float


class LoadPoint(Struct, frozen=True, kw_only=True):
    """The mean number of running requests of one point of time."""

    start: int
    running: float


class ReportSeries(Struct, frozen=True, kw_only=True):
    """Points of the charts, of ``step`` seconds with traffic; acceptance by temperature bucket.

    Those of ``speedup`` are of ``speedup_step`` seconds. ``off`` is when speculation did not run.
    """

    step: int
    acceptance: dict[str, tuple[AcceptancePoint, ...]] = {}
    latency: tuple[LatencyPoint, ...] = ()
    load: tuple[LoadPoint, ...] = ()
    speedup: tuple[SpeedupPoint, ...] = ()
    speedup_step: int = 0
    off: tuple[Gap, ...] = ()


class ModelReport(Struct, frozen=True, kw_only=True):
    """One model of one target; ``engine_version`` is the newest with speculation.

    ``standby_cost`` is the time per token in standby (0 draft tokens) over that without
    speculation; if it was in standby and this is not known, ``standby_cost_missing`` says why.

    ``all`` comes first in segments and goodput, the newest in experiments. The guard switched
    it off by itself for ``seconds_off_by_guard``, else by order for ``seconds_off_by_order``.
    """

    target: str
    model_name: str
    engine_version: str | None = None
    answer: ReportAnswer
    traffic: ReportTraffic
    standby_cost: Ratio | None = None
    standby_cost_missing: str | None = None
    segments: tuple[ReportSegment, ...]
    loads: tuple[ReportLoad, ...] = ()
    crossing: Crossing | None = None
    best_k: ReportBestK | None = None
    best_k_unknown: Literal["no_positions", "varying_length"] | None = None
    """Why there is a measured speedup and no ``best_k``."""
    draft_lengths: DraftLengths | None = None
    """Why drafts vary in length, so that acceptance does not tell whether they pay."""
    what_if: WhatIf | None = None
    objectives: tuple[ReportObjective, ...] = ()
    goodput: tuple[ReportGoodput, ...] = ()
    incidents: tuple[ReportIncident, ...] = ()
    breaches: tuple[ReportBreach, ...] = ()
    seconds_off_by_guard: float = 0.0
    seconds_off_by_order: float = 0.0
    stopped_since: float | None = None
    """When the engine itself switched it off, as at the end of the period, in Unix seconds."""
    health: Health
    changes: tuple[ReportChange, ...] = ()
    series: ReportSeries
    experiments: tuple[Experiment, ...] = ()
    more_experiments: int = 0
    live_experiment: LiveExperiment | None = None
    """That of the target, over all its models."""

    def of(self, dimension: str) -> list[ReportSegment]:
        """All requests, then the segments of a dimension."""
        return [one for one in self.segments if one.segment.dimension in (ALL.dimension, dimension)]


class ReportFleet(Struct, frozen=True, kw_only=True):
    """All models together: a whole interval above 1 is ``gaining``, one below it is ``losing``.

    Hours are of servers, or of GPUs if the GPUs of all measured models are known. ``hours_saved``
    are those of all measured models, ``hours_gained`` and ``hours_lost`` those of the gaining and
    the losing ones; none is below zero but ``hours_saved``.
    """

    sentence: str
    models: int
    gaining: int
    losing: int
    unit: Literal["GPU hours", "server hours"]
    hours_saved: float
    hours_gained: float
    hours_lost: float


class Report(Struct, frozen=True, kw_only=True):
    """All of it. ``since`` and ``until`` are what was asked for, in whole minutes or hours; the
    period before is as long and ends at ``since``."""

    format: int = FORMAT
    version: str
    generated: float
    since: float
    until: float
    targets: tuple[ModelReport, ...]
    fleet: ReportFleet | None = None
    notes: tuple[str, ...] = ()
    """Shown first: no history yet, or a target without data."""


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of :class:`Report`; its definitions do without the prefix."""
    definitions = msgspec.json.encode(msgspec.json.schema(Report)).decode()
    known: dict[str, Any] = json.loads(re.sub(r'(?<=["/])Report(?=[A-Z])', "", definitions))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specwatch report",
        **known,
    }

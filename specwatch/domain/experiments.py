"""Results of experiments as plain values, as printed by ``--json``, saved in files and stored.

Times are Unix seconds, durations and latencies seconds, rates and shares 0 to 1, speedups ratios,
throughput output tokens per second. None is what is not known.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from specwatch.errors import ConfigError

FORMAT = 1
"""Incremented for each incompatible change of the format."""

Basis = Literal["measured", "assumed"]
Zone = Literal["loses", "near", "wins", "unknown"]
"""An acceptance rate against the break-even line: ``near`` if its interval contains the line."""
Verdict = Literal["ship", "not_worth_it", "do_not", "unknown"]
"""``ship``: faster by 1.3 and more; ``not_worth_it``: below that; ``do_not``: slower."""
LEAST_SPEEDUP = 1.3
"""Below it speculation is reported as not worth deploying: a rule of thumb."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A value and its 95 % interval, where there is one."""

    value: float
    lower: float | None = None
    upper: float | None = None


class Line(Struct, frozen=True, kw_only=True):
    """The break-even acceptance rate at one load."""

    acceptance: Estimate
    basis: Basis
    load: str | None = None
    """The load bin that it was measured at."""


class Subject(Struct, frozen=True, kw_only=True):
    """The measured server. ``k`` is the number of draft tokens, if the page has it."""

    target: str
    url: str
    model_name: str
    engine_version: str | None = None
    configuration: str | None = None
    """The fingerprint."""
    mode: Literal["on", "off"]
    k: int | None = None


class Workload(Struct, frozen=True, kw_only=True):
    """The requests sent; runs with the same workload are comparable. ``digest``: of all prompts."""

    endpoint: str
    source: str
    """Where the prompts come from: ``built-in``, or the name of a file or data set."""
    prompts: int
    digest: str
    max_tokens: int
    temperatures: tuple[float | None, ...]
    seed: int


class Distribution(Struct, frozen=True, kw_only=True):
    """Exact quantiles of what clients saw. ``p95`` is None of fewer than 20, ``p99`` of fewer than
    100: it would be no more than the largest."""

    count: int
    mean: float
    p50: float
    p95: float | None = None
    p99: float | None = None


class Acceptance(Struct, frozen=True, kw_only=True):
    """Drafts and accepted tokens. ``histogram`` has the drafts that had 0, 1, .. k tokens
    accepted, ``per_position`` the share of drafts that had each position accepted. Old engines
    count tokens but not drafts."""

    drafts: int | None
    draft_tokens: int
    accepted_tokens: int
    rate: Estimate | None = None
    mean_length: float | None = None
    histogram: tuple[int, ...] | None = None
    per_position: tuple[float, ...] | None = None


class ProbeTemperature(Struct, frozen=True, kw_only=True):
    """One temperature of a sweep."""

    temperature: float
    requests: int
    """Answered."""
    errors: dict[str, int]
    tokens: int
    source: Literal["records", "counters", "none"]
    """Whether acceptance comes from per-request records or from the server's counters."""
    acceptance: Acceptance | None
    ttft: Distribution | None
    tpot: Distribution | None
    speedup: Estimate | None
    """Against the baseline at this load, where there is one."""
    zone: Zone


class Probe(Struct, frozen=True, kw_only=True, tag_field="kind", tag="probe"):
    """A sweep over temperatures. ``alone``: no other traffic; None if unknown."""

    format: int = FORMAT
    version: str
    began: float
    ended: float
    complete: bool
    subject: Subject
    workload: Workload
    concurrency: int
    temperatures: tuple[ProbeTemperature, ...]
    line: Line
    alone: bool | None
    notes: tuple[str, ...] = ()


class Batch(Struct, frozen=True, kw_only=True, array_like=True):
    """Sums over some consecutive requests: the unit that bootstraps draw."""

    requests: int
    tokens: int
    request_seconds: float
    """From sending (in an open loop: from when it was due) to the last byte."""
    decode_tokens: int
    """After the first of each request."""
    decode_seconds: float
    first_seconds: float
    """To the first content."""


class Level(Struct, frozen=True, kw_only=True):
    """One load on one server, without the warm-up.

    Closed loop: ``concurrency`` clients that ask again as soon as they are answered. Open loop:
    ``rate`` requests a second come independently of each other, and latencies count from when a
    request was due.
    """

    concurrency: int | None
    rate: float | None
    seconds: float
    requests: int
    """That were sent (in an open loop: due) in this time, and ended well."""
    errors: dict[str, int]
    prompt_tokens: int
    tokens: int
    throughput: float
    per_user: Distribution | None
    """Tokens per second that each request got after its first: 1 / TPOT."""
    ttft: Distribution | None
    tpot: Distribution | None
    latency: Distribution | None
    """Of whole requests."""
    running: float | None
    """Mean number of requests in flight, ours."""
    lateness: Distribution | None = None
    """Open loop: how much later than due requests were sent; it is part of the latencies."""
    acceptance: Acceptance | None = None
    alone: bool | None = None
    complete: bool = True
    """Whether the measurement was completed; otherwise it is neither compared nor a baseline."""
    batches: tuple[Batch, ...] = ()
    notes: tuple[str, ...] = ()


class Bench(Struct, frozen=True, kw_only=True, tag_field="kind", tag="bench"):
    """A sweep over loads of one server."""

    format: int = FORMAT
    version: str
    began: float
    ended: float
    complete: bool
    subject: Subject
    workload: Workload
    levels: tuple[Level, ...]
    interleaved: bool = False
    """Whether it alternated with a run on another server: the batches of two benches with the same
    ``began`` are pairs."""
    notes: tuple[str, ...] = ()


class ComparedLevel(Struct, frozen=True, kw_only=True):
    """The same load on both. ``speedup`` is that of whole requests: request seconds per token off,
    divided by those on; ``decode`` the same of the time after the first token (S of the report)."""

    concurrency: int | None
    rate: float | None
    speedup: Estimate | None
    decode: Estimate | None
    ttft: Estimate | None
    """Mean TTFT on, divided by that off: above 1 is slower."""
    throughput_off: float
    throughput_on: float
    per_user_off: float | None
    """Median."""
    per_user_on: float | None
    tpot_p99_off: float | None
    tpot_p99_on: float | None
    acceptance_rate: float | None
    verdict: Verdict
    missing: str | None = None
    """Why there is no speedup, or no interval of it."""


class Comparison(Struct, frozen=True, kw_only=True, tag_field="kind", tag="comparison"):
    """Speculation on against off. ``crossing`` is the load at which the speedup falls to 1 for
    good, ``rising`` the one at which it rises to 1."""

    format: int = FORMAT
    version: str
    began: float
    ended: float
    complete: bool
    off: Subject
    on: Subject
    workload: Workload
    interleaved: bool
    levels: tuple[ComparedLevel, ...]
    speedup: Estimate | None
    """Over all levels, each counted alike (geometric mean)."""
    crossing: float | None
    rising: float | None = None
    verdict: Verdict
    sentence: str
    notes: tuple[str, ...] = ()
    benches: tuple[Bench, ...] = ()
    """Both that it is of, without speculation first, so that they can be compared again. None in
    the store, which has them beside it, and so none of what is read from there; nor in files of
    before there were."""


Experiment = Probe | Bench | Comparison


class Calibration(Struct, frozen=True, kw_only=True, tag_field="kind", tag="calibration"):
    """When a calibration loaded its servers; its result is stored as a baseline."""

    format: int = FORMAT
    version: str
    began: float
    ended: float
    subject: Subject


def read(data: str | bytes, where: str) -> Experiment:
    """A result from JSON. Raises ConfigError, naming ``where``, for anything else."""
    try:
        experiment: Experiment = msgspec.json.decode(data, type=Experiment)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where}: no result of specwatch probe or bench ({error}); give a file written with"
            " --json or -o"
        ) from None
    if experiment.format != FORMAT:
        raise ConfigError(
            f"{where}: format {experiment.format}, and this specwatch reads {FORMAT};"
            " measure again, or install the specwatch that wrote it"
        )
    return experiment


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of :data:`Experiment`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specwatch probe and bench",
        **msgspec.json.schema(Experiment),
    }

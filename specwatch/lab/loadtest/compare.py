"""Comparing two benches of the same workload, without and with speculation.

The speedup of a level is the time of requests per token without speculation over that with it, each
summed over all requests: in a closed loop the ratio of throughputs (J. D. C. Little, *A Proof for
the Queuing Formula L = lambda W*, 1961). Its interval resamples batches of requests.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from specwatch.domain.experiments import (
    Batch,
    Bench,
    ComparedLevel,
    Comparison,
    Estimate,
    Level,
)
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.bench import Load
from specwatch.lab.loadtest.calibration import MOST_ERRORS
from specwatch.lab.loadtest.resampling import Pair, paired_interval, quotient_interval
from specwatch.lab.loadtest.result_parts import estimate_of
from specwatch.wording import experiment_verdicts

Rate = Callable[[Batch], tuple[float, float]]
"""Numerator and denominator of a rate, from a batch."""
_SAME = ("endpoint", "prompts", "digest", "max_tokens", "temperatures", "seed")
"""Fields that are equal in equal workloads; the name of the file may differ."""


def compare(first: Bench, second: Bench, *, version: str, force: bool = False) -> Comparison:
    """Compare a bench without speculation and one with it, in either order; both are in the result,
    so that it can be repeated.

    Raises ConfigError if both or neither had speculation, for different models or workloads unless
    ``force``, and if no load was measured on both.
    """
    off, on = _modes(first, second)
    notes = _differences(off, on, force=force)
    paired = off.interleaved and on.interleaved and off.began == on.began
    levels_off, levels_on = (
        {Load.of(level): level for level in bench.levels if level.complete} for bench in (off, on)
    )
    compared = [
        _level(level, levels_on[load], paired=paired)
        for load, level in levels_off.items()
        if load in levels_on
    ]
    if not compared:
        measured = (", ".join(map(str, levels)) or "nothing" for levels in (levels_off, levels_on))
        raise ConfigError(
            f"no load was measured on both: {next(measured)} without speculation and"
            f" {next(measured)} with it; measure the same --concurrency or --rate"
        )
    partial = dict.fromkeys(
        Load.of(level) for bench in (off, on) for level in bench.levels if not level.complete
    )
    notes += [f"{load} was broken off, and is not compared" for load in partial]
    notes += [
        f"{load} was measured on one server only"
        for load in {**levels_off, **levels_on}
        if (load in levels_off) != (load in levels_on) and load not in partial
    ]
    for what, levels in (("without", levels_off), ("with", levels_on)):
        for load, level in levels.items():
            shared = ["others used the server meanwhile"] if level.alone is False else []
            notes += [f"{load} {what} speculation: {note}" for note in (*level.notes, *shared)]
    judged = experiment_verdicts.judge(compared)
    falls = experiment_verdicts.falling_crossing(compared)
    rises = experiment_verdicts.rising_crossing(compared)
    return replace(
        uncompared(off, on, version=version),
        complete=off.complete and on.complete,
        interleaved=paired,
        levels=tuple(compared),
        speedup=experiment_verdicts.overall(compared),
        crossing=falls,
        rising=rises,
        verdict=judged.verdict,
        sentence=experiment_verdicts.sentence(judged, compared, falls, rises),
        notes=tuple(dict.fromkeys((*notes, *off.notes, *on.notes))),
    )


def uncompared(first: Bench, second: Bench, *, version: str) -> Comparison:
    """A result with two benches that cannot be compared, such as those without a common load."""
    off, on = sorted((first, second), key=lambda bench: bench.subject.mode == "on")
    return Comparison(
        version=version,
        began=min(off.began, on.began),
        ended=max(off.ended, on.ended),
        complete=False,
        off=off.subject,
        on=on.subject,
        workload=on.workload,
        interleaved=off.interleaved and on.interleaved,
        levels=(),
        speedup=None,
        crossing=None,
        verdict="unknown",
        sentence="Not compared: no load was measured on both to its end.",
        notes=tuple(dict.fromkeys((*off.notes, *on.notes))),
        benches=(off, on),
    )


def _modes(first: Bench, second: Bench) -> tuple[Bench, Bench]:
    modes = {first.subject.mode: first, second.subject.mode: second}
    if len(modes) == 2:
        return modes["off"], modes["on"]
    own, other = ("with", "without") if "on" in modes else ("without", "with")
    raise ConfigError(
        f"both were measured {own} speculation ({first.subject.url}, {second.subject.url});"
        f" compare one of them with a bench of the same server {other} it"
    )


def _differences(off: Bench, on: Bench, *, force: bool) -> list[str]:
    """Doubts about a comparison, as words. Raises ConfigError for what makes it impossible."""
    different = [
        f"{name.replace('_', ' ')} {_shown(one)} without speculation, {_shown(other)} with it"
        for name in _SAME
        if (one := getattr(off.workload, name)) != (other := getattr(on.workload, name))
    ]
    if off.subject.model_name != on.subject.model_name:
        different.append(
            f"model {off.subject.model_name} without speculation, {on.subject.model_name} with it"
        )
    if different and not force:
        raise ConfigError(
            f"the two did not have the same workload: {'; '.join(different)}; measure both with the"
            " same options, or give --force"
        )
    notes = [f"different workload: {difference}" for difference in different]
    for what, one, other in (
        ("engine version", off.subject.engine_version, on.subject.engine_version),
        ("configuration", off.subject.configuration, on.subject.configuration),
    ):
        if one is not None and other is not None and one != other:
            notes.append(
                f"the servers differ in their {what} ({one} without speculation, {other} with it):"
                " the speedup is not due to speculation alone"
            )
    return notes


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("default" if number is None else f"{number:g}" for number in value)
    return str(value)


def _level(off: Level, on: Level, *, paired: bool) -> ComparedLevel:
    pairs = min(len(off.batches), len(on.batches)) if paired else None
    missing = _missing(off, on, pairs)
    speedup = decode = ttft = None
    acceptance = None if on.acceptance is None else on.acceptance.rate
    if missing is None or not _failed(off, on):
        speedup = _ratio(off, on, lambda b: (b.request_seconds, b.tokens), pairs)
        decode = _ratio(off, on, lambda b: (b.decode_seconds, b.decode_tokens), pairs)
        ttft = _ratio(on, off, lambda b: (b.first_seconds, b.requests), pairs)
    return ComparedLevel(
        concurrency=off.concurrency,
        rate=off.rate,
        speedup=speedup,
        decode=decode,
        ttft=ttft,
        throughput_off=off.throughput,
        throughput_on=on.throughput,
        per_user_off=None if off.per_user is None else off.per_user.p50,
        per_user_on=None if on.per_user is None else on.per_user.p50,
        tpot_p99_off=None if off.tpot is None else off.tpot.p99,
        tpot_p99_on=None if on.tpot is None else on.tpot.p99,
        acceptance_rate=None if acceptance is None else acceptance.value,
        verdict="do_not"
        if _failed(on) and not _failed(off)
        else experiment_verdicts.verdict_of(speedup),
        missing=missing,
    )


def _failed(*levels: Level) -> str | None:
    for level in levels:
        failed = sum(level.errors.values())
        if failed > MOST_ERRORS * (failed + level.requests):
            return f"{failed} of {failed + level.requests} requests failed"
    return None


def _missing(off: Level, on: Level, pairs: int | None) -> str | None:
    """Why there is no interval, as words."""
    if (failed := _failed(off)) is not None:
        return failed
    if (failed := _failed(on)) is not None:
        return f"{failed} with speculation"
    fewest = min(sum(batch.tokens > 0 for batch in level.batches[:pairs]) for level in (off, on))
    if fewest < LEAST_SAMPLES:
        requests = min(off.requests, on.requests)
        return (
            f"too few requests: {requests} ended, in {fewest} rounds, and {LEAST_SAMPLES} rounds"
            " are needed; give a longer --duration, or a smaller --max-tokens"
        )
    return None


def _ratio(over: Level, under: Level, rate: Rate, pairs: int | None) -> Estimate | None:
    """The rate of one level divided by that of another; no interval if there is too little data."""
    tops = [Pair(*rate(batch)) for batch in over.batches[:pairs]]
    bottoms = [Pair(*rate(batch)) for batch in under.batches[:pairs]]
    if pairs is not None:
        interval = paired_interval(tops, bottoms)
    else:
        tops = [top for top in tops if min(top) > 0]
        bottoms = [bottom for bottom in bottoms if min(bottom) > 0]
        interval = quotient_interval(tops, bottoms)
    if interval is not None:
        return estimate_of(interval)
    a, b = (sum(top[index] for top in tops) for index in (0, 1))
    c, d = (sum(bottom[index] for bottom in bottoms) for index in (0, 1))
    return Estimate(value=a * d / (b * c)) if min(a, b, c, d) > 0 else None

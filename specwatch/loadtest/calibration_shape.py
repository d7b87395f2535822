"""What a calibration sends: lengths and loads of traffic, as far as a model has room for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from specwatch.domain.model import Gauges, Tally
from specwatch.domain.sample import Sample, requests_of
from specwatch.loadtest.prompts import LEAST_TOKENS

LENGTHS = (0.5, 1.0, 2.0)
"""Times the mean length of prompts that are sent: the cost of a prompt token can be told from that
of a request only where prompts of several lengths were measured."""
TRAFFIC_DAYS = 7
"""Days of stored traffic whose shape is sent."""
LOADS = (1, 2, 4, 8, 16)
"""Requests at a time, where nothing says how many there are."""
LEAST_REQUESTS = 20
"""Requests that traffic needs to have a shape: a few are somebody's trial."""
_HIGHEST = 1.5
"""Times the load at P99 that is measured up to: without speculation as many requests take longer,
so that there are more of them."""
_P99 = 0.99
_SLACK = 0.03
"""Share of a prompt's length, and tokens, by which it may turn out longer than it was made."""
_LEAST_SLACK = 16


class Shape(NamedTuple):
    """What production traffic is like: mean lengths in tokens, and the loads to measure at."""

    prompt_tokens: int
    output_tokens: int
    loads: tuple[int, ...]


def shape_of(samples: Iterable[Sample]) -> Shape | None:
    """The shape of the traffic of some minutes or hours; None where hardly a request came, or the
    server does not tell how long prompts were."""
    parts = [
        (asked, sample.gauges.busy_seconds)
        for sample in samples
        if (asked := sample.requests) is not None and asked.prompt is not None
    ]
    firsts = sum(asked.firsts for asked, _ in parts)
    if firsts < LEAST_REQUESTS:
        return None
    prompt = sum((asked.prompt or 0.0) * asked.firsts for asked, _ in parts) / firsts
    output = sum((asked.output or 0.0) * asked.firsts for asked, _ in parts) / firsts
    highest = _HIGHEST * _at_p99([(asked.population, busy) for asked, busy in parts])
    loads = [1]
    while loads[-1] < highest:
        loads.append(2 * loads[-1])
    return Shape(max(1, round(prompt)), max(LEAST_TOKENS, round(output)), tuple(loads))


def shape_of_page(counted: Tally) -> Shape | None:
    """The shape of all that a server has counted since it started, at the usual loads: a page does
    not tell how many requests there were at a time. None as in :func:`shape_of`."""
    asked = requests_of(counted, Gauges(busy_seconds=1.0))
    if asked is None or asked.firsts < LEAST_REQUESTS or asked.prompt is None:
        return None
    return Shape(max(1, round(asked.prompt)), max(LEAST_TOKENS, round(asked.output or 0.0)), LOADS)


def _at_p99(populations: Iterable[tuple[float, float]]) -> float:
    """The load that is exceeded for one percent of the time, of loads and how long they were."""
    ordered = sorted(populations)
    left = _P99 * sum(seconds for _, seconds in ordered)
    for population, seconds in ordered:
        left -= seconds
        if left < 0:
            return population
    return ordered[-1][0]


class Fitted(NamedTuple):
    """Lengths in tokens that a model has room for; ``prompts`` ascend, each once."""

    prompts: tuple[int, ...]
    output: int
    notes: tuple[str, ...]


def fitted(prompt: int | None, output: int, longest: int | None) -> Fitted:
    """Prompts of :data:`LENGTHS` times a mean length, none without one, and an output length; cut
    to what a model has room for, None where that is not known."""
    wanted = sorted({max(1, round(factor * prompt)) for factor in LENGTHS} if prompt else ())
    if longest is None:
        return Fitted(tuple(wanted), output, ())
    notes = []
    answer = min(output, max(longest // 2, 1))
    if answer < output:
        notes.append(
            f"outputs of {output} tokens are cut to {answer}: the model has room for {longest}"
            " tokens, prompt and output together"
        )
    room = longest - answer
    room = max(1, room - max(_LEAST_SLACK, round(_SLACK * room)))
    cut = [length for length in wanted if length > room]
    if cut:
        named = " and ".join(str(length) for length in cut)
        notes.append(
            f"prompts of {named} tokens are cut to {room}: the model has room for {longest}"
            " tokens, prompt and output together"
        )
    return Fitted(tuple(sorted({min(length, room) for length in wanted})), answer, tuple(notes))

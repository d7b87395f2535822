"""Lengths and loads of a calibration: those of traffic, within the model's context length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from specwatch.domain.model import Gauges, Tally
from specwatch.domain.sample import Sample, requests_of
from specwatch.lab.loadtest.prompts import LEAST_TOKENS

LENGTHS = (0.5, 1.0, 2.0)
"""Lengths of prompts, as multiples of their mean: with several lengths the cost of a prompt token
can be separated from that of a request."""
TRAFFIC_DAYS = 7
"""Days of stored traffic that the shape is taken from."""
LOADS = (1, 2, 4, 8, 16)
"""Requests at a time, if the traffic is not known."""
LEAST_REQUESTS = 20
"""Requests that traffic needs to have a shape: fewer may be a trial."""
_HIGHEST = 1.5
"""The highest load to measure, as a multiple of the load at P99: without speculation requests take
longer, so more of them run at once."""
_P99 = 0.99
_SLACK = 0.03
"""Share of a prompt's length by which it may be longer; at least ``_LEAST_SLACK`` tokens."""
_LEAST_SLACK = 16


class Shape(NamedTuple):
    """Mean lengths in tokens, and the loads to measure at; ``prompt_tokens`` is None for prompts
    that are sent unchanged."""

    prompt_tokens: int | None
    output_tokens: int
    loads: tuple[int, ...]


def shape_of(samples: Iterable[Sample]) -> Shape | None:
    """The shape of the traffic of some minutes or hours; None if there were too few requests, or
    prompt lengths are not known."""
    parts = [
        (requests, sample.gauges.busy_seconds)
        for sample in samples
        if (requests := sample.requests) is not None and requests.prompt is not None
    ]
    firsts = sum(requests.firsts for requests, _ in parts)
    if firsts < LEAST_REQUESTS:
        return None
    prompt = sum((requests.prompt or 0.0) * requests.firsts for requests, _ in parts) / firsts
    output = sum((requests.output or 0.0) * requests.firsts for requests, _ in parts) / firsts
    highest = _HIGHEST * _at_p99([(requests.population, busy) for requests, busy in parts])
    loads = [1]
    while loads[-1] < highest:
        loads.append(2 * loads[-1])
    return Shape(max(1, round(prompt)), max(LEAST_TOKENS, round(output)), tuple(loads))


def shape_of_page(counted: Tally) -> Shape | None:
    """The shape of what a server has counted since it started, with the default loads, as a page
    has no history of concurrency. None as in :func:`shape_of`."""
    requests = requests_of(counted, Gauges(busy_seconds=1.0))
    if requests is None or requests.firsts < LEAST_REQUESTS or requests.prompt is None:
        return None
    return Shape(
        max(1, round(requests.prompt)), max(LEAST_TOKENS, round(requests.output or 0.0)), LOADS
    )


def _at_p99(populations: Iterable[tuple[float, float]]) -> float:
    """The load that is exceeded for one percent of the time; given are loads and their seconds."""
    ordered = sorted(populations)
    left = _P99 * sum(seconds for _, seconds in ordered)
    for population, seconds in ordered:
        left -= seconds
        if left < 0:
            return population
    return ordered[-1][0]


class Fitted(NamedTuple):
    """Lengths in tokens that fit in the context length; ``prompts`` are ascending and distinct."""

    prompts: tuple[int, ...]
    output: int
    notes: tuple[str, ...]


def fitted(prompt: int | None, output: int, longest: int | None) -> Fitted:
    """Prompts of :data:`LENGTHS` times a mean length, none if it is None, and an output length; cut
    to the context length ``longest``, if it is known."""
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

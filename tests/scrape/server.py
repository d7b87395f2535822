"""A server whose requests are all known, and what of them a daemon read."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

from tests import pages

REASONS = ("stop", "length", "abort")
MODELS = ("a", 'b"\\')
TEMPERATURES = ("0", "(0,0.3]", ">1", "unknown")

Place = tuple[str, str]
"""A model and an engine of it."""
Request = dict[str, Any]
"""As :func:`tests.pages.tap` reads it, and what only the engine counts: ``place``, ``made``
(accepted tokens of each step), ``reason`` (None: it has not ended) and ``first`` (its TTFT)."""


def request(
    place: Place,
    temperature: int,
    steps: list[int],
    kind: str,
    reason: str | None,
    first: float,
    k: int,
) -> Request:
    """A request of ``steps``; the tap has a record of it, or ``kind`` says why not."""
    made = [min(accepted, k) for accepted in steps]
    counts = {
        "place": place,
        "made": made,
        "k": k,
        "reason": reason,
        "first": first,
        "model_name": place[0],
        "temperature": TEMPERATURES[temperature],
    }
    if kind != "record":
        return {**counts, "uncovered": kind}
    times = {"ttft": 0.25, "tpot": 0.5 * len(made), "tokens": sum(made) + len(made)}
    acceptance = {"accepted": made, "method": "record"} if k else {}
    return {**counts, **times, **acceptance, "finish_reason": reason or "stop"}


@dataclass
class Process:
    """One life of an engine or of a proxy; ``started`` is None in multi-process mode."""

    started: float | None
    places: list[Place]
    k: int = 0
    bounds: tuple[float, ...] = ()
    requests: list[Request] = field(default_factory=list)
    hidden: set[Place] = field(default_factory=set)

    def shown(self) -> list[Place]:
        return [place for place in self.places if place not in self.hidden]

    def of(self, place: Place) -> list[Request]:
        return [request for request in self.requests if request["place"] == place]

    def engine_page(self) -> str:
        return "".join(map(self._families, self.shown())) + self._start()

    def tap_page(self) -> str:
        return pages.tap(*self.requests) + self._start()

    def _start(self) -> str:
        if self.started is None:
            return ""
        return pages.page(pages.gauge("process_start_time_seconds", self.started))

    def _families(self, place: Place) -> str:
        """The families of an engine, with what is easily mistaken for a total."""
        requests = self.of(place)
        labels = {"model_name": place[0], "engine": place[1]}
        made = [accepted for request in requests for accepted in request["made"]]
        ttft = [request["first"] for request in requests]
        reasons = [request["reason"] for request in requests]
        buckets = [0] * (len(self.bounds) + 1)
        for seconds in ttft:
            buckets[bisect.bisect_left(self.bounds, seconds)] += 1
        text = pages.page(
            pages.gauge("vllm:num_requests_running", 1, **labels),
            pages.counter("vllm:prompt_tokens", 7 * len(requests), **labels),
            pages.gauge("vllm:prompt_tokens_created", 1.7e9, **labels),
            pages.counter("vllm:generation_tokens", sum(made) + len(made), **labels),
            *(
                pages.counter(
                    "vllm:request_success", reasons.count(reason), finished_reason=reason, **labels
                )
                for reason in REASONS
            ),
            pages.histogram(
                "vllm:time_to_first_token_seconds", self.bounds, buckets, sum(ttft), **labels
            ),
        )
        if not self.k:
            return text
        per_position = [sum(accepted > index for accepted in made) for index in range(self.k)]
        created = pages.gauge("vllm:spec_decode_num_drafts_created", 1.7e9, **labels)
        return (
            text
            + pages.page(created)
            + pages.speculation(len(made), per_position, model=place[0], k=self.k, engine=place[1])
        )


@dataclass
class Book:
    """The requests that the pages of one source counted beyond its first page."""

    total: list[Request] = field(default_factory=list)
    process: Process | None = None
    read_of: dict[Place, int] = field(default_factory=dict)
    saved: tuple[list[Request], Process | None, dict[Place, int]] = field(
        default_factory=lambda: ([], None, {})
    )

    def read(self, process: Process) -> None:
        """A page of ``process`` was read."""
        if process is not self.process:
            self.read_of = {}
        for place in process.shown():
            requests = process.of(place)
            if self.process is not None:
                self.total += requests[self.read_of.get(place, 0) :]
            self.read_of[place] = len(requests)
        self.process = process

    def commit(self) -> None:
        """Everything read so far is in windows that were handed out."""
        self.saved = list(self.total), self.process, dict(self.read_of)

    def lose(self) -> None:
        """The daemon was killed: what was not handed out is gone."""
        total, self.process, read_of = self.saved
        self.total, self.read_of = list(total), dict(read_of)

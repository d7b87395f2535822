"""Which segments a request is in. However many values clients send, few have series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specwatch_tap.outcome import ObservedRequest, RequestOutcome
from specwatch_tap.segment_kinds import (
    ADAPTER,
    HEADER,
    NONE,
    OTHER,
    OUTPUT,
    PROMPT_LENGTH,
    STREAM,
    UNKNOWN,
    prompt_length_label,
)

MOST_VALUES = 20
"""Values of an adapter or a header that have series, in one process."""
LEAST_REQUESTS = 10
"""Requests with a value before it gets series."""
_MOST_CANDIDATES = 200
_LONGEST_VALUE = 64

Headers = Iterable[tuple[bytes, bytes]]


class FrequentValues:
    """The first :data:`MOST_VALUES` values that are frequent; all others are ``other``.

    Frequent means :data:`LEAST_REQUESTS` requests, as counted by the algorithm of Misra and Gries
    (*Finding repeated elements*, 1982): values that come once never get there, however many.
    """

    def __init__(self) -> None:
        self._frequent: set[str] = set()
        self._candidates: dict[str, int] = {}

    def of(self, value: str) -> str:
        """Count one request with a value; returns the value of its segment."""
        if value in self._frequent:
            return value
        if len(self._frequent) == MOST_VALUES:
            return OTHER
        count = self._candidates.get(value, 0) + 1
        if count == LEAST_REQUESTS:
            del self._candidates[value]
            self._frequent.add(value)
            return value
        if count > 1 or len(self._candidates) < _MOST_CANDIDATES:
            self._candidates[value] = count
        else:
            self._candidates = {known: n - 1 for known, n in self._candidates.items() if n > 1}
        return OTHER


class Segments:
    """The segments of requests, by the kinds that the tap is set to."""

    def __init__(self, kinds: Sequence[str]) -> None:
        """``kinds`` as of :func:`specwatch_tap.segment_kinds.checked_kinds`."""
        self._kinds = kinds
        self._values = FrequentValues()
        self._adapters = FrequentValues()

    def of(
        self, request: ObservedRequest, outcome: RequestOutcome, headers: Headers
    ) -> list[tuple[str, str]]:
        """Kind and value of each segment of a request; none for one that was not answered."""
        if outcome.finish_reason is None and outcome.acceptance is None:
            return []
        return [(kind, self._value(kind, request, outcome, headers)) for kind in self._kinds]

    def _value(
        self, kind: str, request: ObservedRequest, outcome: RequestOutcome, headers: Headers
    ) -> str:
        if kind == PROMPT_LENGTH:
            return prompt_length_label(outcome.prompt_tokens)
        if kind.startswith(HEADER):
            return self._header(kind.removeprefix(HEADER).encode(), headers)
        options = request.options
        if options is None:
            return UNKNOWN
        if kind == STREAM:
            return "yes" if options.stream else "no"
        if kind == ADAPTER:
            model = options.model
            if not model or model in (request.facts.model_name, *request.facts.aliases):
                return NONE
            return _bounded(model, self._adapters)
        return _output(request, outcome) if kind == OUTPUT else UNKNOWN

    def _header(self, wanted: bytes, headers: Headers) -> str:
        for name, value in headers:
            if name == wanted or name.lower() == wanted:
                return _bounded(value.decode("latin-1").strip(), self._values) if value else NONE
        return NONE


def _bounded(value: str, known: FrequentValues) -> str:
    plain = value.isascii() and value.isprintable() and len(value) <= _LONGEST_VALUE
    return known.of(value) if plain else OTHER


def _output(request: ObservedRequest, outcome: RequestOutcome) -> str:
    """What was generated: of several kinds, the first."""
    options = request.options
    if outcome.finish_reason == "tool_calls" or (options and options.forces_tool):
        return "tool_call"
    if options and options.structured:
        return "schema"
    return {None: UNKNOWN, True: "reasoning", False: "text"}[request.reasons]

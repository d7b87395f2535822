"""The outcome of a request, from what was observed of it."""

from __future__ import annotations

import msgspec

from specwatch_tap.acceptance import Acceptance
from specwatch_tap.answer import OTHER, ResponsePart
from specwatch_tap.request_options import OPENAI, RequestOptions
from specwatch_tap.server_facts import Endpoint, ServerFacts
from specwatch_tap.stream import StreamReader

LOOP_DRAFTS = 100
"""Drafts from which on a request may count as a loop."""
LOOP_ACCEPTANCE = 0.98
"""Acceptance rate from which on it does: text that is not repeated stays below, and text that is
copied on purpose ends by itself."""
LOOP_TOKENS = 2
"""Accepted tokens a step from which on it does by llama.cpp's timings, which do not tell the steps
without a draft, and of models with recurrent layers leave out what was accepted in part."""
_CUT_OFF = ("length", "repetition")


class RequestOutcome(msgspec.Struct, frozen=True):
    """The outcome of one request. Times are in seconds; None means unknown.

    Either ``acceptance`` is known, or ``uncovered`` says why not (a key of ``tap_keys.UNCOVERED``),
    or both are None because the server does not speculate.
    """

    finish_reason: str | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    ttft: float | None = None
    tpot: float | None = None
    acceptance: Acceptance | None = None
    uncovered: str | None = None

    @property
    def ending(self) -> str | None:
        """A key of ``tap_keys.ENDINGS``; None without an exact acceptance, or an end."""
        known = self.acceptance
        if known is None or known.method == "derived" or self.finish_reason is None:
            return None
        long = known.drafts >= LOOP_DRAFTS and self.finish_reason in _CUT_OFF
        same = known.accepted_tokens >= LOOP_ACCEPTANCE * known.draft_tokens
        if known.method == "timings":
            same = same and known.accepted_tokens >= LOOP_TOKENS * known.drafts
        return "loop" if long and same else "usual"


class ObservedRequest(msgspec.Struct):
    """What is observed of a request. ``options`` is None if its body could not be read.

    ``started`` is when all of it had arrived, in seconds of the stream's clock; ``complete`` says
    that the response was sent to its end, ``disconnected`` that the client went away before,
    ``unreadable`` that the response could not be read.
    """

    facts: ServerFacts
    endpoint: Endpoint
    started: float
    options: RequestOptions | None = None
    status: int | None = None
    complete: bool = False
    disconnected: bool = False
    unreadable: bool = False
    stream: StreamReader | None = None
    answer: ResponsePart | None = None
    """Of a response that is not streamed."""

    @property
    def temperature(self) -> float | None:
        """The temperature that is used; None when it is not known."""
        if self.options is None:
            return None
        if self.options.temperature is not None:
            return self.options.temperature
        return self.facts.default_temperature

    @property
    def is_many(self) -> bool:
        """Whether it certainly asked for more than one completion, or for beam search."""
        return self.options is not None and (self.options.several or self.options.beam_search)

    @property
    def is_one(self) -> bool:
        """Whether it certainly asked for a single completion, sampled token by token."""
        return self.options is not None and not self.is_many

    @property
    def reasons(self) -> bool | None:
        """Whether the response has reasoning; None if that cannot be read."""
        if self.stream is not None:
            return self.stream.reasons
        return None if self.answer is None else self.answer.reasons

    def outcome(self) -> RequestOutcome:
        """The outcome."""
        if self.status is None or self.status >= 400:
            failed = "failed" if self.status is None or self.status >= 500 else "refused"
            # Frameworks answer a disconnect with one error or another.
            return RequestOutcome(uncovered="disconnected" if self.disconnected else failed)
        if self.endpoint is Endpoint.OTHER:
            return RequestOutcome(uncovered=self._unless_off("endpoint"))
        if self.stream is not None:
            return self._of_stream(self.stream)
        if self.answer is not None:
            return self._of_whole(self.answer)
        return RequestOutcome(uncovered=self._cut_short() or self._unless_off("unreadable"))

    def _of_whole(self, answer: ResponsePart) -> RequestOutcome:
        if answer.failed:
            return RequestOutcome(uncovered="failed")
        if answer.is_under_way:
            return RequestOutcome(uncovered=self._unless_off("endpoint"))
        is_many = self.is_many
        metrics = None if is_many or self.options is None else answer.metrics
        finish_reason = answer.finish_reason
        acceptance = None if is_many else answer.acceptance
        return RequestOutcome(
            finish_reason=finish_reason or OTHER,
            tokens=answer.tokens,
            prompt_tokens=answer.prompt_tokens,
            ttft=None if metrics is None else metrics.ttft,
            tpot=None if metrics is None else metrics.tpot,
            acceptance=acceptance,
            uncovered=self._why(finish_reason) if acceptance is None else None,
        )

    def _of_stream(self, stream: StreamReader) -> RequestOutcome:
        acceptance = None if self.is_many else stream.acceptance or derived(self, stream)
        ended = stream.ended and not stream.failed
        uncovered = None
        if acceptance is None:
            cut_short = None if stream.ended else self._cut_short()
            uncovered = "failed" if stream.failed else cut_short or self._why(stream.finish_reason)
        return RequestOutcome(
            finish_reason=(stream.finish_reason or OTHER) if ended else None,
            tokens=stream.tokens,
            prompt_tokens=stream.prompt_tokens,
            ttft=self._ttft(stream),
            tpot=self._tpot(stream) if ended else None,
            acceptance=acceptance,
            uncovered=uncovered,
        )

    def _ttft(self, stream: StreamReader) -> float | None:
        """From the whole request to the first content; None for a request that was not read."""
        if self.options is None or stream.first is None:
            return None
        return stream.first - self.started

    def _tpot(self, stream: StreamReader) -> float | None:
        """(last - first) / (n - 1), of a single completion of more than one token."""
        if not self.is_one or not stream.tokens or stream.tokens < 2:
            return None
        if stream.first is None or stream.last is None:
            return None
        return (stream.last - stream.first) / (stream.tokens - 1)

    def _why(self, finish_reason: str | None) -> str | None:
        """Why a complete response has no record."""
        if finish_reason == "abort":
            return "aborted"
        if self.options is not None and self.options.several:
            return self._unless_off("several")
        if self.options is not None and self.options.beam_search:
            return self._unless_off("beam_search")
        end = self.answer if self.stream is None else self.stream
        if end is not None and end.stopped_by_string:
            return self._unless_off("stop_string")
        if self.endpoint not in OPENAI:
            return self._unless_off("endpoint")
        unreadable = self.unreadable or (self.stream is not None and self.stream.unreadable)
        return self._unless_off("unreadable" if unreadable or not self.options else "no_record")

    def _cut_short(self) -> str | None:
        if self.disconnected:
            return "disconnected"
        return None if self.complete else "failed"

    def _unless_off(self, reason: str) -> str | None:
        """``reason``; None without speculation, where there is no acceptance to miss."""
        return None if self.facts.draft_tokens == 0 else reason


def derived(request: ObservedRequest, stream: StreamReader) -> Acceptance | None:
    """Acceptance from the number of streamed steps, if the server keeps no record.

    The first content is the token that the prompt yields; each step after it yields one token of
    the target and those accepted: tokens = steps + accepted. None if the numbers contradict that,
    because the server joined steps or held some back. A server also joins steps when the client is
    slow to read, so that the result may be too high under load.
    """
    facts, options = request.facts, request.options
    most = facts.draft_tokens
    if not most or facts.keeps_records or facts.joins_steps or request.endpoint not in OPENAI:
        return None
    if options is None or not request.is_one or options.tools or options.echo:
        return None  # tools and echoes make more or fewer events than there are steps
    if not stream.ended or stream.failed or not stream.tokens or not stream.steps:
        return None
    drafts, accepted = stream.steps - 1, stream.tokens - stream.steps
    if not 0 <= accepted <= most * drafts:
        return None
    return Acceptance("derived", drafts, most * drafts, accepted)

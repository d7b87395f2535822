"""Acceptance in the responses of the engines."""

from __future__ import annotations

from itertools import accumulate, pairwise

import msgspec


class Acceptance(msgspec.Struct, frozen=True):
    """Acceptance of one request; ``method`` is a key of ``tap_keys.METHODS``.

    ``accepted_per_position`` is None if only the total is known.
    """

    method: str
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] | None = None

    @property
    def accepted_lengths(self) -> tuple[int, ...] | None:
        """Number of drafts that had 0, 1, .. k tokens accepted."""
        if self.accepted_per_position is None:
            return None
        return tuple(a - b for a, b in pairwise((self.drafts, *self.accepted_per_position, 0)))


class Record(msgspec.Struct, gc=False):
    """vLLM's own record (``metrics.speculative_decoding``)."""

    num_draft_tokens: int
    num_spec_steps: int | None = None
    num_accepted_draft_tokens: int | None = None
    acceptance_histogram: list[int] | None = None

    def acceptance(self) -> Acceptance | None:
        """None if the numbers contradict one another, or the steps are missing."""
        drafts, accepted, at_least = self.num_spec_steps, self.num_accepted_draft_tokens, None
        lengths = self.acceptance_histogram
        if lengths is not None:
            at_least = tuple(accumulate(lengths[:0:-1]))[::-1]
            steps, kept = sum(lengths), sum(at_least)
            if (lengths and min(lengths) < 0) or (drafts is not None and drafts != steps):
                return None
            if accepted is not None and accepted != kept:
                return None
            drafts, accepted = steps, kept
        if drafts is None or accepted is None or drafts < 0:
            return None
        if not 0 <= accepted <= self.num_draft_tokens:
            return None
        return Acceptance("record", drafts, self.num_draft_tokens, accepted, at_least)


class SpecTokensDetails(msgspec.Struct, gc=False):
    """SGLang's own record of one completion (``sglext.spec_tokens_details``)."""

    spec_verify_ct: int = 0
    spec_num_proposed_drafts: int = 0
    spec_num_correct_drafts: int = 0
    spec_correct_drafts_histogram: list[int] | None = None
    """Empty if it was not kept."""

    def acceptance(self) -> Acceptance | None:
        """None without drafts, or if the numbers contradict one another."""
        if not self.spec_verify_ct:
            return None
        return Record(
            self.spec_num_proposed_drafts,
            self.spec_verify_ct,
            self.spec_num_correct_drafts,
            self.spec_correct_drafts_histogram or None,
        ).acceptance()


class Extension(msgspec.Struct, gc=False):
    """``sglext`` of a response of SGLang, if asked for (``return_spec_tokens_details``, 0.5.19)."""

    spec_tokens_details: SpecTokensDetails | list[SpecTokensDetails | None] | None = None
    """A list of all completions, or that of the only one."""

    def acceptance(self) -> Acceptance | None:
        """None unless it is about a single completion."""
        details = self.spec_tokens_details
        if isinstance(details, list):
            details = details[0] if len(details) == 1 else None
        return None if details is None else details.acceptance()


class Metrics(msgspec.Struct, gc=False):
    """``metrics`` of a response of vLLM; times are in milliseconds."""

    time_to_first_token_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    speculative_decoding: Record | None = None

    @property
    def ttft(self) -> float | None:
        """In seconds, with the time in the queue, as in the server's own histogram."""
        if self.time_to_first_token_ms is None:
            return None
        return _seconds(self.time_to_first_token_ms + (self.queue_time_ms or 0.0))

    @property
    def tpot(self) -> float | None:
        """In seconds."""
        return _seconds(self.mean_itl_ms)


class Timings(msgspec.Struct, gc=False):
    """``timings`` of a response of llama.cpp; times are in milliseconds."""

    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None

    def acceptance(self) -> Acceptance | None:
        """None if nothing was drafted or the numbers contradict one another.

        The prompt yields the first token, each step the accepted tokens and one more; so there were
        as many steps as tokens after the first that were not drafted.
        """
        drafted, accepted = self.draft_n, self.draft_n_accepted
        if drafted is None or accepted is None or not 0 <= accepted <= drafted:
            return None
        steps = max(0, (self.predicted_n or 0) - 1 - accepted)
        return Acceptance("timings", steps, drafted, accepted)


def acceptance_of(
    metrics: Metrics | None, timings: Timings | None, extension: Extension | None
) -> Acceptance | None:
    """The acceptance in any part of a response, unless it contradicts itself."""
    if metrics is not None and metrics.speculative_decoding is not None:
        return metrics.speculative_decoding.acceptance()
    part = timings if extension is None else extension
    return None if part is None else part.acceptance()


def _seconds(milliseconds: float | None) -> float | None:
    """A time in seconds; None for an impossible one."""
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1000

"""Events of a stream of completions, as far as they concern us; other shapes cannot be read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from specwatch.loadtest.requests import Acceptance

Count = Annotated[int, msgspec.Meta(ge=0)]


class Delta(msgspec.Struct, gc=False):
    """What a piece adds to an answer, under the names that servers give to it."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    text: Any = None

    @property
    def has_tokens(self) -> bool:
        """Whether it has content, and more than the role of who speaks."""
        said = self.content or self.reasoning or self.reasoning_content
        return bool(said or self.tool_calls or self.text)


class Choice(Delta, gc=False):
    """One of ``choices``: of a chat the piece is in ``delta``, else it is the choice itself."""

    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> Delta:
        """What it adds."""
        return self if self.delta is None else self.delta


class Usage(msgspec.Struct, gc=False):
    """How many tokens there were, which comes at the end."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Record(msgspec.Struct, gc=False):
    """vLLM's own record of the drafts of a request."""

    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: tuple[Count, ...] | None = None

    def acceptance(self) -> Acceptance | None:
        """None where the numbers contradict one another."""
        drafts, accepted = self.num_spec_steps, self.num_accepted_draft_tokens
        lengths = self.acceptance_histogram or ()
        counted = (sum(lengths), sum(length * count for length, count in enumerate(lengths)))
        if accepted > self.num_draft_tokens or (lengths and counted != (drafts, accepted)):
            return None
        return Acceptance(drafts, self.num_draft_tokens, accepted, lengths)


class Metrics(msgspec.Struct, gc=False):
    """``metrics`` of vLLM."""

    speculative_decoding: Record | None = None


class Timings(msgspec.Struct, gc=False):
    """``timings`` of llama.cpp."""

    predicted_n: Count | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None

    def acceptance(self) -> Acceptance | None:
        """None where nothing was drafted or the numbers contradict one another.

        It does not count steps: each yields a token beside those accepted, the first is the
        prompt's.
        """
        drafted, accepted, tokens = self.draft_n, self.draft_n_accepted, self.predicted_n
        if drafted is None or accepted is None or tokens is None or accepted > drafted:
            return None
        return Acceptance(max(tokens - 1 - accepted, 0), drafted, accepted)


class Event(msgspec.Struct, gc=False):
    """One ``data:`` line."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None
    error: Any = None

    @property
    def acceptance(self) -> Acceptance | None:
        """What it tells of the drafts of the whole request."""
        if self.metrics is not None and self.metrics.speculative_decoding is not None:
            return self.metrics.speculative_decoding.acceptance()
        return None if self.timings is None else self.timings.acceptance()


read = msgspec.json.Decoder(Event).decode
"""One event from JSON. Raises ValueError or RecursionError for anything else."""

"""Events of a stream of completions, as far as they concern us; other shapes cannot be read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from specwatch.engines.acceptance import Acceptance, Metrics, Timings, acceptance_of

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
        text = self.content or self.reasoning or self.reasoning_content
        return bool(text or self.tool_calls or self.text)


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
        return acceptance_of(self.metrics, self.timings)


read = msgspec.json.Decoder(Event).decode
"""One event from JSON. Raises ValueError or RecursionError for anything else."""

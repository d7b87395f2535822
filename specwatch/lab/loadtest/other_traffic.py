"""Whether other clients used a server, by its counters over a block of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specwatch.domain.model import Series, Tally
from specwatch.lab.loadtest.calibration import Block, Meter
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.requests import Answer, ErrorKind
from specwatch.wording import figures


@dataclass(frozen=True, slots=True)
class OtherTraffic:
    """Counts of a server minus those of this client. None means that either is not known."""

    counted: Tally
    """Counts of the server meanwhile."""
    busy: float
    """Requests that ran or waited at its beginning or end, when none of this client did."""
    requests: int | None
    """Requests that ended, minus those of this client."""
    tokens: int | None
    """Tokens that were generated, minus those of this client."""

    @property
    def alone(self) -> bool | None:
        """Whether only this client used the server; None if not known."""
        if self.busy or (self.requests or 0) > 0 or (self.tokens or 0) > 0:
            return False
        # A request of another client has at least one token, so either count shows it.
        return True if self.tokens == 0 and self.requests in (0, None) else None

    @property
    def reason(self) -> str:
        """Why :attr:`alone` is not True, as words."""
        if self.busy:
            return f"{figures.counted(self.busy, 'request')} of others ran or waited"
        if self.requests:
            more = "more" if self.requests > 0 else "less"
            return f"{figures.counted(abs(self.requests), 'request')} {more} ended than were sent"
        if self.tokens is None:
            return "its page does not count generated tokens, or a request failed"
        more = "more" if self.tokens > 0 else "less"
        return f"it counted {figures.counted(abs(self.tokens), 'token')} {more} than were received"


def other_traffic(
    engine: MeasuredModel,
    before: Mapping[Series, float],
    after: Mapping[Series, float],
    answers: Sequence[Answer],
    *,
    aborted: int = 0,
) -> OtherTraffic:
    """Compare what a server counted between two pages with what this client received.

    ``aborted`` is the number of requests without an answer. Raises PageError if the engine was
    restarted meanwhile.
    """
    meter = Meter(engine)
    meter.advance(before)
    counted = meter.advance(after).tally
    ours = sum(answer.error is not ErrorKind.REFUSED for answer in answers)
    failed = sum(not answer.ok for answer in answers) - (len(answers) - ours) + aborted
    tokens = sum(answer.tokens or 0 for answer in answers)
    generated = counted.generation_tokens
    ended = sum(counted.requests.values()) if counted.requests else None
    return OtherTraffic(
        counted,
        max(engine.busy_on(before), engine.busy_on(after)),
        None if ended is None or (failed and ended <= ours + aborted) else ended - ours - aborted,
        None if generated is None or failed else generated - tokens,
    )


def settled(engine: MeasuredModel, block: Block, page: Mapping[Series, float]) -> bool:
    """Whether a page has counted everything that a block received."""
    others = other_traffic(engine, block.looks[0].samples, page, block.answers)
    return not engine.busy_on(page) and (others.requests or 0) >= 0 and (others.tokens or 0) >= 0

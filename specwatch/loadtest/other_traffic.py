"""Whether a server did anything but answer us, by its counters over a block of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specwatch.domain.model import Series, Tally
from specwatch.loadtest.calibration import Block, Meter
from specwatch.loadtest.engine import Engine
from specwatch.loadtest.requests import Answer, ErrorKind
from specwatch.scrape import tally
from specwatch.wording import figures


@dataclass(frozen=True, slots=True)
class Company:
    """What a page says of others. None is what it does not tell, or what we do not know of us."""

    counted: Tally
    """All that the server counted meanwhile."""
    busy: float
    """Requests that ran or waited at its beginning or end, when none of ours did."""
    requests: int | None
    """Requests that ended, less ours."""
    tokens: int | None
    """Tokens that were generated, less ours."""

    @property
    def alone(self) -> bool | None:
        """Whether nobody else was there; None where it cannot be told."""
        if self.busy or (self.requests or 0) > 0 or (self.tokens or 0) > 0:
            return False
        # A request of others has a token at least: either count gives them away.
        return True if self.tokens == 0 and self.requests in (0, None) else None

    @property
    def told(self) -> str:
        """What gives others away, or why it cannot be told, as words."""
        if self.busy:
            return f"{figures.counted(self.busy, 'request')} of others ran or waited"
        if self.requests:
            verb = "more ended than we sent" if self.requests > 0 else "less ended than we sent"
            return f"{figures.counted(abs(self.requests), 'request')} {verb}"
        if self.tokens is None:
            return "how many tokens were generated, its page does not count, or a request failed"
        more = "more" if self.tokens > 0 else "less"
        return f"it counted {figures.counted(abs(self.tokens), 'token')} {more} than we got"


def company(
    engine: Engine,
    before: Mapping[Series, float],
    after: Mapping[Series, float],
    answers: Sequence[Answer],
    *,
    aborted: int = 0,
) -> Company:
    """Compare what a server counted between two pages with what we got of it.

    ``aborted`` is how many requests of ours have no answer. Raises PageError when the engine was
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
    return Company(
        counted,
        max(_busy(engine, before), _busy(engine, after)),
        None if ended is None or (failed and ended <= ours + aborted) else ended - ours - aborted,
        None if generated is None or failed else generated - tokens,
    )


def together(blocks: Sequence[bool | None]) -> bool | None:
    """Whether nobody else was there in any of some blocks; None where one does not tell."""
    if False in blocks:
        return False
    return True if blocks and None not in blocks else None


def settled(engine: Engine, block: Block, page: Mapping[Series, float]) -> bool:
    """Whether a page has counted all that a block got."""
    others = company(engine, block.looks[0].samples, page, block.answers)
    return not _busy(engine, page) and (others.requests or 0) >= 0 and (others.tokens or 0) >= 0


def _busy(engine: Engine, page: Mapping[Series, float]) -> float:
    gauges = tally.sampled(tally.parts_of(page).models.get(engine.series_name, {}))
    return (gauges.running or 0.0) + (gauges.waiting or 0.0)

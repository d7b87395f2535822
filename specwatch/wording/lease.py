"""Sentences about which process of a daemon's name watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.status import LeaseStatus
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

_MOST_NAMED = 3


def standing_by(lease: LeaseStatus, now: float) -> str:
    """That this process stands by, and for whom; ``now`` is Unix time in seconds."""
    since = "" if lease.since is None else f" for {figures.span(now - lease.since)}"
    sentence = f"This process stands by. {shown(lease.holder, LONGEST_SENTENCE)} has watched{since}"
    if lease.left is None:
        return f"{sentence}; this one takes over when that one ends."
    if lease.left <= 0:
        return f"{sentence}; its lease has ended, and this one takes over now."
    return (
        f"{sentence}; its lease ends in {figures.span(lease.left)} unless it renews it, and then"
        " this one takes over."
    )


NEVER_READ_REMEDY = (
    "If this process is to watch what the other one does not, give it a name of its own (`daemon`"
    " in the configuration, or `specwatch run --daemon NAME`) or another database."
)


def never_read(names: Sequence[str]) -> str:
    """That nobody watches these targets, as far as the database tells."""
    named = ", ".join(map(shown, names[:_MOST_NAMED]))
    if len(names) > _MOST_NAMED:
        named += f" and {len(names) - _MOST_NAMED} more"
    return (
        f"{named}: never read by a daemon of this name, so probably watched by nobody. The process"
        " that watches has other targets, or there was never an answer."
    )


def problems(lease: LeaseStatus) -> Iterator[str]:
    """Yield what is wrong."""
    if lease.never_read:
        yield f"{never_read(lease.never_read)} {NEVER_READ_REMEDY}"
    if lease.error is not None:
        consequence = "it could not take over" if lease.standby else "another one may take over"
        yield (
            f"This process cannot reach its lease, so {consequence}:"
            f" {shown(lease.error, LONGEST_SENTENCE)}"
        )

"""Drafts that vary in length by design, with which acceptance does not tell whether they pay.

A shorter draft has a higher acceptance rate and costs less. So where the engine chooses the length
by itself, acceptance moves without any gain or loss, and only time at equal conditions tells.
"""

from __future__ import annotations

import enum

from specwatch.domain.model import Environment
from specwatch_tap import launch


class DraftLengths(enum.StrEnum):
    """Why drafts vary in length. The values are part of stored fingerprints."""

    SCHEDULE = launch.SCHEDULE
    ADAPTIVE_STEPS = "adaptive_steps"
    ADAPTIVE_VERIFICATION = launch.ADAPTIVE_VERIFICATION
    EARLY_END = "early_end"
    MATCHES = launch.MATCHES
    UNEXPLAINED = "unexplained"
    """They do, by the counts of drafts and draft tokens; what the server says does not tell why."""


CAUSES = {
    DraftLengths.SCHEDULE: "by a schedule over the batch size",
    DraftLengths.ADAPTIVE_STEPS: "by adaptive steps",
    DraftLengths.ADAPTIVE_VERIFICATION: "by adaptive verification",
    DraftLengths.EARLY_END: "as a draft ends at the first improbable token",
    DraftLengths.MATCHES: "with what n-grams or suffixes match",
    DraftLengths.UNEXPLAINED: "by the counts; the server does not say why",
}
"""Ends of sentences that begin with "drafts vary in length"."""


def shown_by(environment: Environment) -> DraftLengths | None:
    """Why drafts vary in an environment; None if its fingerprint does not say."""
    words = environment.drafting.split()
    return next((cause for cause in DraftLengths if cause in words), None)

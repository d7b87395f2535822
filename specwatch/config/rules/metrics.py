"""The metrics that rules can use, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from specwatch.domain.model import ALL, EVENTS


class Measure(NamedTuple):
    """One metric. ``lowest`` and ``highest`` bound what it can be, in its ``unit``."""

    name: str
    unit: str
    """``ratio``, ``seconds``, ``tokens``, ``requests`` or ``count``."""
    lowest: float
    highest: float
    help: str
    by: Literal["", "temperature", "any"] = ""
    """The dimensions of whose segments there is one each, too."""
    has_interval: bool = False
    """Whether it comes with a confidence interval, all of which has to lie beyond a threshold."""
    needs_baseline: bool = False
    """Whether it is available only once serving without speculation has been measured."""
    instead_of: str = ""
    """The metric that it replaces while there is no baseline: it is available only then."""
    fixed_length: bool = False
    """Whether it means something only where drafts do not vary in length by design."""
    read_from: Literal["speculating", "usable", "any_mode"] = "speculating"
    """Minutes that it is read from: all with speculation on, as drafts are exact counts at any
    time; only usable ones, as for times; or all of any mode."""

    def known_of(self, dimension: str) -> bool:
        """Whether there is one for each segment of a dimension, or for all requests."""
        return dimension == ALL.dimension or self.by in ("any", dimension)


_INFINITE = float("inf")


def _latencies() -> list[Measure]:
    measures = []
    for metric, words in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        for rank in ("p50", "p90", "p95", "p99"):
            name = f"{metric}_{rank}"
            title = f"{words}, {rank.upper()}"
            measures.append(
                Measure(
                    name,
                    "seconds",
                    0.0,
                    _INFINITE,
                    f"{title}.",
                    by="temperature",
                    read_from="usable",
                )
            )
            measures.append(
                Measure(
                    f"{name}_ratio",
                    "ratio",
                    0.0,
                    _INFINITE,
                    f"{title}, over that of own minutes without speculation at the same load.",
                    has_interval=True,
                    needs_baseline=True,
                    read_from="usable",
                )
            )
    return measures


MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            "speedup_ratio",
            "ratio",
            0.0,
            _INFINITE,
            "Measured speedup against the baseline at the same conditions.",
            by="any",
            has_interval=True,
            needs_baseline=True,
            read_from="usable",
        ),
        Measure(
            "speedup_ratio_unadjusted",
            "ratio",
            0.0,
            _INFINITE,
            "The same without the adjustment for steps that became slower or faster, at equal load,"
            " since the baseline was measured.",
            has_interval=True,
            needs_baseline=True,
            read_from="usable",
        ),
        Measure(
            "experiment_speedup_ratio",
            "ratio",
            0.0,
            _INFINITE,
            "Speedup of the fastest other number of draft tokens against the launch, by the"
            " target's experiment on live traffic.",
            has_interval=True,
            read_from="any_mode",
        ),
        Measure(
            "unjudged",
            "seconds",
            0.0,
            _INFINITE,
            "For how long most of the traffic with speculation could not be compared with a"
            " baseline; 0 while it can, and without traffic.",
            read_from="any_mode",
        ),
        Measure(
            "acceptance_ratio",
            "ratio",
            0.0,
            1.0,
            "Accepted tokens over draft tokens.",
            by="any",
            fixed_length=True,
        ),
        Measure(
            "speedup_ratio_assumed",
            "ratio",
            0.0,
            _INFINITE,
            "Speedup that the acceptance and the target's draft_cost_ratio suggest, 1 at the"
            " assumed break-even; only while there is no baseline to measure it by.",
            by="any",
            instead_of="speedup_ratio",
            fixed_length=True,
        ),
        Measure(
            "acceptance_ratio_unmeasured",
            "ratio",
            0.0,
            1.0,
            "The acceptance rate, only while there is no baseline to measure a speedup by.",
            instead_of="acceptance_ratio",
            fixed_length=True,
        ),
        Measure(
            "acceptance_change",
            "ratio",
            -1.0,
            1.0,
            "Acceptance rate less that of the previous 24 h, at the present temperature mix.",
            has_interval=True,
            fixed_length=True,
        ),
        Measure(
            "acceptance_length",
            "tokens",
            1.0,
            _INFINITE,
            "Tokens of a speculative step, the bonus token included.",
            by="any",
            fixed_length=True,
        ),
        Measure(
            "first_position_acceptance",
            "ratio",
            0.0,
            1.0,
            "Share of the drafts whose first token was accepted, whatever their length.",
            by="temperature",
        ),
        Measure(
            "request_acceptance_p10",
            "ratio",
            0.0,
            1.0,
            "Acceptance rate that a tenth of the requests stays below.",
            by="temperature",
            fixed_length=True,
        ),
        Measure(
            "request_acceptance_p50",
            "ratio",
            0.0,
            1.0,
            "Median of the acceptance rates of requests.",
            by="temperature",
            fixed_length=True,
        ),
        Measure(
            "request_speedup_p10_assumed",
            "ratio",
            0.0,
            _INFINITE,
            "Speedup assumed of the acceptance rate that a tenth of the requests stays below; only"
            " while there is no baseline.",
            by="temperature",
            instead_of="request_acceptance_p10",
            fixed_length=True,
        ),
        Measure(
            "losing_draft_share",
            "ratio",
            0.0,
            1.0,
            "Share of the drafts in temperature buckets below the measured break-even line.",
            needs_baseline=True,
            read_from="usable",
        ),
        *_latencies(),
        Measure(
            "tpot_tail",
            "ratio",
            1.0,
            _INFINITE,
            "P99 over P50 of TPOT.",
            by="temperature",
            read_from="usable",
        ),
        Measure(
            "tpot_tail_ratio",
            "ratio",
            0.0,
            _INFINITE,
            "P99 over P50 of TPOT, over that of the target's own minutes without speculation"
            " at the same load.",
            has_interval=True,
            needs_baseline=True,
            read_from="usable",
        ),
        Measure(
            "kv_cache_usage",
            "ratio",
            0.0,
            1.0,
            "Greatest usage of the KV cache.",
            read_from="usable",
        ),
        *(
            Measure(fact.name, "count", 0.0, _INFINITE, fact.help, read_from="usable")
            for fact in EVENTS
        ),
        *(
            Measure(
                name, "requests", 0.0, _INFINITE, f"Mean of {name} requests.", read_from="any_mode"
            )
            for name in ("running", "waiting")
        ),
        Measure(
            "short_output_share",
            "ratio",
            0.0,
            1.0,
            "Share of the requests that ended within 20 tokens.",
        ),
        Measure(
            "loop_share",
            "ratio",
            0.0,
            1.0,
            "Share of the requests seen by a tap that look like a loop: nearly all of at least 100"
            " drafts accepted, and ended at the limit of length or for repetition.",
            by="temperature",
            has_interval=True,
        ),
        Measure(
            "length_finish_excess",
            "ratio",
            0.0,
            1.0,
            "How much greater, at least, the share of requests that end at their limit of length is"
            " than in minutes without speculation within a day, at the same temperatures.",
        ),
        Measure(
            "tool_call_shortfall",
            "ratio",
            0.0,
            1.0,
            "How much smaller, at least, the share of requests that end with a tool call is than"
            " without speculation, by the same comparison.",
        ),
        Measure(
            "outlier_ranks",
            "count",
            0.0,
            _INFINITE,
            "Data-parallel ranks whose acceptance, or drafts a token, over the last hour are far"
            " from those of the other ranks; of three or more.",
            fixed_length=True,
        ),
        Measure(
            "coverage_ratio",
            "ratio",
            0.0,
            _INFINITE,
            "Share of the server's drafts whose temperature is known.",
        ),
    )
}
"""Every metric by its name."""

"""Queries of what vLLM counts itself, under the names of all its releases since 0.8.5."""

from __future__ import annotations

SELECTED = 'instance=~"$instance", model_name=~"$model_name"'
LEGEND = "{{instance}} {{model_name}}"
YESTERDAY = " offset 1d"
RECENTLY = "10m"
"""What a single value is of: a minute of little traffic says nothing."""

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
AT_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
TTFT = ("vllm:time_to_first_token_seconds",)
TPOT = ("vllm:request_time_per_output_token_seconds",)
INTER_TOKEN = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Both are of engine steps, not of requests: the second is what it was called before 0.10.2."""
END_TO_END = ("vllm:e2e_request_latency_seconds",)

_BY = "instance, model_name"
_STEP = "$__rate_interval"


def rate(*names: str, by: str = _BY, more: str = "", over: str = _STEP, offset: str = "") -> str:
    """Increase per second, summed over engines; of several names the first that an engine has."""
    each = " or ".join(f"rate({name}{{{SELECTED}{more}}}[{over}]{offset})" for name in names)
    return f"sum by ({by}) ({each})" if by else f"sum({each})"


def share(part: str, whole: str) -> str:
    """A part in a whole that is more than nothing: 0/0 of an idle server is left out."""
    return f"{part} / ({whole} > 0)"


def acceptance(*, over: str = _STEP, offset: str = "", by: str = _BY) -> str:
    """Accepted tokens / draft tokens."""
    accepted = rate(ACCEPTED_TOKENS, by=by, over=over, offset=offset)
    return share(accepted, rate(DRAFT_TOKENS, by=by, over=over, offset=offset))


def acceptance_length(*, over: str = _STEP, offset: str = "", by: str = _BY) -> str:
    """1 + accepted tokens / drafts: tokens per step, with the bonus token, as vLLM counts."""
    accepted = rate(ACCEPTED_TOKENS, by=by, over=over, offset=offset)
    return f"1 + {share(accepted, rate(DRAFTS, by=by, over=over, offset=offset))}"


def quantile(q: float, names: tuple[str, ...], *, over: str = _STEP, offset: str = "") -> str:
    """A quantile of the merged counts; that of no observations, NaN, is left out."""
    merged = rate(*(f"{name}_bucket" for name in names), by="le", over=over, offset=offset)
    return f"histogram_quantile({q}, {merged}) >= 0"


def tail(names: tuple[str, ...], *, offset: str = "") -> str:
    """P99 / P50."""
    return f"({quantile(0.99, names, offset=offset)}) / ({quantile(0.5, names, offset=offset)} > 0)"


def accepted_lengths(longest: int) -> str:
    """Share of the drafts within the range that had 0, 1, ... tokens accepted, in this order.

    With S(p) the drafts whose token at position p was accepted: H(0) = drafts - S(0),
    H(j) = S(j-1) - S(j), and H(k) = S(k-1) where S(k) does not exist.
    """
    every = _increase(DRAFTS)
    counts = [f"{every} - {_reached(0)}"]
    for accepted in range(1, longest + 1):
        before = _reached(accepted - 1)
        counts.append(f"{before} - ({_reached(accepted)} or 0 * {before})")
    # Both counters are extrapolated, each by itself: what should be 0 may come out below.
    named = [
        f'label_replace(clamp_min({count}, 0), "accepted", "{accepted}", "", "")'
        for accepted, count in enumerate(counts)
    ]
    ordered = "\n  or ".join(named)
    return f"(\n  {ordered}\n) / on () group_left () ({every} > 0)"


def positions() -> str:
    """Share of the drafts within the range whose token at a position was accepted, from 0.

    No position is accepted more often than the one before, so sorting brings them in order.
    """
    reached = f"sum by (position) (increase({AT_POSITION}{{{SELECTED}}}[$__range]))"
    return f"sort_desc({reached} / on () group_left () ({_increase(DRAFTS)} > 0))"


def _increase(name: str, more: str = "") -> str:
    return f"sum(increase({name}{{{SELECTED}{more}}}[$__range]))"


def _reached(position: int) -> str:
    return _increase(AT_POSITION, f', position="{position}"')

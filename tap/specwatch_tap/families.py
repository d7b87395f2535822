"""The families that the tap exposes, on the engine's page or on the proxy's."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """One exposed family: its name without suffixes, its type, and what we call it."""

    exposed: str
    kind: str
    quantity: str
    label: str = ""
    """The label that distinguishes series, if one matters."""
    help: str = ""
    """The HELP text, if we expose the family."""
    segment_labels: tuple[str, ...] = ()
    """The labels of the segment that it is counted for: its dimension, which is ``temperature``
    where it has no label, and its value."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, if we expose the family."""
        of_segment = ("model_name", *self.segment_labels) if self.segment_labels else ()
        return (*of_segment, self.label) if self.label else of_segment


OF_THE_PROCESS = ("tap_failures", "launch")
"""Quantities of the tap without a model and a temperature."""
TAP = tuple(
    Family(
        name,
        kind,
        quantity,
        label,
        help,
        () if quantity in OF_THE_PROCESS else ("temperature",),
    )
    for name, kind, quantity, label, help in (
        (
            "specwatch_drafts",
            "counter",
            "drafts",
            "",
            "Speculation steps of the requests whose acceptance is known.",
        ),
        (
            "specwatch_draft_tokens",
            "counter",
            "draft_tokens",
            "",
            "Tokens proposed in those steps.",
        ),
        (
            "specwatch_accepted_tokens",
            "counter",
            "accepted_tokens",
            "",
            "Proposed tokens that the target model kept.",
        ),
        (
            "specwatch_accepted_tokens_per_position",
            "counter",
            "accepted_per_position",
            "position",
            "Steps that kept the proposed token at a position.",
        ),
        (
            "specwatch_generation_tokens",
            "counter",
            "generation_tokens",
            "",
            "Tokens generated, where the response says.",
        ),
        (
            "specwatch_requests",
            "counter",
            "requests",
            "finish_reason",
            "Requests that were answered to the end.",
        ),
        (
            "specwatch_request_acceptance_ratio",
            "histogram",
            "request_acceptance",
            "",
            "Acceptance rate of each request that drafted.",
        ),
        (
            "specwatch_time_to_first_token_seconds",
            "histogram",
            "ttft",
            "",
            "From the whole request to the first content.",
        ),
        (
            "specwatch_time_per_output_token_seconds",
            "histogram",
            "tpot",
            "",
            "(Last token - first token) / (tokens - 1) of each request.",
        ),
        (
            "specwatch_decode_seconds",
            "counter",
            "decode_seconds",
            "prompt_length",
            "Last token - first token of each request, by the tokens of its prompt.",
        ),
        (
            "specwatch_decode_tokens",
            "counter",
            "decode_tokens",
            "prompt_length",
            "Tokens after the first in those seconds.",
        ),
        (
            "specwatch_tap_records",
            "counter",
            "records",
            "method",
            "Requests whose acceptance is known, by how.",
        ),
        (
            "specwatch_tap_request_endings",
            "counter",
            "endings",
            "ending",
            "Requests whose exact acceptance is known, by whether they look like a loop.",
        ),
        (
            "specwatch_tap_uncovered_requests",
            "counter",
            "uncovered",
            "reason",
            "Requests whose acceptance is not known, by why.",
        ),
        (
            "specwatch_tap_failures",
            "counter",
            "tap_failures",
            "stage",
            "Failures of the tap itself; the requests went on untouched.",
        ),
        (
            "specwatch_launch",
            "counter",
            "launch",
            "setting",
            "Settings of the server's launch that change what its figures mean; always 0.",
        ),
    )
)
"""Those by temperature have the labels ``model_name`` and ``temperature``."""

SEGMENTS = tuple(
    Family(f"specwatch_segment_{quantity}", "counter", quantity, "", help, ("segment", "value"))
    for quantity, help in (
        ("drafts", "Speculation steps of the requests of a segment whose acceptance is known."),
        ("draft_tokens", "Tokens proposed in those steps."),
        ("accepted_tokens", "Proposed tokens that the target model kept."),
        ("requests", "Requests of a segment that were answered to the end."),
        ("decode_seconds", "Last token - first token of each request of a segment."),
        ("decode_tokens", "Tokens after the first in those seconds."),
    )
)
"""They have the labels ``model_name``, ``segment`` (a kind) and ``value``."""

SWITCH = (
    Family(
        "specwatch_switch_draft_tokens",
        "gauge",
        "switch_draft_tokens",
        "",
        "Draft tokens of each step that the switch allows, the most of a schedule; in the launch"
        " mode the launch's k.",
    ),
    Family(
        "specwatch_switch_ordered",
        "gauge",
        "switch_ordered",
        "",
        "Whether the switch follows an order, 0 in the launch mode.",
    ),
    Family(
        "specwatch_switch_schedule",
        "gauge",
        "switch_schedule",
        "",
        "A number that identifies the schedule of draft tokens by batch size that the switch"
        " follows, 0 without one.",
    ),
)
"""About the process; NaN if it follows no orders."""

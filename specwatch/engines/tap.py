"""The families that the tap exposes, on the engine's page or on the proxy's."""

from __future__ import annotations

from specwatch.engines.base import Family

TAP: tuple[Family, ...] = (
    Family(
        "specwatch_drafts", "counter", "drafts",
        help="Speculation steps of the requests whose acceptance is known.", by_temperature=True,
    ),
    Family(
        "specwatch_draft_tokens", "counter", "draft_tokens",
        help="Tokens proposed in those steps.", by_temperature=True,
    ),
    Family(
        "specwatch_accepted_tokens", "counter", "accepted_tokens",
        help="Proposed tokens that the target model kept.", by_temperature=True,
    ),
    Family(
        "specwatch_accepted_tokens_per_position", "counter", "accepted_per_position", "position",
        help="Steps that kept the proposed token at a position.", by_temperature=True,
    ),
    Family(
        "specwatch_generation_tokens", "counter", "generation_tokens",
        help="Tokens generated, where the response says.", by_temperature=True,
    ),
    Family(
        "specwatch_requests", "counter", "requests", "finish_reason",
        help="Requests that were answered to the end.", by_temperature=True,
    ),
    Family(
        "specwatch_request_acceptance_ratio", "histogram", "request_acceptance",
        help="Acceptance rate of each request that drafted.", by_temperature=True,
    ),
    Family(
        "specwatch_time_to_first_token_seconds", "histogram", "ttft",
        help="From the whole request to the first content.", by_temperature=True,
    ),
    Family(
        "specwatch_time_per_output_token_seconds", "histogram", "tpot",
        help="(Last token - first token) / (tokens - 1) of each request.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_records", "counter", "records", "method",
        help="Requests whose acceptance is known, by how.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_uncovered_requests", "counter", "uncovered", "reason",
        help="Requests whose acceptance is not known, by why.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_failures", "counter", "tap_failures", "stage",
        help="Failures of the tap itself; the requests went on untouched.",
    ),
)  # fmt: skip
"""Those by temperature have the labels ``model_name`` and ``temperature``, failures neither."""

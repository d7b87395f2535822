"""What a tap counts requests by, beside their labels, and what that means."""

from __future__ import annotations

from collections.abc import Mapping

METHODS: Mapping[str, str] = {
    "record": "the engine's own record of the request",
    "timings": "llama.cpp's timings of the request",
    "derived": "the tokens of each streamed step, as the engine keeps no record",
}
"""Sources of a tap for the acceptance of a request."""

UNCOVERED: Mapping[str, str] = {
    "several": "more than one completion was asked for, which carry no record",
    "beam_search": "beam search, without speculation",
    "refused": "the server refused the request (4xx)",
    "failed": "the server failed (5xx, or an error inside a stream)",
    "aborted": "the engine aborted the request",
    "disconnected": "the client went away before the end",
    "stop_string": "a stop string ended it, of which vLLM keeps no record",
    "no_record": "the response carries no record of its acceptance",
    "unreadable": "the response could not be read: compressed, or not as expected",
    "endpoint": "an API whose responses carry no record, such as /v1/messages and /v1/responses",
}
"""Why the acceptance of a request is not known."""

ENDINGS: Mapping[str, str] = {
    "loop": "at its limit of length, or for repetition, with nearly all of many drafts accepted",
    "usual": "otherwise",
}
"""How a request ended; a ``loop`` has probably repeated itself."""

"""Bodies of OpenAI-style answers, in the shapes of vLLM 0.32."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specwatch.lab.simulator.sequence import SimulatedSequence

FINGERPRINT = "vllm-0.32.0-simulated"
_WORDS = (
    "the",
    "of",
    "and",
    "a",
    "draft",
    "model",
    "token",
    "server",
    "step",
    "target",
    "batch",
    "cache",
    "answer",
    "question",
    "river",
    "stone",
    "light",
    "number",
    "for",
    "with",
    "is",
    "in",
    "returns",
    "value",
    "list",
    "café",
    "naïve",
    "語",
    "\n",
    ",",
    ".",
)


def token_text(key: str, position: int) -> str:
    """Text of the output token at ``position`` of the answer that ``key`` identifies."""
    word = _WORDS[zlib.crc32(f"{key}/{position}".encode()) % len(_WORDS)]
    return f" {word}" if position and (word.isalpha() or len(word) > 1) else word


def acceptance_record(sequence: SimulatedSequence) -> dict[str, Any] | None:
    """The ``speculative_decoding`` record of a finished sequence; None without speculation."""
    k = len(sequence.accepted_histogram) - 1
    if not k:
        return None
    record: dict[str, Any] = {
        "mean_acceptance_length": 1.0 + sequence.accepted_tokens / max(1, sequence.drafts),
        "draft_acceptance_rate": sequence.accepted_tokens / max(1, sequence.draft_tokens),
        "acceptance_histogram": list(sequence.accepted_histogram),
        "num_spec_steps": sequence.drafts,
        "num_accepted_draft_tokens": sequence.accepted_tokens,
        "num_draft_tokens": sequence.draft_tokens,
        "num_spec_tokens": k,
    }
    if sequence.per_step:
        record["per_step_accepted"] = [accepted for accepted, _ in sequence.per_step]
        record["per_step_drafted"] = [drafted for _, drafted in sequence.per_step]
    return record


def timings(sequence: SimulatedSequence) -> dict[str, float | None]:
    """The times of a finished sequence, in milliseconds; None where it did not get that far."""
    scheduled, first, last = sequence.scheduled, sequence.first_token, sequence.last_token
    tokens = sequence.generation_tokens
    decoding = _milliseconds(first, last)
    running = _milliseconds(scheduled, last)
    return {
        # Without the wait in the queue, unlike the server's histogram.
        "time_to_first_token_ms": _milliseconds(scheduled, first),
        "generation_time_ms": decoding,
        "queue_time_ms": _milliseconds(sequence.arrival, scheduled),
        "mean_itl_ms": decoding / (tokens - 1) if decoding is not None and tokens > 1 else None,
        "tokens_per_second": tokens / running * 1000 if running else None,
    }


def metrics_of(sequence: SimulatedSequence, *, record: bool, times: bool) -> dict[str, Any] | None:
    """The ``metrics`` of a request with one answer; None when there is nothing to say."""
    accepted = acceptance_record(sequence) if record else None
    if accepted is None and not times:
        return None
    durations = timings(sequence)
    return {
        **(durations if times else dict.fromkeys(durations)),
        "speculative_decoding": accepted,
    }


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The counts of a stream's usage chunk."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in vLLM's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return (
        b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


def _inserted(body: dict[str, Any], after: str, key: str, value: Any) -> dict[str, Any]:
    items = list(body.items())
    items.insert(list(body).index(after) + 1, (key, value))
    return dict(items)


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class SimulatedResponse:
    """What the bodies of one answer share; ``chat`` or plain completion.

    ``signed`` is whether this version of vLLM has fingerprints and metrics.
    """

    chat: bool
    id: str
    created: int
    model: str
    signed: bool = True

    def opening(self, index: int, counts: dict[str, Any] | None) -> dict[str, Any]:
        """The first chunk of a chat stream, which names the role; ``counts`` as in a chunk."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        body = {**self._head(chunk=True), "choices": [choice]}
        if self.signed:
            body |= {"prompt_token_ids": None, "prompt_text": None}
        # Pydantic writes fields in their order, wherever they were set.
        return body if counts is None else _inserted(body, "choices", "usage", counts)

    def chunk(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        counts: dict[str, Any] | None,
        followed: bool,
    ) -> dict[str, Any]:
        """A chunk with new text; ``counts`` is the usage so far where it was asked for.

        The last one of a choice carries the fingerprint, unless it is ``followed`` by usage.
        """
        choice: dict[str, Any] = {"index": index}
        if self.chat:
            choice |= {"delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
            if finish_reason is not None:
                choice["stop_reason"] = None
        else:
            choice |= {
                "text": text,
                "logprobs": None,
                "finish_reason": finish_reason,
                "stop_reason": None,
                "prompt_token_ids": None,
            }
        if self.signed:
            choice["token_ids"] = None
        body = {**self._head(chunk=True), "choices": [choice]}
        if counts is not None:
            body["usage"] = counts
        if self.signed and finish_reason is not None and not followed:
            body["system_fingerprint"] = FINGERPRINT
        return body

    def closing(self, counts: dict[str, Any], metrics: dict[str, Any] | None) -> dict[str, Any]:
        """The usage chunk at the end of a stream, with the request's metrics if there are any."""
        body = {**self._head(chunk=True), "choices": [], "usage": counts}
        if self.signed:
            body["system_fingerprint"] = FINGERPRINT
        if metrics is not None:
            body["metrics"] = {key: value for key, value in metrics.items() if value is not None}
        return body

    def response(
        self,
        texts: Sequence[str],
        finish_reasons: Sequence[str | None],
        counts: dict[str, Any],
        metrics: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """An answer that is not streamed: one text and finish reason for each choice."""
        choices = [
            self._choice(index, text, reason)
            for index, (text, reason) in enumerate(zip(texts, finish_reasons, strict=True))
        ]
        body = {
            **self._head(chunk=False),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT if self.signed else None,
            "usage": {**counts, "prompt_tokens_details": None, "completion_tokens_details": None},
        }
        if not self.signed:
            return body
        if self.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        if metrics is not None and (record := metrics.get("speculative_decoding")) is not None:
            steps = {key: record.get(key) for key in ("per_step_accepted", "per_step_drafted")}
            metrics = metrics | {"speculative_decoding": record | steps}
        return body | {
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": metrics,
        }

    def _choice(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        ending = {
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
        }
        if not self.chat:
            ending |= {"prompt_logprobs": None, "prompt_token_ids": None}
            return choice | {"text": text} | ending | {"routed_experts": None}
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return choice | {"message": message} | ending | {"routed_experts": None}

    def _head(self, chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        if chunk and self.chat:
            kind += ".chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

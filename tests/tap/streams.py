"""Streams as vLLM writes them, each with and without the usage chunk."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from specwatch_tap.server_facts import Endpoint

DATA = Path(__file__).parents[1] / "data"
USAGE = (DATA / "chat-stream-usage.sse").read_bytes()
PLAIN = (DATA / "chat-stream-no-usage.sse").read_bytes()
RECORD = {
    "mean_acceptance_length": 3.375,
    "draft_acceptance_rate": 0.59375,
    "acceptance_histogram": [1, 2, 1, 1, 3],
    "num_spec_steps": 8,
    "num_accepted_draft_tokens": 19,
    "num_draft_tokens": 32,
    "num_spec_tokens": 4,
}


@dataclass(frozen=True)
class Stream:
    """What one generation says. ``comments`` are sent before the events with their numbers."""

    endpoint: Endpoint
    texts: tuple[str, ...]
    finish_reason: str = "stop"
    fingerprint: str | None = "vllm-0.32.0-690cf675"
    logprobs: bool = False
    error: str | None = None
    comments: frozenset[int] = frozenset()
    line_end: str = "\n"
    record: bool = True
    ascii_only: bool = False

    def written(self, *, usage: bool) -> bytes:
        """The stream to a client that asked for usage, or to one that did not."""
        datas = self._chunks(usage)
        if self.error is not None:
            datas.append({"error": {"message": self.error, "type": "x", "code": 500}})
        elif usage:
            datas.append(self._usage())
        texts = [json.dumps(d, separators=(",", ":"), ensure_ascii=self.ascii_only) for d in datas]
        end = self.line_end
        lines = []
        for number, text in enumerate([*texts, "[DONE]"]):
            if number in self.comments and (number <= len(self.texts)):
                lines.append(f": keep-alive{end}{end}")
            lines.append(f"data: {text}{end}{end}")
        return "".join(lines).encode()

    def _chunks(self, usage: bool) -> list[dict[str, Any]]:
        chunks = [self._chunk(text) for text in self.texts]
        if self.endpoint is Endpoint.CHAT:
            role = self._chunk("")
            role["choices"][0]["delta"]["role"] = "assistant"
            chunks.insert(0, role)
        if self.error is None:
            last = self._chunk("")
            last["choices"][0]["finish_reason"] = self.finish_reason
            if self.fingerprint is not None and not usage:
                last["system_fingerprint"] = self.fingerprint
            chunks.append(last)
        return chunks

    def _chunk(self, text: str) -> dict[str, Any]:
        chat = self.endpoint is Endpoint.CHAT
        content = {"delta": {"content": text}} if chat else {"text": text}
        logprobs = {"content": [{"token": text, "logprob": -0.5}]} if self.logprobs else None
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": None}
        return {"id": "cmpl-1", "object": "x.chunk", "model": "tiny", "choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        tokens = len(self.texts)
        chunk: dict[str, Any] = {"id": "cmpl-1", "object": "x.chunk", "model": "tiny"}
        chunk |= {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
        if self.fingerprint is not None:
            chunk["system_fingerprint"] = self.fingerprint
        if self.record:
            chunk["metrics"] = {"speculative_decoding": RECORD}
        return chunk


_nasty = st.sampled_from(
    ['"finish_reason":null', "data: [DONE]\n\n", '"usage":{', "\r\n\r\n", "}", "\\", " ", "\x00"]
)
some_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | _nasty
streams = st.builds(
    Stream,
    endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]),
    texts=st.lists(some_text, max_size=6).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "abort", "new"]),
    fingerprint=st.none() | some_text,
    logprobs=st.booleans(),
    error=st.none() | some_text,
    comments=st.frozensets(st.integers(0, 9)),
    line_end=st.sampled_from(["\n", "\r\n"]),
    record=st.booleans(),
    ascii_only=st.booleans(),
)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` cut at the places, which need be neither in order nor inside."""
    places = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def events_of(stream: bytes) -> list[bytes]:
    """The events of a stream whose lines end with LF, with their blank lines."""
    return [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]


def shorter(stream: Stream) -> Stream:
    """The same without anything that a test may not want."""
    return replace(stream, error=None, comments=frozenset())

"""Reads the body of a completion request, and refuses what vLLM refuses."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from specwatch.lab.simulator.settings import NEWEST, SimulatedSettings

_LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature when a lower one is asked for, except 0."""
CHARACTERS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
_COMPLETION_MAX_TOKENS = 16
LARGEST_BODY = 16 << 20
"""Bytes; vLLM has no such limit."""
_MOST_CHOICES, _MOST_PROMPTS = 16384, 1024
"""vLLM's defaults of VLLM_MAX_N_SEQUENCES and VLLM_MAX_COMPLETION_PROMPTS; versions without such
limits run out of memory, which is not simulated."""
_MOST_TOKENS = 1 << 20
"""All answers to one request together; vLLM has no such limit, and takes hours for so many."""


class Refused(Exception):
    """The request is answered with an error; ``status`` and ``kind`` as vLLM has them."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind or "BadRequestError"


@dataclass(frozen=True, slots=True)
class SimulatedPrompt:
    """One prompt: its length in tokens, and a short text that identifies it."""

    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A valid request body; ``max_tokens`` None leaves the length to the model."""

    model: str
    prompts: tuple[SimulatedPrompt, ...]
    temperature: float
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    n: int
    beams: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read_completion_request(
    body: bytes, chat: bool, settings: SimulatedSettings
) -> CompletionRequest:
    """The request in ``body`` (JSON); raises :class:`Refused`."""
    fields = _fields(body)
    model = _model(fields, settings)
    prompts = _messages(fields) if chat else _prompts(fields)
    temperature = _number(fields, "temperature", settings.default_temperature)
    n = _choices(fields)
    if temperature < 0:
        raise Refused(f"temperature must be non-negative, got {temperature}.", "temperature")
    beams = bool(fields.get("use_beam_search"))
    if n > 1 and not temperature and not beams:
        raise Refused(f"n must be 1 when using greedy sampling, got {n}.", "n")
    stream = bool(fields.get("stream"))
    options = fields.get("stream_options") or {}
    if stream and beams and not chat:
        raise Refused("Streaming is not currently supported with beam search")
    if options and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.", "stream_options")
    if not isinstance(options, dict):
        raise Refused("stream_options must be an object", "stream_options", kind="Bad Request")
    include, continuous = _usage(fields, settings)
    _check_logprobs(fields, chat, settings)
    max_tokens = _max_tokens(fields, chat, prompts, settings)
    longest = max_tokens or settings.max_model_len
    if n * len(prompts) > 1 and n * len(prompts) * longest > max(_MOST_TOKENS, longest):
        raise Refused(
            f"The simulated vLLM answers with at most {_MOST_TOKENS} tokens: {n} answers to"
            f" {len(prompts)} prompts of up to {longest} tokens are more. Give a lower max_tokens.",
            "max_tokens",
        )
    return CompletionRequest(
        model=model,
        prompts=prompts,
        temperature=max(temperature, _LEAST_TEMPERATURE) if temperature else 0.0,
        max_tokens=max_tokens,
        min_tokens=_whole(fields, "min_tokens", 0),
        ignore_eos=bool(fields.get("ignore_eos")),
        n=n,
        beams=beams,
        stream=stream,
        include_usage=include,
        continuous_usage=continuous,
    )


def count_tokens(body: bytes, settings: SimulatedSettings) -> int:
    """Tokens of the prompt, or the messages, in ``body`` (JSON); raises :class:`Refused`."""
    fields = _fields(body)
    _model(fields, settings)
    return (_messages(fields) if "messages" in fields else _prompts(fields))[0].tokens


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"JSON decode error: {error}", kind="Bad Request") from None
    if not isinstance(fields, dict):
        raise Refused("the body must be a JSON object", kind="Bad Request")
    return fields


def _model(fields: dict[str, Any], settings: SimulatedSettings) -> str:
    model = fields.get("model") or settings.served[0]
    if model not in settings.served:
        raise Refused(f"The model `{model}` does not exist.", "model", 404, "NotFoundError")
    return str(model)


def _usage(fields: dict[str, Any], settings: SimulatedSettings) -> tuple[bool, bool]:
    """Whether a stream ends with usage, and whether each of its chunks carries it."""
    options = fields.get("stream_options")
    if settings.force_usage and settings.engine_version == NEWEST:
        return True, True
    if not isinstance(options, dict):
        return False, False
    include = settings.force_usage or bool(options.get("include_usage"))
    return include, include and bool(options.get("continuous_usage_stats"))


def _choices(fields: dict[str, Any]) -> int:
    n = _whole(fields, "n", 1)
    if n < 1:
        raise Refused(f"n must be at least 1, got {n}.", "n")
    if n > _MOST_CHOICES:
        raise Refused(
            f"n must be at most {_MOST_CHOICES}, got {n}. To increase this limit, set the"
            " VLLM_MAX_N_SEQUENCES environment variable.",
            "n",
        )
    return n


def _check_logprobs(fields: dict[str, Any], chat: bool, settings: SimulatedSettings) -> None:
    """Refuse what vLLM refuses, although answers have no logprobs here."""
    most = settings.max_logprobs
    for name, kind in (
        ("top_logprobs" if chat else "logprobs", "sample"),
        ("prompt_logprobs", "prompt"),
    ):
        count = fields.get(name)
        if isinstance(count, int) and count > most >= 0:
            raise Refused(
                f"Requested {kind} logprobs of {count}, which is greater than max allowed: {most}",
                "logprobs" if kind == "sample" else name,
            )


def _max_tokens(
    fields: dict[str, Any],
    chat: bool,
    prompts: tuple[SimulatedPrompt, ...],
    settings: SimulatedSettings,
) -> int | None:
    longest = max(prompt.tokens for prompt in prompts)
    room = settings.max_model_len - longest
    field = "max_completion_tokens" if fields.get("max_completion_tokens") else "max_tokens"
    if fields.get(field) is None:
        max_tokens = None if chat else min(_COMPLETION_MAX_TOKENS, max(1, room))
    else:
        max_tokens = _whole(fields, field, 1)
        if max_tokens < 1:
            raise Refused(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if room < max(1, max_tokens or 1):
        raise Refused(
            f"This model's maximum context length is {settings.max_model_len} tokens. However, you"
            f" requested {max_tokens or 1} output tokens and your prompt contains at least"
            f" {longest} input tokens, for a total of at least {longest + (max_tokens or 1)}"
            " tokens. Please reduce the length of the input prompt or the number of requested"
            " output tokens.",
            "input_tokens" if room < 1 else field,
        )
    return max_tokens


def _number(fields: dict[str, Any], name: str, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return float(default)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer that no float can hold
        value = math.inf
    raise Refused(f"{name}: expected a number, found {value!r}", name, kind="Bad Request")


def _whole(fields: dict[str, Any], name: str, default: int) -> int:
    value = _number(fields, name, default)
    if not value.is_integer():
        raise Refused(f"{name}: expected a whole number, found {value}", name, kind="Bad Request")
    return int(value)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _count(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def _messages(fields: dict[str, Any]) -> tuple[SimulatedPrompt, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages: expected a list of messages", "messages", kind="Bad Request")
    texts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused("messages: each needs a role", "messages", kind="Bad Request")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if part)
        texts.append(str(content or ""))
    tokens = sum(_count(text) + TOKENS_PER_MESSAGE for text in texts)
    return (SimulatedPrompt(tokens, _digest("\n".join(texts))),)


def _prompts(fields: dict[str, Any]) -> tuple[SimulatedPrompt, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (SimulatedPrompt(_count(prompt), _digest(prompt)),)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(token, int) for token in prompt):
            return (SimulatedPrompt(len(prompt), _digest(repr(prompt))),)
        if len(prompt) > _MOST_PROMPTS:
            raise Refused(
                f"prompt list length {len(prompt)} exceeds the maximum allowed count of"
                f" {_MOST_PROMPTS}. To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS"
                " environment variable.",
                "prompt",
            )
        if all(isinstance(text, str) for text in prompt):
            return tuple(SimulatedPrompt(_count(text), _digest(text)) for text in prompt)
        if all(isinstance(tokens, list) and tokens for tokens in prompt):
            return tuple(SimulatedPrompt(len(tokens), _digest(repr(tokens))) for tokens in prompt)
    raise Refused("prompt: expected a text or a list of tokens", "prompt", kind="Bad Request")

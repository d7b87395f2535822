"""Requests of every kind that a tap gets, with and without a record."""

from __future__ import annotations

import dataclasses
import http.client
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from tests.lab.traffic import Request, headers, prompt_number

TEMPERATURES = (0.0, 0.2, 0.4, 0.7, 1.0, 1.3, None)

CHAT_FORMS: Sequence[dict[str, Any]] = (
    {},
    {"max_tokens": 1},
    {"stop_token_ids": list(range(2, 150)), "max_tokens": 24},
    {"logprobs": True, "top_logprobs": 2},
    {"max_tokens": 20, "top_p": 0.9},
    {"include_reasoning": False, "max_completion_tokens": 12},
    {"max_tokens": 24, "ignore_eos": False},
    {"n": 1, "presence_penalty": 0.3},
)
COMPLETION_FORMS: Sequence[dict[str, Any]] = (
    {},
    {"max_tokens": 1},
    {"stop_token_ids": list(range(2, 150)), "max_tokens": 24},
    {"logprobs": 2},
    {"max_tokens": 20, "repetition_penalty": 1.1},
    {"echo": True},
    {"max_tokens": 24, "ignore_eos": False},
    {"prompt": [5, 6, 7, 8, 9], "n": 1, "return_token_ids": True},
)
USAGE_FORMS: Sequence[dict[str, Any]] = (
    {},
    {"stream_options": None},
    {"stream_options": {}},
    {"stream_options": {"include_usage": False}},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
)
"""Ways in which a stream asks for usage or does not."""
EVERY_PAIR = len(TEMPERATURES) * 2 * 2 * len(CHAT_FORMS)
"""Requests after which :func:`covered` has been through all of that, two by two: each form at each
temperature, and each with each way to ask for usage."""


def covered(count: int, first: int = 0, *, max_tokens: int = 8) -> list[Request]:
    """Seeded requests whose acceptance can be known: every temperature, form and way to ask."""
    found = []
    for number in range(first, first + count):
        form, chat, stream = number // 7 // 4, bool(number // 7 % 2), bool(number // 14 % 2)
        forms = CHAT_FORMS if chat else COMPLETION_FORMS
        more = {"seed": number, **forms[form % len(forms)]}
        if stream:
            more |= USAGE_FORMS[(number + form + form // len(forms)) % len(USAGE_FORMS)]
        request = Request(
            temperature=TEMPERATURES[number % 7],
            stream=stream,
            chat=chat,
            include_usage=False,
            prompt=prompt_number(number),
            max_tokens=max_tokens,
            more=more,
        )
        found.append(request)
    return found


def with_usage(requests: Iterable[Request]) -> list[Request]:
    """The same requests, each of whose streams asks for usage."""
    asking = {"stream_options": {"include_usage": True}}
    return [
        dataclasses.replace(request, more=request.more | asking) if request.stream else request
        for request in requests
    ]


def several(count: int) -> list[Request]:
    """Requests for two completions each, by ``n`` or by two prompts: without a record.

    Greedily, vLLM gives several completions only to several prompts.
    """
    found = []
    for number in range(count):
        temperature = TEMPERATURES[number % 7]
        chat, stream = bool(number // 7 % 2) and temperature != 0, bool(number // 14 % 2)
        prompts = {"prompt": [prompt_number(number), "two"]}
        twice = {"n": 2} if chat or (temperature != 0 and number % 2) else prompts
        request = Request(
            temperature=temperature,
            chat=chat,
            stream=stream,
            include_usage=bool(number % 3),
            prompt=prompt_number(number),
            max_tokens=8,
            more={"seed": number, **twice},
        )
        found.append(request)
    return found


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"hot": {"type": "boolean"}}},
    },
}
"""A tool."""
OUTPUTS: Sequence[tuple[str, dict[str, Any]]] = (
    ("text", {}),
    (
        "tool_call",
        {
            "tools": [WEATHER],
            "max_tokens": 60,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
    ),
    ("schema", {"response_format": {"type": "json_object"}, "max_tokens": 40}),
    ("schema", {"structured_outputs": {"choice": ["yes", "no"]}}),
    ("text", {"tools": [WEATHER], "tool_choice": "none"}),
)
"""What vLLM restricts the output to, and what the tap calls it."""


def mixed_output(count: int) -> list[tuple[Request, str]]:
    """Requests of chat, each fourth with a long prompt, and the segment of their output.

    Without seeds: the CPU build of vLLM 0.32 dies of a seeded prompt that it reads in parts.
    """
    found = []
    for number in range(count):
        output, more = OUTPUTS[number % len(OUTPUTS)]
        prompt = prompt_number(number)
        request = Request(
            temperature=TEMPERATURES[number % 7],
            chat=True,
            stream=bool(number // 7 % 2),
            include_usage=False,
            max_tokens=12,
            more=dict(more),
            prompt=(40 * prompt)[:1500] if number % 4 == 0 else prompt,
        )
        found.append((request, output))
    return found


def stopped(count: int) -> list[Request]:
    """Requests that most often end with a stop string: then vLLM gives no record either."""
    more = {"stop": ["a", "e"]}
    return [
        Request(
            temperature=TEMPERATURES[number % 7],
            chat=bool(number // 7 % 2),
            stream=bool(number // 14 % 2),
            include_usage=bool(number % 3),
            max_tokens=12,
            prompt=prompt_number(number),
            more={"seed": number, **more},
        )
        for number in range(count)
    ]


def refused(count: int) -> list[Request]:
    """Requests that the server refuses, each way of it at each temperature."""
    ways: Sequence[dict[str, Any]] = (
        {"max_tokens": 100_000},
        {"max_tokens": -1},
        {"model": "another"},
        {"top_p": 7},
        {"n": 0},
        {"stream_options": {"include_usage": True}},
        {"logprobs": "many"},
    )
    return [
        Request(
            temperature=TEMPERATURES[number % 7],
            chat=bool(number % 2),
            stream=bool(number // 7 % 2) and "stream_options" not in way,
            include_usage=False,
            more=dict(way),
        )
        for number, way in enumerate(ways[number // 7 % len(ways)] for number in range(count))
    ]


def leave(url: str, request: Request, *, key: str | None = None) -> None:
    """Send a request and disconnect in the middle of the answer.

    From a stream when its first event is there; from a whole response after a moment.
    """
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request("POST", request.path, json.dumps(request.body), headers(key))
    if request.stream:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
    else:
        time.sleep(0.3)
    connection.close()


def leave_all(url: str, requests: Sequence[Request], *, key: str | None = None) -> None:
    """Leave every request, four at a time."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda request: leave(url, request, key=key), requests))


def long_ones(count: int) -> list[Request]:
    """Requests that take seconds."""
    return [
        Request(
            temperature=TEMPERATURES[number % 7],
            chat=bool(number % 2),
            stream=number % 4 < 2,
            include_usage=False,
            max_tokens=900,
            prompt=prompt_number(number),
        )
        for number in range(count)
    ]

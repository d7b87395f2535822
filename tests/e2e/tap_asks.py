"""Requests of every shape, each of which must be answered as if there were no tap."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

from tests.e2e.tap_exchange import KEY, Ask
from tests.e2e.tap_traffic import USAGE_FORMS, WEATHER

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
FLAGS = ("--api-key", KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""What a server needs to answer all of them."""
BASE = {"model": "tiny", "max_tokens": 12, "seed": 7, "temperature": 0.7, "ignore_eos": True}
INPUTS: dict[str, dict[str, Any]] = {CHAT: HELLO, COMPLETIONS: {"prompt": "hello"}}
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    CHAT: {
        "plain": {},
        "n=2": {"n": 2},
        "one token": {"max_tokens": 1},
        "greedy": {"temperature": 0},
        "stop string": {"stop": ["a", "e", "i"], "max_tokens": 60},
        "eos": {"ignore_eos": False, "temperature": 1.3, "max_tokens": 60},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "token ids": {"return_token_ids": True},
        "echo": {"echo": True, "add_generation_prompt": False, "continue_final_message": False},
        "the role in no chunk alone": {"continue_final_message": False, "max_completion_tokens": 5},
        "unicode": {"messages": [{"role": "user", "content": 'héllo 🌍 \u2028 "usage":{}'}]},
        "several turns": {
            "messages": [
                *HELLO["messages"],
                {"role": "assistant", "content": "x"},
                {"role": "user", "content": "y"},
            ]
        },
        "tools that it may use": {"tools": [WEATHER], "tool_choice": "none"},
        "tools that it uses if it likes": {"tools": [WEATHER]},
        "a tool that it must use": {
            "tools": [WEATHER],
            "max_tokens": 60,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        "json": {"response_format": {"type": "json_object"}, "max_tokens": 40},
        "all of a choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    },
    COMPLETIONS: {
        "plain": {},
        "n=2": {"n": 2},
        "one token": {"max_tokens": 1},
        "greedy": {"temperature": 0},
        "two prompts": {"prompt": ["hello", "world"]},
        "two prompts twice": {"prompt": ["hello", "world"], "n": 2},
        "a list of one prompt": {"prompt": ["hello"]},
        "token ids as prompt": {"prompt": [5, 6, 7], "return_token_ids": True},
        "two prompts of token ids": {"prompt": [[5, 6, 7], [8, 9]]},
        "stop string": {"stop": ["a", "e", "i"], "max_tokens": 60},
        "logprobs": {"logprobs": 2},
        "echo": {"echo": True, "logprobs": 1},
        "only the echo": {"echo": True, "max_tokens": 0},
        "suffix": {"suffix": "end"},
        "a prompt about usage": {"prompt": '"stream_options":{"include_usage":true}} data: [DONE]'},
    },
}


def _generating() -> dict[str, Ask]:
    found = {}
    for path, shapes in SHAPES.items():
        for name, shape in shapes.items():
            body = {**BASE, **INPUTS[path], **shape}
            found[f"{path} whole: {name}"] = Ask(path, body)
            found[f"{path} stream: {name}"] = Ask(path, {**body, "stream": True})
    return found


def _refused() -> dict[str, Ask]:
    found = {}
    wrong: dict[str, dict[str, Any]] = {
        "max_tokens too large": {"max_tokens": 100_000},
        "temperature below 0": {"temperature": -1},
        "temperature is a word": {"temperature": "hot"},
        "another model": {"model": "another"},
        "n=0": {"n": 0},
        "n is an object": {"n": {}},
        "stream_options is a number": {"stream_options": 5},
        "include_usage is a word": {"stream_options": {"include_usage": "perhaps"}},
        "continuous usage is a word": {"stream_options": {"continuous_usage_stats": "perhaps"}},
        "include_usage is null": {"stream_options": {"include_usage": None}},
        "an unknown stream option": {"stream_options": {"include_usages": True}},
        "an unknown key": {"no_such_key": [1, 2]},
        "a tool that is not there": {"tool_choice": "required"},
        "beam search": {"use_beam_search": True, "n": 2, "temperature": 0},
        "no input": {"messages": None, "prompt": None},
    }
    # Each whole at one endpoint, and as a stream at the other.
    for (at, (path, given)), (number, (name, more)) in itertools.product(
        enumerate(INPUTS.items()), enumerate(wrong.items())
    ):
        stream = bool((at + number) % 2)
        body = {**BASE, **given, **more, "stream": stream}
        found[f"{path} {'stream' if stream else 'whole'}: {name}"] = Ask(path, body)
    return found


def _bytes() -> dict[str, Ask]:
    whole = json.dumps({**BASE, **HELLO}).encode()
    stream = json.dumps({**BASE, **HELLO, "stream": True}).encode()
    bodies = {
        "stream is a word": whole[:-1] + b',"stream":"yes"}',
        "stream is 1": whole[:-1] + b',"stream":1}',
        "a key twice": stream[:-1]
        + b',"stream_options":{"include_usage":true},"stream_options":null}',
        "a temperature twice": stream[:-1] + b',"temperature":0}',
        "room around": b"\n\t " + stream[:-1] + b" \n} \r\n",
        "a byte order mark": b"\xef\xbb\xbf" + stream,
        "not a number": stream[:-1] + b',"top_p":NaN}',
        "two documents": stream + stream,
        "a list": b"[" + stream + b"]",
        "half of it": stream[: len(stream) // 2],
        "nothing": b"",
        "null": b"null",
        "not UTF-8": stream.replace(b"hello", b"hel\xfflo"),
        "UTF-16": stream.decode().encode("utf-16"),
        "a surrogate": stream.replace(b"hello", rb"\ud800"),
        "escaped keys": stream.replace(b'"stream"', rb'"\u0073tream"'),
        "very deep": b"[" * 5000,
        "compressed": gzip.compress(stream),
    }
    return {f"body: {name}": Ask(CHAT, body) for name, body in bodies.items()}


def _http() -> dict[str, Ask]:
    stream = {**BASE, **HELLO, "stream": True}
    return {
        "another content type": Ask(CHAT, stream, more={"Content-Type": "text/plain"}),
        "a body in chunks": Ask(CHAT, stream, chunked=True, more={"Transfer-Encoding": "chunked"}),
        "an id": Ask(CHAT, stream, more={"X-Request-Id": "mine"}),
        "compression accepted": Ask(CHAT, stream, more={"Accept-Encoding": "gzip, br"}),
        "connection closed": Ask(CHAT, stream, more={"Connection": "close"}),
        "a page of another origin": Ask(CHAT, stream, more={"Origin": "http://example.com"}),
        "preflight": Ask(
            CHAT,
            method="OPTIONS",
            more={"Origin": "http://example.com", "Access-Control-Request-Method": "POST"},
        ),
        "GET": Ask(CHAT, method="GET"),
        "HEAD": Ask("/health", method="HEAD"),
        "no key, whole": Ask(CHAT, {**BASE, **HELLO}, key=None),
        "no key, stream": Ask(CHAT, stream, key=None),
        "a wrong key": Ask(COMPLETIONS, stream, key="wrong"),
        "nothing there": Ask("/v1/nothing", {}),
        "a slash too many": Ask(CHAT + "/", stream),
        "a query": Ask(CHAT + "?a=b", stream),
        "models": Ask("/v1/models", method="GET"),
        "one model": Ask("/v1/models/tiny", method="GET"),
        "health": Ask("/health", method="GET"),
        "version": Ask("/version", method="GET"),
        "ping": Ask("/ping", method="GET"),
        "tokenize": Ask("/tokenize", {"model": "tiny", "prompt": "hello"}),
        "detokenize": Ask("/detokenize", {"model": "tiny", "tokens": [5, 6]}),
        "invocations": Ask("/invocations", stream),
        "invocations of a completion": Ask("/invocations", {**BASE, "prompt": "hello"}),
        "a batch of chats": Ask(
            CHAT + "/batch", {**BASE, "messages": [HELLO["messages"], HELLO["messages"]]}
        ),
        "rendering": Ask(CHAT + "/render", {**BASE, **HELLO}),
    }


def _other_apis() -> dict[str, Ask]:
    given: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "hello", "max_output_tokens": 12},
        "/v1/messages": {"max_tokens": 12, **HELLO},
    }
    found = {"count of tokens": Ask("/v1/messages/count_tokens", {"model": "tiny", **HELLO})}
    for (path, body), temperature, stream in itertools.product(
        given.items(), (0, -1), (False, True)
    ):
        asked = {"model": "tiny", **body, "temperature": temperature, "stream": stream}
        found[f"{path} {'stream' if stream else 'whole'} at {temperature}"] = Ask(path, asked)
    return found


def _ways_to_ask_for_usage() -> dict[str, Ask]:
    found = {}
    for path, form, n in itertools.product(SHAPES, USAGE_FORMS, (1, 2)):
        body = {**BASE, **INPUTS[path], "n": n, "stream": True, **form}
        found[f"{path} n={n} {json.dumps(form)}"] = Ask(path, body)
    return found


OF_THE_WIRE: dict[str, Ask] = {**_ways_to_ask_for_usage(), **_bytes(), **_http(), **_other_apis()}
"""Requests that differ in more than the meaning of their bodies, by what they are."""
ASKS: dict[str, Ask] = {**_generating(), **_refused(), **OF_THE_WIRE}
"""Every request, by what it is."""

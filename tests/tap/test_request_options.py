"""What is read of a request, and how it is made to ask for usage."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specwatch_tap import request_options
from specwatch_tap.request_options import RequestOptions
from specwatch_tap.server_facts import Endpoint
from specwatch_tap.temperature import Buckets

CHAT = Endpoint.CHAT
MESSAGES = '"messages":[{"role":"user","content":"Hi"}]'


def read(members: str, endpoint: Endpoint = CHAT) -> RequestOptions:
    """A request with the members, as JSON text."""
    request = request_options.read(endpoint, f"{{{MESSAGES},{members}}}".encode())
    assert request is not None
    return request


TEMPERATURES = {
    "0": 0.0,
    "0.7": 0.7,
    "7e-1": 0.7,
    "2": 2.0,
    "-0.0": 0.0,
    '"0.7"': 0.7,
    '" 0.7 "': 0.7,
    "true": 1.0,
    "false": 0.0,
    "-1": -1.0,
    "null": None,
    '""': None,
    '"warm"': None,
    "[0.7]": None,
    '{"value":0.7}': None,
    "1" + "0" * 400: None,
    "123456789012345678901": 123456789012345678901.0,
}


def test_a_temperature_is_parsed_as_by_the_server() -> None:
    found = {text: read(f'"temperature":{text}').temperature for text in TEMPERATURES}
    assert found == TEMPERATURES


def test_an_invalid_temperature_has_no_bucket() -> None:
    for text in ("NaN", "Infinity", "-Infinity", '"nan"', '"inf"', "1e400", "-1"):
        assert Buckets().of(read(f'"temperature":{text}').temperature) == "unknown", text


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6))
def test_any_number_is_read_as_it_is(temperature: float) -> None:
    assert read(f'"temperature":{json.dumps(temperature)}').temperature == temperature


def test_of_a_key_that_stands_twice_the_last_one_counts() -> None:
    request = read('"temperature":0,"stream":false,"temperature":1.5,"stream":true')
    assert (request.temperature, request.stream) == (1.5, True)


SEVERAL = {
    '"n":1': False,
    '"n":null,"best_of":null': False,
    '"n":2': True,
    '"n":"2"': True,
    '"n":1,"best_of":3': True,
    '"n":"many"': False,
    '"n":[2]': False,
    '"prompt":"one"': False,
    '"prompt":["one"]': False,
    '"prompt":["one","two"]': True,
    '"prompt":[ "one" , "two" ]': True,
    '"prompt":[1,2,3]': False,
    '"prompt":[ 1, 2 ]': False,
    '"prompt":[-1,2]': False,
    '"prompt":[[1,2,3]]': False,
    '"prompt":[[1,2],[3]]': True,
    '"prompt":[]': False,
    '"prompt":{}': False,
    '"prompt":null,"prompt_embeds":["a"]': False,
    '"prompt":null,"prompt_embeds":["a","b"]': True,
    '"prompt":"one","prompt_embeds":"a"': True,
}


def test_several_completions_are_known_before_they_come() -> None:
    found = {
        members: request_options.read(Endpoint.COMPLETIONS, b"{%b}" % members.encode())
        for members in SEVERAL
    }
    assert found == {
        members: RequestOptions(Endpoint.COMPLETIONS, several=expected)
        for members, expected in SEVERAL.items()
    }


TRUE = ["true", "1", "1.0", '"true"', '"True"', '"on"', '"y"', '"1"']
FALSE = ["false", "0", "null", '"false"', '"off"', '"maybe"', "2", "[]", "{}"]


def test_true_is_what_pydantic_takes_for_true() -> None:
    for text in (*TRUE, *FALSE):
        request = read(
            f'"stream":{text},"use_beam_search":{text},"stream_options":{{"include_usage":{text}}}'
        )
        found = (request.stream, request.beam_search, request.wants_usage)
        assert found == (text in TRUE,) * 3, text


ASKABLE = {
    '"stream":true': True,
    '"stream":true,"stream_options":null': True,
    '"stream":true,"stream_options":{"include_usage":false}': True,
    '"stream":true,"stream_options":{"include_usage":null,"more":1}': True,
    '"stream":true,"stream_options":{}': True,
    '"stream":true,"stream_options":{"continuous_usage_stats":true}': True,
    # The server refuses these, and must go on doing so.
    '"stream":true,"stream_options":{"include_usage":"maybe"}': False,
    '"stream":true,"stream_options":[]': False,
    '"stream":true,"stream_options":"x"': False,
    '"stream":false': False,
    '"stream":false,"stream_options":{"include_usage":false}': False,
    '"temperature":1': False,
}


def test_only_a_stream_that_says_nothing_else_is_asked_for_usage() -> None:
    assert {members: read(members).askable for members in ASKABLE} == ASKABLE
    for members in ASKABLE:
        assert not read(members, Endpoint.MESSAGES).askable
        assert not read(members, Endpoint.RESPONSES).askable


def test_options_without_include_usage_are_recognised() -> None:
    expected = {"null": False, "{}": True, '{"include_usage":null}': False, '{"a":1}': True}
    found = {each: read(f'"stream":true,"stream_options":{each}').open for each in expected}
    assert found == expected


def test_tools_are_noticed() -> None:
    expected = {"null": False, "[]": False, '[{"type":"function"}]': True}
    assert {tools: read(f'"tools":{tools}').tools for tools in expected} == expected


def test_invocations_with_a_prompt_are_completions() -> None:
    door = request_options.ENDPOINTS["/invocations"]
    assert read('"n":1', door).endpoint is Endpoint.CHAT
    request = request_options.read(door, b'{"prompt":["a","b"]}')
    assert request == RequestOptions(Endpoint.COMPLETIONS, several=True)
    assert read('"prompt":["a","b"]', door).endpoint is Endpoint.CHAT


LENIENT = {
    "a number that JSON has not": b'{"temperature":0.5,"stream":true,"bias":NaN}',
    "a byte order mark": b'\xef\xbb\xbf{"temperature":0.5,"stream":true}',
    "UTF-16": '{"temperature":0.5,"stream":true}'.encode("utf-16"),
    "UTF-32 without a mark": '{"temperature":0.5,"stream":true}'.encode("utf-32-le"),
    "half of a pair of surrogates": b'{"temperature":0.5,"stream":true,"user":"\\ud83d"}',
    "half of a pair in the prompt": b'{"messages":["\\ud83d"],"temperature":0.5,"stream":true}',
    "a number beyond all": b'{"temperature":0.5,"stream":true,"n":1e400}',
}


def test_lenient_json_is_read_and_never_changed() -> None:
    for title, body in LENIENT.items():
        assert json.loads(body)["temperature"] == 0.5
        request = request_options.read(CHAT, body)
        assert request is not None, title
        found = (request.temperature, request.stream, request.askable)
        assert found == (0.5, True, False), title


NO_REQUESTS = {
    "nothing": b"",
    "a blank": b" ",
    "half an object": b'{"temperature":0.5',
    "a list": b"[1]",
    "null": b"null",
    "a form": b"temperature=0.5",
    "gzip": b"\x1f\x8b\x08\x00abc",
    "an object and more": b"{} {}",
    "a nesting bomb": b'{"messages":' + b"[" * 200_000,
    "a nesting bomb of objects": b'{"a":' * 200_000,
    "a closed nesting bomb": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "no UTF-8": b'{"temperature":\xff}',
}


def test_a_body_that_is_no_json_object_is_none() -> None:
    read = [title for title, body in NO_REQUESTS.items() if request_options.read(CHAT, body)]
    assert read == []


def test_a_huge_body_is_read_like_any_other() -> None:
    body = b'{"messages":["%b"],"temperature":0.25,"stream":true}' % (b"x" * (4 << 20))
    request = request_options.read(CHAT, body)
    assert request is not None
    assert request.temperature == 0.25
    assert (
        request_options.with_usage(body, request)
        == body[:-1] + b',"stream_options":{"include_usage":true}}'
    )


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_none(body: bytes) -> None:
    request_options.read(CHAT, body)


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=3,
)
keys = st.sampled_from(
    ["temperature", "n", "best_of", "prompt", "messages", "tools", "use_beam_search", "}", '"', "x"]
)
texts = st.sampled_from(["", " ", "\n", "\r\n\t "])


@st.composite
def streaming_bodies(draw: st.DrawFn) -> bytes:
    """Requests for a stream that do not ask for usage, in any of JSON's spellings."""
    members = list(draw(st.dictionaries(keys, values)).items())
    options = st.fixed_dictionaries(
        {"include_usage": st.sampled_from([None, False])},
        optional={"continuous_usage_stats": st.booleans(), "other": values},
    )
    # The same key several times: the last one counts.
    members += [("stream_options", draw(values)) for _ in range(draw(st.integers(0, 1)))]
    twice = bool(members) and members[-1][0] == "stream_options"
    if twice or draw(st.booleans()):
        members.append(("stream_options", draw(st.none() | options)))
    members.insert(draw(st.integers(0, len(members))), ("stream", True))
    blank, ascii_only = draw(texts), draw(st.booleans())
    inside = f",{blank}".join(
        f"{json.dumps(key)}{blank}:{json.dumps(value, ensure_ascii=ascii_only)}"
        for key, value in members
    )
    return f"{blank}{{{inside}{blank}}}{blank}".encode()


@given(streaming_bodies(), st.sampled_from([CHAT, Endpoint.COMPLETIONS]))
def test_a_body_with_usage_differs_in_nothing_else(body: bytes, endpoint: Endpoint) -> None:
    request = request_options.read(endpoint, body)
    assert request is not None
    assert request.askable
    changed = request_options.with_usage(body, request)
    before, after = json.loads(body), json.loads(changed)
    options, had = after.pop("stream_options"), before.pop("stream_options", None) or {}
    assert options.pop("include_usage") is True
    assert not options.pop("continuous_usage_stats", False)
    assert options == {key: had[key] for key in had.keys() & {"other"}}
    assert after == before
    end = body.rindex(b"}")
    assert changed.startswith(body[:end])
    assert changed.endswith(body[end:])


def test_other_stream_options_stay() -> None:
    request = read(
        '"stream":true,"stream_options":{"a":[1],"include_usage":false,"continuous_usage_stats":"on"}'
    )
    changed = json.loads(request_options.with_usage(b"{}", request).replace(b"{,", b"{"))
    assert changed["stream_options"] == {
        "a": [1],
        "include_usage": True,
        "continuous_usage_stats": False,
    }

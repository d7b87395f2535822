"""The options of a request on which acceptance depends."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from specwatch_tap.server_facts import Endpoint

ENDPOINTS = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/responses": Endpoint.RESPONSES,
    "/v1/messages": Endpoint.MESSAGES,
    # llama.cpp's other names for them; its own /completion is close enough to /v1/completions.
    "/chat/completions": Endpoint.CHAT,
    "/completions": Endpoint.COMPLETIONS,
    "/completion": Endpoint.COMPLETIONS,
    "/responses": Endpoint.RESPONSES,
    # SageMaker's single path for chat and completions.
    "/invocations": Endpoint.CHAT,
    "/v1/chat/completions/batch": Endpoint.OTHER,
    "/inference/v1/generate": Endpoint.OTHER,
    "/cohere/v2/chat": Endpoint.OTHER,
    "/infill": Endpoint.OTHER,
    "/v1/audio/transcriptions": Endpoint.OTHER,
    "/v1/audio/translations": Endpoint.OTHER,
}
"""Paths that generate, below the root path of the server."""

OPENAI = (Endpoint.CHAT, Endpoint.COMPLETIONS)
"""Those whose streams have usage if a request asks for it."""

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_TOKEN_IDS = re.compile(rb"\[\s*[-0-9]")
_CONTINUOUS = "continuous_usage_stats"
_ASKED = b'{"include_usage":true}'
_NO_USAGE = (None, False)


class _Body(msgspec.Struct, gc=False):
    """The keys that matter; all others are skipped without being decoded."""

    temperature: Any = None
    stream: Any = None
    stream_options: Any = None
    n: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    echo: Any = None
    prompt: msgspec.Raw = msgspec.Raw(b"")
    prompt_embeds: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    model: Any = None
    tool_choice: msgspec.Raw = msgspec.Raw(b"")
    response_format: msgspec.Raw = msgspec.Raw(b"")
    structured_outputs: msgspec.Raw = msgspec.Raw(b"")
    # Before vLLM 0.12.
    guided_json: msgspec.Raw = msgspec.Raw(b"")
    guided_regex: msgspec.Raw = msgspec.Raw(b"")
    guided_choice: msgspec.Raw = msgspec.Raw(b"")
    guided_grammar: msgspec.Raw = msgspec.Raw(b"")
    # Of llama.cpp.
    json_schema: msgspec.Raw = msgspec.Raw(b"")
    grammar: msgspec.Raw = msgspec.Raw(b"")


_RAW = tuple(f.name for f in msgspec.structs.fields(_Body) if f.type is msgspec.Raw)
_NOTHING = (b"null", b"{}", b"[]", b'""')
_FREE = (*_NOTHING, b'"auto"', b'"none"')
"""Choices of a tool that do not force one."""
_UNSTRUCTURED = re.compile(rb'\{\s*"type"\s*:\s*"text"\s*\}')
_BODY = msgspec.json.Decoder(_Body)


class RequestOptions(msgspec.Struct, frozen=True):
    """A request to generate.

    ``temperature`` is None if the server's default applies. ``several`` says that the request asks
    for more than one completion, ``wants_usage`` that the client asked for the usage chunk of a
    stream, ``open`` that the options leave that to the server's default (yes before vLLM 0.20),
    ``askable`` that the tap can ask for it, ``tools`` that the server may drop chunks while it
    parses a tool call, ``echo`` that the prompt comes first, ``forces_tool`` that the output must
    be a tool call, ``structured`` that it has to follow a schema or another structure.
    """

    endpoint: Endpoint
    temperature: float | None = None
    stream: bool = False
    several: bool = False
    beam_search: bool = False
    wants_usage: bool = False
    open: bool = False
    askable: bool = False
    tools: bool = False
    echo: bool = False
    stream_options: dict[str, Any] | None = None
    model: str | None = None
    forces_tool: bool = False
    structured: bool = False


def read(endpoint: Endpoint, body: bytes) -> RequestOptions | None:
    """Read a request's body; None for anything but a JSON object, which the server refuses."""
    plain = True
    request: _Body | None
    try:
        request = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        request, plain = _other_json(body), False
    if request is None:
        return None
    if endpoint is Endpoint.CHAT and request.prompt and not request.messages:
        endpoint = Endpoint.COMPLETIONS
    temperature = request.temperature
    if type(temperature) is not float:
        temperature = _number(temperature)
    options = request.stream_options
    stream = _is_true(request.stream)
    if plain and options is None and _is_usual(request):
        model = request.model if isinstance(request.model, str) else None
        askable = stream and endpoint in OPENAI
        return RequestOptions(endpoint, temperature, stream, askable=askable, model=model)
    can_say = options is None or (
        isinstance(options, dict) and options.get("include_usage") in _NO_USAGE
    )
    return RequestOptions(
        endpoint,
        temperature=temperature,
        stream=stream,
        several=_several(request),
        beam_search=_is_true(request.use_beam_search),
        wants_usage=isinstance(options, dict) and _is_true(options.get("include_usage")),
        open=isinstance(options, dict) and "include_usage" not in options,
        askable=plain and stream and can_say and endpoint in OPENAI,
        tools=bool(request.tools) and bytes(request.tools) not in _NOTHING,
        echo=_is_true(request.echo),
        stream_options=options if isinstance(options, dict) else None,
        model=request.model if isinstance(request.model, str) else None,
        forces_tool=bool(request.tool_choice) and bytes(request.tool_choice) not in _FREE,
        structured=_structured(request),
    )


def _is_usual(body: _Body) -> bool:
    """Whether it has none of the members that only some requests have."""
    return body.n is body.best_of is body.use_beam_search is body.echo is None and not (
        body.prompt
        or body.prompt_embeds
        or body.tools
        or body.tool_choice
        or body.response_format
        or body.structured_outputs
        or body.guided_json
        or body.guided_regex
        or body.guided_choice
        or body.guided_grammar
        or body.json_schema
        or body.grammar
    )


def with_usage(body: bytes, options: RequestOptions) -> bytes:
    """The body, asking for the usage chunk too; everything else stays byte for byte.

    The key is added at the end: if a key occurs twice, the last one counts.
    """
    asked = _ASKED
    if options.stream_options:
        stream_options = {**options.stream_options, "include_usage": True}
        if _is_true(stream_options.get(_CONTINUOUS)):
            stream_options[_CONTINUOUS] = False  # without usage it had no effect, with it it would
        asked = msgspec.json.encode(stream_options)
    end = body.rindex(b"}")
    return b'%b,"stream_options":%b%b' % (body[:end], asked, body[end:])


def _other_json(body: bytes) -> _Body | None:
    """Read it with a more lenient JSON parser, as the server does."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    raw = {key: msgspec.Raw(json.dumps(members[key]).encode()) for key in _RAW if key in members}
    plain = {
        key: members[key] for key in _Body.__struct_fields__ if key in members and key not in raw
    }
    return _Body(**plain, **raw)


def _number(value: Any) -> float | None:
    """The number that pydantic reads; None for a value that it refuses."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_true(value: Any) -> bool:
    if value is None or value is False:
        return False
    if value is True:
        return True
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, int | float) and value == 1


def _structured(body: _Body) -> bool:
    structures = (
        body.structured_outputs,
        body.guided_json,
        body.guided_regex,
        body.guided_choice,
        body.guided_grammar,
        body.json_schema,
        body.grammar,
        body.response_format,
    )
    given = [bytes(structure) for structure in structures if structure]
    return any(one not in _NOTHING and not _UNSTRUCTURED.fullmatch(one) for one in given)


def _several(body: _Body) -> bool:
    if _prompts(body.prompt) + _prompts(body.prompt_embeds) > 1:
        return True
    return (_number(body.n) or 0) > 1 or (_number(body.best_of) or 0) > 1


def _prompts(raw: msgspec.Raw) -> int:
    if not raw:
        return 0
    text = bytes(raw)
    if text == b"null":
        return 0
    if not text.startswith(b"[") or _TOKEN_IDS.match(text):
        return 1
    try:
        return len(msgspec.json.decode(text, type=list[msgspec.Raw]))
    except msgspec.DecodeError:
        return 1

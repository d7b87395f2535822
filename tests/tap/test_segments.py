"""The segments of a request, and how few of them have series whatever clients send."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from specwatch.domain.buckets import order_of
from specwatch.domain.model import TEMPERATURE
from specwatch.scrape.exposition import PageReader
from specwatch_tap import Tap, segments, settings
from specwatch_tap.middleware import App
from specwatch_tap.segment_kinds import checked_kinds, prompt_length_label
from specwatch_tap.segments import LEAST_REQUESTS, MOST_VALUES, FrequentValues
from specwatch_tap.settings import Settings
from tests.segments import segment
from tests.tap.exchanges import EVENTS, Known, answering, parts, scope, visit

DATA = Path(__file__).parents[1] / "data"
CHAT: dict[str, Any] = json.loads((DATA / "chat-response.json").read_bytes())
STREAM = (DATA / "chat-stream-usage.sse").read_bytes()
QUESTION: dict[str, Any] = {"model": "tiny", "messages": [], "temperature": 0.5}


def app_of(**message: Any) -> App:
    """Answers with a finish reason and members of the message."""
    reason = message.pop("finish_reason", "stop")
    choice = {**CHAT["choices"][0], "finish_reason": reason}
    choice["message"] = {**choice["message"], **message}
    return answering(json.dumps({**CHAT, "choices": [choice]}).encode())


def segments_of(
    app: App, *kinds: str, headers: list[tuple[bytes, bytes]] | None = None, **members: Any
) -> dict[str, float]:
    """The segments in which a request is counted, with its drafts."""
    registry = CollectorRegistry()
    tap = Tap(
        app, server=Known(aliases=("alias",)), settings=Settings(segments=kinds), registry=registry
    )
    body = json.dumps({**QUESTION, **members}).encode()
    assert visit(tap, parts(body), scope(headers=headers or [])).error is None
    return drafts_of(registry)


def drafts_of(registry: CollectorRegistry) -> dict[str, float]:
    """Drafts by segment, as the daemon reads them."""
    return {
        f"{series.segment.dimension}={series.segment.value}": value
        for series, value in PageReader().read(generate_latest(registry)).items()
        if series.quantity == "drafts" and series.segment.dimension != TEMPERATURE
    }


OUTPUTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "text"),
    ({"finish_reason": "tool_calls"}, {"tools": [{}]}, "tool_call"),
    ({}, {"tools": [{}]}, "text"),
    ({}, {"tools": [{}], "tool_choice": "required"}, "tool_call"),
    ({}, {"tools": [{}], "tool_choice": {"type": "function"}}, "tool_call"),
    ({}, {"tools": [{}], "tool_choice": "auto"}, "text"),
    ({}, {"response_format": {"type": "json_schema", "json_schema": {}}}, "schema"),
    ({}, {"response_format": {"type": "text"}}, "text"),
    ({}, {"structured_outputs": {"choice": ["a"]}}, "schema"),
    ({}, {"structured_outputs": None, "guided_json": {"type": "object"}}, "schema"),
    ({"reasoning": "Well"}, {}, "reasoning"),
    ({"reasoning_content": "Well"}, {}, "reasoning"),
    ({"reasoning": "Well"}, {"response_format": {"type": "json_object"}}, "schema"),
]


def test_the_output() -> None:
    for message, members, output in OUTPUTS:
        found = segments_of(app_of(**message), "output", **members)
        assert found == {f"output={output}": 8}, (message, members)


def test_the_output_of_json_that_only_a_lenient_parser_reads() -> None:
    """NaN is no JSON; pydantic takes it."""
    members = {"response_format": {"type": "json_object"}, "top_p": float("nan")}
    assert segments_of(app_of(), "output", **members) == {"output=schema": 8}


def test_a_stream_with_reasoning() -> None:
    events = STREAM.replace(b'"delta":{"content":"H"}', b'"delta":{"reasoning":"H"}', 1)
    found = segments_of(answering(events, headers=EVENTS), "output", "stream", stream=True)
    assert found == {"output=reasoning": 8, "stream=yes": 8}
    plain = segments_of(answering(STREAM, headers=EVENTS), "output", stream=True)
    assert plain == {"output=text": 8}


def test_the_prompt_length_is_that_of_experiments() -> None:
    assert segments_of(app_of(), "prompt_length", "stream") == {
        "prompt_length=1-256": 8,
        "stream=no": 8,
    }


def test_the_adapter_is_the_model_that_is_not_the_servers() -> None:
    expected = {"tiny": "none", "alias": "none", "sql": "other", None: "none"}
    for model, adapter in expected.items():
        assert segments_of(app_of(), "adapter", model=model) == {f"adapter={adapter}": 8}, model


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ([], "none"),
        ([(b"X-Tenant", b"acme")], "other"),
        ([(b"x-tenant", b"")], "none"),
        ([(b"x-tenant", b"a" * 65)], "other"),
        ([(b"x-tenant", "\xe9".encode())], "other"),
    ],
)
def test_a_header(headers: list[tuple[bytes, bytes]], value: str) -> None:
    found = segments_of(app_of(), "header:x-tenant", headers=headers)
    assert found == {f"header:x-tenant={value}": 8}


def test_what_was_refused_is_in_no_segment() -> None:
    assert segments_of(answering(b"{}", status=404), "adapter", model="made-up") == {}


def test_a_frequent_value_gets_series_and_all_add_up() -> None:
    registry = CollectorRegistry()
    kinds = ("header:x-tenant", "prompt_length")
    tap = Tap(app_of(), server=Known(), settings=Settings(segments=kinds), registry=registry)
    for _ in range(LEAST_REQUESTS + 4):
        for tenant in (b"acme", b"globex"):
            visit(tap, of=scope(headers=[(b"x-tenant", tenant)]))
    drafts = drafts_of(registry)
    assert drafts == {
        "header:x-tenant=acme": 40,
        "header:x-tenant=globex": 40,
        "header:x-tenant=other": 8 * 2 * (LEAST_REQUESTS - 1),
        "prompt_length=1-256": 8 * 2 * (LEAST_REQUESTS + 4),
    }


def test_ten_thousand_values_take_neither_series_nor_memory() -> None:
    values = FrequentValues()
    shown = {values.of(f"tenant-{n % 5}") for n in range(100)}
    tracemalloc.start()
    shown |= {values.of(f"made-up-{n}") for n in range(10_000)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shown == {"other", *(f"tenant-{n}" for n in range(5))}
    assert peak < 200_000
    assert values.of("tenant-3") == "tenant-3"


def test_values_that_are_sent_often_on_purpose_are_bounded_too() -> None:
    values = FrequentValues()
    shown = {values.of(f"made-up-{n // 20}") for n in range(10_000)}
    assert len(shown) == MOST_VALUES + 1


def test_a_frequent_value_is_found_among_many_others() -> None:
    values = FrequentValues()
    shown = {values.of("acme" if n % 20 == 0 else f"made-up-{n}") for n in range(10_000)}
    assert shown == {"other", "acme"}


def test_values_sent_over_the_wire_are_bounded_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "MOST_VALUES", 4)
    registry = CollectorRegistry()
    kinds = ("header:x-tenant", "adapter")
    tap = Tap(app_of(), server=Known(), settings=Settings(segments=kinds), registry=registry)
    for n in range(96):
        name = b"made-up-%d" % (n // 12)
        body = json.dumps({**QUESTION, "model": name.decode()}).encode()
        visit(tap, parts(body), scope(headers=[(b"x-tenant", name)]))
    drafts = drafts_of(registry)
    assert len(drafts) == 2 * (4 + 1)
    assert sum(drafts.values()) == 2 * 96 * 8


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "tenant",
            "'tenant' is not a kind of segment; use prompt_length, stream, output, adapter"
            " or header:NAME with a header in lower case",
        ),
        ("header:X-Tenant", "'header:X-Tenant' is not a kind of segment"),
        ("header:", "'header:' is not a kind of segment"),
        ("header:authorization", "'header:authorization' may hold credentials"),
        ("header:x-auth-token", "'header:x-auth-token' may hold credentials"),
        ("stream,stream", "names a kind twice"),
        ("stream,output,adapter", "names 3 kinds; give at most 2"),
        ("header:x-a,header:x-b", "names two headers; give one"),
    ],
)
def test_a_wrong_setting_is_refused(written: str, problem: str) -> None:
    with pytest.raises(ValueError, match="SPECWATCH_TAP_SEGMENTS=") as refused:
        settings.from_environment({"SPECWATCH_TAP_SEGMENTS": written})
    assert problem in str(refused.value)


def test_the_setting() -> None:
    variables = {"SPECWATCH_TAP_SEGMENTS": "prompt_length, header:x-tenant"}
    assert settings.from_environment(variables).segments == ("prompt_length", "header:x-tenant")
    assert settings.from_environment({"SPECWATCH_TAP_SEGMENTS": " "}).segments == ()
    assert checked_kinds(()) == ()


def test_segments_in_order() -> None:
    labels = [
        "output=text",
        "prompt_length=unknown",
        "prompt_length=16385+",
        "prompt_length=1-256",
        "prompt_length=257-2048",
        "output=schema",
    ]
    assert sorted(labels, key=lambda label: order_of(segment(label))) == [
        "output=schema",
        "output=text",
        "prompt_length=1-256",
        "prompt_length=257-2048",
        "prompt_length=16385+",
        "prompt_length=unknown",
    ]


@pytest.mark.parametrize(
    ("tokens", "label"),
    [
        (0, "1-256"),
        (256, "1-256"),
        (257, "257-2048"),
        (2048, "257-2048"),
        (2049, "2049-8192"),
        (8192, "2049-8192"),
        (8193, "8193-16384"),
        (16_384, "8193-16384"),
        (16_385, "16385+"),
        (10**7, "16385+"),
        (None, "unknown"),
    ],
)
def test_the_class_of_a_prompt(tokens: int | None, label: str) -> None:
    assert prompt_length_label(tokens) == label

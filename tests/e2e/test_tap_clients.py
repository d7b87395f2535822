"""Clients that nobody here wrote notice nothing of the tap, and their own figures are the tap's.

All ask one server, each at its own temperature, and so in its own bucket.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

from tests.e2e.tap_page import (
    QUANTILES,
    TPOT,
    TTFT,
    Latency,
    assert_same_tpot,
    assert_same_ttft,
    at_rest,
    chosen,
    difference,
    latency,
    tapped,
)
from tests.lab.load_tools import OFFLINE, aiperf_profile, hub_with, run, vllm_bench
from tests.lab.vllm_server import VllmServer

COUNT = 64
"""Requests whose latency is compared: of so many, six that the client itself kept waiting are
beyond the 90th percentile."""
TOKENS = 40


@pytest.fixture(scope="module")
def server(tapped_server: VllmServer) -> VllmServer:
    return tapped_server


class Measured(NamedTuple):
    """Latencies of the same requests, in seconds: what the tap observed, and what the client did.

    ``tpots`` is None where the client's cannot be used.
    """

    tap_ttft: Latency
    ttfts: list[float]
    tap_tpot: Latency
    tpots: list[float] | None
    quantiles: tuple[float, ...] = QUANTILES


def agreed(measure: Callable[[], Measured]) -> None:
    """Measure until the client's latencies are the tap's; what ``measure`` itself asserts is final.

    A client shares few cores with the server, and what holds it up for a moment shows in its own
    quantiles; a tap that measures something else never agrees.
    """
    for left in reversed(range(6)):
        found = measure()
        try:
            assert_same_ttft(found.tap_ttft, found.ttfts, found.quantiles)
            if found.tpots is not None:
                assert_same_tpot(found.tap_tpot, found.tpots, found.quantiles)
            return
        except AssertionError:
            if not left:
                raise


def asked(number: int, **more: Any) -> dict[str, Any]:
    """One request of the openai package, as its own arguments."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"number {number}"}],
        "max_tokens": TOKENS,
        "seed": number,
        "extra_body": {"ignore_eos": True},
        **more,
    }


def record_of(answer: Any) -> dict[str, Any]:
    """The acceptance record, which the package hands on without knowing it."""
    found = answer.model_extra["metrics"]["speculative_decoding"]
    assert isinstance(found, dict)
    return found


def assert_counted(counts: dict[str, int], records: list[dict[str, Any]]) -> None:
    """The tap counted exactly these records."""
    assert counts["records record"] == len(records)
    assert counts["drafts"] == sum(record["num_spec_steps"] for record in records)
    assert counts["draft_tokens"] == sum(record["num_draft_tokens"] for record in records)
    assert counts["accepted_tokens"] == sum(r["num_accepted_draft_tokens"] for r in records)


def test_openai_asks_and_is_answered_whole(server: VllmServer) -> None:
    """Chat, completions and responses, sync, without a temperature: vLLM's default is 1."""
    before = tapped(at_rest(server.metrics))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        chats = [client.chat.completions.create(**asked(n)) for n in range(6)]
        texts = [
            client.completions.create(model="tiny", prompt=f"number {n}", max_tokens=TOKENS, seed=n)
            for n in range(6)
        ]
        response = client.responses.create(model="tiny", input="hello", max_output_tokens=8)
    counts = difference(before, tapped(at_rest(server.metrics)))["(0.7,1]"]
    assert all(chat.choices[0].message.content for chat in chats)
    assert response.status in ("incomplete", "completed")
    assert_counted(counts, [record_of(answer) for answer in (*chats, *texts)])
    assert counts["uncovered endpoint"] == 1


def test_openai_streams(server: VllmServer) -> None:
    """Sync, the same seed with and without ``include_usage``: the tap counts both alike.

    Who did not ask for usage gets no chunk without a choice.
    """
    before = tapped(at_rest(server.metrics))
    records, texts = [], []
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        for number in range(6):
            given = asked(number, temperature=0.5, stream=True)
            quiet = list(client.chat.completions.create(**given))
            assert all(len(chunk.choices) == 1 for chunk in quiet)
            assert {chunk.usage for chunk in quiet} == {None}
            asking = list(
                client.chat.completions.create(**given, stream_options={"include_usage": True})
            )
            assert asking[-1].choices == []
            assert asking[-1].usage is not None
            assert asking[-1].usage.completion_tokens == TOKENS
            texts.append([text_of(quiet), text_of(asking)])
            records.append(record_of(asking[-1]))
    counts = difference(before, tapped(at_rest(server.metrics)))["(0.3,0.7]"]
    assert all(quiet and quiet == asking for quiet, asking in texts)
    assert_counted(counts, [record for record in records for _ in ("quiet", "asking")])


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_async_openai_measures_what_the_tap_measures(server: VllmServer) -> None:
    """Four streams at a time, none asking for usage; every request makes as many tokens.

    The median: on few cores the package's own work delays single events for long.
    """

    def measure() -> Measured:
        before = at_rest(server.metrics)
        ttfts, tpots = asyncio.run(measured(server.url))
        after = at_rest(server.metrics)
        of_tap = since(before, after, TTFT, "0"), since(before, after, TPOT, "0")
        assert [observed.count for observed in of_tap] == [len(ttfts), len(tpots)]
        return Measured(of_tap[0], ttfts, of_tap[1], tpots, (0.5,))

    agreed(measure)


def since(before: str, after: str, family: str, temperature: str) -> Latency:
    return latency(after, family, temperature) - latency(before, family, temperature)


async def measured(url: str) -> tuple[list[float], list[float]]:
    """TTFT and TPOT of each request at temperature 0, in seconds."""
    limit = asyncio.Semaphore(4)
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as client:

        async def one(number: int) -> tuple[float, float]:
            async with limit:
                start = time.perf_counter()
                chunks: AsyncIterator[Any] = await client.chat.completions.create(
                    **asked(number, temperature=0, stream=True)
                )
                times = []
                async for chunk in chunks:
                    assert len(chunk.choices) == 1
                    times.append(time.perf_counter())
                return times[0] - start, (times[-1] - times[0]) / (TOKENS - 1)

        for number in range(4):  # what the package sets up at its first requests is not latency
            await client.completions.create(model="tiny", prompt="hello", max_tokens=number + 1)
        found = await asyncio.gather(*(one(number) for number in range(COUNT)))
    return [ttft for ttft, _ in found], [tpot for _, tpot in found]


def test_vllm_bench_agrees(
    server: VllmServer, vllm_install: Path, tiny_models: Path, tmp_path: Path
) -> None:
    """Acceptance per position to the last token, TTFT and TPOT per request."""
    agreed(lambda: bench(server, vllm_install, tiny_models, tmp_path))


def bench(server: VllmServer, vllm_install: Path, tiny_models: Path, folder: Path) -> Measured:
    before = at_rest(server.metrics)
    command = vllm_bench(
        vllm_install,
        server.url,
        tiny_models / "target",
        requests=COUNT,
        concurrency=4,
        temperature=0.2,
    )
    command += [
        "--dataset-name",
        "random",
        "--random-input-len",
        "40",
        "--random-output-len",
        str(TOKENS),
        "--save-result",
        "--save-detailed",
        "--result-dir",
        str(folder),
        "--result-filename",
        "result.json",
    ]
    run(command, OFFLINE)
    result = json.loads((folder / "result.json").read_text())
    after = at_rest(server.metrics)
    counts = difference(tapped(before), tapped(after))["(0,0.3]"]
    assert result["completed"] == counts["records record"] == COUNT
    assert result["spec_decode_num_drafts"] == counts["drafts"]
    assert result["spec_decode_draft_tokens"] == counts["draft_tokens"]
    assert result["spec_decode_accepted_tokens"] == counts["accepted_tokens"]
    rates = result["spec_decode_per_position_acceptance_rates"]
    positions = [counts[f"accepted at {position}"] / counts["drafts"] for position in range(4)]
    assert rates == pytest.approx(positions)
    assert result["total_output_tokens"] == counts["generation_tokens"]
    decoding = zip(result["latencies"], result["ttfts"], result["output_lens"], strict=True)
    tpots = [(end - first) / (tokens - 1) for end, first, tokens in decoding]
    return Measured(
        since(before, after, TTFT, "(0,0.3]"),
        result["ttfts"],
        since(before, after, TPOT, "(0,0.3]"),
        tpots,
    )


def test_aiperf_agrees(server: VllmServer, aiperf: Path, tiny_models: Path, tmp_path: Path) -> None:
    """AIPerf reads the records too: steps, acceptance rate and lengths are the tap's.

    One request at a time, and of latency the median of TTFT: on a machine with few cores its many
    processes hold up each other's clocks for up to a second, in the middle of a stream too.
    """
    hub = hub_with(tiny_models / "target", tmp_path)
    folders = (tmp_path / str(attempt) for attempt in itertools.count())
    agreed(lambda: profile(server, aiperf, hub, next(folders)))


def profile(server: VllmServer, aiperf: Path, hub: Path, folder: Path) -> Measured:
    before = at_rest(server.metrics)
    command = aiperf_profile(
        aiperf, server.url, folder, requests=COUNT // 2, concurrency=1, temperature=1.3
    )
    command += ["--isl", "40", "--osl", str(TOKENS), "--random-seed", "1"]
    run(command, {**OFFLINE, "HF_HOME": str(hub)})
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    exported = (folder / "profile_export.jsonl").read_text().splitlines()
    requests = [json.loads(line)["metrics"] for line in exported]
    after = at_rest(server.metrics)
    counts = difference(tapped(before), tapped(after))[">1"]
    assert summary["request_count"]["avg"] == counts["records record"] == COUNT // 2
    assert summary["total_spec_decode_steps"]["avg"] == counts["drafts"]
    assert summary["total_draft_tokens"]["avg"] == counts["draft_tokens"]
    assert summary["total_accepted_draft_tokens"]["avg"] == counts["accepted_tokens"]
    lengths = summary["pooled_spec_decode_acceptance_histogram"]
    for position in range(4):
        at_least = sum(drafts for kept, drafts in lengths.items() if int(kept) > position)
        assert counts[f"accepted at {position}"] == at_least
    ttfts = [request["time_to_first_token"]["value"] / 1000 for request in requests]
    tpot = since(before, after, TPOT, ">1")
    assert tpot.count == len(requests)
    return Measured(since(before, after, TTFT, ">1"), ttfts, tpot, None, (0.5,))


def test_no_client_made_the_tap_fail(server: VllmServer) -> None:
    assert chosen(tapped(server.metrics()), "failures") == {}

"""``specwatch tap proxy`` before a real vLLM that has no tap, with records and without."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import StartVllm
from tests.e2e.processes import TapProxy
from tests.e2e.tap_asks import OF_THE_WIRE
from tests.e2e.tap_exchange import KEY, cut_alike
from tests.e2e.tap_page import (
    ACCEPTANCE,
    Buckets,
    at_rest,
    bucket_of,
    chosen,
    difference,
    everywhere,
    grown,
    of_records,
    tapped,
)
from tests.e2e.tap_traffic import (
    EVERY_PAIR,
    TEMPERATURES,
    covered,
    leave_all,
    long_ones,
    refused,
    several,
    with_usage,
)
from tests.lab.traffic import Outcome, Request, prompt_number, requests_at, send_all
from tests.lab.vllm_server import VllmServer

NO_RECORDS = ("--per-request-spec-decode-metrics", "none")
CONCURRENCY = 8
OF_THE_HOST = "a slash too many"
"""Redirected to the name by which the server was asked, and a proxy asks by another."""


@pytest.fixture(scope="module")
def server(keyed_server: VllmServer) -> VllmServer:
    """A server that keeps records and wants an API key, which the proxy does not know."""
    return keyed_server


@pytest.fixture(scope="module")
def proxy(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapProxy]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    with TapProxy(log, server.url, "--default-temperature", "1") as proxy:
        proxy.wait_ready()
        yield proxy


def through(proxy: TapProxy, requests: list[Request]) -> tuple[list[Outcome], Buckets]:
    """Send them through the proxy; what it counted of them."""
    before = tapped(at_rest(proxy.metrics))
    outcomes = send_all(proxy.url, requests, CONCURRENCY, key=KEY)
    return outcomes, difference(before, tapped(at_rest(proxy.metrics)))


def test_buckets_equal_the_servers_records_and_counters(
    server: VllmServer, proxy: TapProxy
) -> None:
    """The same seeds asked past the proxy tell the records of streams that asked for none."""
    requests = [
        request for request in covered(EVERY_PAIR, first=2 * EVERY_PAIR) if says_of_usage(request)
    ]
    direct = send_all(server.url, with_usage(requests), CONCURRENCY, key=KEY)
    before = at_rest(server.metrics)
    outcomes, counts = through(proxy, requests)
    own = grown(before, at_rest(server.metrics))
    assert [outcome.error for outcome in outcomes + direct if not outcome.ok] == []
    assert [outcome.text for outcome in outcomes] == [outcome.text for outcome in direct]
    assert chosen(counts, *ACCEPTANCE) == of_records(direct)
    assert everywhere(chosen(counts, *ACCEPTANCE)) == own
    assert everywhere(chosen(counts, "records", "uncovered")) == {"records record": len(requests)}


def test_requests_without_a_record_are_counted_by_reason(
    server: VllmServer, proxy: TapProxy
) -> None:
    """Several completions, refusals, clients that leave; who is beside them is counted exactly."""
    leavers, good = long_ones(14), [each for each in covered(56) if says_of_usage(each)]
    direct = send_all(server.url, with_usage(good), CONCURRENCY, key=KEY)
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave_all, proxy.url, leavers, key=KEY)
        before = tapped(proxy.metrics())
        _, counts = through(proxy, [*several(28), *refused(49), *good])
        leaving.result()
    at_rest(server.metrics)
    counts = difference(before, tapped(at_rest(proxy.metrics)))
    assert chosen(counts, *ACCEPTANCE) == of_records(direct)
    assert everywhere(chosen(counts, "records", "uncovered", "failures")) == {
        "records record": len(good),
        "uncovered several": 28,
        "uncovered refused": 49,
        "uncovered disconnected": len(leavers),
    }


def says_of_usage(request: Request) -> bool:
    """What stream options without ``include_usage`` mean only the server knows, by its release."""
    options = request.more.get("stream_options")
    return options is None or "include_usage" in options


@pytest.mark.parametrize("what", [what for what in OF_THE_WIRE if what != OF_THE_HOST])
def test_the_answer_is_the_same_past_the_proxy(
    server: VllmServer, proxy: TapProxy, what: str
) -> None:
    """Status, headers and body; of a stream event by event and field by field."""
    proxied, direct = cut_alike((proxy.url, server.url), OF_THE_WIRE[what])
    assert (proxied.status, sorted(proxied.headers)) == (direct.status, sorted(direct.headers))
    assert proxied.shown()[2] == direct.shown()[2]


def test_acceptance_is_derived_where_the_server_keeps_no_record(
    start_vllm: StartVllm, server: VllmServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Streams are derived, and say so; whole responses are not covered.

    The server with records takes the same steps for the same seeds, and is the truth. Each step
    after the first token yields one token and those accepted, so drafts + accepted = tokens - 1
    holds exactly of what is derived. The true sum is higher by what the last steps accepted beyond
    ``max_tokens``. Other than that, it differs only where vLLM joined steps that a busy reader had
    not fetched: for each, a draft too few and an accepted token too many, so acceptance comes out
    too high. How often says how busy the machine is, and the client sees it too: there is an event
    for what is left of the steps. Where more was joined than speculation can yield, nothing is
    derived.
    """
    log = tmp_path_factory.mktemp("proxy") / "log"
    streams = [
        Request(
            temperature=TEMPERATURES[number % 7],
            stream=True,
            include_usage=False,
            chat=bool(number % 2),
            prompt=prompt_number(number),
            max_tokens=48,
            more={"seed": number},
        )
        for number in range(56)
    ]
    direct = send_all(server.url, with_usage(streams), 4, key=KEY)
    with (
        start_vllm(*NO_RECORDS, speculation="draft-good", k=4) as silent,
        TapProxy(log, silent.url, "--default-temperature", "1") as proxy,
    ):
        proxy.wait_ready()
        outcomes = send_all(proxy.url, streams, 4)
        answers = send_all(proxy.url, requests_at(TEMPERATURES, 14), 4)
        counts = tapped(at_rest(proxy.metrics))
    assert [outcome.error for outcome in outcomes + answers if not outcome.ok] == []
    assert [outcome.text for outcome in outcomes] == [outcome.text for outcome in direct]
    pairs = list(zip(outcomes, direct, strict=True))
    can_be = [(o, d) for o, d in pairs if (d.tokens or 0) - steps(o) <= 4 * (steps(o) - 1)]
    reasons = everywhere(chosen(counts, "records", "uncovered"))
    assert reasons == {
        "records derived": len(can_be),
        "uncovered no_record": len(answers) + len(pairs) - len(can_be),
    }
    truth = of_records(outcome for _, outcome in can_be)
    assert truth
    for bucket, true in truth.items():
        found = counts[bucket]
        mine = [pair for pair in can_be if bucket_of(pair[0].request.temperature) == bucket]
        after_the_first = sum((outcome.tokens or 0) - 1 for _, outcome in mine)
        assert found["drafts"] + found["accepted_tokens"] == after_the_first
        assert found["draft_tokens"] == 4 * found["drafts"]
        cut_off = true["drafts"] + true["accepted_tokens"] - after_the_first
        assert 0 <= cut_off <= 4 * len(mine)
        assert found["drafts"] == sum(steps(outcome) - 1 for outcome, _ in mine) <= true["drafts"]


def steps(stream: Outcome) -> int:
    """Events with tokens; the first of a chat has its role alone."""
    return stream.events - stream.request.chat

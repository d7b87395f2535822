"""The tap in a real vLLM: its counts are exact, and nobody can tell that it is there.

Two servers with the same flags and an API key; only one of them has the tap. For the same seed both
give the same answers whatever else runs beside (seen on this vLLM at up to 32 requests at a time),
so the answers of the other one are what an independent client has.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import witness
from tests.e2e.conftest import StartVllm
from tests.e2e.tap_asks import ASKS, FLAGS
from tests.e2e.tap_exchange import KEY, ask, cut_alike
from tests.e2e.tap_page import (
    ACCEPTANCE,
    BUCKETS,
    Buckets,
    at_rest,
    bucket_of,
    chosen,
    difference,
    everywhere,
    grown,
    of_records,
    segmented,
    tapped,
)
from tests.e2e.tap_traffic import (
    EVERY_PAIR,
    covered,
    leave_all,
    long_ones,
    mixed_output,
    refused,
    several,
    stopped,
    with_usage,
)
from tests.e2e.witness import Counts, total
from tests.lab.traffic import Outcome, Request, send_all
from tests.lab.vllm_server import VllmServer

CONCURRENCY = 16


class Pair(NamedTuple):
    """Two servers that differ in nothing else."""

    tapped: VllmServer
    plain: VllmServer


class Phase(NamedTuple):
    """What a time of nothing but certain requests changed on both servers."""

    outcomes: list[Outcome]
    """Of the server without the tap, whose streams were asked for usage."""
    seen: list[Outcome]
    """Of the tapped one."""
    counted: Buckets
    """By the tap."""
    tapped_server: Counts
    """By the tapped server itself."""
    plain_server: Counts


@pytest.fixture(scope="module")
def pair(keyed_server: VllmServer, start_vllm: StartVllm, tap: tuple[str, ...]) -> Iterator[Pair]:
    segments = {"SPECWATCH_TAP_SEGMENTS": "prompt_length,output"}
    with start_vllm(*FLAGS, *tap, speculation="draft-good", k=4, environment=segments) as with_tap:
        yield Pair(with_tap, keyed_server)


def both(pair: Pair, requests: list[Request]) -> Phase:
    """Send them to both servers, and ask the plain one for usage."""
    before, plain_before = at_rest(pair.tapped.metrics), at_rest(pair.plain.metrics)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(send_all, pair.plain.url, with_usage(requests), CONCURRENCY, key=KEY)
        seen = send_all(pair.tapped.url, requests, CONCURRENCY, key=KEY)
        outcomes = other.result()
    after, plain_after = at_rest(pair.tapped.metrics), at_rest(pair.plain.metrics)
    return Phase(
        outcomes,
        seen,
        difference(tapped(before), tapped(after)),
        grown(before, after),
        grown(plain_before, plain_after),
    )


@pytest.fixture(scope="module")
def phase(pair: Pair) -> Phase:
    """Only requests whose acceptance can be known."""
    return both(pair, covered(EVERY_PAIR))


def test_the_traffic_was_varied_enough(phase: Phase) -> None:
    """Everything was answered, by both alike, and speculation differs by temperature."""
    assert [outcome.error for outcome in phase.outcomes + phase.seen if not outcome.ok] == []
    assert [o.text for o in phase.seen] == [o.text for o in phase.outcomes]
    records = of_records(phase.outcomes)
    assert set(records) == set(BUCKETS)
    rates = [records[b]["accepted_tokens"] / records[b]["draft_tokens"] for b in BUCKETS]
    assert rates == sorted(rates, reverse=True)
    unasked = [o for o in phase.seen if o.request.stream and o.tokens is None]
    assert len(unasked) > EVERY_PAIR / 4
    assert {o.record for o in unasked} == {None}


def test_buckets_equal_the_records_of_an_independent_client(phase: Phase) -> None:
    """Drafts, draft tokens, accepted tokens and those per position, to the last token."""
    assert chosen(phase.counted, *ACCEPTANCE) == of_records(phase.outcomes)


def test_buckets_add_up_to_what_the_server_counted(phase: Phase) -> None:
    assert everywhere(chosen(phase.counted, *ACCEPTANCE)) == phase.tapped_server
    assert phase.tapped_server == phase.plain_server


def test_every_request_is_counted_once_in_its_bucket(phase: Phase) -> None:
    expected: dict[str, list[Outcome]] = {bucket: [] for bucket in BUCKETS}
    for outcome in phase.outcomes:
        expected[bucket_of(outcome.request.temperature)].append(outcome)
    for bucket, outcomes in expected.items():
        found = phase.counted[bucket]
        assert sum_of(found, "requests ") == len(outcomes)
        assert found["records record"] == len(outcomes)
        assert sum_of(found, "uncovered ") == 0
        assert found["generation_tokens"] == sum(o.tokens or 0 for o in outcomes)
        for reason in ("stop", "length"):
            ended = [o for o in outcomes if o.finish_reason == reason]
            assert found.get(f"requests {reason}", 0) == len(ended)
        drafted = [o for o in outcomes if o.record and o.record.draft_tokens]
        assert found["acceptance <= inf"] == len(drafted)
        streams = [o for o in outcomes if o.request.stream]
        assert found["ttft <= inf"] == len(streams)
        assert found["tpot <= inf"] == len([o for o in streams if (o.tokens or 0) > 1])


def test_segments_add_up_to_what_the_server_counted(pair: Pair, phase: Phase) -> None:
    """Tool calls, schemas, long prompts and plain text, streamed or not, many at a time."""
    forms = mixed_output(96)
    before = at_rest(pair.tapped.metrics)
    outcomes = send_all(pair.tapped.url, [request for request, _ in forms], CONCURRENCY, key=KEY)
    after = at_rest(pair.tapped.metrics)
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    expected = Counter(output for _, output in forms)
    counted = {
        kind: difference(segmented(before).get(kind, {}), found)
        for kind, found in segmented(after).items()
    }
    assert set(counted) == {"prompt_length", "output"}
    assert {value: of["requests"] for value, of in counted["output"].items()} == expected
    assert set(counted["prompt_length"]) == {"1-256", "257-2048"}
    server = grown(before, after)
    for found in counted.values():
        summed = everywhere(found)
        assert summed["requests"] == len(forms)
        assert {name: summed[name] for name in ACCEPTANCE[:3]} == {
            name: server[name] for name in ACCEPTANCE[:3]
        }


def sum_of(counts: Counts, prefix: str) -> int:
    return sum(count for name, count in counts.items() if name.startswith(prefix))


def test_the_server_counts_more_by_what_is_not_covered(pair: Pair, phase: Phase) -> None:
    """Covered, several completions, refused: mixed, at once; then the same without the covered.

    The drafts of several completions show only in the server's own counters, so the plain server
    is asked for nothing but them.
    """
    many, wrong, good = several(84), refused(98), covered(112, first=10_000)
    mixed = [*many, *wrong, *good]
    mixed.sort(key=lambda request: request.prompt)
    everything = both(pair, mixed)
    only = both(pair, many)
    assert [o.error for o in only.seen + only.outcomes if not o.ok] == []
    assert {o.status for o in everything.seen if o.request in wrong} <= {400, 404}
    found = chosen(everything.counted, *ACCEPTANCE)
    assert found == of_records(o for o in everything.outcomes if o.request in with_usage(good))
    assert total([everywhere(found), only.plain_server]) == everything.tapped_server
    for bucket in BUCKETS:
        of = everything.counted[bucket]
        assert of["uncovered several"] == in_bucket(many, bucket)
        assert of["uncovered refused"] == in_bucket(wrong, bucket)
    assert chosen(only.counted, *ACCEPTANCE, "records") == {}


def in_bucket(requests: list[Request], bucket: str) -> int:
    return len([request for request in requests if bucket_of(request.temperature) == bucket])


def test_clients_that_leave_are_counted_and_disturb_nobody(pair: Pair) -> None:
    """Nor do requests that a stop string ends, of which vLLM has no record.

    Their drafts are in the server's counters alone; who is beside them is counted exactly.
    """
    leavers, good, cut = long_ones(28), covered(112, first=20_000), stopped(56)
    before = at_rest(pair.tapped.metrics)
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave_all, pair.tapped.url, leavers, key=KEY)
        seen = send_all(pair.tapped.url, good + cut, 4, key=KEY)
        leaving.result()
    after = at_rest(pair.tapped.metrics)
    outcomes = send_all(pair.plain.url, with_usage(good + cut), CONCURRENCY, key=KEY)
    assert [outcome.text for outcome in seen] == [outcome.text for outcome in outcomes]
    unrecorded = [o.request for o in outcomes if o.record is None]
    assert len(unrecorded) > len(cut) / 2
    assert {o.finish_reason for o in outcomes if o.record is None} == {"stop"}
    found = difference(tapped(before), tapped(after))
    assert chosen(found, *ACCEPTANCE) == of_records(outcomes)
    for bucket in BUCKETS:
        assert found[bucket]["uncovered disconnected"] == in_bucket(leavers, bucket)
        assert found[bucket]["uncovered stop_string"] == in_bucket(unrecorded, bucket)
    more = witness.difference(everywhere(found), grown(before, after))
    assert more["drafts"] > len(leavers)
    assert 0 < more["accepted_tokens"] < more["draft_tokens"]


@pytest.mark.parametrize("what", ASKS)
def test_the_answer_is_the_same_without_the_tap(pair: Pair, what: str) -> None:
    """Status, headers and body; of a stream event by event and field by field.

    Ids and times aside, and the order in which the choices of one answer take turns.
    """
    with_tap, plain = cut_alike((pair.tapped.url, pair.plain.url), ASKS[what])
    assert with_tap.shown() == plain.shown()


def test_the_requests_that_were_compared_are_of_many_kinds(pair: Pair) -> None:
    """Answers that are all refusals would be alike for nothing."""
    statuses = [ask(pair.plain.url, request).status for request in list(ASKS.values())[::10]]
    assert statuses.count(200) >= len(statuses) / 3
    assert statuses.count(400) >= 3


def test_the_tap_never_failed(pair: Pair) -> None:
    assert chosen(tapped(pair.tapped.metrics()), "failures") == {}


def test_the_tap_imports_only_what_vllm_has(vllm_install: Path, tap: object) -> None:
    """It comes from its wheel, and specwatch is not there."""
    script = (
        "import sys; from specwatch_tap import Scheduler, Tap; import specwatch_tap;"
        "print(specwatch_tap.__file__, *sys.modules, sep='\\n')"
    )
    ran = subprocess.run(
        [vllm_install / "bin/python", "-I", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    file, *modules = ran.stdout.splitlines()
    assert Path(file).is_relative_to(vllm_install)
    assert {"specwatch_tap.middleware", "specwatch_tap.scheduler"} <= set(modules)
    away = {"specwatch", "sqlalchemy", "alembic", "apscheduler", "structlog", "pydantic"}
    assert not away & set(modules)

"""The simulated vLLM varies its draft tokens by schedule and by order, as vLLM 0.24 does."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry

from specwatch.domain.model import Histogram, Mode, Tally
from specwatch.domain.sample import Sample
from specwatch.domain.standby import standby_cost
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.responses import acceptance_record
from specwatch.lab.simulator.runtime import SimulatedRuntime
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedRequest, SimulatedTraffic
from specwatch_tap import scheduler, switch_files
from specwatch_tap.orders import (
    ORDER_FILE,
    PATH,
    STATE_FILE,
    Order,
    SwitchState,
    decode,
    encode,
)
from specwatch_tap.settings import SWITCH_DIRECTORY, SWITCH_TOKEN_FILE
from specwatch_tap.switch import lookup_of
from tests.domain import minutes
from tests.hostile import wait_for
from tests.simulator.client import page, total

K = 4
SWITCHABLE = SimulatedSpeculation(K, schedule=((1, 64, K),))
SETTINGS = SimulatedSettings(
    port=0, speculation=SWITCHABLE, max_model_len=65536, record="detailed", keep_log=True
)
COSTS = SETTINGS.costs
TOKEN = "0123456789abcdef"


def long_requests(engine: SimulatedEngine, count: int) -> list[SimulatedSequence]:
    """Requests that go on until the end of a test."""
    return [engine.submit(SimulatedRequest(4, 60_000, 0.7)) for _ in range(count)]


@pytest.mark.parametrize(
    ("schedule", "lookup"),
    [
        (((1, 2, 3),), [0, 3, 3, 3, 3, 3, 3, 3, 3]),
        (((1, 2, 4), (5, 6, 1)), [0, 4, 4, 4, 4, 1, 1, 1, 1]),
        (((5, 6, 0), (1, 4, 9)), [0, 4, 4, 4, 4, 0, 0, 0, 0]),
        (((1, 3, 2), (20, 30, 1)), [0, 2, 2, 2, 2, 2, 2, 2, 2]),
        ((), None),
    ],
)
def test_a_schedule_goes_on_through_gaps_and_its_tail(
    schedule: tuple[tuple[int, int, int], ...], lookup: list[int] | None
) -> None:
    assert SimulatedSpeculation(K, schedule=schedule).lookup(8) == lookup


def test_the_draft_tokens_follow_the_scheduled_requests_of_a_step() -> None:
    """Those of a prompt among them; what a step proposes, the next one verifies."""
    speculation = SimulatedSpeculation(K, schedule=((1, 2, K), (3, 3, 2), (4, 64, 0)))
    engine = SimulatedEngine(dataclasses.replace(SETTINGS, speculation=speculation))
    first = long_requests(engine, 2)[0]
    seen: list[int] = []
    for arriving in (0, 1, 1, 0):
        long_requests(engine, arriving)
        engine.advance(engine.now + 2.0)
        assert first.per_step is not None
        seen.append(len(first.per_step))
    steps = [drafted for _, drafted in first.per_step or ()]
    assert set(steps[: seen[0]]) == {K}
    # Two more of the old number: of the step under way, and what that step proposed.
    assert steps[seen[0] : seen[1]] == [K, K] + [2] * (seen[1] - seen[0] - 2)
    assert steps[seen[1] :] == [2, 2]


def test_data_parallelism_ignores_a_schedule() -> None:
    speculation = SimulatedSpeculation(K, schedule=((1, 64, 1),))
    settings = dataclasses.replace(SETTINGS, speculation=speculation, engines=2)
    engine = SimulatedEngine(settings)
    sequence = long_requests(engine, 1)[0]
    engine.advance(2.0)
    assert {drafted for _, drafted in sequence.per_step or ()} == {K}


def step_seconds(
    speculation: SimulatedSpeculation | None, batch: int, ordered: int | None = None
) -> float:
    """Seconds of one decoding step of so many requests."""
    settings = dataclasses.replace(SETTINGS, speculation=speculation, record="none")
    engine = SimulatedEngine(settings)
    engine.cores[0].ordered = ordered
    long_requests(engine, batch - 1)
    ends: list[float] = []
    engine.submit(SimulatedRequest(4, 60_000), lambda s, *_: ends.append(s.last_token or 0.0))
    engine.advance(2.0)
    return ends[-1] - ends[-2]


@pytest.mark.parametrize(("method", "cost"), [("draft_model", 1.0), ("eagle3", 0.4), ("ngram", 0)])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_standby_costs_a_pass_of_the_drafter(method: str, cost: float, batch: int) -> None:
    speculation = dataclasses.replace(SWITCHABLE, method=method)
    standby = step_seconds(speculation, batch, 0)
    off = step_seconds(None, batch)
    assert off == pytest.approx(COSTS.plain(batch))
    assert standby == pytest.approx(COSTS.plain(batch) + COSTS.draft(batch, 1) * cost)
    assert (standby > off + 1e-6) is (method != "ngram")


@pytest.mark.parametrize("ordered", [0, 2, None])
def test_the_true_pace_is_what_tokens_take(ordered: int | None) -> None:
    """Of eight requests that decode, at two temperatures."""
    temperatures = ((0.0, 0.5), (1.0, 0.5))
    traffic = SimulatedTraffic(temperatures=temperatures)
    settings = dataclasses.replace(SETTINGS, traffic=traffic, record="none")
    engine = SimulatedEngine(settings)
    engine.cores[0].ordered = ordered
    sequences = [
        engine.submit(SimulatedRequest(4, 3000, temperature))
        for temperature, _ in temperatures
        for _ in range(4)
    ]
    engine.advance(12.0)
    seconds = sum(12.0 / sequence.generation_tokens for sequence in sequences) / 8
    assert engine.true_pace(8, ordered) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("ordered", [1, 2, 4, None])
def test_a_step_costs_as_many_passes_as_draft_tokens(ordered: int | None) -> None:
    k = K if ordered is None else ordered
    expected = COSTS.step(8, 8 * (k + 1)) + COSTS.draft(8, k)
    assert step_seconds(SWITCHABLE, 8, ordered) == pytest.approx(expected)


def test_totals_add_up_and_time_is_shared_as_ordered() -> None:
    engine = SimulatedEngine(SETTINGS)
    sequences = long_requests(engine, 4)
    seconds: Counter[int] = Counter()
    for ordered, lasting in ((None, 20), (2, 30), (0, 10), (1, 15), (None, 25)):
        engine.cores[0].ordered = ordered
        engine.advance(engine.now + lasting)
        seconds[K if ordered is None else ordered] += lasting
    tally = engine.tally()
    assert tally.drafts is not None
    assert tally.accepted_per_position is not None
    assert len(tally.accepted_per_position) == K
    positions = (tally.drafts, *tally.accepted_per_position, 0)
    histogram = [before - after for before, after in pairwise(positions)]
    assert sum(histogram) == tally.drafts
    assert sum(j * count for j, count in enumerate(histogram)) == tally.accepted_tokens
    assert histogram == [sum(s.accepted_histogram[j] for s in sequences) for j in range(K + 1)]

    steps = Counter(drafted for s in sequences for _, drafted in s.per_step or ())
    assert tally.draft_tokens == sum(drafted * count for drafted, count in steps.items())
    assert steps.keys() == {1, 2, K}
    for k, count in steps.items():
        step = COSTS.step(4, 4 * (k + 1)) + COSTS.draft(4, k)
        assert count / 4 * step == pytest.approx(seconds[k], abs=0.1)


def test_the_record_of_a_request_tells_its_steps() -> None:
    engine = SimulatedEngine(SETTINGS)
    sequence = engine.submit(SimulatedRequest(4, 300, 0.0))
    for ordered in (None, 0, 1):
        engine.cores[0].ordered = ordered
        engine.advance(engine.now + 0.4)
    engine.advance(30.0)
    record = acceptance_record(sequence)
    assert record is not None
    assert set(record["per_step_drafted"]) == {K, 1}
    assert sum(record["per_step_drafted"]) == record["num_draft_tokens"]
    assert sum(record["per_step_accepted"]) == record["num_accepted_draft_tokens"]
    assert sum(record["acceptance_histogram"]) == record["num_spec_steps"]
    assert (record["num_spec_tokens"], len(record["acceptance_histogram"])) == (K, K + 1)
    # The first token comes from the prompt, and each step that drafts nothing gives one.
    assert record["num_spec_steps"] + record["num_accepted_draft_tokens"] < 299


def watched_minutes(batch: int, mode: Mode, first: int, count: int = 10) -> list[Sample]:
    """Minutes of so many clients, as a daemon would store them."""
    traffic = SimulatedTraffic(concurrency=batch)
    speculation = SWITCHABLE if mode is Mode.STANDBY else None
    settings = SimulatedSettings(speculation=speculation, traffic=traffic, seed=first)
    engine = SimulatedEngine(settings)
    engine.cores[0].ordered = 0
    counts = []
    for n in range(count + 1):
        engine.advance(60.0 * (n + 1))
        tally = engine.tally()
        assert tally.ttft is not None
        assert tally.inter_token is not None
        generated = tally.generation_tokens or 0
        counts.append((generated, tally.ttft.count, tally.inter_token.sum))
    return [
        Sample(
            60 * (first + n),
            60,
            mode,
            Tally(
                generation_tokens=after[0] - before[0],
                ttft=Histogram((), (after[1] - before[1],), 1.0),
                inter_token=Histogram((), (after[0] - before[0],), after[2] - before[2]),
            ),
            minutes.gauges(batch),
        )
        for n, (before, after) in enumerate(pairwise(counts))
    ]


def test_the_measured_standby_cost_is_the_true_one() -> None:
    known = minutes.baseline(watched_minutes(4, Mode.OFF, 400, 6))
    cost = standby_cost(watched_minutes(4, Mode.STANDBY, 2000, 6), known).cost
    assert cost is not None
    truth = 1 + COSTS.draft(4, 1) / COSTS.plain(4)
    assert cost.value == pytest.approx(truth, rel=0.02)


def test_memory_for_the_launch_stays_reserved() -> None:
    held = {}
    for speculation, ordered in ((SWITCHABLE, None), (SWITCHABLE, 0), (None, None)):
        settings = dataclasses.replace(SETTINGS, speculation=speculation, record="none")
        engine = SimulatedEngine(settings)
        engine.set_acceptance_scale(0.0)  # so that all are equally far
        engine.cores[0].ordered = ordered
        blocks: list[int] = []
        engine.submit(SimulatedRequest(4, 60_000), lambda s, *_, b=blocks: b.append(s.blocks))
        engine.advance(10.0)
        held[speculation is None, ordered] = blocks[:100]
    assert held[False, 0] == held[False, None] != held[True, None]


def state_in(directory: Path, earlier: str = "") -> SwitchState:
    """The state that a process wrote; of a later one than ``earlier``."""
    found: list[SwitchState] = []

    def written() -> bool:
        if (directory / STATE_FILE).exists():
            found.append(decode((directory / STATE_FILE).read_bytes(), SwitchState))
        return bool(found) and found[-1].server != earlier

    wait_for(written)
    return found[-1]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o770)
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr("specwatch_tap.switch._SECONDS", 0.005)
    monkeypatch.setenv(SWITCH_DIRECTORY, str(tmp_path))
    monkeypatch.setenv(SWITCH_TOKEN_FILE, str(tmp_path / "token"))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"speculation": None}, scheduler.NO_SPECULATION),
        ({"speculation": SimulatedSpeculation(K)}, scheduler.NO_SCHEDULE),
        ({"engines": 2}, scheduler.DATA_PARALLEL),
        (
            {"speculation": SimulatedSpeculation(K), "engine_version": "0.10.2"},
            scheduler.NO_LOOKUP,
        ),
    ],
)
def test_a_server_that_cannot_switch_says_why(
    directory: Path, changes: dict[str, Any], why: str
) -> None:
    settings = dataclasses.replace(SETTINGS, record="none", switch_directory=directory, **changes)
    with SimulatedServer(settings):
        state = state_in(directory)
    assert state.unavailable == why
    assert state.launch_draft_tokens == (0 if why == scheduler.NO_SPECULATION else K)
    assert state.launch_schedule == (() if why else ((1, K),))


def test_orders_over_http_and_a_restart(directory: Path) -> None:
    settings = dataclasses.replace(
        SETTINGS,
        switch_directory=directory,
        middleware=("specwatch_tap.Tap",),
        costs=SimulatedCosts().scaled(0.1),
        traffic=SimulatedTraffic(concurrency=2, output_tokens=400),
    )
    with SimulatedServer(settings) as server:

        def ask(method: str, body: bytes | None = None) -> requests.Response:
            authorization = {"authorization": f"Bearer {TOKEN}"}
            url = server.url + PATH
            return requests.request(method, url, data=body, headers=authorization, timeout=10)

        def gauges() -> tuple[float, float]:
            samples = page(server)
            return (samples["specwatch_switch_draft_tokens"], samples["specwatch_switch_ordered"])

        def order(draft_tokens: int) -> None:
            state = decode(ask("GET").content, SwitchState)
            order = Order(
                server=state.server,
                number=state.number + 1,
                draft_tokens=draft_tokens,
                lease=60,
            )
            assert ask("PUT", encode(order)).status_code == 200
            wait_for(lambda: gauges() == (draft_tokens, 1))

        first = state_in(directory)
        assert gauges() == (K, 0)
        wait_for(lambda: total(server, "vllm:spec_decode_num_drafts_total") > 0)
        order(0)
        before = page(server)
        wait_for(
            lambda: (
                total(server, "vllm:generation_tokens_total")
                > before['vllm:generation_tokens_total{engine="0",model_name="simulated"}'] + 100
            )
        )
        after = page(server)
        drafted = {
            name for name in after if name.startswith("vllm:spec_decode") and "_created" not in name
        }
        assert len(drafted) == 3 + K
        # A step that was under way may have ended after the first look.
        (drafts,) = (name for name in drafted if "num_drafts_total" in name)
        assert after[drafts] - before[drafts] <= 2

        server.restart()
        second = state_in(directory, earlier=first.server)
        assert (second.draft_tokens, second.number) == (None, 0)
        assert gauges() == (K, 0)
        wait_for(lambda: total(server, "vllm:spec_decode_num_drafts_total") > 0)
        stale = Order(server=first.server, number=9, draft_tokens=0, lease=60)
        assert "another process" in json.loads(ask("PUT", encode(stale)).content)["error"]
        order(1)
        assert server.engine.cores[0].ordered == 1


def test_an_order_holds_from_when_it_is_followed(directory: Path) -> None:
    """Not from when the engine was last asked to advance."""
    settings = dataclasses.replace(SETTINGS, switch_directory=directory, time_scale=20.0)
    runtime = SimulatedRuntime(settings, CollectorRegistry())
    with runtime.following_orders():
        with runtime.synced() as engine:
            sequence = long_requests(engine, 1)[0]
        state = state_in(directory)
        runtime._origin -= 0.1  # two seconds pass
        order = Order(server=state.server, number=1, draft_tokens=0, lease=60)
        switch_files.write(directory / ORDER_FILE, encode(order))
        wait_for(lambda: engine.cores[0].ordered == 0)
        assert sequence.drafts > 20


def test_an_ordered_schedule_holds_for_each_step_by_its_requests(directory: Path) -> None:
    settings = dataclasses.replace(SETTINGS, switch_directory=directory, time_scale=20.0)
    runtime = SimulatedRuntime(settings, CollectorRegistry())
    with runtime.following_orders():
        state = state_in(directory)
        schedule = ((1, 1, 2), (2, 9, 0))
        order = Order(server=state.server, number=1, draft_tokens=None, schedule=schedule, lease=60)
        switch_files.write(directory / ORDER_FILE, encode(order))
        core = runtime.engine.cores[0]
        wait_for(lambda: core.ordered is not None)
        assert core.ordered == lookup_of(schedule, SETTINGS.max_num_seqs + 1)
    assert core.ordered is None
    engine = SimulatedEngine(SETTINGS)
    engine.cores[0].ordered = lookup_of(schedule, SETTINGS.max_num_seqs + 1)
    (alone,) = long_requests(engine, 1)
    engine.advance(engine.now + 2.0)
    before = alone.drafts
    assert {drafted for _, drafted in alone.per_step or ()} == {2}
    long_requests(engine, 1)
    engine.advance(engine.now + 2.0)
    assert before <= alone.drafts <= before + 2


def test_a_process_that_ended_leaves_the_directory_and_the_launch_mode(directory: Path) -> None:
    with SimulatedServer(dataclasses.replace(SETTINGS, switch_directory=directory)) as server:
        state = state_in(directory)
        order = Order(server=state.server, number=1, draft_tokens=0, lease=60)
        switch_files.write(directory / ORDER_FILE, encode(order))
        wait_for(lambda: server.engine.cores[0].ordered == 0)
    assert server.engine.cores[0].ordered is None
    with SimulatedServer(dataclasses.replace(SETTINGS, switch_directory=directory)):
        assert state_in(directory, earlier=state.server).unavailable == ""

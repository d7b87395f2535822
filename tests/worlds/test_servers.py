"""The simulated servers count as vLLM does, and their truths are what the scenarios say."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest

from specwatch.domain.model import ALL, Series
from specwatch.scrape.exposition import PageReader
from tests.worlds.scenarios import WORLDS
from tests.worlds.servers import ServedWorld
from tests.worlds.serving import Engine, Watcher
from tests.worlds.traffic import (
    HOUR,
    Conditions,
    Costs,
    Machine,
    OpenLoop,
    RandomPeriods,
    Regime,
    Request,
    Traffic,
    constant,
    cycle,
    sequence,
)
from tests.worlds.world import World

ZERO = 1_795_003_200.0


def engine_of(
    regime: Regime,
    *,
    speculation: bool = False,
    seed: int = 1,
    dice: int = 1,
    end: float = math.inf,
    watcher: Watcher | None = None,
) -> Engine:
    """An engine under a regime that stays; ``seed`` draws requests and noise, ``dice`` the rest."""
    schedule = constant(regime)
    return Engine(
        OpenLoop(schedule, seed, end=end),
        Conditions(schedule, seed),
        speculation=speculation,
        start=0.0,
        seed=dice,
        watcher=watcher,
    )


def pages(world: World, hours: float, start: float = 0.0) -> list[str | None]:
    """Its pages of so many hours."""
    number = int(hours * HOUR / world.interval)
    return [world.page(ZERO + start + index * world.interval) for index in range(1, number + 1)]


def last(world: World, hours: float, start: float = 0.0) -> str:
    page = pages(world, hours, start)[-1]
    assert page is not None
    return page


def totals(page: str) -> dict[tuple[str, str, str], float]:
    """Values by quantity, part and label, summed over temperatures."""
    values: dict[tuple[str, str, str], float] = {}
    for series, value in PageReader().read(page.encode()).items():
        assert isinstance(series, Series)
        if series.segment == ALL:
            values[series.quantity, series.part, series.key] = value
    return values


def check_pages(name: str, hours: float) -> None:
    """They are read, and no counter of them falls."""
    world = WORLDS[name](1)
    assert world.name == name
    values = [totals(page) for page in pages(world, hours) if page is not None]
    assert (values[-1]["drafts", "", ""] > 0) is (name != "seldom_drafts")
    for before, after in itertools.pairwise(values):
        for key in before:
            if key[0] not in {"running", "waiting", "kv_cache_usage"}:
                assert after[key] >= before[key], key


@pytest.mark.parametrize("name", ["load", "temperature", "seldom_drafts"])
def test_pages_are_read(name: str) -> None:
    check_pages(name, 0.2)


@pytest.mark.parametrize(
    ("name", "speculation"),
    [("load", False), ("very_long_prompts", True), ("queueing", True), ("queueing", False)],
)
def test_counts_and_times_add_up(name: str, speculation: bool) -> None:
    """Once nothing runs, each request's time is its first token's and its gaps'."""
    world = WORLDS[name](3)
    world.page(ZERO)
    regime = world.regime(ZERO)  # type: ignore[attr-defined]
    requests: list[Request] = []
    engine = engine_of(
        regime,
        speculation=speculation,
        seed=3,
        dice=5,
        end=HOUR / 2,
        watcher=lambda request, end, drafts: requests.append(request),
    )
    engine.advance(HOUR / 5)
    engine.flush()
    engine.advance(2 * HOUR)
    assert engine.running == 0
    assert not engine.waiting
    counts = engine.counts
    assert counts.e2e.count == counts.ttft.count == counts.tpot.count == len(requests)
    assert counts.inter_token.count == sum(request.steps for request in requests)
    assert counts.generation_tokens == sum(request.output for request in requests)
    assert counts.output_length.sum == counts.generation_tokens
    assert counts.prompt_tokens == counts.prefix_queries == counts.prompt_length.sum
    assert counts.ttft.sum + counts.inter_token.sum == pytest.approx(counts.e2e.sum)
    if speculation:
        drafts = int(counts.steps_by_kept.sum())
        assert drafts == counts.inter_token.count
        least = sum(request.output - 1 for request in requests)
        most = least + engine.k * len(requests)
        accepted = int(counts.steps_by_kept @ range(engine.k + 1))
        assert least <= drafts + accepted <= most
    else:
        assert counts.inter_token.count == counts.generation_tokens - len(requests)
    assert engine._free_blocks == engine.blocks


def test_scrapes_do_not_change_what_happens() -> None:
    regime = Regime(Traffic(rate=0.8, prompt_tokens=900.0))
    engines = [engine_of(regime, speculation=True, dice=2) for _ in range(2)]
    engines[0].advance(HOUR / 4)
    for index in range(1, 181):
        engines[1].advance(5.0 * index)
        engines[1].flush()
    first, second = (engine.counts for engine in engines)
    assert first.e2e.buckets == second.e2e.buckets
    assert first.e2e.sum == pytest.approx(second.e2e.sum)


def test_a_step_takes_what_its_costs_say() -> None:
    """One request alone, without speculation: each gap by hand."""
    traffic = Traffic(rate=1e-3, prompt_spread=0.0, output_spread=0.0)
    regime = Regime(traffic)
    costs, engine = regime.costs, engine_of(regime)
    while engine.counts.e2e.count == 0:
        engine.advance(engine.time + 100.0)
    step = costs.base + costs.per_sequence
    first = step + 200 * costs.per_prefill_token
    contexts = sum(200 + done for done in range(1, 120))
    assert engine.counts.ttft.sum == pytest.approx(first)
    assert engine.counts.inter_token.sum == pytest.approx(
        119 * step + contexts * costs.per_context_token
    )


def step_by_step(regime: Regime, end: float, *, speculation: bool) -> list[tuple[float, float]]:
    """First token and end of each request, by a plain loop over single steps."""
    source, costs, machine = OpenLoop(constant(regime), 1, end=end), regime.costs, regime.machine
    dice = engine_of(regime, speculation=speculation, dice=2)
    k = regime.k if speculation else 0
    waiting: list[Request] = []
    running: list[Request] = []
    time, loads = 0.0, []
    while source.time < math.inf or waiting or running:
        if not waiting and not running:
            time = max(time, source.time)
        while source.time <= time:
            waiting.append(source.take())
            waiting[-1].left = waiting[-1].prompt
        decoding = [request for request in running if not request.left]
        budget = machine.most_batched_tokens - len(decoding) * (k + 1)
        chunks = []
        for request in [request for request in running if request.left]:
            chunks.append((request, min(budget, request.left)))
            budget -= chunks[-1][1]
        while waiting and budget and len(running) < machine.most_sequences:
            running.append(waiting.pop(0))
            chunks.append((running[-1], min(budget, running[-1].left)))
            budget -= chunks[-1][1]
        prompt_tokens = sum(chunk for _, chunk in chunks)
        sequences = len(decoding) + len(chunks)
        context = sum(r.prompt + 1 + r.growth * r.flushed for r in decoding)
        took = costs.base + costs.per_sequence * sequences + costs.per_context_token * context
        took += costs.per_prefill_token * prompt_tokens
        took += costs.per_token * max(0, len(decoding) * (k + 1) - costs.free_tokens)
        took += k * (costs.draft_base + costs.draft_per_sequence * sequences)
        took += costs.draft_per_prefill_token * prompt_tokens if k else 0.0
        time += took
        for request in decoding:
            request.flushed += 1
        for request, chunk in chunks:
            request.left -= chunk
            if not request.left:
                request.first, request.steps = time, request.output - 1
                if k and request.steps:
                    dice._draw_steps(request, request.steps)
                request.growth = (request.output - 1) / max(1, request.steps)
        for request in [r for r in running if not r.left and r.flushed == r.steps]:
            running.remove(request)
            loads.append((request.first, time))
    return loads


@pytest.mark.parametrize("speculation", [True, False])
@pytest.mark.parametrize("prompt_tokens", [100.0, 3000.0])
def test_many_steps_at_once_are_the_same_as_single_ones(
    speculation: bool, prompt_tokens: float
) -> None:
    regime = Regime(
        Traffic(rate=0.4, prompt_tokens=prompt_tokens), machine=Machine(most_sequences=4)
    )
    points: list[tuple[float, float]] = []
    engine = engine_of(
        regime,
        speculation=speculation,
        dice=2,
        end=HOUR / 4,
        watcher=lambda request, end, _: points.append((request.first, end)),
    )
    for index in range(1, 150):
        engine.advance(index * 15.0)
    expected = step_by_step(regime, HOUR / 4, speculation=speculation)
    assert len(points) == len(expected) > 250
    for ours, theirs in zip(sorted(points), sorted(expected), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_no_more_sequences_than_allowed() -> None:
    engine = engine_of(Regime(Traffic(rate=1.0), machine=Machine(most_sequences=3)))
    for minute in range(1, 30):
        engine.advance(60.0 * minute)
        assert engine.running <= 3
    assert len(engine.waiting) > 100


def test_a_full_cache_makes_requests_wait() -> None:
    engine = engine_of(Regime(Traffic(rate=1.0), machine=Machine(blocks_off=60)))
    engine.advance(1800.0)
    assert engine.running < 8
    assert len(engine.waiting) > 100
    assert engine.cache_usage > 0.3


@pytest.mark.parametrize(("speculation", "share"), [(True, 0.71), (False, 0.92)])
def test_the_prefix_cache_has_fewer_hits_with_speculation(speculation: bool, share: float) -> None:
    regime = Regime(Traffic(rate=0.3, prompt_tokens=2000.0, hits_on=0.71, hits_off=0.92))
    engine = engine_of(regime, speculation=speculation)
    seen = []
    for minute in (2, 240):
        engine.advance(60.0 * minute)
        seen.append(engine.counts.prefix_hits / engine.counts.prefix_queries)
    assert seen[0] < 0.3 * share, "the cache of a new process is empty"
    assert seen[1] == pytest.approx(share, abs=0.06)


def test_the_steps_of_a_new_process_are_slower() -> None:
    regime = Regime(Traffic(rate=0.3), Costs(cold=1.6, warm_up=480.0))
    engine = engine_of(regime)
    paces = []
    for minute in (1, 2, 10, 20):
        engine.advance(60.0 * minute)
        paces.append((engine.counts.inter_token.sum, engine.counts.inter_token.count))
    (cold, warm) = (
        (after[0] - before[0]) / (after[1] - before[1]) for before, after in (paces[:2], paces[2:])
    )
    assert 1.3 < cold / warm < 1.7


def test_drafts_of_requests_about_documents_fail() -> None:
    source = OpenLoop(constant(Regime(Traffic(documents=0.5, document_acceptance=0.2))), 1)
    requests = [source.take() for _ in range(400)]
    short, long = (
        [each.acceptance for each in requests if (each.prompt > 1000) is about]
        for about in (False, True)
    )
    assert 150 < len(long) < 250
    assert sum(long) / len(long) < 0.3 * sum(short) / len(short)


def test_a_restart_begins_at_zero_in_the_other_mode() -> None:
    world = WORLDS["helps"](1)
    before = totals(last(world, 1.0))
    world.restart(ZERO + HOUR + 1.0, False)
    down = [world.page(ZERO + HOUR + 15.0 * index) for index in range(1, 5)]
    assert down == [None] * 4
    page = world.page(ZERO + HOUR + 75.0)
    assert page is not None
    assert "spec_decode" not in page
    after = totals(page)
    assert after["process_start", "", ""] > before["process_start", "", ""]
    assert after["generation_tokens", "", ""] < before["generation_tokens", "", ""] / 10
    blocks = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info")]
    assert 'num_gpu_blocks="6600"' in blocks[0]
    world.restart(ZERO + 2 * HOUR, True)
    assert "spec_decode" in last(world, 0.1, 2 * HOUR + 60.0)


def test_a_slow_restart_takes_four_minutes() -> None:
    world = WORLDS["slow_restart"](1)
    world.page(ZERO)
    world.restart(ZERO + 10.0, False)
    assert world.page(ZERO + 249.0) is None
    assert world.page(ZERO + 251.0) is not None


def test_a_deploy_starts_with_speculation() -> None:
    schedule = sequence([(0.2, Regime(k=4)), (0, Regime(k=8))])
    world = ServedWorld("deployed", schedule, 1, deploys=[0.2 * HOUR])
    world.page(ZERO)
    world.restart(ZERO + 10.0, False)
    page = world.page(ZERO + 0.2 * HOUR - 1.0)
    assert page is not None
    assert "spec_decode" not in page
    page = world.page(ZERO + 0.4 * HOUR)
    assert page is not None
    assert 'position="7"' in page


@pytest.mark.parametrize("name", ["temperature", "noisy_neighbour", "lost_scrapes"])
def test_the_same_seed_gives_the_same_pages(name: str) -> None:
    scenario: Callable[[int], World] = WORLDS[name]
    first, second, other = (pages(scenario(seed), 0.2) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_a_gap_in_the_scrapes_changes_nothing() -> None:
    often, seldom = WORLDS["helps"](1), WORLDS["helps"](1)
    often.page(ZERO)
    seldom.page(ZERO)
    frequent = totals(last(often, 0.5))
    page = seldom.page(ZERO + 0.5 * HOUR)
    assert page is not None
    for key, value in totals(page).items():
        assert value == pytest.approx(frequent[key], rel=1e-9), key


def test_scrapes_are_lost() -> None:
    pages_seen = pages(WORLDS["lost_scrapes"](1), 3.0)
    assert 0.2 < pages_seen.count(None) / len(pages_seen) < 0.5


def test_calibration_uses_a_separate_server() -> None:
    world = WORLDS["helps"](1)
    page = world.page(ZERO)
    pages_seen = world.calibrate(4, 200, 100, 120.0)
    assert len(pages_seen) == 9
    values = [totals(text) for text in pages_seen]
    assert values[0]["prompt_tokens", "", ""] == 0
    for before, after in itertools.pairwise(values):
        assert after["generation_tokens", "", ""] > before["generation_tokens", "", ""]
        assert after["running", "", ""] == 4
    assert "spec_decode" not in pages_seen[-1]
    assert values[-1]["prompt_tokens", "", ""] % 200 == 0
    assert pages_seen == world.calibrate(4, 200, 100, 120.0)
    assert world.page(ZERO + 1e-6) == page


def test_the_tap_counts_what_it_covers() -> None:
    page = last(WORLDS["temperature"](1), 0.3)
    requests = Counter[bool]()
    for series, value in PageReader().read(page.encode()).items():
        requests[series.segment != ALL] += int(value) * (series.quantity == "requests")
    assert requests[True] == requests[False] > 0
    page = last(WORLDS["tap_partial"](1), 0.5)
    partly = PageReader().read(page.encode())
    by_temperature = {
        series.segment.value: value
        for series, value in partly.items()
        if series.quantity == "drafts" and series.segment != ALL
    }
    assert set(by_temperature) == {"0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]"}
    assert sum(by_temperature.values()) < 0.7 * partly[Series("drafts", "", "llama", "0", "")]


def test_where_nobody_asks_anything_speculation_is_worth_nothing() -> None:
    assert ServedWorld("idle", constant(Regime(Traffic(rate=0.0))), 1).truth(ZERO) == 1.0


def test_schedules() -> None:
    one, two = Regime(k=1), Regime(k=2)
    turns = cycle([(1, one), (2, two)])
    assert turns(0.0) == (one, HOUR)
    assert turns(HOUR) == (two, 3 * HOUR)
    assert turns(3 * HOUR) == (one, 4 * HOUR)
    assert sequence([(1, one), (0, two)])(2 * HOUR)[0] == two
    periods = RandomPeriods(one, [two], (10.0, 20.0), (5.0, 6.0), 1)
    assert periods(0.0)[0] == one
    assert periods(periods(0.0)[1])[0] == two

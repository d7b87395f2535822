"""The simulated engine counts exactly what its requests did, whatever happens to them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specwatch.domain.model import Histogram
from specwatch.errors import ConfigError
from specwatch.lab.simulator.counters import SimulatedHistogram
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedRequest, SimulatedTraffic

K = 4
BUSY = SimulatedSettings(
    speculation=SimulatedSpeculation(K),
    max_num_seqs=16,
    max_model_len=512,
    kv_cache_tokens=2048,
    traffic=SimulatedTraffic(rate=6.0),
    keep_log=True,
)
"""Little memory and much traffic: queues, preemptions, chunked prompts."""


def current(engine: SimulatedEngine) -> list[SimulatedSequence]:
    return [entry for entry in engine.log if entry.incarnation == engine.incarnation]


def check_conservation(engine: SimulatedEngine) -> None:
    """Counters are the sum of the request log, exactly."""
    tally, log = engine.tally(), current(engine)
    started = [entry for entry in log if entry.first_token is not None]
    counted = [entry for entry in log if entry.finished_reason is not None]
    assert tally.generation_tokens == sum(entry.generation_tokens for entry in log)
    assert tally.prompt_tokens == sum(entry.request.prompt_tokens for entry in started)
    assert tally.preemptions == sum(entry.preemptions for entry in log)
    assert tally.requests == dict.fromkeys(tally.requests, 0) | Counter(
        entry.finished_reason for entry in counted
    )
    assert tally.ttft is not None
    assert tally.ttft.count == len(started)
    assert tally.ttft.sum == pytest.approx(sum(entry.ttft or 0.0 for entry in started))
    assert tally.output_length is not None
    assert tally.output_length.sum == sum(entry.generation_tokens for entry in counted)
    if engine.speculation is None:
        assert tally.drafts is None
        assert tally.accepted_tokens is None
        assert tally.accepted_per_position is None
        return
    assert tally.drafts == sum(entry.drafts for entry in log)
    assert tally.draft_tokens == sum(entry.draft_tokens for entry in log)
    assert tally.accepted_tokens == sum(entry.accepted_tokens for entry in log)
    assert tally.drafts is not None
    assert tally.draft_tokens is not None
    assert tally.accepted_per_position is not None
    assert tally.accepted_tokens == sum(tally.accepted_per_position)
    assert tally.draft_tokens <= K * tally.drafts
    # H0 = drafts - S0, Hj = S(j-1) - Sj: never negative, and the sum over the log.
    positions = (tally.drafts, *tally.accepted_per_position, 0)
    lengths = [before - after for before, after in pairwise(positions)]
    assert min(lengths) >= 0
    assert lengths == [sum(entry.accepted_histogram[j] for entry in log) for j in range(K + 1)]


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.lists(
        st.sampled_from(["advance", "restart", "off", "on", "scale", "switch"]), max_size=6
    ),
    engines=st.integers(1, 3),
)
def test_counters_are_the_sum_of_the_request_log(seed: int, steps: list[str], engines: int) -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, seed=seed, engines=engines))
    for step in ["advance", *steps, "advance"]:
        if step == "advance":
            engine.advance(engine.now + 7.5)
        elif step == "scale":
            engine.set_acceptance_scale(0.4)
        elif step == "switch":
            for core in engine.cores:
                core.ordered = None if engine.speculation is None else seed % (K + 1)
        else:
            engine.restart(speculation={"restart": None, "off": False, "on": True}[step])
        check_conservation(engine)


def test_the_busy_engine_really_preempts_queues_and_drafts_less_at_the_context_end() -> None:
    engine = SimulatedEngine(BUSY)
    queued = 0
    for second in range(1, 60):
        engine.advance(float(second))
        queued = max(queued, engine.waiting)
        core = engine.cores[0]
        assert len(core.running) <= 16
        assert 0.0 <= core.kv_cache_usage <= 1.0
        held = sum(entry.blocks for entry in core.running)
        assert held + core.free_blocks == core.blocks
    tally = engine.tally()
    assert queued > 4
    assert (tally.preemptions or 0) > 5
    assert (tally.prefix_cache_hits or 0) > 0
    full = SimulatedEngine(dataclasses.replace(BUSY, traffic=SimulatedTraffic()))
    full.set_acceptance_scale(0.0)
    sequence = full.submit(SimulatedRequest(prompt_tokens=480, max_tokens=4000))
    full.advance(60.0)
    assert sequence.finished_reason == "length"
    assert sequence.tokens == 512
    # One token a step from 481 on: all k fit until 507, then 3, 2, 1 and none.
    assert sequence.drafts == 27 + 3
    assert sequence.draft_tokens == K * 27 + 3 + 2 + 1


def test_the_same_seed_gives_the_same_history_however_time_is_cut() -> None:
    whole, cut = SimulatedEngine(BUSY), SimulatedEngine(BUSY)
    whole.advance(30.0)
    moment = 0.0
    while moment < 30.0:
        moment = min(30.0, moment + 0.0137)
        cut.advance(moment)
    assert whole.tally() == cut.tally()
    assert [entry.finish for entry in whole.log] == [entry.finish for entry in cut.log]
    other = SimulatedEngine(dataclasses.replace(BUSY, seed=1))
    other.advance(30.0)
    assert other.tally() != whole.tally()


def test_a_request_that_arrives_as_a_step_ends_is_in_the_next_step() -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, traffic=SimulatedTraffic()))
    first = engine.submit(SimulatedRequest(10, 20))
    engine.advance(0.001)
    end = engine.next_event
    engine.advance(end)
    assert first.first_token == end
    second = engine.submit(SimulatedRequest(10, 20))
    engine.advance(end + 1.0)
    assert second.scheduled == end


def test_a_value_on_a_bound_belongs_to_the_bucket_below_it() -> None:
    counted = rebuilt([0.5, 1.0, 1.5, 2.0, 2.5], (1.0, 2.0))
    assert counted == Histogram((1.0, 2.0), (2, 2, 1), 7.5)


def rebuilt(values: list[float], bounds: tuple[float, ...]) -> Histogram:
    histogram = SimulatedHistogram(bounds)
    for value in values:
        histogram.observe(value)
    return Histogram(bounds, tuple(histogram.counts), histogram.sum)


def test_latency_histograms_are_those_of_the_request_log() -> None:
    engine = SimulatedEngine(BUSY)
    engine.advance(60.0)
    tally = engine.tally()
    done = [entry for entry in engine.log if entry.finish is not None]
    assert len(done) > 100
    ttft = [entry.ttft for entry in engine.log if entry.ttft is not None]
    tpot = [entry.tpot for entry in done if entry.tpot is not None]
    e2e = [entry.finish - entry.arrival for entry in done if entry.finish is not None]
    assert tally.ttft is not None
    assert tally.tpot is not None
    assert tally.e2e is not None
    for counted, values in ((tally.ttft, ttft), (tally.tpot, tpot), (tally.e2e, e2e)):
        expected = rebuilt(values, counted.bounds)
        assert counted.counts == expected.counts
        assert counted.sum == pytest.approx(expected.sum)


def test_inter_token_has_one_observation_for_each_step_of_each_request() -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, kv_cache_tokens=65536, max_model_len=4096))
    engine.advance(60.0)
    tally = engine.tally()
    assert tally.inter_token is not None
    assert tally.preemptions == 0
    assert tally.inter_token.count == tally.drafts
    spans = [
        entry.last_token - entry.first_token
        for entry in engine.log
        if entry.last_token and entry.first_token
    ]
    assert tally.inter_token.sum == pytest.approx(math.fsum(spans))


def test_acceptance_counts_in_full_where_the_output_is_cut() -> None:
    engine = SimulatedEngine(
        dataclasses.replace(BUSY, traffic=SimulatedTraffic(), max_model_len=256)
    )
    engine.set_acceptance_scale(10.0)
    sequence = engine.submit(SimulatedRequest(prompt_tokens=8, max_tokens=4))
    engine.advance(5.0)
    assert (sequence.generation_tokens, sequence.drafts) == (4, 1)
    assert sequence.accepted_tokens == K


@pytest.mark.parametrize(
    ("stop_after", "max_tokens", "reason", "length"),
    [(5, 20, "stop", 5), (50, 20, "length", 20), (None, 20, "length", 20), (20, 20, "stop", 20)],
)
def test_a_request_ends_as_the_model_or_its_limit_says(
    stop_after: int | None, max_tokens: int, reason: str, length: int
) -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, traffic=SimulatedTraffic()))
    news: list[tuple[int, str | None]] = []
    request = SimulatedRequest(10, max_tokens, 0.7, stop_after)
    sequence = engine.submit(request, lambda _, new, why: news.append((new, why)))
    engine.advance(10.0)
    assert (sequence.finished_reason, sequence.generation_tokens) == (reason, length)
    assert sum(new for new, _ in news) == length
    assert [why for _, why in news] == [None] * (len(news) - 1) + [reason]


def test_restart_starts_counting_from_zero_in_a_new_process() -> None:
    engine = SimulatedEngine(BUSY)
    engine.advance(20.0)
    under_way = [entry for entry in engine.log if entry.finished_reason is None]
    before = engine.process_start
    engine.restart(speculation=False, downtime=5.0)
    assert under_way
    assert all(entry.finished_reason == "abort" for entry in under_way)
    assert engine.process_start == before + 25.0
    assert engine.tally().generation_tokens == engine.tally().prompt_tokens == 0
    assert engine.tally().drafts is None
    engine.advance(40.0)
    assert not [entry for entry in engine.log if 20.0 < entry.arrival <= 25.0]
    assert (engine.tally().generation_tokens or 0) > 0
    assert engine.cores[0].counters.drafts == 0
    engine.restart(speculation=True)
    engine.advance(60.0)
    assert (engine.tally().drafts or 0) > 0


def test_an_abort_frees_its_memory_and_counts_only_when_the_engine_decided_it() -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, traffic=SimulatedTraffic()))
    gone = engine.submit(SimulatedRequest(100, 400))
    given_up = engine.submit(SimulatedRequest(100, 400))
    engine.advance(1.01)
    engine.abort(gone)
    engine.abort(given_up, counted=True)
    engine.abort(given_up, counted=True)
    engine.advance(5.0)
    assert engine.tally().requests["abort"] == 1
    assert engine.cores[0].free_blocks == engine.cores[0].blocks
    assert engine.running == engine.waiting == 0
    assert gone.generation_tokens > 0


def test_parallel_answers_are_one_request_of_n() -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, traffic=SimulatedTraffic()))
    engine.submit_parallel(SimulatedRequest(20, 30, 0.7), 3)
    engine.advance(10.0)
    counters = engine.cores[0].counters
    assert (counters.params_n.count, counters.params_n.sum) == (1, 3.0)
    assert counters.requests["length"] == 3
    assert counters.max_output_length.count == 1


def test_data_parallel_engines_share_the_traffic() -> None:
    engine = SimulatedEngine(dataclasses.replace(BUSY, engines=2))
    engine.advance(60.0)
    first, second = (core.counters.generation_tokens for core in engine.cores)
    assert min(first, second) > 0.5 * max(first, second)


@pytest.mark.parametrize("request_", [SimulatedRequest(0, 5), SimulatedRequest(512, 5)])
def test_a_request_that_cannot_fit_is_refused(request_: SimulatedRequest) -> None:
    with pytest.raises(ValueError, match="prompt"):
        SimulatedEngine(BUSY).submit(request_)


def test_a_cache_smaller_than_the_context_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="lower --max-model-len"):
        SimulatedSettings(max_model_len=8192, num_gpu_blocks=100)

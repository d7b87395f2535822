"""From answers to a level: which requests count, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specwatch.domain.experiments import Level
from specwatch.domain.model import Environment, Mode, Series, Tally
from specwatch.lab.loadtest.bench import Load, Stretch, answered_well, level
from specwatch.lab.loadtest.calibration import Block, Look, Stage
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch_tap.acceptance import Acceptance

FULL = 21
ENGINE = MeasuredModel("tiny", "tiny", Mode.ON, Environment("0.32.0", "abc-4"))
LOAD = Load(concurrency=2)


def answer(
    sent: float,
    *,
    latency: float = 1.0,
    ttft: float = 0.2,
    tokens: int = FULL,
    due: float | None = None,
    error: ErrorKind | None = None,
) -> Answer:
    return Answer(
        Ask("hello", tokens),
        sent,
        sent + latency,
        first=None if error else sent + ttft,
        last=None if error else sent + latency,
        prompt_tokens=7,
        tokens=None if error else tokens,
        error=error,
        due=due,
    )


def look(clock: float, in_flight: float) -> Look:
    return Look({}, 1e9 + clock, clock, in_flight)


def due(answers: Sequence[Answer]) -> Stretch:
    """Of an open loop, from 10 to 20 s."""
    block = Block((look(0, 0),), tuple(answers))
    measured = Stretch.of(block, FULL, planned=(10.0, 20.0))
    assert measured is not None
    return measured


def stretch(answers: Sequence[Answer]) -> Stretch:
    """Of a closed loop, from 10 to 20 s."""
    looks = tuple(look(clock, 2 * clock) for clock in (0, 10, 20, 25))
    measured = Stretch.of(Block(looks, tuple(answers)), FULL)
    assert measured is not None
    return measured


def made(stretches: Sequence[Stretch], *, load: Load = LOAD, turns: bool = False) -> Level:
    return level(load, Stage(ENGINE, load.concurrency or 0), stretches, turns=turns)


def test_requests_sent_while_the_load_was_constant_count() -> None:
    """However long they took; not those of the ramp and the drain, nor the first of a client."""
    answers = [answer(9.5), answer(14.0, tokens=9), answer(18.9), answer(19.5), answer(20.0)]
    measured = made([stretch(answers)])
    assert (measured.requests, measured.tokens, measured.prompt_tokens) == (2, 2 * FULL, 14)
    assert measured.seconds == 10.0
    assert measured.running == pytest.approx((0.5 + 1 + 1 + 0.5) / 10)


def test_throughput_is_that_of_all_tokens_in_this_time() -> None:
    """A request that runs across an end counts with the part of its tokens that came inside."""
    inside = answer(12.0)
    before = answer(9.6, ttft=0.2, latency=1.0)
    after = answer(19.4, ttft=0.2, latency=1.0)
    measured = made([stretch([inside, before, after])])
    # Of 20 tokens in 0.8 s, 0.6 s lie inside; its first token came before. Then the first, and 0.4.
    tokens = FULL + 20 * 0.6 / 0.8 + (1 + 20 * 0.4 / 0.8)
    assert measured.throughput == pytest.approx(tokens / 10.0)


def test_latencies_are_exact_quantiles() -> None:
    answers = [
        answer(11.0 + number / 100, ttft=0.1 + number / 1000, latency=1.1) for number in range(101)
    ]
    measured = made([stretch(answers)])
    assert measured.ttft.count == 101
    assert measured.ttft.p50 == pytest.approx(0.150)
    assert measured.ttft.p99 == pytest.approx(0.199)
    assert measured.ttft.mean == pytest.approx(0.150)
    assert measured.tpot.p50 == pytest.approx((1.1 - 0.15) / 20)
    assert measured.per_user.p50 == pytest.approx(20 / (1.1 - 0.15))


def test_failed_requests_are_counted_by_kind_and_have_no_latency() -> None:
    answers = [answer(12.0), answer(13.0), answer(14.0, error=ErrorKind.FAILED)]
    measured = made([stretch(answers)])
    assert (measured.requests, measured.errors) == (2, {"failed": 1})
    assert measured.latency.count == 2
    assert sum(batch.requests for batch in measured.batches) == 2
    assert measured.notes == ("1 of 3 requests failed",)


def test_batches_are_rounds_of_requests_that_ran_together() -> None:
    """Requests at the same time are alike: a batch has at least as many as ran at once."""
    answers = [answer(10.0 + number * 0.1, latency=0.5) for number in range(90)]
    few = made([stretch(answers)], load=Load(concurrency=8))
    assert len(few.batches) == 11
    assert min(batch.requests for batch in few.batches) == 8
    many = made([stretch(answers)], load=Load(concurrency=1))
    assert len(many.batches) == 24
    assert sum(batch.requests for batch in many.batches) == 90
    one = few.batches[0]
    assert one.tokens == FULL * one.requests
    assert one.decode_tokens == (FULL - 1) * one.requests
    assert one.request_seconds == pytest.approx(0.5 * one.requests)
    assert one.first_seconds == pytest.approx(0.2 * one.requests)
    assert one.decode_seconds == pytest.approx(0.3 * one.requests)


def test_with_turns_each_stretch_is_a_batch_even_an_empty_one() -> None:
    """So that the batches of both servers are pairs."""
    measured = made(
        [stretch([answer(12.0)]), stretch([]), stretch([answer(11), answer(13)])], turns=True
    )
    assert [batch.requests for batch in measured.batches] == [1, 0, 2]
    assert measured.seconds == 30.0


def test_in_an_open_loop_requests_count_that_were_due_in_this_time() -> None:
    """Those still running at its end were waited for; their latency is from when they were due."""
    answers = [
        answer(9.0, due=8.9),
        answer(12.5, due=12.0),
        answer(19.9, due=19.9, latency=30.0),
        answer(20.1, due=20.0),
    ]
    measured = made([due(answers)], load=Load(rate=1.0))
    assert measured.requests == 2
    assert measured.latency.count == 2
    assert measured.latency.mean == pytest.approx((1.5 + 30.0) / 2)
    assert measured.ttft.mean == pytest.approx((0.7 + 0.2) / 2)
    assert measured.lateness.mean == pytest.approx(0.25)


@pytest.mark.parametrize(("latency", "noted"), [(30.0, True), (0.5, False)])
def test_a_server_that_does_not_keep_up_is_noted(latency: float, noted: bool) -> None:
    """Its latencies say how long was measured, and little else."""
    answers = [answer(number / 8, due=number / 8, latency=latency) for number in range(160)]
    measured = made([due(answers)], load=Load(rate=8.0))
    assert any("did not keep up" in note for note in measured.notes) is noted


def test_a_load_that_was_broken_off_counts_until_then() -> None:
    looks = (look(0, 0), look(10, 20), look(12, 24))
    block = Block(looks, (answer(11.0), answer(12.5), answer(13.0, latency=0.1)))
    measured = Stretch.of(block, FULL, broken_off=14.0)
    assert (measured.begin, measured.end) == (10.0, 14.0)
    assert len(measured.counted) == 3
    whole = level(LOAD, Stage(ENGINE, 2), [measured], turns=False, complete=False)
    assert whole.alone is None, "what ran when it was broken off, nobody can tell"
    assert not whole.complete
    assert whole.notes[0].startswith("broken off: ")
    assert Stretch.of(Block(looks[:1], ()), FULL, broken_off=14.0) is None


def test_acceptance_is_the_servers_own_count() -> None:
    stage = Stage(ENGINE, 2)
    stage.total = Tally(
        drafts=10, draft_tokens=40, accepted_tokens=20, accepted_per_position=(9, 6, 4, 1)
    )
    measured = level(LOAD, stage, [stretch([answer(12.0)])], turns=False).acceptance
    assert (measured.drafts, measured.draft_tokens, measured.accepted_tokens) == (10, 40, 20)
    assert measured.rate.value == 0.5
    assert measured.mean_length == 3.0
    assert measured.histogram == (1, 3, 2, 3, 1)
    assert measured.per_position == pytest.approx((0.9, 0.6, 0.4, 0.1))


def test_requests_after_the_first_unanswered_one_do_not_count() -> None:
    """Of those sent after it only fast ones have one, and would stand for all."""
    looks = (look(0, 0), look(10, 20), look(12, 24))
    block = Block(looks, (answer(11.0), answer(12.5), answer(13.0, latency=0.1)), unanswered=12.6)
    measured = Stretch.of(block, FULL, broken_off=14.0)
    assert measured.end == 12.6
    assert [one.sent for one in measured.counted] == [11.0, 12.5]
    dues = [answer(number, due=number, latency=0.1) for number in (11.0, 12.0, 13.0, 14.0)]
    block = Block((look(0, 0),), tuple(dues), unanswered=12.5)
    opened = Stretch.of(block, FULL, planned=(10.0, 20.0))
    assert [one.due for one in opened.counted] == [11.0, 12.0]


def test_a_restart_ends_what_counts_before_it() -> None:
    """What came after it is of another server; so is what was in flight, and got lost."""
    tokens = Series("generation_tokens", "", "tiny", "0", "")
    pages = [(0, 0.0), (10, 50.0), (20, 10.0), (30, 90.0)]
    looks = tuple(
        Look({tokens: value}, 1e9 + number, number, 2.0 * number) for number, value in pages
    )
    lost = [
        answer(number, latency=12.5 - number, error=ErrorKind.BROKE_OFF) for number in (11.8, 12.2)
    ]
    answers = (answer(9.0), answer(11.2), answer(11.0), *lost, answer(14.0), answer(25.0))
    assert answered_well(Block(looks, answers)) == 11.8
    assert answered_well(Block(looks[:2], answers)) == 26.0, "without one it is the last answer"


def test_acceptance_comes_from_records_if_the_page_has_no_counters() -> None:
    """As with llama.cpp, whose page does not tell that it speculates."""
    stage = Stage(ENGINE, 2)
    stage.answers = [
        replace(answer(12.0), acceptance=Acceptance("record", 10, 40, 30)),
        answer(13.0),
    ]
    measured = level(LOAD, stage, [stretch([answer(12.0)])], turns=False).acceptance
    assert (measured.drafts, measured.draft_tokens, measured.accepted_tokens) == (10, 40, 30)


def test_prompts_from_the_prefix_cache_are_noted() -> None:
    stage = Stage(ENGINE, 2)
    stage.total = Tally(prefix_cache_queries=200, prefix_cache_hits=100)
    (note,) = level(LOAD, stage, [stretch([answer(12.0)])], turns=False).notes
    assert "prompts of which 50% came from the prefix cache" in note
    stage.total = Tally(prefix_cache_queries=200, prefix_cache_hits=10)
    assert level(LOAD, stage, [stretch([answer(12.0)])], turns=False).notes == ()


@pytest.mark.parametrize(("latency", "noted"), [(4.0, True), (1.0, False)])
def test_a_note_says_how_long_short_turns_should_be(latency: float, noted: bool) -> None:
    turns = [stretch([answer(12.0, latency=latency)]) for _ in range(6)]
    notes = made(turns, turns=True).notes
    assert notes == (
        ("a turn lasted 2.5 mean latencies, and 6 are recommended: give --duration 2m24s",)
        if noted
        else ()
    )

"""An engine that ended speculation by itself: recognised and named, never early.

The pages are those of TensorRT-LLM 1.3 as its ``SpeculationGate`` leaves them: requests end, their
tokens are counted, and no position of a draft moves any more.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specwatch.domain.model import Cursor, Mode, Moment
from specwatch.problems import ProblemKind, problems
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.wording import speculation
from specwatch.wording.headline import headline
from tests.pages import faithful, read
from tests.web.statuses import NOW, daemon, target

PAGE = faithful("tensorrt-llm-1.3-eagle3").decode()
START = 1_700_000_000.0


class Life:
    """A server whose page is read every 5 s."""

    def __init__(self, cursor: Cursor | None = None) -> None:
        self.watch = WindowBuilder("d", "t", max_gap=15, cursor=cursor)
        self.page = PAGE
        self.at = START

    def goes_on(self, *, requests: int, tokens: int, drafts: int, running: int = 3) -> Mode:
        """Five seconds; the mode after them."""
        for pattern, more in (
            (r'(request_success_total\{.*"stop"\}) (\S+)', requests),
            (r"(generation_tokens_total\{.*\}) (\S+)", tokens),
            (r"(spec_decode_drafted_tokens_total\{.*\}) (\S+)", drafts),
        ):
            self.page = re.sub(
                pattern, lambda found, by=more: f"{found[1]} {float(found[2]) + by}", self.page
            )
        self.page = re.sub(r"(num_requests_running\{.*\}) \S+", rf"\1 {running}", self.page)
        return self.read()

    def read(self) -> Mode:
        self.watch.observe(read(self.page.encode()), Moment(self.at, self.at))
        self.at += 5
        (mode,) = self.watch.models.values()
        return mode

    @property
    def stop(self) -> EngineStop | None:
        return self.watch.draft_watch.stops.get("org/m")


def silent(life: Life, times: int, running: int = 3) -> Mode:
    for _ in range(times):
        mode = life.goes_on(requests=5, tokens=505, drafts=0, running=running)
    return mode


def drafting(life: Life) -> Mode:
    return life.goes_on(requests=5, tokens=505, drafts=200)


def test_a_closed_gate_is_recognised_with_its_time() -> None:
    life = Life()
    assert (life.read(), drafting(life), drafting(life)) == (Mode.ON,) * 3
    last_draft = life.at - 5
    assert silent(life, 3) is Mode.ON, "15 requests tell too little"
    assert silent(life, 1) is Mode.STOPPED
    assert life.stop is not None
    assert (life.stop.since, life.stop.at_least, life.stop.tokens) == (last_draft, False, 2000)
    assert life.stop.acceptance_rate == pytest.approx(450 / (1190 + 6 * 200))
    assert silent(life, 12) is Mode.STOPPED
    batch = life.watch.close().batch
    assert batch is not None
    assert batch.windows[0].mode is Mode.STOPPED


def test_a_gate_that_was_closed_before_the_watch_began_says_so() -> None:
    life = Life()
    life.read()
    assert silent(life, 4) is Mode.STOPPED
    assert life.stop is not None
    assert (life.stop.since, life.stop.at_least) == (START, True)
    successor = Life(life.watch.cursor())
    successor.page, successor.at = life.page, life.at
    assert silent(successor, 4) is Mode.STOPPED


def test_a_draft_or_a_restart_ends_it() -> None:
    life = Life()
    life.read()
    silent(life, 4)
    assert drafting(life) is Mode.ON
    silent(life, 4)
    life.page = PAGE
    assert life.read() is Mode.ON, "its counters fell"
    assert life.stop is None


def test_a_load_at_which_drafts_may_pause_tells_nothing() -> None:
    """As with ``max_concurrency``: drafts were seen with 3 running, and come back with 3."""
    life = Life()
    life.read()
    drafting(life)
    assert silent(life, 20, running=40) is Mode.ON
    assert silent(life, 6) is Mode.STOPPED


def test_other_engines_do_not_stop_for_good() -> None:
    page = read(faithful("sglang-0.5.23-eagle-dp2"))
    watch = WindowBuilder("d", "t", max_gap=15)
    for number in range(10):
        fixed = {s: v * (1 if s.quantity == "drafts" else 1 + number) for s, v in page.items()}
        watch.observe(fixed, Moment(5.0 * number, 5.0 * number))
    assert set(watch.models.values()) == {Mode.ON}


STOP = EngineStop(NOW - 780, at_least=False, acceptance_rate=0.12, tokens=23_000)


def test_it_is_a_problem_with_its_time_and_what_to_do() -> None:
    stopped = target(models={"llama": Mode.STOPPED}, stops={"llama": STOP})
    (problem,) = problems(daemon(stopped))
    assert problem.kind is ProblemKind.STOPPED
    text = headline(problem, NOW)
    assert text.sentence == (
        "Speculation of chat is switched off by the engine since 2023-11-14 22:01 UTC (inferred"
        " from its counters: 23,000 tokens without a draft, after an acceptance of 12.0%)."
    )
    assert "until the engine starts again" in text.remedy
    assert "[SpeculationGate] Speculative decoding disabled" in text.remedy


def test_the_answer_is_that_it_is_off() -> None:
    outcome, sentence = speculation.answer(None, Mode.STOPPED, replace(STOP, at_least=True))
    assert outcome == "off"
    assert "switched off by the engine since 2023-11-14 22:01 UTC or earlier" in sentence
    assert speculation.answer(None, Mode.STOPPED)[1].startswith(
        "Speculation is switched off by the engine. "
    )

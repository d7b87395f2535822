"""What a judge remembers from minute to minute changes nothing that it decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from specwatch.config.rules import DEFAULT_RULES, Slo
from specwatch.domain.baseline import BaselineKey, Measurement, Origin, measured
from specwatch.domain.counterfactual import Row
from specwatch.domain.model import MINUTE, Mode, Objective, Tally, Window
from specwatch.domain.sample import samples_of
from specwatch.domain.speedup import Comparison
from specwatch.rules.judge import Judge
from tests.scrape.closing import START, minute

SLO = Slo(name="first", metric="ttft", threshold="200ms", objective=0.9, window="1h")
BUCKETS = ("0", "(0,0.3]", "endpoint=chat")


def history(seed: int, minutes: int) -> Iterator[list[Window]]:
    """Batches of random minutes: with gaps, restarts, switches, other loads and prompts; some come
    late or twice, and the clock is set back."""
    chance = random.Random(seed)
    number, mode, running, step, acceptance, version = 0, Mode.ON, 3.0, 0.02, 0.5, "0.32.0"
    sent: list[list[Window]] = []
    for _ in range(minutes):
        number += 1
        if chance.random() < 0.04:
            number += chance.choice([1, 2, 7, 40, -3])
        if chance.random() < 0.05:
            mode = Mode.OFF if mode is Mode.ON else Mode.ON
        if chance.random() < 0.1:
            running = chance.choice([3.0, 3.5, 6.0, 12.0])
            step, acceptance = chance.choice([0.02, 0.03, 0.05]), chance.choice([0.05, 0.4, 0.7])
        if chance.random() < 0.01:
            version = chance.choice(["0.32.0", "0.33.0"])
        windows = [
            _changed(window, chance, version)
            for window in minute(
                number,
                mode,
                running=running + chance.random(),
                step=step,
                acceptance=acceptance,
                wobble=0.1 * chance.random(),
                steps=chance.choice([1, 40, 2000, 3000]),
                restarts=int(chance.random() < 0.03),
                buckets={}
                if mode is Mode.OFF
                else {label: (900, acceptance * chance.random()) for label in BUCKETS},
            )
        ]
        sent.append(windows)
        yield windows
        if chance.random() < 0.05:  # late, or again
            yield chance.choice(sent[-5:])


def _changed(window: Window, chance: random.Random, version: str) -> Window:
    asked = 30 * chance.choice([100, 140, 500]) if chance.random() < 0.9 else None
    counted = window.tally
    if counted.ttft is not None:  # of all temperatures
        counted = msgspec.structs.replace(counted, prompt_tokens=asked)
    if chance.random() < 0.02:
        counted = Tally()
    environment = msgspec.structs.replace(window.environment, engine_version=version)
    return msgspec.structs.replace(window, tally=counted, environment=environment)


def stored(seed: int) -> list[Measurement]:
    """Baselines of two loads, measured at some time; of odd seeds longer prompts take longer."""
    chance = random.Random(seed)
    key = BaselineKey("t", "m", "0.32.0", "c")
    found = []
    for running in (3.0, 6.0):
        windows = []
        for n in range(-90, -30):
            prompts = chance.choice([2000, 3000, 4000]) if seed % 2 else 3000
            step = chance.uniform(0.018, 0.022) * prompts / 3000
            windows += [
                msgspec.structs.replace(
                    window, tally=msgspec.structs.replace(window.tally, prompt_tokens=prompts)
                )
                for window in minute(n, Mode.OFF, running=running, step=step)
            ]
        found += measured(key, Origin.CALIBRATION, samples_of(windows))
    return found


class Forgetful(Judge):
    """A judge that begins each minute with the predictions of earlier ones alone."""

    def forget_figures(self) -> None:
        for model in self._models.values():
            model.evidence = None
            model._same, model._fitted = {}, None
            model._memory = {
                start: Row(row.minute, row.plain)
                for start, row in model._memory.items()
                if row.lengths is None  # those of later minutes do not change it any more
            }


def _since(self: Comparison, start: float) -> Comparison:
    rows = [row for row in self._rows if row.minute.sample.start >= start]
    part = self._of([Row(row.minute, row.plain, slower=row.slower) for row in rows])
    part.__dict__["noise"] = self.noise
    return part


def check_remembered(seed: int, minutes: int) -> int:
    """After each minute, with rules, objectives and baselines set anew; returns how many speedups
    were measured."""
    judge, anew = (kind("t", DEFAULT_RULES, [SLO]) for kind in (Judge, Forgetful))
    assert isinstance(anew, Forgetful)
    known = 0
    for count, windows in enumerate(history(seed, minutes)):
        now = float(windows[0].start + MINUTE)
        for one in (judge, anew):
            _set_anew(one, count, seed)
        changed = judge.observe(windows, now)
        anew.forget_figures()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Comparison, "since", _since)
            assert anew.observe(windows, now) == changed
            known += _compare(judge, anew)
    return known


def test_what_is_remembered_changes_nothing() -> None:
    assert check_remembered(0, 30) > 5


def _set_anew(judge: Judge, count: int, seed: int) -> None:
    chance = random.Random(1000 * seed + count)
    if count == 10 or chance.random() < 0.02:
        judge.measurements = stored(seed + count)
    if chance.random() < 0.02:
        judge.rules = chance.choice([DEFAULT_RULES, DEFAULT_RULES[:6], DEFAULT_RULES[::-1]])
    if chance.random() < 0.02:
        judge.objective = chance.choice(list(Objective))
    if chance.random() < 0.02:
        judge.set_objectives([SLO])
    if chance.random() < 0.02:
        judge.load(window for n in range(-30, -20) for window in minute(n))


def _compare(judge: Judge, anew: Judge) -> int:
    """All that is shown and decided; returns how many speedups were measured."""
    assert judge.findings() == anew.findings()
    assert judge.present_speedups() == anew.present_speedups()
    assert judge.assessments() == anew.assessments()
    assert judge.baseline_latencies() == anew.baseline_latencies()
    assert judge.slos() == anew.slos()
    return sum(one.measured for one in judge.assessments().values())


def test_the_history_is_as_random_as_it_says() -> None:
    starts = [windows[0].start for windows in history(0, 130)]
    assert any(later < earlier for earlier, later in pairwise(starts))
    assert {windows[0].mode for windows in history(0, 130)} == {Mode.ON, Mode.OFF}
    assert starts[0] > START

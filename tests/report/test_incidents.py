"""What the guard did, why, and how it ended."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specwatch.guard.holdout import HOLDOUT_OF
from specwatch.guard.observation import Situation
from specwatch.guard.state import GuardState, Step
from specwatch.guard.status import StepRecord
from specwatch.report.incidents import incidents, seconds_off
from tests.guard.wandering import Wandering
from tests.report.history import step
from tests.report.hours import at

FINDING = {
    "rule": "net-negative",
    "summary": "Speculation makes this server slower than it is without",
    "model_name": "model",
    "segment": {"dimension": "all", "value": "all"},
    "readings": [],
    "leading": {
        "metric": "speedup_ratio",
        "value": 0.91,
        "lower": 0.88,
        "upper": 0.94,
        "above": None,
        "below": 1,
        "clear": None,
        "window": 600,
        "drafts": 9000,
        "requests": 40,
        "basis": "measured",
        "missing": None,
    },
}
CAUSE = (
    "Speculation makes this server slower than it is without"
    " (net-negative: speedup_ratio 0.91 (0.88 to 0.94), below 1)"
)
BREACH = (0, "confirmed", "the rule net-negative is in breach", FINDING)
OFF = (
    BREACH,
    (0.1, "draining", "switching speculation off"),
    (0.2, "restarting", "no request runs, after 3s"),
    (0.3, "verifying", "the server was restarted"),
    (0.5, "disabled", "no slower than before"),
)
TRIAL = (
    *OFF,
    (6, "draining", "it is time for a trial"),
    (6.1, "restarting", "no request runs, after 3s"),
    (6.2, "verifying", "the server was restarted"),
    (6.5, "trial", "healthy after 2m"),
)


def story(*events, incident="chat-1", before="observing"):
    """Steps at hours, each with phase, reason, and its inputs where there are any."""
    result = []
    for hour, phase, reason, *inputs in events:
        result.append(step(at(hour), incident, before, phase, reason, *inputs))
        before = phase
    return result


def only(steps, since=0.0, until=24.0):
    (incident,) = incidents(steps, at(since), at(until))
    return incident


OUTCOMES = {
    "off and still so": (OFF, 24 - 0.2, "speculation is off since 2026-11-02 00:12 UTC"),
    "on again": (
        (*TRIAL, (7, "observing", "the trial was won: speedup 1.20 (1.10 to 1.30)")),
        6.5 - 0.2,
        "switched on again: the trial was won: speedup 1.20 (1.10 to 1.30)",
    ),
    "on trial": (TRIAL, 6.5 - 0.2, "on again for a trial since 2026-11-02 06:30 UTC"),
    "a lost trial": (
        (
            *TRIAL,
            (7, "draining", "the trial was lost: speedup 0.90 (0.85 to 0.95)"),
            (7.1, "restarting", "drained for 2m"),
            (7.2, "verifying", "the server was restarted"),
            (7.5, "disabled", "healthy after 2m"),
        ),
        6.5 - 0.2 + 24 - 7.1,
        "speculation is off since 2026-11-02 07:06 UTC",
    ),
    "a trial given up": (
        (*TRIAL[:6], (6.2, "disabled", "given up: paused by ann")),
        24 - 0.2,
        "speculation is off since 2026-11-02 00:12 UTC",
    ),
    "being switched": (OFF[:3], 24 - 0.2, "under way: no request runs, after 3s"),
    "being rolled back": (
        (*OFF[:4], (0.5, "rolling_back", "vLLM died 3 times after the restart")),
        24 - 0.2,
        "being rolled back: vLLM died 3 times after the restart",
    ),
    "held": (
        (
            *OFF[:4],
            (0.5, "rolling_back", "vLLM does not run"),
            (0.6, "rolling_back", "the server was put back as it was"),
            (0.7, "held", "vLLM does not run; it runs again as before"),
        ),
        0.7 - 0.2,
        "held since 2026-11-02 00:42 UTC, a person has to look:"
        " vLLM does not run; it runs again as before",
    ),
    "held, because the server was stopped by hand": (
        (*OFF[:4], (0.5, "held", "the server was stopped by hand after the restart")),
        24 - 0.2,
        "held since 2026-11-02 00:30 UTC, a person has to look:"
        " the server was stopped by hand after the restart",
    ),
    "held before anything was done": (
        (*OFF[:2], (0.2, "held", "nothing was done: no manager")),
        0,
        "held since 2026-11-02 00:12 UTC, a person has to look: nothing was done: no manager",
    ),
    "rolled back and resumed": (
        (
            *OFF[:4],
            (0.5, "rolling_back", "vLLM does not run"),
            (0.7, "held", "vLLM does not run; it runs again as before"),
            (2, "observing", "resumed by ann"),
        ),
        0.7 - 0.2,
        "rolled back: vLLM does not run; resumed by ann",
    ),
    "a trial rolled back": (
        (
            *OFF,
            (6, "draining", "it is time for a trial"),
            (6.1, "restarting", "drained for 2m"),
            (6.2, "rolling_back", "it would not start"),
            (6.3, "held", "it would not start; it runs again as before"),
        ),
        24 - 0.2,
        "held since 2026-11-02 06:18 UTC, a person has to look:"
        " it would not start; it runs again as before",
    ),
    "given up": (
        (*OFF[:2], (0.2, "observing", "given up: paused by ann")),
        0,
        "given up: paused by ann",
    ),
    "switched by another tool": (
        (*OFF, (3, "observing", "speculation was switched on by another tool")),
        3 - 0.2,
        "speculation was switched on by another tool",
    ),
    "looked on": (
        (
            BREACH,
            (0, "confirmed", "guard.mode is observe: nothing is done"),
            (3, "observing", "no rule is in breach any more"),
        ),
        0,
        "would have acted: guard.mode is observe; over after 3 h: no rule is in breach any more",
    ),
    "looks on": (
        (BREACH, (0, "confirmed", "guard.mode is observe: nothing is done")),
        0,
        "would have acted: guard.mode is observe; still in breach",
    ),
    "kept from it": (
        (
            BREACH,
            (0, "confirmed", "paused by ann"),
            (1, "confirmed", "cooling down for 30m after the last action"),
            (2, "observing", "no rule is in breach any more"),
        ),
        0,
        "nothing was done: cooling down for 30m after the last action; over after 2 h:"
        " no rule is in breach any more",
    ),
    "over at once": (
        (BREACH, (0.02, "observing", "no rule is in breach any more")),
        0,
        "nothing was done; over after 72 s: no rule is in breach any more",
    ),
}


@pytest.mark.parametrize(("events", "hours", "outcome"), OUTCOMES.values(), ids=OUTCOMES)
def test_how_an_incident_ends_is_told_in_words(events, hours, outcome):
    incident = only(story(*events))
    assert incident.outcome == outcome
    assert incident.would_have_acted is outcome.startswith("would have acted")
    assert incident.cause == CAUSE
    assert incident.seconds_off == pytest.approx(hours * 3600)
    over = events[-1][1] == "observing"
    assert (incident.began, incident.ended) == (at(0), at(events[-1][0]) if over else None)
    assert [(step.at, step.phase, step.reason) for step in incident.steps] == [
        (at(hour), phase, reason) for hour, phase, reason, *_ in events
    ]


def test_time_off_by_order_of_a_person_is_not_counted_as_the_guard_s():
    by_ann = story(
        (0, "draining", "ann switched speculation off: it garbles", {"ordered_by": "ann"}),
        (0.1, "restarting", "drained for 2m"),
        (0.2, "verifying", "the server was restarted"),
        (0.3, "disabled", "healthy after 2m"),
    )
    incident = (only(by_ann),)
    assert incident[0].cause == "ann switched speculation off: it garbles"
    assert incident[0].ordered_by == "ann"
    assert seconds_off(incident, ordered=False) == 0
    assert seconds_off(incident, ordered=True) == pytest.approx(23.9 * 3600)


def test_an_incident_that_another_takes_the_place_of_is_over():
    """Who enables what the guard disabled begins an incident of his own."""
    second = (
        (5, "draining", "ann switched speculation on", {"ordered_by": "ann"}),
        (5.1, "restarting", "drained for 2m"),
        (5.2, "verifying", "the server was restarted"),
        (5.3, "observing", "healthy after 2m"),
    )
    steps = [*story(*OFF), *story(*second, incident="chat-2", before="disabled")]
    random.Random(1).shuffle(steps)
    first, last = incidents(steps, at(0), at(24))
    assert (first.id, first.ended) == ("chat-1", at(5))
    assert first.outcome == (
        "speculation was off until 2026-11-02 05:00 UTC, when ann switched speculation on"
    )
    assert first.seconds_off == pytest.approx(4.8 * 3600)
    assert (last.id, last.began, last.ended) == ("chat-2", at(5), at(5.3))
    assert last.outcome == "switched on again: healthy after 2m"
    assert last.seconds_off == pytest.approx(0.3 * 3600), "it was off while that was prepared"
    assert seconds_off((first, last), ordered=False) == pytest.approx(4.8 * 3600)
    assert seconds_off((first, last), ordered=True) == pytest.approx(0.3 * 3600)


def test_where_the_first_step_finds_it_off_it_was_off():
    events = (
        (5, "draining", "it is time for a trial"),
        (6, "disabled", "given up: paused by ann"),
    )
    incident = only(story(*events, before="disabled"))
    assert incident.seconds_off == pytest.approx(19 * 3600)
    assert incident.outcome == "speculation is off since before 2026-11-02 05:00 UTC"


def test_only_the_period_counts():
    steps = story(*TRIAL, (7, "observing", "the trial was won"))
    assert only(steps, since=3).seconds_off == pytest.approx(3.5 * 3600)
    assert only(steps, since=3, until=5).seconds_off == pytest.approx(2 * 3600)
    assert only(steps, until=5).outcome == "speculation is off since 2026-11-02 00:12 UTC"
    assert incidents(steps, at(8), at(9)) == ()
    assert incidents(steps, at(-2), at(0)) == ()


def test_an_incident_that_lasts_is_told_however_long_ago_it_began():
    incident = only(story(*OFF), since=200, until=224)
    assert (incident.began, incident.ended, incident.seconds_off) == (at(0), None, 24 * 3600)


def test_steps_of_no_incident_are_none():
    steps = [
        *story((0, "observing", "speculation is on"), (1, "suspect", "in breach"), incident=""),
        *story((2, "observing", "paused by ann: a deploy"), incident=""),
    ]
    assert incidents(steps, at(0), at(3)) == ()
    assert incidents([], at(0), at(3)) == ()


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"rule": "x"},
        {"speedup": {"value": 1}},
        {"rule": "x", "segment": {"dimension": "all", "value": "all"}, "leading": {"metric": "m"}},
        {"rule": "x", "segment": 3, "leading": "?"},
    ],
)
def test_inputs_of_another_version_are_told_as_far_as_they_can_be(inputs):
    incident = only(story((0, "confirmed", "the rule x is in breach", inputs)))
    assert "the rule x" in incident.cause


def test_foreign_text_is_clean_and_short():
    bad = "\x1b[31m" + "y" * 10_000
    finding = {**FINDING, "rule": bad, "summary": bad}
    result = only(story((0, "confirmed", bad, finding), (1, "held", bad), incident=bad))
    texts = [result.id, result.cause, result.outcome, *(step.reason for step in result.steps)]
    assert all(len(text) < 700 and text.isprintable() for text in texts)


@dataclass
class Recorded(Wandering):
    """A walk of the guard whose steps are stored, as the daemon stores them."""

    steps: list[StepRecord] = field(default_factory=list)

    def _take(self, step: Step, seen: Situation) -> None:
        before = self.state
        super()._take(step, seen)
        self._store(before, step.reason)

    def _person(self) -> None:
        before = self.state
        super()._person()
        if self.state is not before:
            self._store(before, "by ann")

    def _store(self, before: GuardState, reason: str) -> None:
        incident = self.state.incident or before.incident
        self.steps.append(
            step(
                self.now,
                incident.id if incident else "",
                before.phase,
                self.state.phase,
                reason,
            )
        )


def test_a_holdout_is_an_incident_only_where_switching_failed():
    begins = (0, "draining", "it becomes the holdout of the group chat", {HOLDOUT_OF: "chat"})
    serves = (0.2, "disabled", "healthy after 2m")
    failed = (0.2, "held", "vLLM was not healthy within 15m")
    assert incidents(story(begins, serves), at(0), at(9)) == ()
    (incident,) = incidents(story(begins, failed), at(0), at(9))
    assert "vLLM was not healthy" in incident.outcome


@given(seed=st.integers(0, 2**32))
@example(seed=179)  # no step at all
def test_whatever_the_guard_does_time_without_speculation_counts_once(seed):
    walk = Recorded(random.Random(seed))
    for _ in range(60):
        walk.turn()
    steps = walk.steps
    since, until = walk.entered, walk.now + 100
    incident = incidents(steps, since, until)
    assert {item.id for item in incident} == {step.incident for step in steps if step.incident}
    assert all(entry.outcome and entry.cause for entry in incident)
    assert all(entry.ended is None or entry.began <= entry.ended for entry in incident)
    spent: dict[str, float] = {}
    ends = [*(taken.at for taken in steps), until][1:]
    for taken, end in zip(steps, ends, strict=True):
        if taken.incident:
            spent[taken.phase] = spent.get(taken.phase, 0.0) + end - taken.at
    surely = sum(
        spent.get(entry, 0.0) for entry in ("restarting", "verifying", "disabled", "rolling_back")
    )
    perhaps = spent.get("draining", 0.0) + spent.get("held", 0.0)
    assert surely - 1e-3 <= seconds_off(incident, ordered=False) <= surely + perhaps + 1e-3

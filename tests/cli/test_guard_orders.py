"""Orders to the guard: ``specwatch guard disable`` and ``enable``, followed to their end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
from structlog.testing import capture_logs

from specwatch.domain.model import Mode
from specwatch.guard.state import Order, Phase
from tests.cli.conftest import Run
from tests.cli.guards import LATER, NOW, Guards, answer, lines
from tests.guard.living import ACT, Living
from tests.guard.simulated_server import SimulatedServer


@pytest.fixture
def living(guards: Guards, monkeypatch: pytest.MonkeyPatch) -> Iterator[Living]:
    """A guard of a healthy server, which runs a cycle whenever a command waits."""
    server = SimulatedServer(now=NOW - 60, started=NOW - 90, bad=False)
    policy = ACT.model_copy(update={"start_timeout": 60.0})
    made = Living(guards.path, server=server, policy=policy)

    def pause(_: float) -> None:
        made.book.changed = True
        made.live(6)

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", pause)
    with capture_logs():  # which would go to standard output, among what the command prints
        made.live(10)
        yield made
    made.store.close(NOW)


def test_disable_and_enable_are_followed_to_their_end(
    run: Run, guards: Guards, living: Living
) -> None:
    printed = lines(
        run, guards, "disable", "chat", "--by", "ann", "--reason", "slow", "--for", "8h"
    )
    phases = [phase for phase, _ in groupby(line.split()[3] for line in printed[:-1])]
    assert phases == ["observing", "draining", "restarting", "verifying", "disabled"]
    assert printed[1].endswith("draining      ann switched speculation off: slow")
    assert printed[-1] == "chat: speculation is off"
    assert living.server.mode is Mode.OFF
    assert 28_790 < (guards.state().rearm_at or 0) - NOW < 28_800 + LATER
    outcome = answer(run, guards, "enable")
    assert (outcome["reached"], outcome["reason"]) == (True, "speculation is on")
    assert outcome["state"]["goal"] == "on"
    assert [step["phase"] for step in outcome["steps"]][-1] == "observing"
    assert living.server.mode is Mode.ON


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no-status", "refused: the manager does not answer"),
        ("refuse", "held: nothing was done: the unit is masked"),
        ("hang", "held: vLLM was not healthy within 1m; it runs again as before"),
    ],
)
def test_a_failed_order_exits_with_1_and_the_reason(
    run: Run, guards: Guards, living: Living, fault: str, reason: str
) -> None:
    living.server.fault = fault
    assert lines(run, guards, "disable", code=1)[-1] == f"chat: {reason}"
    assert living.server.mode is Mode.ON


WAITS: dict[str, tuple[tuple[str, ...], Callable[[Guards], object], str]] = {
    "superseded by another order": (
        ("--timeout", "5s"),
        lambda guards: guards.step("bob wants it on", order=Order(Mode.ON, "bob", NOW)),
        "bob has ordered something else since",
    ),
    "abandoned by the daemon": (
        ("--timeout", "5s"),
        lambda guards: guards.step("given up: bob wants something else", order=None),
        "speculation is not off: given up: bob wants something else",
    ),
    "not done in time": (
        ("--timeout", "1m"),
        lambda _: None,
        "not done within 1m; the order stays",
    ),
    "no daemon any more": (
        (),
        lambda guards: guards.leave(),
        "no daemon guards it any more; the order stays",
    ),
    "interrupted": (
        (),
        lambda _: signal.raise_signal(signal.SIGINT),
        "no longer followed; the order stays",
    ),
}
"""Options of an order, what happens while it is followed, and how that ends."""


@pytest.mark.parametrize(("words", "event", "end"), WAITS.values(), ids=WAITS.keys())
def test_an_order_that_is_not_done_exits_with_1_and_the_reason(
    run: Run,
    guards: Guards,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    event: Callable[[Guards], object],
    end: str,
) -> None:
    guards.put(goal=Mode.ON)
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr("specwatch.cli.guard_orders.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", lambda _: event(guards))
    assert f"chat: {end}" in lines(run, guards, "disable", *words, code=1)[-2:]


def test_without_a_daemon_an_order_stays_and_exits_with_1(run: Run, guards: Guards) -> None:
    guards.put(guarded=False)
    printed = lines(run, guards, "disable", "--by", "ann", code=1)
    assert printed == [
        "ann wants speculation off",
        "chat: no daemon guards it now; the order waits for one",
        "`specwatch guard status` shows its progress",
    ]
    order = guards.state().order
    assert order is not None
    assert (order.goal, order.by, order.until) == (Mode.OFF, "ann", None)


def test_an_order_can_be_left_to_the_daemon(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()
    monkeypatch.setattr("specwatch.cli.guard_orders._ANSWER_SECONDS", 0.01)
    outcome = answer(run, guards, "enable", "--no-wait", "--by", "ann")
    assert (outcome["reached"], outcome["daemon"]) == (None, "left")
    assert outcome["reason"] == "left guards it and will do it"


def test_an_order_that_is_left_to_the_daemon_is_not_followed_once_it_has_begun(
    run: Run, guards: Guards, living: Living
) -> None:
    outcome = answer(run, guards, "disable", "--no-wait")
    assert (outcome["reached"], outcome["reason"]) == (None, "d has begun")
    assert guards.state().phase is not Phase.DISABLED


@pytest.mark.parametrize("words", [("--no-wait",), ()])
def test_an_order_for_a_target_without_a_service_is_refused_with_the_remedy(
    run: Run, guards: Guards, living: Living, words: tuple[str, ...]
) -> None:
    living.guardian._actuator = None
    reason = lines(run, guards, "disable", *words, code=1)[-1]
    assert reason.startswith("chat: refused: it has no `service`, so specwatch cannot restart it; ")
    assert "`specwatch strip`" in reason
    assert guards.state().order is None


def test_a_database_that_goes_away_meanwhile_is_waited_for(
    run: Run, guards: Guards, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = guards.path.with_suffix(".away")
    turns = iter(range(1000))

    def pause(_: float) -> None:
        number = next(turns)
        if number == 2:
            guards.path.rename(away)
        elif number == 4:
            away.rename(guards.path)
        if not 2 <= number < 4:
            living.book.changed = True
            living.live(2)

    monkeypatch.setattr("specwatch.cli.guard_orders.sleep", pause)
    assert lines(run, guards, "disable")[-1] == "chat: speculation is off"
    assert next(turns) > 5


def test_a_database_that_stays_away_exits_with_1_and_the_reason(
    run: Run, guards: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards.put()
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("specwatch.cli.guard_orders.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(
        "specwatch.cli.guard_orders.sleep", lambda _: guards.path.unlink(missing_ok=True)
    )
    printed = lines(run, guards, "disable", "--timeout", "1m", code=1)
    assert printed[-2].startswith("chat: unknown: SQLite database ")
    assert printed[-2].endswith("; the order stays")

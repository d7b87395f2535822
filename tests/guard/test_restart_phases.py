"""What the guard does during a restart, also of one that fails or that is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.config.guard import Guard
from specwatch.domain.model import ALL, HOUR, Mode
from specwatch.guard import state_machine
from specwatch.guard.foresight import Verification
from specwatch.guard.observation import Situation, SwitchOutcome
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import DAY, Cause, GuardState, Incident, Order, Pause, Phase
from tests.guard.situations import ACT, CALM, CONFIRMED, DISABLED, NOW, UP, about, check_step, seen

POLICY = Guard.model_validate(
    {"mode": "act", "restart_cost": "2m", "explore": {"budget": 0.01, "block": "10m"}}
)
DRAINING = replace(CONFIRMED, phase=Phase.DRAINING, goal=Mode.OFF, actions=(NOW - 9000, NOW))
RESTARTING = replace(CONFIRMED, phase=Phase.RESTARTING, goal=Mode.OFF, instance="1", actions=(NOW,))
VERIFYING = replace(RESTARTING, phase=Phase.VERIFYING, issued=NOW)
BACK = replace(RESTARTING, phase=Phase.ROLLING_BACK, goal=Mode.ON, why="it failed", instance="2")
GONE_SINCE = replace(BACK, issued=NOW, down_since=NOW)
START = ACT.start_timeout
OVER = ACT.drain_timeout + START
STOPPED = replace(UP, life=ProcessState.STOPPED)
CHANGING = replace(UP, life=ProcessState.CHANGING)
GONE = replace(UP, life=ProcessState.DOWN, instance=None)
NAMELESS = Service(ProcessState.UP, Mode.OFF, None)
OFF = Service(ProcessState.UP, Mode.OFF, "2")
FAILED = SwitchOutcome("status 1")
BUSY = SwitchOutcome("it is busy", changed=False, retry=True)
MASKED = SwitchOutcome("it is masked", changed=False)


def cause(of: Cause) -> Incident:
    return Incident("i", of, NOW)


STEPS: dict[str, tuple[Any, Situation, dict[str, Any] | None]] = {
    "an action that is given up does not count": (
        DRAINING,
        seen(2, scraped_at=NOW + 1, service=STOPPED),
        {
            "reason": "given up: the server was stopped by hand",
            "phase": Phase.OBSERVING,
            "goal": Mode.ON,
            "actions": (NOW - 9000,),
            "incident": None,
        },
    ),
    "a stopped server is switched where the operator ordered it": (
        replace(DRAINING, incident=cause(Cause.PERSON)),
        seen(2, scraped_at=NOW + 1, service=STOPPED),
        {"phase": Phase.RESTARTING},
    ),
    "an order for the other mode ends draining": (
        replace(DRAINING, order=Order(Mode.ON, "ann", NOW)),
        seen(2),
        {"reason": "given up: ann wants something else"},
    ),
    "an order for the same mode does not": (
        replace(DRAINING, order=Order(Mode.OFF, "ann", NOW)),
        seen(2, load=1.0),
        None,
    ),
    "a restart from standby that is given up leaves standby, with a trial in an hour": (
        replace(DRAINING, from_standby=True, order=Order(Mode.ON, "ann", NOW)),
        seen(2),
        {"phase": Phase.DISABLED, "goal": Mode.OFF, "standby": True, "rearm_at": NOW + 2 + HOUR},
    ),
    "without a trial where a person had ordered standby": (
        replace(
            DRAINING,
            from_standby=True,
            incident=cause(Cause.PERSON),
            order=Order(Mode.ON, "ann", NOW),
        ),
        seen(2),
        {"phase": Phase.DISABLED, "standby": True, "rearm_at": None},
    ),
    "draining waits for a manager that does not answer": (
        DRAINING,
        seen(OVER - 1, service=None, service_error="no answer"),
        None,
    ),
    "then the guard holds": (
        DRAINING,
        seen(OVER, service=None, service_error="no answer"),
        {"phase": Phase.HELD, "reason": "nothing was done: no answer"},
    ),
    "an earlier scrape does not show that no request runs": (DRAINING, seen(1), None),
    "a later scrape does": (DRAINING, seen(2, scraped_at=NOW + 1), {"phase": Phase.RESTARTING}),
    "a restart that was done is verified": (
        RESTARTING,
        seen(outcome=SwitchOutcome()),
        {"phase": Phase.VERIFYING},
    ),
    "a restart that failed is rolled back": (
        RESTARTING,
        seen(outcome=SwitchOutcome("it failed")),
        {"phase": Phase.ROLLING_BACK},
    ),
    "a restart that failed and may succeed later is rolled back, too": (
        RESTARTING,
        seen(outcome=SwitchOutcome("it failed", changed=True, retry=True)),
        {"phase": Phase.ROLLING_BACK},
    ),
    "a restart that changed nothing ends in a hold": (
        RESTARTING,
        seen(outcome=MASKED),
        {"phase": Phase.HELD},
    ),
    "a busy manager is asked again": (RESTARTING, seen(START - 1, outcome=BUSY), None),
    "until the start timeout": (
        RESTARTING,
        seen(START, outcome=BUSY),
        {"phase": Phase.HELD, "goal": Mode.ON, "reason": "nothing was done: it is busy"},
    ),
    "a manager that changes the process is waited for": (
        RESTARTING,
        seen(START - 1, service=CHANGING),
        None,
    ),
    "until the start timeout, too": (
        RESTARTING,
        seen(START, service=CHANGING),
        {
            "phase": Phase.ROLLING_BACK,
            "goal": Mode.ON,
            "why": "the server's manager did not finish in time",
        },
    ),
    "a manager without process ids may report the old process for a while": (
        VERIFYING,
        seen(START - 1, scraped_at=NOW + START - 1, healthy=True, service=NAMELESS),
        None,
    ),
    "but not for longer than the start timeout": (
        VERIFYING,
        seen(START, scraped_at=NOW + START, healthy=True, service=NAMELESS),
        {"phase": Phase.ROLLING_BACK, "why": "it still speculates after the restart"},
    ),
    "a pod that is gone may be listed, and a new one not read yet": (
        VERIFYING,
        seen(START - 1, scraped_at=NOW + START - 1, as_of=NOW, healthy=True, service=OFF),
        None,
    ),
    "totals on a page may be those of earlier processes": (
        VERIFYING,
        seen(
            START - 1,
            scraped_at=NOW + 1,
            as_of=NOW + 1,
            healthy=True,
            service=OFF,
            from_files=True,
        ),
        None,
    ),
    "what was read since the restart counts at once": (
        VERIFYING,
        seen(1, scraped_at=NOW + 1, as_of=NOW + 0.5, healthy=True, service=OFF),
        {"phase": Phase.ROLLING_BACK, "why": "it still speculates after the restart"},
    ),
    "a process that has only just ended may be started again": (
        VERIFYING,
        seen(14.9, service=replace(STOPPED, mode=Mode.OFF, instance="2")),
        {"phase": Phase.VERIFYING},
    ),
    "a server that is stopped by hand during the restart is left alone": (
        RESTARTING,
        seen(outcome=SwitchOutcome("the job was canceled"), service=STOPPED),
        {"phase": Phase.HELD, "reason": "the server was stopped by hand during the restart"},
    ),
    "a server that is stopped by hand after the restart is left alone": (
        VERIFYING,
        seen(15, service=replace(STOPPED, mode=Mode.OFF, instance="2")),
        {"phase": Phase.HELD},
    ),
    "a rollback that was done before a crash is not done again": (
        BACK,
        seen(service=replace(UP, instance="3")),
        {"reason": "the server is as it was", "phase": Phase.ROLLING_BACK, "issued": NOW},
    ),
    "one that was not done is not taken for done": (
        BACK,
        seen(service=replace(UP, instance="2")),
        None,
    ),
    "a process that is not there is recorded": (
        replace(BACK, issued=NOW),
        seen(service=GONE),
        {"down_since": NOW},
    ),
    "it may come back within 15 seconds": (GONE_SINCE, seen(14.9, service=GONE), None),
    "then the rollback is tried again": (
        GONE_SINCE,
        seen(15, service=GONE),
        {"phase": Phase.ROLLING_BACK, "attempts": 1, "issued": None},
    ),
    "and once more": (
        replace(GONE_SINCE, attempts=1),
        seen(15, service=GONE),
        {"phase": Phase.ROLLING_BACK, "attempts": 2, "issued": None},
    ),
    "the last attempt may take the start timeout": (
        replace(GONE_SINCE, attempts=2),
        seen(START - 1, service=GONE),
        None,
    ),
    "after it the guard holds": (
        replace(GONE_SINCE, attempts=2),
        seen(START, service=GONE),
        {"phase": Phase.HELD, "reason": "it failed; and it has not come back since"},
    ),
    "what an attempt has started, and has ended, is not taken for the next": (
        GONE_SINCE,
        seen(15, service=replace(GONE, instance="3")),
        {"attempts": 1, "instance": "3"},
    ),
    "a command that fails to put it back is run again": (
        BACK,
        seen(outcome=FAILED, service=NAMELESS),
        {
            "phase": Phase.ROLLING_BACK,
            "reason": "putting the server back failed, and is tried again: status 1",
            "attempts": 1,
            "issued": None,
        },
    ),
    "after the last attempt the server is waited for": (
        replace(BACK, attempts=2),
        seen(outcome=FAILED, service=NAMELESS),
        {"phase": Phase.ROLLING_BACK, "issued": NOW},
    ),
    "a manager that knows the process tells whether it was put back": (
        BACK,
        seen(outcome=FAILED, service=OFF),
        {"phase": Phase.ROLLING_BACK, "attempts": 0, "issued": NOW},
    ),
    "a server that is put back in the other mode is not as before": (
        replace(BACK, issued=NOW),
        seen(START, scraped_at=NOW + START, healthy=True, mode=Mode.OFF, service=NAMELESS),
        {"phase": Phase.HELD, "reason": "it failed; it runs, but does not speculate"},
    ),
    "until the start timeout the process before may answer": (
        replace(BACK, issued=NOW),
        seen(9, scraped_at=NOW + 9, healthy=True, mode=Mode.OFF, service=NAMELESS),
        None,
    ),
    "a rollback that is refused is tried until the start timeout": (
        BACK,
        seen(START - 1, outcome=MASKED, service=CHANGING),
        None,
    ),
    "after it the operator is needed": (
        BACK,
        seen(START, outcome=MASKED, service=CHANGING),
        {"phase": Phase.HELD, "reason": "it failed; and it could not be put back: it is masked"},
    ),
}


@pytest.mark.parametrize(("state", "look", "expected"), STEPS.values(), ids=STEPS)
def test_a_step_of_a_restart(state: Any, look: Situation, expected: dict[str, Any] | None) -> None:
    check_step(state, look, expected)


@pytest.mark.parametrize(
    ("of", "goal", "phase", "actions"),
    [
        (Cause.RULE, Mode.OFF, Phase.OBSERVING, (NOW - 9000,)),
        (Cause.EXPLORATION, Mode.OFF, Phase.OBSERVING, (NOW - 9000,)),
        (Cause.TRIAL, Mode.ON, Phase.DISABLED, (NOW - 9000,)),
        (Cause.TRIAL_LOST, Mode.OFF, Phase.TRIAL, (NOW - 9000, NOW)),
        (Cause.NOT_HELPED, Mode.ON, Phase.DISABLED, (NOW - 9000, NOW)),
    ],
)
def test_an_action_that_is_given_up_returns_to_the_phase_before_it(
    of: Cause, goal: Mode, phase: Phase, actions: tuple[float, ...]
) -> None:
    draining = replace(DRAINING, goal=goal, incident=cause(of))
    paused = state_machine.pause(draining, until=NOW + 60, by="ann").state
    other = Mode.ON if goal is Mode.OFF else Mode.OFF
    after = check_step(
        paused,
        seen(2),
        {"reason": "given up: paused by ann", "phase": phase, "actions": actions, "goal": other},
    )
    assert (after.incident is None) is (phase is Phase.OBSERVING)


@pytest.mark.parametrize(
    ("load", "scraped", "sentence"),
    [
        (3.0, 1, "drained for 1m; cutting off 3 requests under way"),
        (1.0, 1, "drained for 1m; cutting off 1 request under way"),
        (None, 1, "drained for 1m; how many requests are cut off is not known"),
        (0.0, 0, "drained for 1m; how many requests are cut off is not known"),
    ],
)
def test_the_reason_names_the_requests_that_are_cut_off(
    load: float | None, scraped: int, sentence: str
) -> None:
    policy = ACT.model_copy(update={"drain_timeout": 60.0})
    look = seen(60, scraped_at=NOW + scraped, load=load)
    check_step(DRAINING, look, {"phase": Phase.RESTARTING, "reason": sentence}, policy)


def test_a_restart_that_was_done_before_a_crash_is_not_done_again() -> None:
    check_step(RESTARTING, seen(service=OFF), {"phase": Phase.VERIFYING})
    shown = {"service": NAMELESS, "scraped_at": NOW + 2, "mode": Mode.OFF}
    check_step(RESTARTING, seen(3, **shown), {"phase": Phase.VERIFYING})
    for not_shown in ({"scraped_at": NOW - 2}, {"mode": Mode.ON}, {"mode": None}):
        check_step(RESTARTING, seen(3, **{**shown, **not_shown}), None)
    changing = seen(service=Service(ProcessState.CHANGING, Mode.OFF, None))
    check_step(RESTARTING, changing, None)
    assert state_machine.effect(RESTARTING, changing, prepared=True) is None
    for undone in (UP, replace(OFF, instance="1"), replace(OFF, mode=Mode.ON)):
        check_step(RESTARTING, seen(service=undone), None)
        assert state_machine.effect(RESTARTING, seen(service=undone), prepared=True) is not None


@pytest.mark.parametrize("state", [RESTARTING, replace(RESTARTING, phase=Phase.ROLLING_BACK)])
def test_what_an_earlier_holder_began_is_waited_for(state: GuardState) -> None:
    """Then the time to start begins anew, and it is done here."""
    undone = {"service": replace(NAMELESS, mode=None), "scraped_at": NOW + 2}
    check_step(state, seen(ACT.start_timeout + 9, handover=5.0, **undone), None)
    waiting = seen(9, handover=5.0, **undone)
    assert state_machine.effect(state, waiting, prepared=True) is None
    late = seen(ACT.start_timeout + 9, handover=0.0, **undone)
    after = check_step(state, late, {"phase": state.phase, "since": late.now})
    assert state_machine.effect(after, replace(late, handover=None), prepared=True) is not None
    done = seen(
        3, handover=5.0, service=replace(NAMELESS, mode=None), mode=state.goal, scraped_at=NOW + 2
    )
    assert check_step(state, done, {}).issued == done.now


@pytest.mark.parametrize(("share", "cost"), [(1.0, 90.0), (0.25, 22.5), (0.0, 0.0)])
def test_only_the_share_that_was_away_counts_as_cost(share: float, cost: float) -> None:
    state = replace(VERIFYING, incident=cause(Cause.PERSON), began=NOW - 60, costs=())
    service = replace(OFF, interruption=share)
    fresh = seen(30, scraped_at=NOW + 30, healthy=True, mode=Mode.OFF, service=service)
    check_step(state, fresh, {"reason": "healthy after 1m30s", "costs": (cost,)})


def test_a_process_that_is_another_at_every_look_is_given_up() -> None:
    state = VERIFYING
    for number in range(2, 10):
        dying = seen(number, service=Service(ProcessState.UP, Mode.OFF, str(number)))
        step = state_machine.step(state, dying, ACT)
        assert step is not None
        state = step.state
        if state.phase is Phase.ROLLING_BACK:
            break
    assert state.why == "vLLM died 3 times after the restart"


@pytest.mark.parametrize(
    ("hooks", "hooked"), [({}, False), ({"before": ["/lb"]}, True), ({"after": ["/lb"]}, True)]
)
def test_hooks_run_around_every_restart(hooks: dict[str, list[str]], hooked: bool) -> None:
    """Around the one that puts speculation back on, too."""
    policy = Guard.model_validate(
        {"mode": "act", "hooks": hooks, "rearm": {"after": "6h"}, "explore": {"budget": 0.01}}
    )
    check_step(CONFIRMED, seen(), {"phase": Phase.DRAINING, "hooked": hooked}, policy)
    off = seen(6 * HOUR, mode=Mode.OFF, breaches=())
    check_step(DISABLED, off, {"goal": Mode.ON, "hooked": hooked}, policy)
    look = seen(mode=Mode.OFF, breaches=(), service=OFF, healthy=True)
    check_step(EXPLORING, look, {"goal": Mode.ON, "hooked": hooked}, policy)


@pytest.mark.parametrize(
    ("prepared_at", "seconds", "reason"),
    [
        (None, 59, None),
        (None, 60, "drained for 1m; cutting off 3 requests under way"),
        (NOW + 40, 99, None),
        (NOW + 40, 100, "drained for 1m40s; cutting off 3 requests under way"),
    ],
)
def test_draining_lasts_from_when_the_load_balancer_was_told(
    prepared_at: float | None, seconds: float, reason: str | None
) -> None:
    policy = Guard.model_validate({"mode": "act", "hooks": {"before": ["/lb"]}})
    look = seen(seconds, scraped_at=NOW + seconds, load=3.0, prepared_at=prepared_at)
    expected = None if reason is None else {"phase": Phase.RESTARTING, "reason": reason}
    check_step(replace(DRAINING, hooked=True), look, expected, policy)


def test_no_request_counts_as_drained_only_once_the_load_balancer_was_told() -> None:
    """Else they come again."""
    policy = Guard.model_validate({"mode": "act", "hooks": {"before": ["/lb"]}})
    state, told = replace(DRAINING, hooked=True), {"prepared_at": NOW + 1.5}
    check_step(state, seen(2, scraped_at=NOW + 2), None, policy)
    check_step(state, seen(2, scraped_at=NOW + 1, **told), None, policy)
    check_step(state, seen(2, scraped_at=NOW + 2, **told), {"phase": Phase.RESTARTING}, policy)


# The measurement after the restart

EXPLORING = replace(
    CALM,
    phase=Phase.VERIFYING,
    since=NOW - 700,
    goal=Mode.OFF,
    instance="1",
    started="2",
    incident=Incident("i", Cause.EXPLORATION, NOW - 900),
    issued=NOW - 660,
    healthy_at=NOW - 600,
    began=NOW - 700,
    actions=(NOW - 900,),
)
SWITCHED_OFF = replace(EXPLORING, incident=Incident("i", Cause.RULE, NOW - 900, "r", "tiny", ALL))
LATE = replace(SWITCHED_OFF, healthy_at=NOW - 1800)
ALMOST_LATE = replace(SWITCHED_OFF, healthy_at=NOW - 1799)
UNSURE = "whether it helped is not certain yet: verifying goes on"
TOO_FEW = "too few whole minutes of traffic for a verification: it goes on"


def measured(
    value: float | None, spread: float = 0.05, *, service: Service = OFF, healthy: bool = True
) -> Situation:
    """A server without speculation, and the speedup that speculation turned out to have."""
    verification = None if value is None else Verification(value, 1.1, about(value, spread))
    return seen(
        mode=Mode.OFF,
        breaches=(),
        service=service,
        healthy=healthy,
        verification=verification,
    )


MEASUREMENTS: dict[str, tuple[Any, Situation, dict[str, Any] | None]] = {
    "an exploration lasts as long as its block": (
        replace(EXPLORING, healthy_at=NOW - 599),
        measured(0.8),
        None,
    ),
    "speculation that certainly loses is left off and tried again later": (
        EXPLORING,
        measured(0.8),
        {
            "phase": Phase.DISABLED,
            "rearm_at": NOW + POLICY.rearm.wait(120.0),
            "reason": "explored: speculation had a speedup of 0.80 (0.75 to 0.85)",
        },
    ),
    "a switch is measured for guard.verify": (
        replace(SWITCHED_OFF, healthy_at=NOW - 599),
        measured(0.8),
        None,
    ),
    "a switch that helped stays": (
        SWITCHED_OFF,
        measured(0.8),
        {"phase": Phase.DISABLED, "backoff": 0.0},
    ),
    "an uncertain result prolongs the measurement": (
        SWITCHED_OFF,
        measured(0.98),
        {"phase": Phase.VERIFYING, "waiting": UNSURE},
    ),
    "which is recorded once": (replace(ALMOST_LATE, waiting=UNSURE), measured(0.98), None),
    "up to three times guard.verify": (
        LATE,
        measured(0.98),
        {
            "phase": Phase.DISABLED,
            "reason": "it probably helped: speedup 0.98 (0.93 to 1.03); 0.98"
            " by the earlier baseline, but serving without speculation takes 1.10 times as long as"
            " it says",
        },
    ),
    "too little traffic prolongs the measurement": (
        SWITCHED_OFF,
        measured(None),
        {"phase": Phase.VERIFYING, "waiting": TOO_FEW},
    ),
    "which is recorded once, too": (replace(ALMOST_LATE, waiting=TOO_FEW), measured(None), None),
    "up to three times guard.verify, too": (LATE, measured(None), {"phase": Phase.DISABLED}),
    "a process that is gone is recorded": (
        SWITCHED_OFF,
        measured(0.8, service=replace(OFF, life=ProcessState.DOWN)),
        {"phase": Phase.VERIFYING, "down_since": NOW},
    ),
    "and that it is back": (
        replace(SWITCHED_OFF, down_since=NOW),
        measured(0.8),
        {"reason": "the process is there", "down_since": None},
    ),
    "a process that is gone for 15 seconds is rolled back": (
        replace(SWITCHED_OFF, down_since=NOW - 15),
        measured(0.8, service=replace(OFF, life=ProcessState.DOWN)),
        {"phase": Phase.ROLLING_BACK, "goal": Mode.ON, "why": "vLLM died after the restart"},
    ),
    "one that does not answer is recorded": (
        SWITCHED_OFF,
        measured(0.8, healthy=False),
        {"phase": Phase.VERIFYING, "reason": "the process does not answer", "down_since": NOW},
    ),
    "it may answer again within a minute": (
        replace(SWITCHED_OFF, down_since=NOW - 59, healthy_at=NOW - 599),
        measured(0.8, healthy=False),
        None,
    ),
    "then it is rolled back, whatever its manager says": (
        replace(SWITCHED_OFF, down_since=NOW - 60),
        measured(0.8, healthy=False, service=NAMELESS),
        {"phase": Phase.ROLLING_BACK, "why": "vLLM stopped answering after the restart"},
    ),
    "a death after it was healthy is counted": (
        replace(SWITCHED_OFF, deaths=2),
        measured(0.8, service=replace(OFF, instance="3")),
        {"phase": Phase.VERIFYING, "deaths": 3, "started": "3"},
    ),
    "the third is rolled back": (
        replace(SWITCHED_OFF, deaths=3),
        measured(0.8),
        {"phase": Phase.ROLLING_BACK, "why": "vLLM died 3 times after the restart"},
    ),
    "an order ends it": (
        replace(SWITCHED_OFF, order=Order(Mode.ON, "ann", NOW)),
        measured(0.8),
        {"phase": Phase.DRAINING, "goal": Mode.ON, "reason": "ann switched speculation on"},
    ),
    "an order ends it while the guard is paused, too": (
        replace(SWITCHED_OFF, order=Order(Mode.ON, "ann", NOW), pause=Pause(NOW + HOUR, "bob", "")),
        measured(1.3),
        {"phase": Phase.DRAINING, "goal": Mode.ON, "reason": "ann switched speculation on"},
    ),
    "an order for what it measures is the operator's from now on": (
        replace(SWITCHED_OFF, order=Order(Mode.OFF, "ann", NOW)),
        measured(0.8),
        {"phase": Phase.DISABLED, "reason": "ann switched speculation off"},
    ),
}


@pytest.mark.parametrize(("state", "look", "expected"), MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_a_step_of_the_measurement(
    state: Any, look: Situation, expected: dict[str, Any] | None
) -> None:
    check_step(state, look, expected, POLICY)


@pytest.mark.parametrize(("value", "spread"), [(1.3, 0.05), (0.96, 0.05), (None, 0.0)])
def test_after_an_exploration_speculation_is_on_again_unless_it_certainly_loses(
    value: float | None, spread: float
) -> None:
    step = state_machine.step(EXPLORING, measured(value, spread), POLICY)
    assert step is not None
    assert (step.state.phase, step.state.goal) == (Phase.DRAINING, Mode.ON)
    assert step.state.incident is not None
    assert step.state.incident.cause is Cause.NOT_HELPED
    assert step.state.actions == EXPLORING.actions, "its end is not another action"
    assert (step.state.healthy_at, step.state.instance, step.state.issued) == (None,) * 3
    assert step.inputs.get("slowdown") == (None if value is None else 1.1)


def test_a_switch_that_did_not_help_is_undone_and_the_guard_rests_twice_as_long_each_time() -> None:
    for before, rest in ((0.0, 1800.0), (1800.0, 3600.0), (2 * DAY, DAY)):
        state = replace(SWITCHED_OFF, backoff=before)
        step = state_machine.step(state, measured(1.3), POLICY)
        assert step is not None
        assert step.reason.startswith("it did not help: speedup 1.30 (1.25 to 1.35)")
        check_step(
            state,
            measured(1.3),
            {
                "phase": Phase.DRAINING,
                "goal": Mode.ON,
                "backoff": rest,
                "rests_until": NOW + rest,
                "rearm_at": NOW + POLICY.rearm.wait(120.0),
            },
            POLICY,
        )


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "guard.mode is observe"])
@pytest.mark.parametrize(
    ("state", "value", "waiting"),
    [
        (EXPLORING, 0.8, "explored, and the guard may not act now"),
        (EXPLORING, 1.3, "explored, and the guard may not act now"),
        (SWITCHED_OFF, 1.3, "it did not help, and the guard may not act now"),
    ],
)
def test_nothing_is_undone_while_the_guard_may_not_act(
    state: Any, value: float, waiting: str, paused: bool
) -> None:
    policy = POLICY if paused else POLICY.model_copy(update={"mode": "observe"})
    if paused:
        state = state_machine.pause(state, until=NOW + 60, by="ann").state
    expected = {"phase": Phase.VERIFYING, "goal": Mode.OFF}
    after = check_step(state, measured(value), expected, policy)
    assert after.waiting.startswith(waiting)


def test_after_a_trial_that_was_won_narrowly_a_new_breach_waits_longer() -> None:
    expected = {"delay": 12 * HOUR, "rearm_at": NOW + 12 * HOUR}
    check_step(replace(SWITCHED_OFF, delay=6.0 * HOUR), measured(0.8), expected)

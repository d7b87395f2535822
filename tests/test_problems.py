"""Problems of targets: which there are, in which order, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.interval import Interval
from specwatch.domain.model import UNJUDGED, Mode
from specwatch.domain.speedup import PresentSpeedup, Unjudged
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.problems import Problem, ProblemKind, problems
from specwatch.rules.attribution import ChangeCause, Factor
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Verdict
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import Failure, TargetStatus
from specwatch.wording.headline import headline, headlines, no_problem
from tests.web.decided import BREACHED, MINOR, decided
from tests.web.statuses import HOSTILE, NOW, daemon, target

LOSS = Interval(0.57, 0.51, 0.64, 6)


NOT_KNOWN = PresentSpeedup()


def deciding(
    present: PresentSpeedup = NOT_KNOWN, rules: Any = (), **changes: Any
) -> TargetDecision:
    """The decision on a model, with its speedup now and changes of the hour's assessment."""
    decision = decided(rules, ())
    (name, known), *_ = decision.models.items()
    known = replace(known, present=present, assessment=replace(known.assessment, **changes))
    return replace(decision, models={name: known})


def losing(name: str, speedup: Interval = LOSS, **changes: Any) -> TargetStatus:
    """A target that loses since 13 minutes before now."""
    present = PresentSpeedup(speedup, NOW - 780)
    return target(name, **({"decision": deciding(present)} | changes))


def kinds(*targets: TargetStatus) -> list[tuple[str, str]]:
    return [(str(one.kind), one.target) for one in problems(daemon(*targets))]


def test_the_greatest_loss_comes_before_a_server_that_is_gone() -> None:
    gone = target("gone", failure=Failure("refused", "connection refused", NOW - 60))
    mild = losing("mild", Interval(0.9, 0.88, 0.92, 6))
    assert kinds(target("fine"), gone, mild, losing("worst")) == [
        ("loses", "worst"),
        ("loses", "mild"),
        ("unread", "gone"),
    ]


def test_a_loss_has_the_likely_cause_of_a_breach_of_the_same_model() -> None:
    cause = ChangeCause(Factor.ACCEPTANCE, -0.3, -0.5, 0.9, "acceptance fell at >1")
    decision = deciding(PresentSpeedup(LOSS, NOW - 780))
    for model, ending in (("llama", " Likely cause: acceptance fell at >1."), ("other", " 6 min.")):
        causes = {("net-negative", model, "all"): cause}
        (problem,) = problems(daemon(target(decision=replace(decision, causes=causes))))
        assert headline(problem, NOW).sentence.endswith(ending)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.STANDBY])
def test_a_server_that_does_not_speculate_does_not_lose(mode: Mode) -> None:
    assert kinds(losing("chat", models={"llama": mode})) == []


def test_a_loss_of_the_hour_that_is_over_is_told_as_that() -> None:
    hour = Interval(0.9, 0.85, 0.95, 12)
    status = target(decision=deciding(PresentSpeedup(Interval(1.2, 1.1, 1.3, 6)), speedup=hour))
    assert kinds(status) == [("lost", "chat")]


def test_a_rule_that_says_the_same_as_a_known_loss_is_not_a_second_problem() -> None:
    status = losing("chat", decision=deciding(PresentSpeedup(LOSS, NOW - 60), (BREACHED,)))
    assert kinds(status) == [("loses", "chat")]
    alone = target(decision=deciding(rules=(BREACHED,)))
    assert kinds(alone) == [("breach", "chat")]
    assert kinds(target(decision=deciding(rules=(MINOR,)))) == []


@pytest.mark.parametrize(
    ("phase", "kind"),
    [(Phase.OBSERVING, None), (Phase.HELD, "held"), (Phase.DISABLED, "switched")],
)
def test_the_guard_is_a_problem_where_it_stopped_or_switched(phase: Phase, kind: str) -> None:
    guard = GuardStatus("act", GuardState("chat", phase, NOW - 60, why="vLLM did not start"))
    assert kinds(target(guard=guard)) == ([(kind, "chat")] if kind else [])


@pytest.mark.parametrize(
    ("cause", "what", "words"),
    [
        (Cause.PERSON, "alice@gpu-7", "switched off by alice@gpu-7"),
        (Cause.RULE, "net-negative", "switched off by rule net-negative"),
        (Cause.TRIAL_LOST, "net-negative", "switched off by rule net-negative"),
        (Cause.EXPLORATION, "", "switched off"),
    ],
)
def test_it_says_who_switched_speculation_off(cause: Cause, what: str, words: str) -> None:
    incident = Incident("i-1", cause, NOW, what)
    guard = GuardStatus("act", GuardState("chat", Phase.DISABLED, NOW - 60, incident=incident))
    (off,) = problems(daemon(target(guard=guard)))
    assert headline(off, NOW).words == words
    assert f"off for chat since 22:13 UTC (60 s): {words}." in headline(off, NOW).sentence


@pytest.mark.parametrize(
    ("phase", "kind"), [(Phase.DRAINING, None), (Phase.DISABLED, None), (Phase.HELD, "held")]
)
def test_a_holdout_is_no_problem_unless_switching_failed(phase: Phase, kind: str | None) -> None:
    incident = Incident("i-1", Cause.HOLDOUT, NOW)
    guard = GuardStatus("act", GuardState("chat", phase, NOW - 60, Mode.OFF, incident))
    assert kinds(target(guard=guard)) == ([(kind, "chat")] if kind else [])


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF, Mode.STANDBY])
def test_a_breach_that_speculation_which_is_off_leaves_without_data_is_no_problem(
    mode: Mode,
) -> None:
    decision = decided((BREACHED,), ())
    (finding,) = (one for one in decision.findings if one.in_breach)
    silent = replace(finding, seen=Verdict.NO_DATA)
    models = {finding.model_name: mode}
    assert kinds(target(models=models, decision=replace(decision, findings=(finding,))))
    unseen = target(models=models, decision=replace(decision, models={}, findings=(silent,)))
    assert kinds(unseen) == ([("breach", "chat")] if mode is Mode.ON else [])


def test_one_of_a_group_that_loses_alone_is_named() -> None:
    fine = [
        target(name, models={"llama": Mode.ON}, decision=deciding()) for name in ("b", "c", "d")
    ]
    group = {"models": {"llama": Mode.ON}}
    words = " It is the only one of 4 in its group that loses."
    for others, alone in ((fine, True), ([*fine, losing("e", **group)], False), (fine[:1], False)):
        first, *_ = problems(daemon(losing("a", **group), *others))
        assert (words in headline(first, NOW).sentence) is alone


def test_a_guard_that_can_switch_nothing_is_no_remedy() -> None:
    guard = GuardStatus("act", GuardState("chat", Phase.CONFIRMED, NOW, waiting="no service"))
    for able, remedy in (
        (True, "The guard does not act yet: no service."),
        (False, "Restart vLLM"),
    ):
        (loses, *_) = problems(daemon(losing("chat", guard=replace(guard, able=able))))
        assert headline(loses, NOW).remedy.startswith(remedy)


def test_a_guard_that_verifies_does_not_wait_to_act() -> None:
    state = GuardState("chat", Phase.VERIFYING, NOW - 60, waiting="too few whole minutes")
    (loses, *_) = problems(daemon(losing("chat", guard=GuardStatus("act", state))))
    assert headline(loses, NOW).remedy == "The guard is verifying: `specwatch guard status chat`."


def test_a_restart_by_the_guard_is_not_a_server_that_cannot_be_read() -> None:
    failure = Failure("refused", "connection refused", NOW - 60)
    for phase, kind in ((Phase.RESTARTING, "switched"), (Phase.OBSERVING, "unread")):
        guard = GuardStatus("act", GuardState("chat", phase, NOW - 60))
        assert kinds(target(failure=failure, guard=guard)) == [(kind, "chat")]


def test_a_guard_that_waits_says_for_what_and_leaves_it_to_the_operator() -> None:
    guard = GuardStatus("act", GuardState("chat", Phase.CONFIRMED, NOW, waiting="it is paused"))
    loss, _ = problems(daemon(losing("chat", guard=guard)))
    assert headline(loss, NOW).remedy == (
        "The guard does not act yet: it is paused. Disable speculation: `specwatch guard disable"
        " chat`."
    )


def test_the_guard_of_a_workload_is_one_problem_and_its_commands_name_the_workload() -> None:
    state = GuardState("serving/deployment/vllm", phase=Phase.HELD, since=NOW - 60, why="it failed")
    guard = GuardStatus("act", state)
    names = [f"serving/vllm-{number}" for number in range(3)]
    whole = losing(state.target, guard=guard, pods=tuple(names))
    pods = [losing(name, guard=guard, workload=state.target) for name in names]
    assert kinds(*pods, whole) == [("loses", state.target), ("held", state.target)]
    gaining = target(state.target, guard=guard, pods=tuple(names))
    assert kinds(pods[0], gaining) == [("loses", names[0]), ("held", state.target)]
    for problem in problems(daemon(pods[0], gaining)):
        assert "serving/deployment/vllm`" in headline(problem, NOW).remedy


def test_a_defect_in_one_target_hides_no_other() -> None:
    broken = target("broken", decision=None)
    assert kinds(broken, losing("chat")) == [("loses", "chat"), ("not_shown", "broken")]


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "Restart vLLM without speculation: `specwatch strip` prints its command without it."),
        (
            {"switchable": True},
            "Disable speculation: `specwatch switch code-32b --k 0 --lease 1h`.",
        ),
        ({"guard": "observe"}, "Disable speculation: `specwatch guard disable code-32b`."),
        (
            {"guard": "act", "phase": "confirmed"},
            "The guard is confirmed and will switch speculation off: `specwatch guard status"
            " code-32b`.",
        ),
    ],
)
def test_a_loss_says_how_great_since_when_and_what_to_do(
    changes: dict[str, Any], remedy: str
) -> None:
    problem = Problem(
        kind=ProblemKind.LOSES, target="code-32b", since=NOW - 780, speedup=LOSS, **changes
    )
    told = headline(problem, NOW)
    assert told.words == "43% slower with speculation"
    assert told.sentence == (
        "code-32b is 43% slower with speculation since 22:01 UTC (13 min): 0.57 (0.51 to 0.64)"
        " times as fast as without over the last 6 min."
    )
    assert told.remedy == remedy


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "`specwatch calibrate --off URL --target chat`"),
        ({"guard": GuardStatus("observe")}, "`specwatch guard disable chat --for 15m`"),
        ({"guard": GuardStatus("observe", able=False)}, "`specwatch calibrate --off URL"),
        ({"guard": GuardStatus("act", explores=True)}, "The guard serves without speculation"),
        ({"switch": SwitchSetting(4, ordered=False)}, "give the target `experiments: {arms: [0]}`"),
        (
            {"guard": GuardStatus("act"), "workload": "default/deployment/chat"},
            "guard disable default/deployment/chat --for 15m",
        ),
    ],
)
def test_what_cannot_be_judged_is_told_with_the_cheapest_way_to_measure(
    changes: dict[str, Any], remedy: str
) -> None:
    """Once, though the default rule about it is in breach too."""
    traffic = Unjudged(NOW - UNJUDGED, "no baseline at the load that there was")
    rule = next(rule for rule in DEFAULT_RULES if rule.name == "unjudged")
    decision = deciding(PresentSpeedup(unjudged=traffic), rules=(BREACHED,))
    decision = replace(decision, findings=(replace(decision.findings[0], rule=rule),))
    (problem,) = problems(daemon(target(decision=decision, **changes)))
    told = headline(problem, NOW)
    assert told.sentence.endswith(
        "is unjudged since 21:44 UTC (30 min): no baseline at the load that there was."
    )
    assert remedy in told.remedy
    off = target(decision=decision, models={"llama": Mode.OFF}, **changes)
    assert ProblemKind.UNJUDGED not in {one.kind for one in problems(daemon(off))}
    shortly = deciding(PresentSpeedup(unjudged=traffic._replace(since=NOW - UNJUDGED + 1)))
    assert kinds(target(decision=shortly, **changes)) == []


@pytest.mark.parametrize(("ago", "told"), [(180, True), (3700, False)])
def test_a_load_balancer_in_place_of_a_server_is_a_problem_for_an_hour(
    ago: float, told: bool
) -> None:
    found = problems(daemon(target(alternated_at=NOW - ago)))
    assert [problem.kind for problem in found] == ([ProblemKind.SEVERAL] if told else [])
    assert all("at the url of chat" in headline(problem, NOW).sentence for problem in found)


@pytest.mark.parametrize("kind", ProblemKind)
def test_every_kind_has_words_whatever_is_known_of_it(kind: ProblemKind) -> None:
    told = headline(Problem(kind=kind, target=HOSTILE, detail=HOSTILE), NOW)
    assert told.words
    assert told.sentence.isprintable()
    assert len(told.sentence) < 600
    assert told.sentence.endswith((".", "!", "?"))


def test_without_a_problem_it_says_for_how_many_it_pays() -> None:
    assert no_problem([]) == "No problem is known."
    assert no_problem(["pays", "pays", "off"]) == (
        "No problem is known. Speculation pays for 2 models, and is off for 1 model."
    )


def test_many_problems_of_a_kind_are_one_headline_that_names_the_first() -> None:
    gone = [
        Problem(kind=ProblemKind.UNREAD, target=f"gone-{n}", detail="refused") for n in range(6)
    ]
    slow = [Problem(kind=ProblemKind.LOSES, target=f"slow-{n}", speedup=LOSS) for n in range(2)]
    told = headlines([*slow, *gone], NOW, 3)
    assert [problem.target for problem, _ in told] == ["slow-0", "slow-1", "gone-0"]
    assert told[-1][1].sentence == (
        "gone-0 cannot be read: refused. Likewise: gone-1, gone-2, gone-3 and 2 more."
    )

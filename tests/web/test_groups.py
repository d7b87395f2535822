"""The verdict of a group on the page, in the API, on /metrics and in words."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.domain.simultaneous import Pace
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.pages.status_html import StatusHistory, status_html
from specwatch.rules.decision_view import model_view
from specwatch.rules.decisions import ModelDecision, TargetDecision
from specwatch.status import TargetStatus
from specwatch.web.daemon_view import DaemonView, daemon_view
from specwatch.wording import groups, speculation
from tests.web.decided import decided
from tests.web.exported import samples
from tests.web.statuses import HOSTILE, NOW, daemon, target


def measured(speedup: float, *, holdout: str = "", pace: float = 1.0) -> ModelDecision:
    (known,) = decided((), ()).models.values()
    assessment = replace(
        known.assessment, speedup=about(speedup), seconds=1000.0, simultaneous=0.9 if holdout else 0
    )
    measurement = Measurement(
        BaselineKey("x", "llama"),
        2,
        Origin.HOLDOUT,
        (),
        holdout=holdout,
        pace=Pace(about(pace), 0.0),
    )
    holdouts = (measurement,) if holdout else ()
    bins = tuple(replace(one, simultaneous=0.9) for one in assessment.bins)
    return replace(
        known,
        assessment=replace(assessment, bins=bins),
        baseline=replace(known.baseline, holdouts=holdouts),
    )


def about(value: float) -> Interval:
    return Interval(value, value - 0.03, value + 0.03, 60)


def member(name: str, speedup: float, **changes: object) -> TargetStatus:
    decision = TargetDecision({"llama": measured(speedup)})
    return target(name, **({"configured_group": "chat", "decision": decision} | changes))


def a_holdout(name: str, phase: Phase = Phase.DISABLED) -> TargetStatus:
    incident = Incident("i", Cause.HOLDOUT, NOW - 900)
    state = GuardState(name, phase, NOW - 900, Mode.OFF, incident)
    guard = GuardStatus("act", state, ours=True, group_size=6)
    return target(name, configured_group="chat", models={"llama": Mode.OFF}, guard=guard)


STATUS = daemon(
    member("a", 1.24),
    member("b", 1.25),
    member("c", 0.71),
    a_holdout("d"),
    member("alone", 1.5, configured_group="other"),
)
WORDS = (
    "3 of 6 servers measured; c stands out at 0.71 (0.68 to 0.74); d serves without speculation as"
    " the holdout; 2 are watched by other daemons"
)


def test_a_group_of_several_has_a_verdict() -> None:
    (group,) = STATUS.groups
    assert (group.group, group.members, group.watched, group.measured) == ("chat", 6, 4, 3)
    assert groups.group_servers(group) == WORDS
    assert groups.group_standing(group) == (
        f"group chat (llama): speedup 1.07 (1.05 to 1.08) over the last hour; {WORDS}"
    )
    bare = replace(group, speedup=None, group="llama", outliers=(), holdouts=(), members=4)
    assert groups.group_standing(bare) == (
        "group llama: speedup not measured; 3 of 4 servers measured"
    )


def test_the_page_has_a_row_for_each_group_of_several() -> None:
    page = status_html(STATUS, StatusHistory())
    assert page.count('<h2 id="groups">') == 1
    assert WORDS in page
    assert page.count('<span class="badge bad">outlier</span>') == 1
    assert '<td data-label="Guard" class="text">holdout</td>' in page
    assert "Groups</h2>" not in status_html(daemon(member("a", 1.2)), StatusHistory())
    assert "Groups</h2>" not in status_html(
        replace(STATUS, targets=STATUS.targets[:1]), StatusHistory()
    )


def test_a_member_that_does_not_speculate_or_is_not_current_does_not_count() -> None:
    off = member("b", 0.5, models={"llama": Mode.OFF})
    old = replace(measured(0.5), assessment=replace(measured(0.5).assessment, until=NOW - 3600))
    silent = member("c", 0.5, decision=TargetDecision({"llama": old}))
    (group,) = daemon(member("a", 1.24), off, silent).groups
    assert (group.measured, group.losing) == (1, ())
    assert group.speedup is not None
    assert group.speedup.value == pytest.approx(1.24)


def test_groups_with_a_server_that_loses_come_first() -> None:
    fine = [member(name, 1.2, configured_group="a") for name in "ab"]
    bad = [member(name, 0.7, configured_group="z") for name in "yz"]
    assert [group.group for group in daemon(*fine, *bad).groups] == ["z", "a"]


def test_the_api_and_the_metrics_have_it() -> None:
    view = msgspec.json.decode(msgspec.json.encode(daemon_view(STATUS)), type=DaemonView)
    assert view.groups == STATUS.groups
    labels = ("chat", "llama")
    assert samples(STATUS, "specwatch_group_speedup_ratio") == {labels: pytest.approx(1.0667, 0.01)}
    assert samples(STATUS, "specwatch_group_measured_seconds") == {labels: 3000.0}
    states = {"watched": 4, "measured": 3, "losing": 1, "outlier": 1, "holdout": 1}
    assert samples(STATUS, "specwatch_group_targets") == {
        (*labels, state): count for state, count in states.items()
    }


def test_names_are_shown_as_they_are() -> None:
    hostile = [member(name, 1.2, configured_group=HOSTILE) for name in "ab"]
    (group,) = daemon(*hostile).groups
    assert "\x1b" not in groups.group_standing(group)
    assert "\x1b" not in status_html(daemon(*hostile), StatusHistory())


def test_a_verdict_says_that_it_was_measured_at_the_same_time() -> None:
    same = model_view(measured(1.24, holdout="d"), NOW)
    assert speculation.speedup(same).endswith(
        "over the last hour, measured at the same time as the holdout d"
    )
    slower = model_view(measured(1.24, holdout="d", pace=1.6), NOW)
    assert speculation.speedup(slower).endswith(
        "the holdout d (d takes 1.60 times as long at equal work, which is corrected)"
    )
    apart = [replace(one, simultaneous=0.1) for one in measured(1.24).assessment.bins]
    known = measured(1.24, holdout="d")
    known = replace(known, assessment=replace(known.assessment, bins=tuple(apart)))
    assert speculation.speedup(model_view(known, NOW)).endswith(
        "the holdout d (not at 3-4 running, where it had other loads)"
    )
    assert "baseline" in speculation.speedup(model_view(measured(1.24), NOW))

"""Cases for the alerts on what specwatch exports: those that follow from faults, and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from specwatch.generate.alerts import exported_groups
from specwatch.generate.alerts.rules import Alert
from specwatch.guard.state import Cause, Phase
from tests.alerts.faults import FAULTS, GREEDY, WARM
from tests.alerts.promtool import Calm, Case, Fault, Firing, Value, World, minutes, name_of
from tests.alerts.worlds import (
    DAYS,
    MODEL,
    SLO,
    TARGET,
    breach,
    gone,
    healthy,
    idle,
    in_phase,
    incident,
    of,
    off,
    ordered_off,
    restarted,
    unguarded,
    watched,
    without,
)

ALERTS: Sequence[Alert] = [alert for group in exported_groups() for alert in group.alerts]


def cases() -> Iterator[Case | Calm]:
    """All of them."""
    yield from _calm()
    for fault in FAULTS:
        yield from _of_fault(fault)
    yield from _of_speculation()
    yield from _of_objectives()
    yield from _of_guard()
    yield from _of_itself()
    yield from _causes()


def _calm() -> Iterator[Calm]:
    well, at = healthy(), (30, 130)
    yield Calm("all is well", well, at)
    yield Calm("idle", idle(well), at)
    yield Calm("a person switched speculation off", ordered_off(well), at)
    yield Calm("the engine simply runs without speculation", unguarded(off(well)), at)
    yield Calm("vLLM is restarted", restarted(well, 60), (61, 64, 66, 70, 75, 90))
    yield Calm("the daemon is restarted", gone(well, 60, 63), (61, 63, 65, 75, 90))
    yield Calm("there is no guard", unguarded(well), at)
    fresh = {key: value for key, value in well.items() if name_of(key) in _FRESH}
    yield Calm("the daemon knows nothing yet", fresh, at)
    yield Calm("Prometheus has nothing but the daemon's name", _named(well), at)


_FRESH = {"up", "specwatch_build_info", "specwatch_guard_acts", "specwatch_target_stuck"}


def _named(world: World) -> World:
    return {key: world[key] for key in world if name_of(key) in ("up", "specwatch_build_info")}


def _of_fault(fault: Fault) -> Iterator[Case]:
    (alert, *_) = [alert for alert in ALERTS if _is_about(alert, fault)]
    world = {**healthy(max(240, fault.at)), **fault.changes}

    def case(title: str, changed: World, at: int = fault.at, fires: Iterable[Firing] = ()) -> Case:
        return Case(title, changed, fault.alert, at, list(fires))

    yield case("it fires", world, fires=fault.firing)
    yield case("not before its time", world, fault.begins + minutes(alert.for_) - 1)
    for name in sorted(set(re.findall(r"specwatch_\w+", alert.expr)) - fault.spare):
        yield case(f"not without {name}", without(world, name))
    if fault.traffic:
        yield case("not for idle traffic", idle(world))
    if fault.speculation:
        yield case("not without speculation", unguarded(off(world)))
        yield case("not with speculation off by a person", ordered_off(world))
    if fault.ordered:
        person = {**world, **incident(Cause.PERSON)}
        yield case("not when a person switched", person)
    if alert.keep_firing_for:
        gap = gone(world, fault.at - 2, fault.at + 2)
        last = [
            replace(firing, description=_minutes_ago(firing.description)) for firing in fault.firing
        ]
        yield case("it outlasts a restart of the daemon", gap, fires=last)
    elif "increase(" not in alert.expr and fault.alert != "SpecwatchDown":
        gap = gone(world, fault.at - 2, fault.at + 2)
        yield case("not of a daemon that is away", gap)


def _minutes_ago(description: str) -> str:
    """What was text of an hour when three minutes of it were still to come."""
    return description.replace("1h 0m 0s", "57m 0s")


def _is_about(alert: Alert, fault: Fault) -> bool:
    firing = fault.firing[0].labels
    return alert.name == fault.alert and all(
        firing.get(key, value) == value or "{{" in value for key, value in alert.labels.items()
    )


def _fault(alert: str, index: int = 0) -> Fault:
    return [fault for fault in FAULTS if fault.alert == alert][index]


def _case(title: str, alert: str, changes: Mapping[str, Value], *, at: int = 60) -> Case:
    """A case that is silent, in a world with the fault of an alert and changes to that."""
    return Case(title, {**healthy(), **_fault(alert).changes, **changes}, alert, at)


def _of_speculation() -> Iterator[Case]:
    everything, warm = (
        {**MODEL, "dimension": "all", "value": "all"},
        {**MODEL, "dimension": "temperature", "value": WARM},
    )
    upper = "specwatch_speedup_ratio_upper"
    yield _case(
        "an interval that has 1 in it", "SpeculationNetNegative", {of(upper, **everything): 1.02}
    )
    measured = of("specwatch_speedup_measured", **MODEL)
    yield _case("it is assumed only", "SpeculationNetNegative", {measured: 0})
    yield _minutes_only()
    one = {**healthy(), **_fault("SpeculationBucketLoses").changes}
    yield Case("one bucket only loses", one, "SpeculationNetNegative", 60)
    yield _case("an interval that has 1 in it", "SpeculationBucketLoses", {of(upper, **warm): 1.02})
    whole = {**healthy(), **_fault("SpeculationNetNegative").changes}
    yield Case("all together lose", whole, "SpeculationBucketLoses", 60)
    yield from _low_acceptance(everything, warm)
    yield _case(
        "it was over a minute ago",
        "SpeculationGarbage",
        {of("specwatch_rule_verdict", **warm, rule="garbage"): "1x30 0x200"},
    )
    ours = {**healthy(), **breach("kv-squeeze", 0.97, 0.9, metric="kv_cache_usage")}
    yield Case("a rule of ours", ours, "SpeculationCustomRule", 60)
    net = _fault("SpeculationNetNegative")
    twice = {
        key.replace("watch:9469", "watch-2:9469"): value for key, value in one_net(net).items()
    }
    yield Case("two daemons tell it once", {**one_net(net), **twice}, net.alert, 60, net.firing)


def _causes() -> Iterator[Case]:
    """A description says the likely cause of a breach, or which rules are in breach."""
    why = "acceptance fell from 70% to 20%"
    for name, rule in (
        ("SpeculationTtftRegression", "ttft-regression"),
        ("SpeculationNetNegative", "net-negative"),
    ):
        fault = _fault(name)
        scope = {"rule": rule, **MODEL, "dimension": "all", "value": "all"}
        world = {**healthy(), **fault.changes}
        world[of("specwatch_rule_cause_ratio", cause=why, **scope)] = 0.97
        (firing,) = fault.firing
        text = f"{firing.description} Likely cause (97% of the change): {why}."
        yield Case("its cause is known", world, name, 60, [replace(firing, description=text)])
    burn = _fault("LatencySloBurn")
    (firing,) = burn.firing
    text = firing.description.replace("No rule is in breach.", "Rules in breach: a, b.")
    ruled = {**healthy(), **burn.changes}
    for rule in ("a", "b"):
        ruled |= breach(rule, 1, 2, metric="running")
    yield Case(
        "rules are in breach", ruled, burn.alert, burn.at, [replace(firing, description=text)]
    )
    down = _fault("SpecwatchTargetDown")
    (firing,) = down.firing
    text = f"{firing.description} Likely cause: the guard failed to switch speculation."
    held = {**healthy(), **down.changes, **in_phase(Phase.HELD)}
    yield Case("the guard holds", held, down.alert, 60, [replace(firing, description=text)])
    for phase in (Phase.RESTARTING, Phase.VERIFYING, Phase.ROLLING_BACK):
        yield _case(f"the guard is {phase}", down.alert, in_phase(phase))
    refused = of("specwatch_scrape_failures_total", reason="refused", **TARGET)
    answers = of("specwatch_scrape_failures_total", reason="credentials", **TARGET)
    unfit = {refused: None, answers: "0x9 12+12x240"}
    yield _case("it answers, and specwatch cannot use it", down.alert, unfit)


def _minutes_only() -> Case:
    """The rule is in breach over minutes; the interval of the hour is not below 1 yet."""
    fault = _fault("SpeculationNetNegative")
    upper = of("specwatch_speedup_ratio_upper", **MODEL, dimension="all", value="all")
    breached = breach("net-negative", 0.71, 0.9, metric="speedup_ratio")
    (firing,) = fault.firing
    text = firing.description.replace("0.91 times", "1.02 times").replace("1.00", "0.71")
    return Case(
        "only the rule is in breach",
        {**one_net(fault), upper: 1.02, **breached},
        fault.alert,
        60,
        [replace(firing, description=text.replace("2.00", "0.90"))],
    )


def one_net(net: Fault) -> World:
    """A healthy world with that fault."""
    return {**healthy(), **net.changes}


_COVERAGE = of("specwatch_coverage_ratio", dimension="all", source="tap", **MODEL)


def _low_acceptance(everything: Mapping[str, str], warm: Mapping[str, str]) -> Iterator[Case]:
    name, acceptance = "SpeculationLowAcceptance", "specwatch_acceptance_ratio"
    line = of("specwatch_assumed_break_even_acceptance_ratio", **MODEL)
    yield _case("it is measured", name, {line: None})
    yield _case("drafts are cheap enough", name, {line: 0.1})
    greedy = {**MODEL, "dimension": "temperature", "value": GREEDY}
    well = {of(acceptance, **warm): 0.7}
    yield _case("only all together is low", name, {**well, of(acceptance, **everything): 0.31})
    (firing,) = _fault(name).firing
    untapped = {of(acceptance, **bucket): None for bucket in (warm, greedy)}
    world = {
        **healthy(),
        line: 0.4,
        **untapped,
        of(acceptance, **everything): 0.31,
        _COVERAGE: None,
    }
    of_all = [replace(firing, labels=everything)]
    yield Case("there is no tap", world, name, 60, of_all)
    sliver = {**world, of(acceptance, **warm): 0.7, _COVERAGE: 0.1}
    yield Case("the tap sees a sliver", sliver, name, 60, of_all)
    rule = breach("low-acceptance", 0.56, 0.6, metric="acceptance_ratio")
    breached = {**healthy(), **rule, of(acceptance, **everything): 0.56}
    by_rule = replace(
        of_all[0], description=firing.description.replace("31%", "56%").replace("40%", "?")
    )
    yield Case("a rule of that name is in breach", breached, name, 60, [by_rule])
    dripping = {of("specwatch_drafts_per_second", **warm): 0.1}
    yield _case("hardly anything is drafted in the bucket", name, dripping)


def _of_objectives() -> Iterator[Case]:
    for index, (long, short) in enumerate(
        (("1h", "5m"), ("6h", "30m"), ("1d", "2h"), ("3d", "6h"))
    ):
        fault = _fault("LatencySloBurn", index)
        world = {**healthy(), **fault.changes}

        def changed(name: str, window: str, value: float, world: World = world) -> World:
            return {**world, of(name, window=window, **SLO): value}

        for left, text in ((-65.24, "66"), (-9000.0, "99")):
            spent = {**world, of("specwatch_slo_budget_left_ratio", **SLO): left}
            (firing,) = fault.firing
            description = firing.description.replace(
                "20% of the budget is left", f"the budget is spent {text} times over"
            )
            gone = replace(firing, description=description)
            yield Case(
                f"{long}: the budget is spent {text} times", spent, fault.alert, fault.at, [gone]
            )
        over = changed("specwatch_slo_burn_rate", short, 0.2)
        yield Case(f"{long}: it is over by now", over, fault.alert, fault.at)
        begun = changed("specwatch_slo_burn_rate", long, 0.9)
        yield Case(f"{long}: it has only begun", begun, fault.alert, fault.at)
        young = changed("specwatch_slo_watched_ratio", long, 0.7)
        yield Case(f"{long}: it was not watched for that long", young, fault.alert, fault.at)
        for window, count in ((long, 99), (short, 9)):
            few = changed("specwatch_slo_requests", window, count)
            yield Case(f"{long}: {count} requests in {window}", few, fault.alert, fault.at)


def _of_guard() -> Iterator[Case]:
    action = of("specwatch_actions_total", action="disable", result="done", **TARGET)
    yield _case("the counter begins anew", "SpeculationGuardActed", {action: "5x55 0x200"})
    person = of("specwatch_guard_incident", cause=Cause.PERSON, **TARGET)
    yield _case(
        "a person's order that is done", "SpeculationGuardActed", {person: "0x50 1x6 0x200"}
    )
    rolling = {**healthy(), **in_phase(Phase.ROLLING_BACK)}
    (held,) = _fault("SpeculationGuardHeld").firing
    yield Case("while it rolls back", rolling, "SpeculationGuardHeld", 60, [held])
    both = {**rolling, of("specwatch_guard_state", state=Phase.ROLLING_BACK, **TARGET): "1x58 0x9"}
    both[of("specwatch_guard_state", state=Phase.HELD, **TARGET)] = "0x58 1x9"
    yield Case("it goes from one to the other", both, "SpeculationGuardHeld", 60, [held])
    by_person = {**healthy(), **in_phase(Phase.HELD), **incident(Cause.PERSON)}
    yield Case("of a person's order too", by_person, "SpeculationGuardHeld", 60, [held])
    exhausted, waiting = "SpeculationGuardBudgetExhausted", "SpeculationGuardWaiting"
    acts = of("specwatch_guard_acts", **TARGET)
    yield _case("one action is left", exhausted, {of("specwatch_guard_actions_today", **TARGET): 3})
    yield _case("it only observes", exhausted, {acts: 0})
    yield _case("nothing waits for it", exhausted, in_phase(Phase.OBSERVING))
    for phase in (Phase.SUSPECT, Phase.CONFIRMED):
        fault = _fault(exhausted)
        wants = {**healthy(), **fault.changes, **in_phase(phase)}
        yield Case(f"it is {phase}", wants, exhausted, 60, fault.firing)
    none = {of(f"specwatch_guard_actions_{name}", **TARGET): 0 for name in ("today", "limit")}
    yield _case("it never may", exhausted, none)
    yield _case("it only observes", waiting, {acts: 0})
    yield _case("it is paused", waiting, {of("specwatch_guard_paused", **TARGET): 1})
    yield _case("an hour has passed", "SpeculationTrialFailed", {}, at=75)
    yield from _off_for_days()


def _off_for_days() -> Iterator[Case]:
    name, enabled = "SpeculationOffForDays", of("specwatch_speculation_enabled", **MODEL)
    fault = _fault(name)
    world = {**healthy(DAYS), **fault.changes}
    (firing,) = fault.firing
    trials = {**world, enabled: " ".join(["0x699 1x19"] * 7)}
    text = firing.description.replace("100%", "97.22%")
    yield Case("for all its trials", trials, name, DAYS, [replace(firing, description=text)])
    yield Case("off for two days", {**world, enabled: f"1x{24 * 60} 0x{DAYS}"}, name, DAYS)
    yield Case("known for two days", {**world, enabled: f"_x{24 * 60} 0x{DAYS}"}, name, DAYS)
    yield Case("off by nobody in particular", {**world, **incident(None)}, name, DAYS)


def _of_itself() -> Iterator[Case]:
    yield from _down()
    failures = of("specwatch_scrape_failures_total", reason="refused", **TARGET)
    scrapes = of("specwatch_scrapes_total", **TARGET)
    failing, lost = "SpecwatchScrapeFailing", "SpecwatchWindowsLost"
    yield _case("a third fails", failing, {failures: "0+4x240"})
    fault = _fault(failing)
    other = {
        of("specwatch_scrapes_total", instance="watch-2:9469", **TARGET): "0+12x240",
        of("specwatch_last_scrape_success_timestamp_seconds", instance="watch-2:9469", **TARGET): (
            "0+60x240"
        ),
    }
    diluted = {**healthy(), **fault.changes, **other}
    yield Case("another daemon reads well", diluted, failing, 60, fault.firing)
    yield from _twice()
    yield from _tap()
    late = {**healthy(), **_fault(failing).changes, failures: "_x20 1+12x220"}
    all_of_them = Firing(
        TARGET,
        "100% of the scrapes of the last 10 minutes failed; the last good scrape was 59m 0s ago.",
    )
    yield Case("for the first time", late, failing, 60, [all_of_them])
    never = {key: value for key, value in late.items() if "last_scrape_success" not in key}
    since_start = all_of_them.description.replace(
        "the last good scrape was 59m 0s ago", "it has not been read since specwatch started"
    )
    unread = replace(all_of_them, description=since_start)
    yield Case("it was never read", never, failing, 60, [unread])
    anew = {failures: "500x30 0x200", scrapes: "9000+12x30 0+12x200"}
    yield _case("the counters begin anew", failing, anew, at=45)
    for phase in (Phase.RESTARTING, Phase.VERIFYING):
        yield _case(f"the guard is {phase}", failing, in_phase(phase))
    dropped = of("specwatch_store_windows_dropped_total")
    yield _case("the counter begins anew", lost, {dropped: "7x50 0x200"})
    yield _case("it was an hour ago", lost, {}, at=110)
    defects = of("specwatch_judging_failures_total")
    yield _case("the counter begins anew", "SpecwatchJudgingFails", {defects: "7x50 0x200"})
    yield _case(
        "for five minutes",
        "SpecwatchStoreBehind",
        {of("specwatch_store_behind_seconds"): "0x50 0+60x5 0x200"},
    )


def _down() -> Iterator[Case]:
    name = "SpecwatchDown"
    nothing = Firing(
        {"job": "specwatch"},
        "Prometheus knows no target of the job specwatch (up: 1). The guard does nothing meanwhile,"
        " and the other alerts are silent.",
    )
    yield Case("the job is gone", without(healthy(), "up"), name, 60, [nothing])
    yield Case("nothing is left at all", {'up{job="vllm"}': 1}, name, 60, [nothing])
    fault = _fault(name)
    (firing,) = fault.firing
    world = {**healthy(), **fault.changes}
    another = replace(firing, description=firing.description.replace("up: 0", "up: 1"))
    page = {**without(world, "specwatch_build_info"), of("up"): 1}
    yield Case("another page is scraped", page, name, 60, [another])
    text = firing.description.replace(" of chat", "").replace(" on chat", "")
    plain = Firing({"job": "specwatch", "instance": "watch:9469"}, text)
    unknown = without(world, "specwatch_target_info")
    yield Case("what it watched is not known", unknown, name, 60, [plain])
    second = {of("up", instance="watch-2:9469"): 1, watched(instance="watch-2:9469"): 1}
    second[of("specwatch_build_info", instance="watch-2:9469")] = 1
    yield Case("another daemon watches the same", {**world, **second}, name, 60, [plain])
    alone = {watched(target="code"): "1x9 stale"}
    code = Firing({**firing.labels, "target": "code"}, firing.description.replace("chat", "code"))
    yield Case("one of two is watched on", {**world, **second, **alone}, name, 60, [code])
    yield Case("it watched two", {**world, **alone}, name, 60, [firing, code])
    long = {**world, of("up"): "1x9 0x1500"}
    yield Case("for more than a day", long, name, 1480, [plain])


def _twice() -> Iterator[Case]:
    name, here = "SpecwatchTargetNameTwice", "http://127.0.0.1:8000"
    (firing,) = _fault(name).firing
    well = without(healthy(), "specwatch_target_info")

    def watch(*watches: tuple[str, str]) -> World:
        return {**well, **{watched(url, instance=instance): 1 for url, instance in watches}}

    one = watch(("http://vllm:8000", "a:9469"), ("http://vllm:8000", "b:9469"))
    yield Case("two daemons watch one server", one, name, 60)
    for url in (here, "https://localhost/x", "http://[::1]:8000"):
        each_own = watch((url, "a:9469"), (url, "b:9469"))
        yield Case(f"each has its own {url}", each_own, name, 60, [firing])
    same = watch((here, "a:9469"), (here, "a:9470"))
    yield Case("two daemons on one machine", same, name, 60)
    moved = {**watch((here, "a:9469")), watched("http://b:1", instance="a:9469"): "1x40 stale"}
    yield Case("it has another address now", moved, name, 60)


def _tap() -> Iterator[Case]:
    name, up = "SpecwatchTapLost", of("specwatch_tap_up", **TARGET)
    yield _case("there never was one", name, {up: 0})
    yield _case("vLLM is away", name, {of("specwatch_target_up", **TARGET): 0})
    yield _case("it is there again", name, {up: "1x9 0x30 1x300"})
    lost = {**healthy(), **_fault(name).changes, up: "1x9 0x1500"}
    yield Case("a day after", lost, name, 1480)

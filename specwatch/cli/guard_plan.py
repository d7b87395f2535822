"""What switching speculation off would run, write and cost."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from specwatch.actuators import actuator_of
from specwatch.actuators.switch import SwitchClient
from specwatch.cli import options, status
from specwatch.cli.guard_orders import opened
from specwatch.cli.terminal import Terminal, paragraph
from specwatch.config.loading import Config
from specwatch.config.service import KubernetesService, SupervisedService, SystemdService
from specwatch.config.target import Target
from specwatch.discovery.sources import known_targets
from specwatch.domain.model import HOUR
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError, ConfigError, NoAnswer, StoreError
from specwatch.guard.plan import Plan
from specwatch.guard.state import GuardState
from specwatch.guard.switch_phases import LEASE
from specwatch.rules.decision_view import AssumedSpeedup, MeasuredSpeedup
from specwatch.web.daemon_view import TargetView
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown

_ANSWER_SECONDS = 3.0
"""Time limit for the answer of a daemon."""
_NOWHERE = "/dev/null"
_DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def guarded(config: Config, name: str | None) -> Target:
    """What is guarded under a name, or the only one: a target, or the workload of a pod.

    Sources of targets are read where the configuration itself has no such target. Raises
    ConfigError where they have none at all, and click's usage errors.
    """
    own = any(target.name == name for target in config.targets)
    targets, problems = (config.targets, []) if own else known_targets(config)
    owners = {target.name: target.workload or target for target in targets}
    if not owners:
        raise ConfigError("; ".join(problems) or "no source has a target now")
    missing = "; ".join([*problems, "the configuration has no target"])
    whole = dict.fromkeys(target.name for target in owners.values())
    return owners[options.choose(name, owners if name in owners else whole, missing, "TARGET")]


def plan_of(target: Target, *, release_memory: bool = False) -> Plan:
    """What the guard would do to a target, by its switch first unless ``release_memory``.

    Raises ActuatorError.
    """
    if target.switch is None or release_memory:
        return restart_of(target)
    try:
        with closing(SwitchClient(target)) as switch:
            unavailable = switch.state().unavailable
    except ActuatorError as error:
        unavailable = str(error)
    if unavailable:
        problem = f"its switch follows no orders: {unavailable}"
        if target.service is None:
            raise ActuatorError(problem, changed=False)
        restart = restart_of(target)
        return replace(restart, notes=(*restart.notes, problem))
    order = (
        f"order 0 draft tokens of its switch for {format_duration(LEASE)}, again and again: nothing"
        " is restarted, and the drafter goes on running (standby)"
    )
    measure = "measure whether that helps"
    if target.service is None:
        return Plan((), (), (), (order, f"{measure}; if not, back to the launch"))
    restart = restart_of(target)
    steps = (order, f"{measure}; if it does not, or costs more than a restart:", *restart.steps)
    return replace(restart, steps=steps)


def restart_of(target: Target) -> Plan:
    """What the guard would do to a target by its service. Raises ActuatorError."""
    if isinstance(target.service, SupervisedService):
        raise ActuatorError(
            "it is a child of `specwatch run -- COMMAND`, and only that process has the command;"
            " `specwatch strip -- COMMAND` shows what would be run"
        )
    actuator = actuator_of(target)
    if actuator is None:
        raise ActuatorError(
            "it has no service, so specwatch cannot restart it; add one to the target in the"
            " configuration, like service: {kind: systemd, unit: vllm.service}"
        )
    with closing(actuator):
        return actuator.plan()


@dataclass(frozen=True, slots=True)
class ModelSaving:
    """The speedup of a model, and the seconds that an hour of work would save without speculation.

    ``saves_seconds_per_hour`` is None while the speedup is only assumed.
    """

    model_name: str
    speedup: MeasuredSpeedup | AssumedSpeedup
    saves_seconds_per_hour: dict[str, float] | None


@dataclass(slots=True)
class DisableCost:
    """The cost of restarting a target now; ``notes`` say why something is not known."""

    restart_seconds: float
    restarts_measured: int
    drain_seconds: float
    requests: float | None = None
    models: list[ModelSaving] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def cost_of(config: Config, target: Target) -> DisableCost:
    """The cost of restarting a target now, by its earlier restarts and its daemon."""
    state, notes = GuardState(target.name), []
    try:
        with opened(config.database.connect_url()) as book:
            entry = book.look(target.name).get(target.name)
        state = state if entry is None else entry.state
    except StoreError as error:
        notes.append(f"earlier restarts are unknown: {error}")
    cost = DisableCost(
        state.restart_cost(config.guard.restart_cost),
        len(state.costs),
        config.guard.drain_timeout,
        notes=notes,
    )
    url = status.url_of(config)
    try:
        token_file = config.listen_token_file
        targets = status.ask(url, _ANSWER_SECONDS, token_file).targets if url else []
    except NoAnswer as error:
        notes.append(f"requests and speedup are unknown: {error}")
        return cost
    live = next((one for one in targets if one.name == target.name), None)
    if not isinstance(live, TargetView):
        notes.append("requests and speedup are unknown: no daemon that watches it was found")
        return cost
    cost.requests = live.load
    for name, model in sorted(live.decision.models.items()):
        if model.speedup is not None:
            cost.models.append(ModelSaving(name, model.speedup, _saving(model.speedup)))
    return cost


def _saving(speedup: MeasuredSpeedup | AssumedSpeedup) -> dict[str, float] | None:
    """Seconds saved: what takes an hour with speculation takes S hours without."""
    if isinstance(speedup, AssumedSpeedup):
        return None
    bounds = {"value": speedup.value, "lower": speedup.upper, "upper": speedup.lower}
    return {name: (1 - bound) * HOUR for name, bound in bounds.items()}


def service_name(target: Target) -> str:
    """The service of a target in a few words."""
    service = target.service
    if isinstance(service, SystemdService):
        return f"unit {service.unit}{' of the user' if service.scope == 'user' else ''}"
    if isinstance(service, KubernetesService):
        return f"{service.workload} of Kubernetes"
    return "no service" if service is None else f"{service.kind} service"


def print_plan(target: Target, plan: Plan, cost: DisableCost) -> None:
    """Print what switching speculation off would do and cost."""
    terminal = Terminal()
    terminal.lines(paragraph(_answer(cost), "bold"))
    terminal.line((shown(target.name), "bold underline"), f"  {clean(service_name(target))}")
    for line, style in plan_lines(plan):
        terminal.line((shown(line, 100 * LONGEST_SENTENCE), style), wrap=False)
    terminal.lines(_cost_lines(cost))


def plan_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield commands, files and steps; commands and files are not wrapped, to be copied."""
    if plan.before:
        yield "the command now", "bold"
        yield f"  {clean(shlex.join(plan.before))}", ""
    if plan.after:
        yield "the command without speculation", "bold"
        yield f"  {clean(shlex.join(plan.after))}", ""
        removed, added = _words_changed(plan)
        for title, words, style in (("removed", removed, "red"), ("added", added, "green")):
            if words:
                yield f"  {title}: {clean(shlex.join(words))}", style
    for change in plan.files:
        old, new = (text.splitlines() if text else [] for text in (change.before, change.after))
        source = _NOWHERE if change.before is None else change.path
        result = _NOWHERE if change.after is None else change.path
        for number, line in enumerate(difflib.unified_diff(old, new, source, result, lineterm="")):
            yield clean(line), "bold" if number < 2 else _DIFF_STYLES.get(line[:1], "")
    yield "steps", "bold"
    for number, step in enumerate(plan.steps, 1):
        yield from paragraph(f"  {number}. {step}")
    for note in plan.notes:
        yield from paragraph(f"note: {note}", "yellow")


def _words_changed(plan: Plan) -> tuple[Sequence[str], Sequence[str]]:
    """The words that go from the command, and those that come."""
    removed: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, plan.before, plan.after, autojunk=False)
    for kind, start, end, new, new_end in matcher.get_opcodes():
        if kind != "equal":
            removed += plan.before[start:end]
            added += plan.after[new:new_end]
    return removed, added


def plan_summary(plan: Plan) -> str:
    """A sentence: what goes from the command, and the steps."""
    removed, added = _words_changed(plan) if plan.after else ((), ())
    changes = [
        f"{preposition} {shlex.join(words)}"
        for preposition, words in (("without", removed), ("with", added))
        if words
    ]
    return "; ".join([*changes, *plan.steps, *plan.notes])


def _cost_lines(cost: DisableCost) -> Iterator[tuple[str, str]]:
    yield "cost", "bold"
    count = cost.restarts_measured
    basis = f"the median of {figures.counted(count, 'restart')}" if count else "assumed"
    seconds = figures.span(cost.restart_seconds)
    drain = format_duration(cost.drain_seconds)
    yield from paragraph(
        f"  {seconds} without service, {basis}, after draining for at most {drain}"
    )
    if cost.requests is not None:
        yield f"  {figures.counted(cost.requests, 'request')} running or waiting now", ""
    for model in cost.models[1:]:
        yield from paragraph(f"  {_saving_sentence(model, cost.restart_seconds)}")
    for note in cost.notes:
        yield from paragraph(f"  {shown(note, LONGEST_SENTENCE)}", "dim")


def _answer(cost: DisableCost) -> str:
    """Whether switching off pays now."""
    if not cost.models:
        why = shown(cost.notes[0], LONGEST_SENTENCE) if cost.notes else "nothing is generated"
        return f"Whether switching speculation off pays now is not known: {why}."
    return _saving_sentence(cost.models[0], cost.restart_seconds)


def _saving_sentence(model: ModelSaving, restart: float) -> str:
    speedup, name = model.speedup, shown(model.model_name)
    if model.saves_seconds_per_hour is None or not isinstance(speedup, MeasuredSpeedup):
        why = "its speedup is assumed, not measured"
        return f"Whether switching speculation off pays for {name} is not known: {why}."
    saved = model.saves_seconds_per_hour["value"]
    longer = f"{figures.span(abs(saved))} {'longer' if saved <= 0 else 'less'}"
    why = (
        f"what takes an hour would take {longer} without it, as the speedup is"
        f" {figures.times(speedup)}"
    )
    if speedup.lower > 1:
        return f"Speculation pays for {name} now: {why}."
    if speedup.upper >= 1:
        return f"Speculation neither clearly pays nor loses for {name} now: {why}."
    paid = figures.span(restart / saved * HOUR)
    return f"Speculation loses for {name} now: {why}; the restart is paid for after {paid}."

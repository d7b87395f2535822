"""``specwatch guard``: operator commands of the guard."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specwatch.cli import commands, guard_output, guard_plan, options
from specwatch.cli.guard_orders import ACTOR, carry_out, chosen, guards, opened, unguarded
from specwatch.cli.terminal import Terminal
from specwatch.config.loading import Config
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, SpecwatchError
from specwatch.guard import state_machine
from specwatch.guard.state import CALM, Order, Phase
from specwatch.store.guard_records import GuardBook, StepRecord
from specwatch.store.guard_rows import Entry
from specwatch.wording import figures
from specwatch.wording.guard import phase
from specwatch.wording.text import LONGEST_SENTENCE, shown

_LATEST = "latest"
_MOST_STEPS = 10_000
"""Steps that are searched for incidents."""


@click.group(name="guard", cls=commands.CommandGroup)
def command() -> None:
    """The guard, which restarts vLLM without speculation if that pays.

    Operator commands take precedence over the guard. They are stored in the database, so they apply
    to any daemon that guards the target.
    """


_target_argument = click.argument("target", required=False, metavar="[TARGET]")


def _with_book(run: Callable[..., None]) -> Callable[..., None]:
    """The command with the options for a database, which gets its guards as ``book``."""

    @functools.wraps(run)
    def opening(file: Path | None, database: str | None, **values: Any) -> None:
        with opened(options.database_url(database, file)) as book:
            run(book=book, **values)

    return options.store_options(opening)


@command.command(short_help="state of the guard of each target, and what it waits for")
@_target_argument
@options.store_options
def status(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show the state of the guard of each target, or of TARGET, and what it waits for.

    Exit code 1 when a guard is held: something failed, and an operator has to look at it.
    """
    loaded = options.configured(database, file)
    with opened(options.database_url(database, file)) as book:
        if target is None:
            entries = [one for one in guards(book, loaded).values() if not _has_left(one, loaded)]
        else:
            entries = [chosen(book, target, loaded)]
    if not entries:
        raise unguarded(None)
    now = time.time()
    policy = None if loaded is None else loaded.guard
    rows = [guard_output.status_row(entry, policy, now) for entry in entries]
    held = any(entry.state.phase is Phase.HELD for entry in entries)
    if as_json:
        options.print_json({"held": held, "mode": policy and policy.mode, "guards": rows})
    else:
        guard_output.print_status(rows, policy, now)
    if held:
        raise click.exceptions.Exit(1)


def _has_left(entry: Entry, config: Config | None) -> bool:
    """Whether it is that of a discovered target, such as a pod, that is gone and left no work."""
    if config is None or not config.discovery:
        return False
    configured = any(one.name == entry.state.target for one in config.targets)
    idle = entry.state.phase in (Phase.OBSERVING, Phase.SUSPECT, Phase.CONFIRMED)
    return not configured and entry.left <= 0 and idle


@command.command(short_help="what switching speculation off would run, write and cost")
@_target_argument
@options.store_options
def plan(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show what switching speculation off would run and write for TARGET, and what it would cost.

    Changes nothing. Exit code 1, with the reason, when the guard could not do it.
    """
    config = options.load(file, database=database)
    watched = guard_plan.guarded(config, target)
    plan = refused = cost = None
    try:
        plan = guard_plan.plan_of(watched, release_memory=config.guard.release_memory)
        cost = guard_plan.cost_of(config, watched)
    except ActuatorError as error:
        refused = str(error)
    if as_json:
        options.print_json({"target": watched.name, "refused": refused, "plan": plan, "cost": cost})
    elif plan is not None and cost is not None:
        guard_plan.print_plan(watched, plan, cost)
    else:
        raise SpecwatchError(f"{watched.name}: {refused}")
    if refused is not None:
        raise click.exceptions.Exit(1)


@command.command(short_help="make the guard start nothing, for some time")
@_target_argument
@options.time_option(
    "--for", "24h", "Length of the pause; then the guard continues by itself.", "seconds"
)
@options.reason_option
@options.by_option
@_with_book
def pause(
    book: GuardBook, target: str | None, seconds: float, reason: str, by: str, as_json: bool
) -> None:
    """Make the guard of TARGET start nothing by itself.

    It still evaluates the rules, and operator commands are still carried out. It abandons a switch
    that has not restarted vLLM yet, and completes one that has.
    """
    now = time.time()
    until = now + seconds
    name = chosen(book, target).state.target
    state = book.change(
        name,
        lambda guard: state_machine.pause(guard, until=until, by=by, why=reason),
        now,
        by=ACTOR,
    )
    if as_json:
        options.print_json({"target": name, "state": state})
        return
    terminal = Terminal()
    terminal.line(f"{shown(name)} is paused by {shown(by)} until {figures.moment(until)}")
    if state.phase is Phase.HELD:
        terminal.line("it is also held: `specwatch guard resume` ends both")
    elif state.phase is Phase.DRAINING:
        Terminal().line(
            "it is draining the server, and abandons that unless an operator ordered it"
        )
    elif state.phase not in CALM:
        terminal.line(f"it is {phase(state.phase)} now, and completes that first")


@command.command(short_help="end a pause, or a hold")
@_target_argument
@options.by_option
@_with_book
def resume(book: GuardBook, target: str | None, by: str, as_json: bool) -> None:
    """End a pause of the guard of TARGET, or a hold; the guard then looks at the server again.

    Without either, nothing changes.
    """
    now = time.time()
    before = chosen(book, target).state
    name = before.target
    state = book.change(
        name, lambda guard: state_machine.resume(guard, by=by, now=now), now, by=ACTOR
    )
    changed = state != before
    if as_json:
        options.print_json({"target": name, "resumed": changed, "state": state})
    elif not changed:
        Terminal().line(f"{shown(name)} is neither paused nor held")
    else:
        Terminal().line(f"{shown(name)} is resumed by {shown(by)}")
        if before.phase is Phase.HELD:
            Terminal().line(shown(f"it was held: {before.why}", LONGEST_SENTENCE))


_order_options = options.all_of(
    click.option("--no-wait", is_flag=True, help="Return once the daemon has begun, or refused."),
    options.time_option("--timeout", "30m", "Time to follow what the daemon does."),
    options.reason_option,
    options.by_option,
    _with_book,
)


@command.command(short_help="switch speculation off, by operator command")
@_target_argument
@options.time_option(
    "--for", None, "Time until it is switched on again.  [default: it stays off]", "seconds"
)
@_order_options
def disable(**given: Any) -> None:
    """Make the daemon restart TARGET without speculation, whatever the rules say.

    It drains, restarts and verifies as it does by itself, even if guard.mode is observe. Exit code
    1 when that was refused, failed or was not done in time; in the last case the order stays.
    """
    _switch(Mode.OFF, **given)


@command.command(short_help="switch speculation on, by operator command")
@_target_argument
@_order_options
def enable(**given: Any) -> None:
    """Make the daemon restart TARGET with speculation, with its original command line.

    The guard then does nothing by itself for guard.respect, or until a longer pause ends. Exit code
    1 when that was refused, failed or was not done in time; in the last case the order stays.
    """
    _switch(Mode.ON, **given)


def _switch(
    goal: Mode,
    *,
    book: GuardBook,
    target: str | None,
    reason: str,
    by: str,
    timeout: float,
    no_wait: bool,
    as_json: bool,
    seconds: float | None = None,
) -> None:
    now = time.time()
    order = Order(goal, by, now, reason, None if seconds is None else now + seconds)
    carry_out(book, target, order, timeout=None if no_wait else timeout, as_json=as_json)


@command.command(short_help="what the guard did, step by step")
@_target_argument
@options.since_option
@click.option(
    "--limit",
    default=200,
    show_default=True,
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Number of steps, the newest ones.",
)
@_with_book
def history(book: GuardBook, target: str | None, since: float, limit: int, as_json: bool) -> None:
    """Show what the guard did and why, oldest first: for TARGET, or for all targets."""
    name = None if target is None else chosen(book, target).state.target
    # One more than --limit, to see whether there are more.
    newest = book.history(target=name, since=since, limit=limit + 1)
    more = len(newest) > limit
    steps = newest[:limit][::-1]
    if as_json:
        options.print_json({"steps": steps, "more": more})
    elif not steps:
        Terminal().line(f"the guard took no step since {figures.moment(since)}")
    else:
        guard_output.print_steps(steps, limit=limit if more else None)


@command.command(short_help="an incident, with the measurements that led to each step")
@click.argument("incident", metavar="INCIDENT|latest")
@click.option("--target", metavar="NAME", help="With latest: the target.")
@_with_book
def explain(book: GuardBook, incident: str, target: str | None, as_json: bool) -> None:
    """Show all steps of an incident, with the measurements that led to them.

    `specwatch guard history` lists the incidents.
    """
    if target is not None and incident != _LATEST:
        raise click.UsageError("--target is for latest; an incident has its target in its name")
    steps = _steps(book, incident, target)
    state = chosen(book, steps[0].target).state
    current = state.incident is not None and state.incident.id == steps[0].incident
    if as_json:
        options.print_json(
            {
                "incident": steps[0].incident,
                "target": steps[0].target,
                "began": steps[0].at,
                "ended": None if current else steps[-1].at,
                "steps": steps,
                "state": state if current else None,
            }
        )
    else:
        guard_output.print_incident(steps, state if current else None, time.time())


def _steps(book: GuardBook, incident: str, target: str | None) -> list[StepRecord]:
    """The steps of one incident, oldest first."""
    if incident != _LATEST:
        steps = book.history(incident=incident) if incident else []
        if steps:
            return steps[::-1]
    name = None if target is None else chosen(book, target).state.target
    steps = book.history(target=name, limit=_MOST_STEPS)
    incidents = list(dict.fromkeys(step.incident for step in steps if step.incident))
    if not incidents:
        raise SpecwatchError("there was no incident yet")
    if incident != _LATEST:
        options.choose(incident, incidents[:10], "there is no incident", "INCIDENT")
    return [step for step in reversed(steps) if step.incident == incidents[0]]

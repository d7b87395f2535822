"""``specwatch guard``: operator commands of the guard."""

from __future__ import annotations

import getpass
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from specwatch.cli import commands, guard_orders, guard_output, guard_store, options
from specwatch.domain.model import Mode
from specwatch.domain.units import parse_name, quoted
from specwatch.errors import ActuatorError, SpecwatchError
from specwatch.guard import machine
from specwatch.guard.state import CALM, GuardState, Order, Phase
from specwatch.wording.guard import phase
from specwatch.wording.text import LONGEST_SENTENCE, shown

if TYPE_CHECKING:
    from specwatch.store.guard_records import GuardBook, StepRecord

_LONGEST_REASON = 500
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


def _person(_: click.Context, __: click.Parameter, text: str | None) -> str:
    if text is None:
        text = os.environ.get("SUDO_USER")
    try:
        return parse_name(text if text is not None else getpass.getuser())
    except (KeyError, OSError):  # a user without a name, as in containers
        return f"uid {os.getuid()}"
    except ValueError as error:
        raise click.BadParameter(f"{error}; give --by NAME") from None


def _reason(text: str) -> str:
    if len(text) > _LONGEST_REASON or not text.isprintable():
        expected = f"expected one line of at most {_LONGEST_REASON} characters"
        raise ValueError(f"{quoted(text)}: {expected}")
    return text.strip()


_by_option = click.option(
    "--by", callback=_person, metavar="NAME", help="Your name.  [default: the user]"
)
_reason_option = click.option(
    "--reason", default="", callback=options.parsed(_reason), metavar="TEXT",
    help="Reason, shown in status and history.",
)  # fmt: skip
_order_options = options.all_of(
    click.option("--no-wait", is_flag=True, help="Return once the daemon has begun, or refused."),
    options.time_option("--timeout", "30m", "Time to follow what the daemon does."),
    _reason_option,
    _by_option,
    options.store_options,
)  # fmt: skip


@command.command(short_help="state of the guard of each target, and what it waits for")
@_target_argument
@options.store_options
def status(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show the state of the guard of each target, or of TARGET, and what it waits for.

    Exit code 1 when a guard is held: something failed, and an operator has to look at it.
    """
    loaded = options.configured(database, file)
    with guard_store.opened(database, file) as book:
        if target is None:
            entries = list(guard_store.guards(book, loaded).values())
        else:
            entries = [guard_store.chosen(book, target, loaded)]
    if not entries:
        raise guard_store.unguarded(None)
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


@command.command(short_help="what switching speculation off would run, write and cost")
@_target_argument
@options.store_options
def plan(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show what switching speculation off would run and write for TARGET, and what it would cost.

    Changes nothing. Exit code 1, with the reason, when the guard could not do it.
    """
    config = options.load(file, database=database)
    targets = {watched.name: watched for watched in config.targets}
    watched = targets[options.choose(target, targets, "the configuration has no target", "TARGET")]
    try:
        plan = guard_store.plan_of(watched)
    except ActuatorError as error:
        if not as_json:
            raise SpecwatchError(f"{watched.name}: {error}") from error
        options.print_json(
            {"target": watched.name, "refused": str(error), "plan": None, "cost": None}
        )
        raise click.exceptions.Exit(1) from None
    cost = guard_store.cost_of(config, watched)
    if as_json:
        options.print_json(
            {"target": watched.name, "refused": None, "plan": asdict(plan), "cost": cost}
        )
    else:
        guard_output.print_plan(watched, plan, cost)


@command.command(short_help="make the guard start nothing, for some time")
@_target_argument
@options.time_option(
    "--for", "24h", "Length of the pause; then the guard continues by itself.", "seconds"
)
@_reason_option
@_by_option
@options.store_options
def pause(
    target: str | None,
    seconds: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Make the guard of TARGET start nothing by itself.

    It still evaluates the rules, and operator commands are still carried out. It abandons a switch
    that has not restarted vLLM yet, and completes one that has.
    """
    now = time.time()
    until = now + seconds
    with guard_store.opened(database, file) as book:
        name = guard_store.chosen(book, target).state.target
        state = book.change(
            name,
            lambda guard: machine.pause(guard, until=until, by=by, why=reason),
            now,
            by=guard_store.ACTOR,
        )
    if as_json:
        options.print_json({"target": name, "state": msgspec.to_builtins(state)})
        return
    click.echo(f"{shown(name)} is paused by {shown(by)} until {guard_output.moment(until)}")
    under_way = _under_way(state)
    if under_way:
        click.echo(shown(under_way, LONGEST_SENTENCE))


def _under_way(state: GuardState) -> str:
    if state.phase is Phase.HELD:
        return "it is also held: `specwatch guard resume` ends both"
    if state.phase in CALM:
        return ""
    if state.phase is Phase.DRAINING:
        return "it is draining the server, and abandons that unless an operator ordered it"
    return f"it is {phase(state.phase)} now, and completes that first"


@command.command(short_help="end a pause, or a hold")
@_target_argument
@_by_option
@options.store_options
def resume(
    target: str | None, by: str, file: Path | None, database: str | None, as_json: bool
) -> None:
    """End a pause of the guard of TARGET, or a hold; the guard then looks at the server again.

    Without either, nothing changes.
    """
    now = time.time()
    with guard_store.opened(database, file) as book:
        before = guard_store.chosen(book, target).state
        state = book.change(
            before.target,
            lambda guard: machine.resume(guard, by=by, now=now),
            now,
            by=guard_store.ACTOR,
        )
    changed = state != before
    if as_json:
        options.print_json(
            {"target": state.target, "resumed": changed, "state": msgspec.to_builtins(state)}
        )
        return
    if not changed:
        click.echo(f"{shown(state.target)} is neither paused nor held")
        return
    click.echo(f"{shown(state.target)} is resumed by {shown(by)}")
    if before.phase is Phase.HELD:
        click.echo(shown(f"it was held: {before.why}", LONGEST_SENTENCE))


@command.command(short_help="switch speculation off, by operator command")
@_target_argument
@options.time_option(
    "--for", None, "Time until it is switched on again.  [default: it stays off]", "seconds"
)
@_order_options
def disable(seconds: float | None, **given: Any) -> None:
    """Make the daemon restart TARGET without speculation, whatever the rules say.

    It drains, restarts and verifies as it does by itself, even if guard.mode is observe. Exit code
    1 when that was refused, failed or was not done in time; in the last case the order stays.
    """
    _carry_out(Mode.OFF, seconds, **given)


@command.command(short_help="switch speculation on, by operator command")
@_target_argument
@_order_options
def enable(**given: Any) -> None:
    """Make the daemon restart TARGET with speculation, with its original command line.

    The guard then does nothing by itself for guard.respect, or until a longer pause ends. Exit code
    1 when that was refused, failed or was not done in time; in the last case the order stays.
    """
    _carry_out(Mode.ON, None, **given)


def _carry_out(
    goal: Mode,
    seconds: float | None,
    *,
    target: str | None,
    no_wait: bool,
    timeout: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    now = time.time()
    order = Order(goal, by, now, reason, None if seconds is None else now + seconds)
    with guard_store.opened(database, file) as book:
        guard_orders.carry_out(
            book, target, order, timeout=None if no_wait else timeout, as_json=as_json
        )


@command.command(short_help="what the guard did, step by step")
@_target_argument
@options.since_option
@click.option(
    "--limit", default=200, show_default=True, type=click.IntRange(1, 100_000), metavar="N",
    help="Number of steps, the newest ones.",
)  # fmt: skip
@options.store_options
def history(
    target: str | None,
    since: float,
    limit: int,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show what the guard did and why, oldest first: for TARGET, or for all targets."""
    with guard_store.opened(database, file) as book:
        name = None if target is None else guard_store.chosen(book, target).state.target
        # One more than --limit, to see whether there are more.
        newest = book.history(target=name, since=since, limit=limit + 1)
    more = len(newest) > limit
    steps = newest[:limit][::-1]
    if as_json:
        options.print_json({"steps": steps, "more": more})
        return
    if not steps:
        click.echo(f"the guard took no step since {guard_output.moment(since)}")
        return
    guard_output.print_steps(steps, limit=limit if more else None)


@command.command(short_help="an incident, with the measurements that led to each step")
@click.argument("incident", metavar="INCIDENT|latest")
@click.option("--target", metavar="NAME", help="With latest: the target.")
@options.store_options
def explain(
    incident: str, target: str | None, file: Path | None, database: str | None, as_json: bool
) -> None:
    """Show all steps of an incident, with the measurements that led to them.

    `specwatch guard history` lists the incidents.
    """
    if target is not None and incident != _LATEST:
        raise click.UsageError("--target is for latest; an incident has its target in its name")
    with guard_store.opened(database, file) as book:
        steps = _steps(book, incident, target)
        state = guard_store.chosen(book, steps[0].target).state
    current = state.incident is not None and state.incident.id == steps[0].incident
    story = {
        "incident": steps[0].incident,
        "target": steps[0].target,
        "began": steps[0].at,
        "ended": None if current else steps[-1].at,
        "steps": steps,
        "state": state if current else None,
    }
    if as_json:
        options.print_json(story)
    else:
        guard_output.print_incident(steps, state if current else None, time.time())


def _steps(book: GuardBook, incident: str, target: str | None) -> list[StepRecord]:
    """The steps of one incident, oldest first."""
    if incident != _LATEST:
        steps = book.history(incident=incident) if incident else []
        if steps:
            return steps[::-1]
    name = None if target is None else guard_store.chosen(book, target).state.target
    steps = book.history(target=name, limit=_MOST_STEPS)
    incidents = list(dict.fromkeys(step.incident for step in steps if step.incident))
    if not incidents:
        raise SpecwatchError("there was no incident yet")
    if incident != _LATEST:
        options.choose(incident, incidents[:10], "there is no incident", "INCIDENT")
    return [step for step in reversed(steps) if step.incident == incidents[0]]

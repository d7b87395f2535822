"""``specwatch guard``: the guard, for operators."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from specwatch.cli import commands, guard_orders, guard_output, guard_store, options
from specwatch.config.loading import Config
from specwatch.config.rules.condition import nearest
from specwatch.config.target import Target
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
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(name="guard", cls=commands.Group)
def command() -> None:
    """The guard, which restarts vLLM without speculation where that pays.

    What a person says goes before what the guard would do. It is stored in the database, so that
    it holds for whichever daemon guards the target.
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


def _reason(_: click.Context, __: click.Parameter, text: str) -> str:
    if len(text) > _LONGEST_REASON or not text.isprintable():
        raise click.BadParameter(
            f"{quoted(text)}: expected one line of at most {_LONGEST_REASON} characters"
        )
    return text.strip()


_by_option = click.option(
    "--by", callback=_person, metavar="NAME", help="Who says so; the user, where not given."
)
_reason_option = click.option(
    "--reason", default="", callback=_reason, metavar="TEXT", help="Why, for whoever looks."
)


def _waiting_options(command: _Command) -> _Command:
    """``--no-wait`` and ``--timeout``."""
    timeout = click.option(
        "--timeout", default="30m", show_default=True, callback=options.duration,
        metavar="DURATION", help="How long to follow what is done.",
    )  # fmt: skip
    no_wait = click.option(
        "--no-wait", is_flag=True, help="End once the daemon has begun, or refused."
    )
    return no_wait(timeout(command))


@command.command(short_help="where the guard of each target is, and what it waits for")
@_target_argument
@options.store_options
def status(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show where the guard of each target is, or that of TARGET, and what it waits for.

    Exit code 1 when one is held: something failed, and a person has to look.
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

    Nothing is done. Exit code 1, with the reason, where it could not be done.
    """
    config = options.load(file, database=database)
    watched = _configured_target(config, target)
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


def _configured_target(config: Config, name: str | None) -> Target:
    targets = {target.name: target for target in config.targets}
    if name is None and len(targets) == 1:
        return config.targets[0]
    if name is None:
        raise click.UsageError(f"which target? give one of {', '.join(targets)}")
    if name not in targets:
        raise click.BadParameter(
            f"the configuration has no target {quoted(name)}; {nearest(name, targets)}",
            param_hint="TARGET",
        )
    return targets[name]


@command.command(short_help="have the guard begin nothing, for a while")
@_target_argument
@click.option(
    "--for", "seconds", default="24h", show_default=True, callback=options.duration,
    metavar="DURATION", help="For how long; then the guard goes on by itself.",
)  # fmt: skip
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
    """Have the guard of TARGET begin nothing of its own accord.

    It goes on judging, and what a person orders is done. What has not restarted vLLM yet is given
    up; a restart under way is brought to its end.
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
        return "it is held besides: `specwatch guard resume` ends both"
    if state.phase in CALM:
        return ""
    if state.phase is Phase.DRAINING:
        return "it drains the server now, and gives that up unless a person ordered it"
    return f"it is {phase(state.phase)} now, and brings that to its end first"


@command.command(short_help="end a pause, or a hold")
@_target_argument
@_by_option
@options.store_options
def resume(
    target: str | None, by: str, file: Path | None, database: str | None, as_json: bool
) -> None:
    """End a pause of the guard of TARGET, or a hold: it looks at the server anew.

    Where there is neither, nothing changes, and that is said.
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


@command.command(short_help="switch speculation off, by order of a person")
@_target_argument
@click.option(
    "--for", "seconds", metavar="DURATION",
    callback=lambda *args: None if args[2] is None else options.duration(*args),
    help="Then it is switched on again; without it, it stays off.",
)  # fmt: skip
@_waiting_options
@_reason_option
@_by_option
@options.store_options
def disable(
    target: str | None,
    seconds: float | None,
    no_wait: bool,
    timeout: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Have the daemon restart TARGET without speculation, whatever the guard thinks of it.

    It drains, restarts and verifies as it does by itself, also where guard.mode is observe. Exit
    code 1 when that was refused or failed, or is not done in time: the order then stays.
    """
    now = time.time()
    until = None if seconds is None else now + seconds
    order = Order(Mode.OFF, by, now, reason, until)
    with guard_store.opened(database, file) as book:
        guard_orders.carry_out(
            book, target, order, timeout=None if no_wait else timeout, as_json=as_json
        )


@command.command(short_help="switch speculation on, by order of a person")
@_target_argument
@_waiting_options
@_reason_option
@_by_option
@options.store_options
def enable(
    target: str | None,
    no_wait: bool,
    timeout: float,
    reason: str,
    by: str,
    file: Path | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Have the daemon restart TARGET as its owner wrote it, with speculation.

    The guard then keeps its hands off for guard.respect; a pause keeps it off for longer. Exit code
    1 when that was refused or failed, or is not done in time: the order then stays.
    """
    order = Order(Mode.ON, by, time.time(), reason)
    with guard_store.opened(database, file) as book:
        guard_orders.carry_out(
            book, target, order, timeout=None if no_wait else timeout, as_json=as_json
        )


@command.command(short_help="what the guard did, step by step")
@_target_argument
@click.option(
    "--since", default="7d", show_default=True, callback=options.moment, metavar="WHEN",
    help=options.WHEN,
)  # fmt: skip
@click.option(
    "--limit", default=200, show_default=True, type=click.IntRange(1, 100_000), metavar="N",
    help="The newest so many.",
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
    """Show what the guard did and why, oldest first: of TARGET, or of all."""
    with guard_store.opened(database, file) as book:
        name = None if target is None else guard_store.chosen(book, target).state.target
        # One more than asked for tells whether there is more.
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


@command.command(short_help="an incident with the numbers that led to each step")
@click.argument("incident", metavar="INCIDENT|latest")
@click.option("--target", metavar="NAME", help="The latest of this target.")
@options.store_options
def explain(
    incident: str, target: str | None, file: Path | None, database: str | None, as_json: bool
) -> None:
    """Show all steps of an incident, with the numbers that led to them.

    `specwatch guard history` shows which incidents there were.
    """
    if target is not None and incident != _LATEST:
        raise click.UsageError("--target goes with latest; an incident has its target in its name")
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
    known = list(dict.fromkeys(step.incident for step in steps if step.incident))
    if not known:
        raise SpecwatchError("there was no incident yet")
    if incident != _LATEST:
        raise click.BadParameter(
            f"there is no incident {quoted(incident)}; {nearest(incident, known[:10])}",
            param_hint="INCIDENT",
        )
    return [step for step in reversed(steps) if step.incident == known[0]]

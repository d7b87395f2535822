"""``specwatch guard plan``: what switching speculation off would run, write and cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from specwatch.cli import guard_books, options
from specwatch.config.loading import Config
from specwatch.config.rules.condition import nearest
from specwatch.config.service import SupervisedService, SystemdService
from specwatch.config.target import Target
from specwatch.domain.units import quoted
from specwatch.errors import ActuatorError, SpecwatchError
from specwatch.guard.plan import Plan
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown


@click.command(name="plan")
@guard_books.target_argument
@guard_books.book_options
def command(target: str | None, file: Path | None, database: str | None, as_json: bool) -> None:
    """Show what switching speculation off would run and write for TARGET, and what it would cost.

    Nothing is done. Exit code 1, with the reason, where it could not be done.
    """
    from specwatch.cli.guard_cost import cost

    config = options.load(file, database=database)
    chosen = _chosen(config, target)
    try:
        plan = planned(chosen)
    except ActuatorError as error:
        _refuse(chosen, str(error), as_json=as_json)
    found = cost(config, chosen)
    if as_json:
        options.print_json(
            {"target": chosen.name, "refused": None, "plan": asdict(plan), "cost": found}
        )
    else:
        _show(chosen, plan, found)


def planned(target: Target) -> Plan:
    """What the guard would do to a target. Raises ActuatorError."""
    from specwatch.actuators.registry import actuator_of

    if isinstance(target.service, SupervisedService):
        raise ActuatorError(
            "it is a child of `specwatch run -- COMMAND`, which alone knows the command;"
            " `specwatch strip -- COMMAND` shows what would be run"
        )
    actuator = actuator_of(target)
    if actuator is None:
        raise ActuatorError(
            "it has no service, so that nobody knows how to restart it; add it to the target in the"
            " configuration, like service: {kind: systemd, unit: vllm.service}"
        )
    try:
        return actuator.plan()
    finally:
        actuator.close()


def of_what(target: Target) -> str:
    """The service of a target in a few words."""
    service = target.service
    if isinstance(service, SystemdService):
        user = " of the user" if service.scope == "user" else ""
        return f"unit {service.unit}{user}"
    return "no service" if service is None else f"{service.kind} service"


def _chosen(config: Config, name: str | None) -> Target:
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


def _refuse(target: Target, reason: str, *, as_json: bool) -> None:
    if not as_json:
        raise SpecwatchError(f"{target.name}: {reason}")
    options.print_json({"target": target.name, "refused": reason, "plan": None, "cost": None})
    raise click.exceptions.Exit(1)


def _show(target: Target, plan: Plan, found: dict[str, Any]) -> None:
    from specwatch.cli import guard_cost, plan_words
    from specwatch.cli.terminal import Terminal

    terminal = Terminal()
    terminal.line((shown(target.name), "bold underline"), f"  {clean(of_what(target))}")
    for line, style in plan_words.lines(plan):
        terminal.line((shown(line, 100 * LONGEST_SENTENCE), style))
    for line, style in guard_cost.lines(found):
        terminal.line((line, style))

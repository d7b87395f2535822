"""``specwatch guard-helper``: restarts one unit for the guard, as root; started by systemd."""

from __future__ import annotations

import os

import click

from specwatch.cli import options


@click.command(name="guard-helper", hidden=True)
@click.argument("unit")
@options.time_option("--idle", "30s", "Time to wait for the next request.")
@click.option(
    "--max-switches",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    envvar="SPECWATCH_GUARD_MAX_SWITCHES",
    show_envvar=True,
    help="Restarts of UNIT in 24 hours; the last is reserved for switching speculation back on.",
)
@options.time_option(
    "--cooldown",
    "60s",
    "Time between two restarts of a running UNIT.",
    envvar="SPECWATCH_GUARD_COOLDOWN",
    show_envvar=True,
)
def command(unit: str, idle: float, max_switches: int, cooldown: float) -> None:
    """Answer requests about UNIT, then end; started by specwatch-guard@.socket only."""
    from pydantic import ValidationError

    from specwatch.actuators.base import Actuator
    from specwatch.actuators.systemd.helper import GuardHelper, activated_socket
    from specwatch.actuators.systemd.limit import SwitchLimit
    from specwatch.actuators.systemd.unit import system_unit
    from specwatch.config.service import SystemdService
    from specwatch.errors import ActuatorError
    from specwatch.runtime import logs

    logs.configure("info", "auto")
    listening = activated_socket(os.environ, os.getpid())
    problem = ""
    try:
        SystemdService(kind="systemd", unit=unit)
    except ValidationError as error:
        problem = "; ".join(details["msg"] for details in error.errors())

    limit = SwitchLimit(unit, most=max_switches, cooldown=cooldown)

    def actuator(timeout: float) -> Actuator:
        # The client gets the error; if this process ended, systemd would only start it again.
        if problem:
            raise ActuatorError(f"this helper was started without a valid unit: {problem}")
        return system_unit(unit, timeout=timeout, limit=limit)

    GuardHelper(listening, actuator, idle=idle).serve()

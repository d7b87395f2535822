"""Checks of what the guard would need: hands on the switch, and who is paged."""

from __future__ import annotations

from typing import Any

from specwatch.alerts.client import AlertPost, PostError
from specwatch.cli import guard_output, guard_store
from specwatch.config.guard import Alertmanager
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError
from specwatch.guard.foresight import VERIFIABLE, WARM_UP
from specwatch.guard.switching import MOST_VERIFY

_MOST_NAMED = 3


def service(target: Target) -> dict[str, Any]:
    """What the guard would do to a target with a service, or why it could not."""
    what = f"guard of {target.name}, {guard_output.service_name(target)}"
    if isinstance(target.service, SupervisedService):
        detail = (
            "restarted by `specwatch run -- COMMAND`; `specwatch strip -- COMMAND` shows what would"
            " be run"
        )
        return {"what": what, "ok": True, "detail": detail}
    try:
        plan = guard_store.plan_of(target)
    except ActuatorError as error:
        return {"what": what, "ok": False, "detail": str(error)}
    return {"what": what, "ok": True, "detail": guard_output.plan_summary(plan)}


def alertmanager(section: Alertmanager, url: str) -> dict[str, Any]:
    """Whether an Alertmanager takes alerts from us: it is sent none."""
    what = f"Alertmanager {url}"
    post = AlertPost(section, url)
    try:
        post.send([])
    except PostError as error:
        return {"what": what, "ok": False, "detail": str(error)}
    finally:
        post.close()
    return {"what": what, "ok": True, "detail": "it takes alerts"}


def hasty(config: Config) -> list[str]:
    """A note on a ``guard.verify`` too short to measure anything in."""
    given, most = config.guard.verify, MOST_VERIFY * config.guard.verify
    if config.guard.mode == "off" or given >= VERIFIABLE:
        return []
    needed = format_duration(VERIFIABLE)
    if most < VERIFIABLE:
        then = (
            f"verifying ends undecided after {format_duration(most)}, three times that, and"
            " speculation is left off"
        )
    else:
        then = f"verifying is prolonged to that, up to {format_duration(most)}"
    return [
        f"guard.verify is {format_duration(given)}, and whether switching off helped takes about"
        f" {needed} to measure: the first {format_duration(WARM_UP)} after a restart do not count,"
        f" and {LEAST_SAMPLES} whole minutes of traffic are needed; {then}. Make it at least"
        f" {needed}"
    ]


def handless(config: Config) -> list[str]:
    """A note on targets that the guard may restart, and does not know how to."""
    lacking = [target.name for target in config.targets if target.service is None]
    if config.guard.mode != "act" or not lacking:
        return []
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    return [
        f"guard.mode is act, and there is no service of {', '.join(lacking[:_MOST_NAMED])}{more}:"
        " the guard cannot restart what it does not know how to"
    ]

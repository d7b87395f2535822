"""The sections ``guard`` and ``alertmanager``: what the guard may do, and where alerts go."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, field_validator, model_validator

from specwatch.config.http_access import HttpAccess, timeout_within
from specwatch.config.sections import (
    Duration,
    Ratio,
    Section,
    each_once,
    errors_at,
    matching,
    not_empty,
    within,
)
from specwatch.config.service import Command, Patience
from specwatch.config.yaml_file import KeyPath
from specwatch.domain.model import HOUR
from specwatch.domain.units import format_duration, parse_count, parse_server_url, quoted

DEFAULT_URL = "http://127.0.0.1:9469"
"""Where a daemon with the default settings is reached."""
DEFAULT_RUNBOOK_URL = f"{DEFAULT_URL}/runbook"
"""Where it serves its runbook."""

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
"""What Alertmanager 0.25 takes as the name of a label."""

SHORT_TRIAL = 90.0
"""Seconds that a trial of a bad draft costs: the loss is found within minutes."""

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DAYS: tuple[Day, ...] = get_args(Day)
TimeOfDay = Annotated[
    str,
    matching(r"([01][0-9]|2[0-3]):[0-5][0-9]", "is not a time of day; write it like 02:00"),
]


class Maintenance(Section):
    """A time of day."""

    days: Annotated[tuple[Day, ...], not_empty("leave it out for every day")] = _DAYS
    """Days on which it begins."""
    from_: TimeOfDay = Field(alias="from", examples=["02:00"])
    """Begin, as `HH:MM`."""
    to: TimeOfDay = Field(examples=["05:00"])
    """End, as `HH:MM`; if it is not later than `from`, it is on the next day."""
    timezone: str = Field(default="UTC", validate_default=True)
    """Time zone of both."""

    def contains(self, now: float) -> bool:
        """Whether it contains ``now`` (Unix seconds), by the wall clock of its time zone."""
        # UTC needs no database of time zones, which a small machine may lack.
        zone = datetime.UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)
        local = datetime.datetime.fromtimestamp(now, zone)
        begin = datetime.time.fromisoformat(self.from_)
        end = datetime.time.fromisoformat(self.to)
        time, weekday = local.time(), local.weekday()
        if begin < end:
            return begin <= time < end and _DAYS[weekday] in self.days
        begun = time >= begin and _DAYS[weekday] in self.days
        return begun or (time < end and _DAYS[weekday - 1] in self.days)

    def __str__(self) -> str:
        return f"{self.from_} to {self.to} {self.timezone}"

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            value == "UTC" or ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"{quoted(value)} is not a time zone of this machine; write it like"
                " Europe/Berlin, and install tzdata if it is missing"
            ) from None
        return value


class Windows(Section):
    """When the guard may act by itself.

    Operator commands and repairs are not bound to these times.
    """

    allow: tuple[Maintenance, ...] = ()
    """The guard acts only in these times. Default: always."""
    forbid: tuple[Maintenance, ...] = ()
    """The guard does not act in these times, whether allowed or not."""

    def closed(self, now: float) -> str:
        """Why the guard does not act at ``now`` (Unix seconds); empty if it may."""
        for time in self.forbid:
            if time.contains(now):
                return f"guard.windows excludes {time}"
        if self.allow and not any(time.contains(now) for time in self.allow):
            times = ", ".join(map(str, self.allow))
            return f"guard.windows allows only {times}"
        return ""


class Hooks(Section):
    """Commands around a restart, each a list of words that is run without a shell.

    A hook may be run again when the guard was interrupted.
    """

    before: Command | None = Field(default=None, examples=["[/usr/local/bin/lb, drain]"])
    """Takes the server out of the load balancer."""
    after: Command | None = Field(default=None, examples=["[/usr/local/bin/lb, ready]"])
    """Puts the server back."""
    timeout: Patience = 60.0
    """How long each may take; 1s to 2h."""


class Rearm(Section):
    """When speculation is tried again after it was switched off."""

    after: Annotated[Duration, within(60)] | None = None
    """Time until the first trial, at least 1m; doubled for each trial that was lost.
    Default: as `budget` allows."""
    most: Duration = 24 * 3600.0
    """Longest time between two trials."""
    trial: Annotated[Duration, within(120)] = 20 * 60.0
    """How long a trial is watched, unless the answer is certain earlier; at least 2m."""
    budget: Ratio = 0.02
    """Without `after`: share of the time that restarts for trials, and what the last trial
    lost, may take."""

    def wait(self, restart_seconds: float, lost: float = SHORT_TRIAL) -> float:
        """Seconds from switching off to the first trial; ``lost`` are the seconds a trial costs.

        Without a restart there is no least wait beside the budget.
        """
        if self.after is not None:
            return self.after
        least = HOUR if restart_seconds else 0.0
        return min(max((2 * restart_seconds + lost) / self.budget, least), self.most)

    def later(self, delay: float, restart_seconds: float, lost: float = SHORT_TRIAL) -> float:
        """The wait after a trial that was lost and cost ``lost`` seconds."""
        if self.after is None:
            return self.wait(restart_seconds, lost)
        return min(2 * delay, max(self.most, delay))

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.after is not None and self.most < self.after:
            most, after = format_duration(self.most), format_duration(self.after)
            message = f"the longest wait, {most}, is shorter than after, {after}"
            raise errors_at({("most",): f"{message}; make most at least {after}"})
        return self


class Explore(Section):
    """Short stretches without speculation, so that the baseline does not become old."""

    budget: Ratio = 0.0
    """Share of the time that they and the restarts around them may take; 0 is never."""
    max_age: Duration = 24 * 3600.0
    """Age of the baseline at which one is due. One is due first when the present traffic is
    unjudged: no baseline covers it."""
    block: Duration = 600.0
    """How long each lasts."""

    def interval(self, restart_seconds: float) -> float:
        """Least seconds from one stretch to the next."""
        return (2 * restart_seconds + self.block) / self.budget if self.budget else math.inf


class Guard(Section):
    """What the guard may do."""

    mode: Literal["off", "observe", "act"] = "observe"
    """`observe` records what it would do, `act` does it, `off` does neither."""
    cooldown: Duration = 1800.0
    """Least time between two actions on one target."""
    max_actions_per_day: Annotated[int, BeforeValidator(lambda v: parse_count(v, 0))] = 4
    """Actions on one target in a day, at most."""
    max_unavailable: Annotated[int, BeforeValidator(parse_count)] = 1
    """Servers of one group that may restart at the same time, over all daemons on the database."""
    holdout: Annotated[int, BeforeValidator(lambda v: parse_count(v, 0))] = 0
    """Servers of each group that serve without speculation, as the baseline of the others at the
    same time; a third of the group at most, so none in a group of two. They are restarted."""
    drain_timeout: Duration = 60.0
    """Longest wait for running requests to finish; 0s restarts at once."""
    start_timeout: Annotated[Duration, within(10)] = 900.0
    """How long vLLM may take to be healthy after a restart; at least 10s."""
    verify: Annotated[Duration, within(10)] = 600.0
    """How long is measured whether switching off helped, up to three times that with too little
    traffic; below 8 minutes there is always too little."""
    respect: Duration = 3600.0
    """How long the guard does nothing after another tool switched speculation."""
    restart_cost: Duration = 120.0
    """Assumed time without service of a restart, until one was measured."""
    release_memory: bool = False
    """Whether the guard restarts vLLM although it has a switch, so that the memory of the draft
    model becomes free."""
    act_on_assumptions: bool = False
    """Whether the default rule `low-acceptance`, which relies on the assumed draft cost, switches
    speculation off."""
    windows: Windows = Windows()
    """When it may act by itself."""
    hooks: Hooks = Hooks()
    """Commands around a restart."""
    rearm: Rearm = Rearm()
    """When speculation is tried again."""
    explore: Explore = Explore()
    """Whether serving without speculation is measured from time to time."""


class Alertmanager(HttpAccess):
    """Alertmanagers (v2 API) that receive alerts for breaches, actions and failures."""

    urls: Annotated[
        tuple[Annotated[str, BeforeValidator(parse_server_url)], ...],
        not_empty("name one, or remove the section alertmanager"),
        each_once("Alertmanager"),
    ] = Field(examples=["[http://127.0.0.1:9093]"])
    """Base URL of each."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Added to every alert."""
    runbook_url: Annotated[str, BeforeValidator(parse_server_url)] | None = None
    """Where the runbook is, for the links in alerts. Default: `/runbook` of `external_url`."""
    grafana_url: Annotated[str, BeforeValidator(parse_server_url)] | None = Field(
        default=None, examples=["https://grafana.example.com"]
    )
    """Grafana with the generated dashboards, for the links in alerts. Default: they lead to the
    status page at `external_url`."""
    resend: Annotated[Duration, within(1, 3600)] = 60.0
    """How often alerts that still fire are sent again; 1s to 1h."""
    timeout: Duration = Field(default=None, validate_default=True)
    """How long one request may take. Default: 5s, or `resend` if that is shorter."""

    @field_validator("labels")
    @classmethod
    def _labels_that_it_takes(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        problems: dict[KeyPath, str] = {}
        for name, text in value.items():
            if not LABEL_NAME.fullmatch(name):
                problems[(name,)] = "is not a label name; use letters, digits and _, like team"
            elif name == "alertname":
                problems[(name,)] = "is each alert's own name; give the label another name"
            elif not text:
                problems[(name,)] = "is empty; give the label a value or remove it"
        if problems:
            raise errors_at(problems)
        return value

    _within_resend = timeout_within("resend", "resend,", 5.0)

    @property
    def _called(self) -> str:
        return "alertmanager"

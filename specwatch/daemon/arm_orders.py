"""The orders of an experiment to the switch of its target: each arm for a lease, the tuned schedule
for as long as it is in use, and the launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from specwatch.config.target import Target
from specwatch.domain.switchback import LAUNCH, TUNED
from specwatch.errors import ActuatorError, ConfigError
from specwatch.scrape.switch import SwitchSetting
from specwatch_tap.orders import Schedule, SwitchState, schedule_number

if TYPE_CHECKING:
    from specwatch.actuators.switch import SwitchClient

_log = structlog.get_logger("specwatch.experiments")

SET_BY_OTHERS = "the switch was set by somebody else"
SPARE = 30.0
"""Seconds that a lease is longer than its block."""
LEASE = 120.0
"""Seconds of the lease of the tuned schedule."""
_RENEWED_AFTER = LEASE / 4
_RESPECT = 600.0
"""Seconds for which a person's order to return to the launch is respected."""
_RETRY_SECONDS = 10.0
"""Seconds until a failed return to the launch is tried again: other experiments wait for it."""
_SPECWATCH, _BY = "specwatch ", "specwatch experiment"
"""How the author of an order begins: of any order by specwatch, and of one by an experiment."""


class ArmOrders:
    """The orders to one switch, for one thread at a time. Methods raise ActuatorError, and
    ConfigError for certificates or tokens that cannot be used."""

    def __init__(
        self, target: Target, wall: Callable[[], float], connect: Callable[[Target], SwitchClient]
    ) -> None:
        self._target = target
        self._wall = wall
        self._connect = connect
        self._client: SwitchClient | None = None  # made on first use, as that may fail
        self.arm = LAUNCH
        """The arm that may be in force: as ordered last, whether that failed or not."""
        self.ends = 0.0
        """When the last arm other than the launch ended, or will at the latest."""
        self.respected_until = -math.inf
        """Until when a person's order to return to the launch is respected."""
        self._respected: tuple[str, int] | None = None
        """The process and the number of that order."""
        self._schedule: Schedule = ()
        """That of the tuned arm, as ordered last."""
        self._due = 0.0
        """When the tuned schedule has to be ordered again."""
        self._pending = False
        """Whether an order failed that vLLM may still follow."""
        self._retry = 0.0
        """When a failed order to return to the launch is tried again."""

    def state(self) -> SwitchState:
        """The state of the server."""
        return self._connected().state()

    def _connected(self) -> SwitchClient:
        if self._client is None:
            self._client = self._connect(self._target)
        return self._client

    def differ(self, arm: str, schedule: Schedule) -> bool:
        """Whether an arm is not the one that was ordered last; ``schedule`` is the tuned one."""
        return arm != self.arm or (arm == TUNED and schedule != self._schedule)

    def order(self, arm: str, schedule: Schedule, lease: float) -> None:
        """Order an arm, unless the guard or a person has given an order meanwhile."""
        client, now, switches = self._connected(), self._wall(), self.differ(arm, schedule)
        self._respect(client.state(), now)
        lease = LEASE if arm == TUNED else lease
        # Before it is ordered: an order that fails may be followed later.
        self.arm, self.ends, self._pending = arm, now + lease + SPARE, True
        self._schedule, self._due = schedule, now + _RENEWED_AFTER
        client.order(setting_of(arm, schedule), lease=lease, by=f"{_BY} ({arm})")
        self._pending = False
        if switches:
            used = schedule if arm == TUNED else None
            _log.info("arm_in_force", target=self._target.name, arm=arm, schedule=used)

    def _respect(self, before: SwitchState, now: float) -> None:
        """Refuse to replace the order of somebody else, or that of a person for the launch."""
        by = before.by
        if before.ordered is None and by and not by.startswith(_SPECWATCH):
            if self._respected != (before.server, before.number):
                self._respected = (before.server, before.number)
                self.respected_until = now + _RESPECT
            if now < self.respected_until:
                raise ActuatorError(SET_BY_OTHERS, changed=False)
        if before.ordered is not None and not by.startswith(_BY):
            raise ActuatorError(SET_BY_OTHERS, changed=False)

    def renew(self) -> None:
        """Order the tuned schedule again, if it is in force and that is due."""
        if self.arm == TUNED and self._wall() >= self._due:
            self.order(TUNED, self._schedule, LEASE)

    def end(self) -> None:
        """Order the launch, if an order of ours is in force or may be, and no other one."""
        if self.arm == LAUNCH:
            return
        if (now := self._wall()) < self.ends:
            if now < self._retry:
                raise ActuatorError("vLLM did not return to the launch yet", changed=False)
            self._retry = now + _RETRY_SECONDS
            try:
                client = self._connected()
                by = client.state().by
                if by.startswith(_BY) or (self._pending and not by):
                    client.order(None, lease=SPARE, by=f"{_BY} ({LAUNCH})")
            except (ActuatorError, ConfigError) as error:
                _log.warning("arm_not_ended", target=self._target.name, detail=str(error))
                raise
            _log.info("arm_in_force", target=self._target.name, arm=LAUNCH)
        self.arm, self.ends = LAUNCH, min(self.ends, self._wall())
        self._pending, self._retry = False, 0.0

    def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            self._client.close()


def setting_of(arm: str, schedule: Schedule) -> int | Schedule | None:
    """What is ordered for an arm; ``schedule`` is the tuned one."""
    if arm == TUNED:
        return schedule
    return None if arm == LAUNCH else int(arm)


def shows(setting: SwitchSetting | None, ordered: int | Schedule | None) -> bool:
    """Whether a page shows what is ordered."""
    if setting is None or not setting.ordered:
        return ordered is None
    if isinstance(ordered, tuple):
        return setting.schedule == schedule_number(ordered)
    return not setting.schedule and setting.draft_tokens == ordered

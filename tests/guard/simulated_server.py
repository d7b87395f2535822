"""A simulated vLLM and its manager, whose restarts are counted and can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specwatch.actuators.base import ANYTIME, Claim
from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Mode
from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, ProcessState, Service
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import Failure, TargetStatus
from specwatch_tap.orders import SwitchState

BOOT_SECONDS = 20.0
BREACH_SECONDS = 60.0
"""After this long with a bad draft a rule is in breach."""
NET_NEGATIVE = next(rule for rule in DEFAULT_RULES if rule.name == "net-negative")


@dataclass
class SimulatedServer:
    """One vLLM as a manager runs it; ``now`` is set by who runs the simulation."""

    now: float = 1_800_000_000.0
    configured: Mode = Mode.ON
    """How it is set to start next time."""
    running: Mode = Mode.ON
    """How the process that runs was started."""
    bad: bool = True
    """Whether its draft makes it slower."""
    starts: list[tuple[float, Mode]] = field(default_factory=list)
    """Every restart that was done."""
    started: float = 1_800_000_000.0 - BOOT_SECONDS
    instance: int = 1
    fault: str = ""
    """What goes wrong without speculation: ``crash``, ``hang``, ``sick``, ``model``, ``ignore``; or
    at once: ``refuse``, ``timeout``, ``no-status``. By ``limit`` there is no plan."""
    fault_with: Mode = Mode.OFF
    stale: bool = False
    switched: bool = False
    """Whether it has a switch."""
    ordered: int | None = None
    ordered_by: str = ""
    lease_ends: float = 0.0
    number: int = 0
    follows: bool = True
    orders: list[tuple[float, int | None]] = field(default_factory=list)
    """Every order that changed something."""
    standby_helps: bool = True
    standby_cost: Interval | None = None
    measured: Interval | None = None
    load: float = 0.0
    scraped: float = 0.0
    handover: float = 0.0
    point: Callable[[str], None] = lambda _: None
    """Is told of each moment at which the guard might be killed."""

    @property
    def broken(self) -> bool:
        return self.running is self.fault_with and self.fault in ("crash", "hang", "stopped")

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return not self.broken and self.now - self.started >= BOOT_SECONDS

    @property
    def healthy(self) -> bool:
        """Whether its health check succeeds."""
        return self.up and not (self.fault == "sick" and self.running is self.fault_with)

    @property
    def mode(self) -> Mode:
        """What its page says."""
        if self.fault == "silent" and self.running is self.fault_with:
            return Mode.UNKNOWN
        if self.standing_by and self.running is Mode.ON:
            return Mode.STANDBY
        ignores = self.fault == "ignore" and self.running is self.fault_with
        return (Mode.ON if self.running is Mode.OFF else Mode.OFF) if ignores else self.running

    @property
    def standing_by(self) -> bool:
        """Whether its switch is at 0, by an order whose lease has not ended."""
        return self.ordered == 0 and self.now < self.lease_ends

    def set_clock_back(self, seconds: float) -> None:
        """Its times are by the clock that everybody has."""
        self.now -= seconds
        self.started -= seconds
        self.scraped -= seconds
        self.lease_ends -= seconds

    # The switch, as its client shows it

    def state(self) -> SwitchState:
        if not self.up or self.fault == "no-switch":
            raise ActuatorError("the switch does not answer", retry=True)
        held = self.ordered is not None and self.now < self.lease_ends
        return SwitchState(
            server=str(self.instance),
            launch_draft_tokens=4,
            number=self.number,
            draft_tokens=self.ordered if held else None,
            by=self.ordered_by if held or self.ordered is None else "",
        )

    def order(
        self,
        draft_tokens: int | None,
        *,
        lease: float,
        by: str,
        claim: Claim = ANYTIME,
    ) -> SwitchState:
        claim.require()
        self.state()
        self.point("before the order")
        if self.running is Mode.OFF:
            raise ActuatorError("vLLM runs without speculation", changed=False)
        if draft_tokens != self.ordered or self.now >= self.lease_ends:
            self.orders.append((self.now, draft_tokens))
        self.ordered, self.lease_ends, self.ordered_by = draft_tokens, self.now + lease, by
        self.number += 1
        self.point("after the order")
        return self.state()

    # The manager

    def plan(self) -> Plan:
        if self.fault == "limit":
            raise ActuatorError("the helper restarts it at most 12 times")
        return Plan((), (), (), ())

    def status(self) -> Service:
        if self.fault == "no-status":
            raise ActuatorError("the manager does not answer", retry=True)
        crashed = self.fault == "crash" and self.broken
        life = (
            ProcessState.DOWN
            if crashed
            else ProcessState.STOPPED
            if self.fault == "stopped"
            else ProcessState.UP
        )
        return Service(life, self.configured, str(self.instance), stale=self.stale)

    def disable(self, claim: Claim) -> None:
        self._switch(Mode.OFF, claim)

    def enable(self, claim: Claim) -> None:
        self._switch(Mode.ON, claim)

    def close(self) -> None:
        pass

    def _switch(self, mode: Mode, claim: Claim) -> None:
        self.point("before the claim is checked")
        claim.require()
        if self.fault == "refuse" and mode is self.fault_with:
            raise ActuatorError("the unit is masked")
        self.point("before the drop-in")
        self.configured = mode
        self.point("before the restart")
        self.restart()
        self.point("after the restart")
        if self.fault == "timeout" and mode is self.fault_with:
            raise ActuatorError("systemd did not answer in time", changed=True)

    def restart(self) -> None:
        """Whoever does it."""
        self.instance += 1
        self.running, self.started = self.configured, self.now
        self.ordered, self.ordered_by, self.number = None, "", 0
        self.starts.append((self.now, self.running))

    # What is seen of it

    def seen(self) -> TargetStatus:
        if self.up:
            self.scraped = self.now
        failure = None if self.up else Failure("refused", "connection refused", self.now)
        other = self.fault == "model" and self.running is self.fault_with
        return TargetStatus(
            "chat",
            "http://127.0.0.1:8000",
            5.0,
            models={"another" if other else "tiny": self.mode},
            last_scrape=self.now,
            last_success=self.scraped or None,
            failure=failure,
            load=self.load,
            switch=SwitchSetting(
                (self.ordered or 0) if self.standing_by else 4,
                ordered=self.standing_by,
                followed=self.follows if self.standing_by else None,
            )
            if self.switched
            else None,
        )

    def decision(self) -> TargetDecision:
        on = self.up and self.mode is Mode.ON and self.bad
        seconds = self.now - self.started - BOOT_SECONDS
        if not on or seconds < BREACH_SECONDS / 2:
            return TargetDecision()
        verdict = Verdict.BREACH if seconds >= BREACH_SECONDS else Verdict.PASS
        finding = Finding(
            NET_NEGATIVE,
            "chat",
            "tiny",
            ALL,
            verdict,
            Verdict.BREACH,
            self.now,
            None,
            (),
            at=self.now,
        )
        return TargetDecision(findings=(finding,))

    def speedup(self) -> Interval:
        """Of speculation as it is."""
        if self.measured is not None:
            return self.measured
        value = 0.5 if self.bad else 1.8
        return Interval(value, value * 0.9, value * 1.1, 20)

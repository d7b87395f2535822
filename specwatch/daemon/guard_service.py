"""Runs the guards of this daemon's targets, and shares targets with other daemons by leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from specwatch.actuators import owner, switch_of
from specwatch.actuators.base import Actuator, boottime
from specwatch.config.loading import Config
from specwatch.config.target import Target
from specwatch.daemon.guard_dependencies import GuardDependencies
from specwatch.daemon.guarded_switch import GuardedSwitch
from specwatch.daemon.rule_service import RuleService
from specwatch.daemon.target_guard import CLOCK_STEP, TargetGuard
from specwatch.domain.holdout import Holdout
from specwatch.domain.model import Moment
from specwatch.errors import StoreError
from specwatch.guard.holdout import serving
from specwatch.guard.status import GuardStatus
from specwatch.status import TargetStatus
from specwatch.store.guard_records import LEASE_SECONDS, GuardBook
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store

_log = structlog.get_logger("specwatch.guard")

TURN_SECONDS = 2.0
_RENEW_SECONDS = LEASE_SECONDS / 2
_MOST_THREADS = 32


class GuardService:
    """Guards every target of the configuration; safe to use from several threads.

    Nothing raises, neither when the database fails nor an actuator.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        now: Callable[[], Moment],
        rule_service: RuleService,
        status: Callable[[str], TargetStatus],
        healthy: Callable[[str], bool],
        actuator: Callable[[Target], Actuator | None],
        pool: Executor | None = None,
    ) -> None:
        """``status`` and ``healthy`` are of a target by name; ``actuator`` makes one for it;
        ``pool`` runs turns that may take long, by default its own threads."""
        self._store = store
        self._book = GuardBook(store)
        self._now = now
        self._rule_service = rule_service
        self._status = status
        self._healthy = healthy
        self._actuator = actuator
        self._holder = f"{store.daemon}:{owner.identity()}"
        self._guards: dict[str, TargetGuard] = {}
        self._entries: dict[str, Entry] = {}
        self._groups: dict[str, dict[str, Entry]] = {}
        self._sizes: dict[str, int] = {}
        """Members by group that a daemon guards."""
        self._offset = now().offset
        self._renewed = float("-inf")
        self._turning = threading.Lock()
        self._error: str | None = None
        self._pool = pool or ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="guard")
        self._waiting: set[TargetGuard] = set()
        """Guards that wait for a thread."""
        self._closed = False
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Guard by a configuration; the guards of unchanged targets go on."""
        guards: dict[str, TargetGuard] = {}
        for target in config.targets:
            present = self._guards.get(target.name)
            if present is not None and present.target == target:
                present.policy = config.guard
                guards[target.name] = present
            else:  # with guard.mode off, too: to finish what was begun
                guards[target.name] = TargetGuard(
                    target,
                    config.guard,
                    self._actuator(target),
                    self._dependencies_of(target.name),
                    switch=GuardedSwitch(target.name, switch_of(target))
                    if target.switch is not None
                    else None,
                    after=present,
                )
        removed = [guard for name, guard in self._guards.items() if guards.get(name) is not guard]
        self._guards = guards
        for guard in removed:
            self._pool.submit(_close, guard)

    def turn(self) -> None:
        """Run a turn of every guard that is ours."""
        if self._closed or not self._turning.acquire(blocking=False):
            return
        try:
            self._turn()
        finally:
            self._turning.release()

    def status_of(self, target: str) -> GuardStatus | None:
        """The guard of a target; None before it was read."""
        guard, entry = self._guards.get(target), self._entries.get(target)
        if guard is None:
            return None
        state = guard.state if guard.entry else entry.state if entry else None
        group = state.group if state else ""
        return GuardStatus(
            mode=guard.policy.mode,
            state=state,
            ours=entry is not None and entry.held_by(self._holder),
            holder=entry.daemon if entry else "",
            error=guard.error or self._error,
            actions=dict(guard.actions),
            max_actions_per_day=guard.policy.max_actions_per_day,
            group_size=self._sizes.get(group, 0),
            able=guard.target.service is not None or guard.target.switch is not None,
            explores=guard.policy.mode == "act"
            and guard.policy.explore.budget > 0
            and guard.target.service is not None,
        )

    @property
    def acting(self) -> set[str]:
        """The targets on which an action is under way."""
        return {name for name, guard in self._guards.items() if guard.busy}

    def close(self) -> None:
        """Release the leases; the next holder resumes what is under way."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        try:
            acting = [name for name, guard in self._guards.items() if guard.running.locked()]
            self._book.release(self._holder, self._now().wall, but=acting)
        except StoreError as error:
            _log.warning("guard_not_released", detail=str(error))

    def _turn(self) -> None:
        guards = dict(self._guards)
        if not any(guard.busy for guard in guards.values()):
            self._follow_clock(guards)
        try:
            self._read(guards)
        except StoreError as error:
            if str(error) != self._error:
                _log.error("guard_unread", detail=str(error))
            self._error = str(error)
            # What is under way is finished, and an order of a switch renewed, from memory.
            ours = [
                guard
                for name, guard in guards.items()
                if self._is_ours(name) and (guard.busy or guard.state.standby)
            ]
        else:
            self._error = None
            self._rule_service.holdouts = self._holdouts(guards)
            ours = [guard for name, guard in guards.items() if self._is_ours(name)]
        for guard in ours:
            if guard.slow or guard.busy:
                self._submit(guard)
            else:
                self._run(guard)

    def _follow_clock(self, guards: dict[str, TargetGuard]) -> None:
        """Take over the wall clock, and tell our guards when it was set back.

        It also goes forward while a machine is suspended: nothing is moved then.
        """
        before = self._offset
        self._offset = self._now().offset
        if before - self._offset > CLOCK_STEP:
            for name, guard in guards.items():
                if self._is_ours(name):
                    guard.set_back(before - self._offset)

    def _read(self, guards: dict[str, TargetGuard]) -> None:
        """Read every guard, acquire the free leases, renew ours."""
        now = self._now()
        looked = boottime()
        earlier = entries = self._book.look()
        due = now.monotonic - self._renewed >= _RENEW_SECONDS
        free = any(name not in entries or entries[name].left <= 0 for name in guards)
        if guards and (due or free):
            for can_act in (True, False):
                names = [name for name, guard in guards.items() if guard.able is can_act]
                if names:
                    self._book.hold(names, self._holder, now.wall, able=can_act)
            self._renewed = now.monotonic
            looked = boottime()
            entries = self._book.look()
        groups: dict[str, dict[str, Entry]] = {}
        for name, entry in entries.items():
            groups.setdefault(entry.state.group, {})[name] = entry
        self._entries, self._groups = entries, groups
        self._sizes = {
            group: sum(entry.left > 0 for entry in members.values())
            for group, members in groups.items()
        }
        for name, guard in guards.items():
            if name not in entries:
                continue
            if not guard.running.locked():
                guard.take(entries[name])
            until = looked + entries[name].left if self._is_ours(name) else 0.0
            before = earlier.get(name, entries[name])
            kept = before.held_by(self._holder)
            guard.lease(until, after_dead=not kept and owner.is_gone(before.process))

    def _is_ours(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.held_by(self._holder)

    def _submit(self, guard: TargetGuard) -> None:
        if guard.running.locked() or guard in self._waiting:
            return
        self._waiting.add(guard)
        try:
            self._pool.submit(self._run, guard)
        except RuntimeError as error:
            if not self._closed:
                _log.error("no_thread", target=guard.target.name, detail=str(error))

    def _run(self, guard: TargetGuard) -> None:
        self._waiting.discard(guard)
        try:
            guard.turn()
        except Exception:
            # A defect in one guard must not stop the others, and must be logged.
            _log.exception("guard_failed", target=guard.target.name)

    def _holdouts(self, names: Iterable[str]) -> dict[str, tuple[Holdout, ...]]:
        """The holdouts of the group of each target that has some."""
        served = {
            group: serving(entry.state for entry in members.values())
            for group, members in self._groups.items()
            if group
        }
        if not any(served.values()):
            return {}
        return {name: served.get(self._group_name(name), ()) for name in names}

    def _group_name(self, name: str) -> str:
        entry = self._entries.get(name)
        return self._status(name).group or (entry.state.group if entry else "")

    def _others(self, name: str) -> dict[str, Entry]:
        """The guards of the other members of the group of a target, by target."""
        group = self._group_name(name)
        others = dict(self._groups.get(group, {})) if group else {}
        others.pop(name, None)
        return others

    def _dependencies_of(self, name: str) -> GuardDependencies:
        return GuardDependencies(
            store=self._store,
            book=self._book,
            status=lambda: self._status(name),
            decision=lambda: self._rule_service.decision_of(name),
            group=lambda: self._group_name(name),
            others=lambda: self._others(name),
            baselines=lambda: self._rule_service.baselines_of(name),
            switched=lambda: self._rule_service.forget(name),
            healthy=lambda: self._healthy(name),
            now=lambda: self._now().monotonic + self._offset,
            wall=lambda: self._now().wall,
        )


def _close(guard: TargetGuard) -> None:
    """Close it after its current turn; its successor resumes."""
    with guard.running:
        guard.close()

"""One life of a world: a policy looks at its pages and restarts it; what came of it is scored."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from tests.worlds.world import START, World

MARGIN = 0.02
"""Speculation truly helps, or hurts, where its speedup is so far from 1."""
VERIFY = 600.0
"""Seconds that the guard may take, once the server is back, to find that it was wrong."""
_SLACK = 60.0


class Server:
    """A world as a policy sees it: the page of now, and the switch."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = START
        self.page: str | None = None
        self.restarts = 0
        self.switches: list[tuple[float, bool]] = []

    def look(self, now: float) -> None:
        """Read the page of a time."""
        self.now = now
        self.page = self.world.page(now)

    def restart(self, *, speculation: bool) -> None:
        """Restart the server now."""
        self.restarts += 1
        self.switches.append((self.now, speculation))
        self.world.restart(self.now, speculation)
        self.page = None

    @property
    def speculating(self) -> bool | None:
        """Whether its page has the families of speculation; None while it is down."""
        return None if self.page is None else "vllm:spec_decode_num_draft_tokens" in self.page


class Policy(Protocol):
    """Decides when a server is restarted, and how."""

    name: str

    def step(self, server: Server) -> None:
        """Look at the page of now, and perhaps restart."""

    def end(self) -> dict[str, Any]:
        """The end of its life: ``held``, ``final_state`` and what else it has to say."""


@dataclass
class Score:
    """What a policy made of a world. Times are in the unit of their names."""

    world: str
    policy: str
    seed: int
    hours: float = 0.0
    speedup_low: float = 0.0
    speedup_high: float = 0.0
    false_disables: int = 0
    """Stretches without speculation while it truly helped, longer than verifying takes. They begin
    with the order, or when speculation began to help; a stretch is judged by the truth of each
    minute."""
    longest_false_disable_minutes: float = 0.0
    false_disables_over_an_hour: int = 0
    false_disable_minutes: float = 0.0
    """All stretches together, short ones too."""
    short_false_disables: int = 0
    """Those that were put right within the time of verifying; explorations count too."""
    undone_disables: int = 0
    """Put back within the time of verifying while speculation truly hurt."""
    missed_minutes: float = 0.0
    """With speculation on while it hurt."""
    delay_s: float | None = None
    """Median time from when it began to hurt to the restart."""
    delays_s: list[float] = field(default_factory=list)
    restarts: int = 0
    down_minutes: float = 0.0
    regret_percent: float = 0.0
    """Time lost against an oracle that switches for nothing, over all time."""
    share_on: float = 0.0
    held: bool = False
    final_state: str = ""
    log: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def live(
    world: World,
    policy: Policy,
    *,
    hours: float,
    seed: int,
    progress: Callable[[float], object] = lambda hours: None,
) -> Score:
    """Let a policy look after a world for some simulated hours."""
    server = Server(world)
    book = _Book(world)
    steps = int(hours * 3600 / world.interval)
    for n in range(steps):
        now = START + n * world.interval
        server.look(now)
        book.step(server)
        policy.step(server)
        if n % 240 == 0:
            progress(n * world.interval / 3600)
    score = book.score(policy.name, seed, server, hours)
    end = policy.end()
    score.held = bool(end.get("held", False))
    score.final_state = str(end.get("final_state", ""))
    score.log = list(end.get("log", ()))
    return score


@dataclass
class _Off:
    """A stretch without speculation by the policy's order. Times are Unix seconds."""

    ordered: float
    truth: float
    up: float | None = None
    helping_since: float | None = None
    """Since when speculation would truly help, if it would."""


class _Book:
    """Adds up, scrape by scrape, what a policy's choices cost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lost = self._on = self._down = self._missed = 0.0
        self._truths: list[float] = []
        self._off: _Off | None = None
        self._hurting_since: float | None = None
        self._tries = False
        """Whether the policy switched it on as a trial, whose end does not count as a delay."""
        self._seen = 0
        self._restarting = False
        """Whether the server is down by the policy's order."""
        self._score = Score("", "", 0)

    def step(self, server: Server) -> None:
        """Take the interval that begins now; called before the policy looks at it."""
        step, truth, now = self._world.interval, self._world.truth(server.now), server.now
        self._truths.append(truth)
        for time, speculation in server.switches[self._seen :]:
            self._switched(time, self._world.truth(time), speculation)
        self._seen = len(server.switches)
        speculating = server.speculating
        if speculating is not None:
            self._restarting = False
        if self._restarting and speculating is None:
            self._down += step
            self._lost += step
        elif speculating is None:  # a scrape was lost, or somebody else restarts it
            return
        elif speculating:
            self._on += step
            self._lost += step * max(1 / truth - 1, 0.0)
            if self._off is not None and self._off.up is not None:  # somebody else's restart
                self._off, self._tries = None, False
        else:
            self._lost += step * max(truth - 1, 0.0)
            if self._off is not None and self._off.up is None:
                self._off.up = now
        if self._off is not None:
            self._wrongly_off(self._off, now, truth)
        self._hurts(now, truth, on=bool(speculating), step=step)

    def _wrongly_off(self, off: _Off, now: float, truth: float) -> None:
        """Count a stretch that was wrong until now, once speculation would not help any more."""
        if truth > 1 + MARGIN:
            if off.helping_since is None:
                off.helping_since = now
            return
        if off.helping_since is None:
            return
        begun = off.ordered if off.up is None else max(off.up, off.helping_since)
        short = now - begun <= VERIFY + _SLACK
        minutes = (now - off.helping_since) / 60
        off.helping_since = None
        score = self._score
        score.false_disable_minutes += minutes
        score.longest_false_disable_minutes = max(score.longest_false_disable_minutes, minutes)
        score.false_disables_over_an_hour += minutes > 60
        score.short_false_disables += short
        score.false_disables += not short

    def _hurts(self, now: float, truth: float, *, on: bool, step: float) -> None:
        if truth >= 1 - MARGIN:
            self._hurting_since = None
            self._tries = False
            return
        if on:
            self._missed += step
            if self._hurting_since is None and not self._tries:
                self._hurting_since = now

    def _switched(self, now: float, truth: float, speculation: bool) -> None:
        self._restarting = True
        if not speculation:
            self._off = _Off(now, truth, helping_since=now if truth > 1 + MARGIN else None)
            if self._hurting_since is not None:
                self._score.delays_s.append(now - self._hurting_since)
                self._hurting_since = None
            return
        self._hurting_since = None
        self._tries = True
        if self._off is not None:
            self._ended(self._off, now, truth)
            self._off = None

    def _ended(self, off: _Off, now: float, truth: float) -> None:
        self._wrongly_off(off, now, truth=1.0)
        lasted = now - (off.ordered if off.up is None else off.up)
        hurt = off.truth < 1 - MARGIN and truth < 1 - MARGIN
        self._score.undone_disables += hurt and lasted <= VERIFY + _SLACK

    def score(self, policy: str, seed: int, server: Server, hours: float) -> Score:
        """What it comes to."""
        now = server.now + self._world.interval
        if self._off is not None:
            self._ended(self._off, now, 1.0)
        score, seconds = self._score, hours * 3600
        score.world, score.policy, score.seed, score.hours = self._world.name, policy, seed, hours
        score.speedup_low, score.speedup_high = min(self._truths), max(self._truths)
        score.missed_minutes = self._missed / 60
        score.delay_s = statistics.median(score.delays_s) if score.delays_s else None
        score.restarts = server.restarts
        score.down_minutes = self._down / 60
        score.regret_percent = 100 * self._lost / seconds
        score.share_on = self._on / seconds
        return score

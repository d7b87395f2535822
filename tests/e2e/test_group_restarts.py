"""Groups of replicas are restarted while their daemons are killed, stopped and cut off.

A story is two or three daemons, of which one watches and the others stand by, and eight simulated
vLLMs in two groups, whose guards restart them by a rule, for persons and for trials. A generator
draws what happens at which step of a restart: kill -9 and SIGSTOP of a daemon, a cut or a hold of
its network to Postgres, an end of Postgres in order or by a crash. What must hold is watched from
outside: which servers listen, what each has counted in all its lives, how often its command was
run.

A campaign: ``python -m tests.e2e.test_group_restarts FIRST_SEED STORIES SECONDS TOGETHER``.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGQUIT, SIGSTOP
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from specwatch.cli import group as specwatch
from specwatch.domain.model import Mode, Window
from specwatch.errors import StoreError
from specwatch.guard import state_machine
from specwatch.guard.state import CALM, GuardState, Phase, Step
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from tests.e2e.api import settled
from tests.e2e.clients import Clients
from tests.e2e.guarded import LoadBalancer
from tests.e2e.processes import DaemonProcess
from tests.e2e.replicas import Relay, Replica, Router
from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts, speculates, stored, total
from tests.lab.traffic import Request, prompt_number
from tests.postgres import PostgresServer, running_postgres

GROUPS = {group: tuple(f"{group}-{number}" for number in range(4)) for group in ("chat", "code")}
DAEMONS = ("amber", "birch", "cedar")
MOST_ACTIONS, COOLDOWN = 8, 10.0
POSTGRES = "postgres"
SECONDS_AWAY = {
    "kill": (0.0, 0.0, 1.0, 2.0, 35.0),
    "stop": (1.0, 3.0, 7.0, 12.0, 35.0),
    "cut": (2.0, 4.0, 7.0, 12.0, 35.0),
    "hold": (1.0, 3.0, 7.0, 12.0, 35.0),
    "crash": (0.0, 1.0, 8.0),
    "end": (0.0, 1.0, 8.0),
}
"""By fault: how long it may last. The lease of a guard lasts 30 s, that of a daemon 8 s."""
OF_A_DAEMON, WEIGHTS = ("kill", "stop", "cut", "hold"), (4, 2, 2, 2)
OF_POSTGRES = {"crash": SIGQUIT, "end": SIGINT}
AT_A_STEP, AT_POSTGRES = 0.6, 0.1
"""Probabilities: of each of two faults at a step, and that it is one of Postgres."""
BETWEEN_ORDERS = 10.0
UNWRITTEN = 150.0
"""Seconds for which counts may be in a daemon only: two minutes, and while Postgres is away."""
_one_command = threading.Lock()
"""Held while a command runs in this process and while this process prints: one output."""
_LISTENING = re.compile(rb": [0-9A-F]{8}:([0-9A-F]{4}) [0-9A-F]{8}:[0-9A-F]{4} 0A ")
_HOLDER = "SELECT process FROM leases WHERE until > 0"
_STEPS = """
SELECT target, version, phase_before, phase FROM guard_steps
WHERE at > extract(epoch FROM now()) - 60 AND daemon != 'ann' ORDER BY at, version
"""


@dataclass(frozen=True)
class Point:
    """A fault at a step of a guard; ``who`` is a daemon or Postgres, times are Unix seconds."""

    fault: str
    who: str
    step: str
    began: float
    ends: float


class Story:
    """One fleet and what happens to it: :meth:`happen` is for one thread, with which all ends."""

    def __init__(self, seed: int, folder: Path, stack: ExitStack) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        folder = folder / f"story-{seed}"
        folder.mkdir()
        self.log = stack.enter_context((folder / "story").open("w"))
        self.most = self._chance.choice([1, 1, 2])
        self.points: list[Point] = []
        self.violations: dict[str, list[str]] = {}
        """By what has to hold: where it did not."""
        self.facts = Counter[str]()
        self.postgres: PostgresServer = stack.enter_context(running_postgres())
        self.database = self.postgres.new_url()
        self._store = Store(self.database, daemon="d")
        self._store.open(time.time())
        stack.callback(self._store.close)
        self._book = GuardBook(self._store)
        self._balancer = stack.enter_context(contextlib.closing(LoadBalancer()))
        self.replicas = {name: Replica(folder, name) for names in GROUPS.values() for name in names}
        names = DAEMONS[: self._chance.choice([2, 3, 3])]
        url = sa.make_url(self.database)
        self.relays = {
            name: stack.enter_context(contextlib.closing(Relay(_socket(url)))) for name in names
        }
        self.daemons = {
            name: DaemonProcess.configured(
                folder / name,
                _over(url, relay.port),
                self._configuration(_over(url, relay.port)),
            )
            for name, relay in self.relays.items()
        }
        self._under_way: dict[str, Point] = {}
        """What lasts now, by whom it has hit."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._watchers: list[tuple[float, str]] = []
        """Which daemon watches, since when."""
        self._holders: list[Any] = []
        """The process of the one that watches."""
        self._steps: set[tuple[str, int]] = set()
        self._connection: psycopg.Connection | None = None
        stack.callback(self._disconnect)
        self.orders = Counter[str]()
        self._stack = stack

    def _configuration(self, database: str) -> dict[str, object]:
        low = {
            "name": "low",
            "metric": "acceptance_ratio",
            "below": 0.3,
            "window": "1m",
            "for": "0s",
            "clear_for": "1m",
            "min_drafts": 20,
            "action": "disable",
        }
        return {
            "daemon": "d",
            "database": database,
            "targets": [
                {
                    "name": name,
                    "url": self.replicas[name].url,
                    "interval": "1s",
                    "group": group,
                    "service": self.replicas[name].service(),
                }
                for group, names in GROUPS.items()
                for name in names
            ],
            "rules": {"use_defaults": False, "extra": [low]},
            "guard": {
                "mode": "act",
                "cooldown": f"{COOLDOWN:g}s",
                "max_actions_per_day": MOST_ACTIONS,
                "max_unavailable": self.most,
                "drain_timeout": "20s",
                "start_timeout": "3m",
                "verify": "10s",
                "respect": "0s",
                "rearm": {"after": "1m", "most": "2m", "trial": "2m"},
                "hooks": {
                    "before": self._balancer.hook("drain"),
                    "after": self._balancer.hook("ready"),
                },
            },
        }

    def happen(self, seconds: float) -> None:
        """Faults for so long, then calm, then what must hold."""
        for replica in self.replicas.values():
            self._stack.callback(replica.kill)
            replica.start()
        for replica in self.replicas.values():
            replica.wait_ready()
        for daemon in self.daemons.values():
            self._stack.enter_context(daemon)
        began = time.time()
        self._wait_scraped()
        eventually(self._all_begun, what="the first pages are stored", within=300.0)
        routers = [self._router(names) for names in GROUPS.values()]
        watching = threading.Event()
        witness = threading.Thread(target=self._watch, args=(watching,))
        witness.start()
        try:
            with ExitStack() as traffic:
                clients = [
                    traffic.enter_context(Clients(router.url, 2, _requests, pause=0.6))
                    for router in routers
                ]
                self._disturb(time.time() + seconds)
                self._note("calm")
                self._calm_down()
                self._note("traffic ends")
        finally:
            watching.set()
            witness.join()
        failures = [failure for router in routers for failure in router.failures]
        self.require("each request finds a live replica", failures)
        self.facts["requests"] = sum(one.answered for one in clients)
        self.require("each request is answered", [e for one in clients for e in one.errors()])
        self._note("counts")
        self._judge_counts(began)
        self._note("ends")
        self._judge_ends()
        self._note("runs")
        self._judge_runs()
        self._note("done")
        for step in reversed(self._book.history()):
            print(f"{step.at:.1f} {step.target} {step.phase} {step.reason}", file=self.log)

    def _note(self, what: str) -> None:
        print(f"{time.time():.1f} == {what}", file=self.log, flush=True)

    def require(self, what: str, violations: Sequence[str]) -> None:
        """Keep what was found against something that has to hold."""
        self.violations.setdefault(what, []).extend(violations)

    def _wait_scraped(self) -> None:
        """Return once every target was read by a scrape that ended after now."""
        now = time.time()

        def unread() -> set[str]:
            targets = (
                one for daemon in self.daemons.values() for one in daemon.status()["targets"]
            )
            return {*self.replicas} - {
                one["name"] for one in targets if (one["last_success"] or 0.0) > now
            }

        eventually(lambda: not unread(), what="all is scraped", within=300.0, evidence=unread)

    def _all_begun(self) -> bool:
        return self._store.cursors().keys() == self.replicas.keys()

    def _router(self, names: Sequence[str]) -> Router:
        router = Router([self.replicas[name] for name in names], lambda: self._balancer.drained)
        return self._stack.enter_context(contextlib.closing(router))

    def _watch(self, ended: threading.Event) -> None:
        """How many servers of each group do not listen, or are out of rotation, at each moment."""
        before: dict[str, set[str]] = {}
        while not ended.wait(0.1):
            sockets = Path("/proc/net/tcp").read_bytes()
            ports = {int(port, 16) for port in _LISTENING.findall(sockets)}
            for group, names in GROUPS.items():
                down = {name for name in names if self.replicas[name].port not in ports}
                out = down | self._balancer.drained.intersection(names)
                self.facts[f"looks with {len(out)} of a group out"] += 1
                news = out != before.get(group)
                before[group] = out
                for what, ones in (("down", down), ("down or out of rotation", out)):
                    late = len(ones) > self.most and news
                    detail = [f"{time.time():.1f}: {sorted(ones)}"] if late else []
                    self.require(f"at most max_unavailable are {what}", detail)

    # What happens

    def _disturb(self, until: float) -> None:
        order_at = 0.0
        while time.time() < until:
            time.sleep(0.05)
            self._run_due(time.time())
            for name, daemon in self.daemons.items():
                assert daemon.running or name in self._under_way, daemon.log_text()[-3000:]
            if time.time() > order_at:
                order_at = time.time() + self._chance.uniform(0, 2 * BETWEEN_ORDERS)
                self._order()
            for step, watching in self._look():
                for _ in range(2):
                    self._step(step, watching)

    def _look(self) -> Iterator[tuple[str, str]]:
        """New steps of guards, and the daemon that watches then; none without Postgres."""
        try:
            if self._connection is None:
                url = sa.make_url(self.database)
                self._connection = psycopg.connect(
                    host=str(_socket(url).parent),
                    user="specwatch",
                    dbname="postgres",
                    options=str(url.query["options"]),
                    autocommit=True,
                    connect_timeout=3,
                )
            holders = self._connection.execute(_HOLDER).fetchall()
            steps = self._connection.execute(_STEPS).fetchall()
        except psycopg.OperationalError:
            self._connection = None
            return
        if holders != self._holders:
            self._holders = holders
            for name, daemon in self.daemons.items():
                if daemon.running and any(f".{daemon.pid}." in process for (process,) in holders):
                    self._watchers.append((time.time(), name))
        present = self._watchers[-1][1] if self._watchers else ""
        for target, version, before, phase in steps:
            if (target, version) in self._steps:
                continue
            first = all(target != known for known, _ in self._steps)
            self._steps.add((target, version))
            if not first:
                yield phase if phase != before else f"{phase}, a note", present

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _step(self, step: str, watching: str) -> None:
        """Draw whether something happens at a step, what, to whom and how soon."""
        if self._chance.random() > AT_A_STEP:
            return
        fault = self._chance.choices(OF_A_DAEMON, WEIGHTS)[0]
        who = watching if self._chance.random() < 0.7 else self._chance.choice([*self.daemons])
        if self._chance.random() < AT_POSTGRES:
            fault, who = self._chance.choice([*OF_POSTGRES]), POSTGRES
        delay = self._chance.choice([0.0, 0.0, self._chance.uniform(0.0, 2.0)])
        self._at(time.time() + delay, partial(self._hit, fault, who, step))

    def _hit(self, fault: str, who: str, step: str) -> None:
        if who in self._under_way or who not in (*self.daemons, POSTGRES):
            return
        now, lasts = time.time(), self._chance.choice(SECONDS_AWAY[fault])
        point = self._under_way[who] = Point(fault, who, step, now, now + lasts)
        self.points.append(point)
        self._note(str(point))
        if fault in OF_POSTGRES:
            self.postgres.stop(OF_POSTGRES[fault])
        elif fault == "kill":
            self.daemons[who].kill()
        elif fault == "stop":
            self.daemons[who].signal(SIGSTOP)
        elif fault == "cut":
            self.relays[who].cut()
        else:
            self.relays[who].hold()
        self._at(point.ends, partial(self._mend, point))

    def _mend(self, point: Point) -> None:
        if point.who == POSTGRES:
            self.postgres.start()
        elif point.fault == "kill":
            self.daemons[point.who].start()
        elif point.fault == "stop":
            self.daemons[point.who].signal(SIGCONT)
        else:
            self.relays[point.who].heal()
        del self._under_way[point.who]

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def _run_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _order(self) -> None:
        """A person wants some of a group, or all of it, in one mode."""
        names = self._chance.choice([*GROUPS.values()])
        goal = self._chance.choice([Mode.ON, Mode.OFF])
        for name in self._chance.sample(names, self._chance.randint(1, len(names))):
            if self._change(name, partial(state_machine.order, goal=goal, by="ann")):
                self.orders[name] += 1

    def _change(self, name: str, make: Callable[..., Step]) -> bool:
        now = time.time()
        with contextlib.suppress(StoreError):
            self._book.change(name, lambda state: make(state, now=now), now, by="ann")
            return True
        return False

    def _calm_down(self) -> None:
        """Nothing begins any more, and what is under way ends."""
        self._due.clear()
        for point in [*self._under_way.values()]:
            self._mend(point)

        def paused() -> bool:
            return all(
                self._change(
                    name, lambda state, now: state_machine.pause(state, until=now + 9e3, by="ann")
                )
                for name in self.replicas
            )

        eventually(paused, what="the database answers", within=300.0)
        eventually(
            lambda: [*self._look()] == [] and all(calm(one) for one in self.states().values()),
            what=f"story {self.seed}: all guards are calm",
            within=300.0,
            every=0.5,
            evidence=lambda: "\n".join(str(one) for one in self.states().values() if not calm(one)),
        )

    # What must hold

    def states(self) -> dict[str, GuardState]:
        """Of the guards, as they are stored."""
        return {name: entry.state for name, entry in self._book.look().items()}

    def _judge_ends(self) -> None:
        wrong, caps, unexplained = [], [], []
        for name, state in self.states().items():
            self.facts[f"ends {state.phase}"] += 1
            if state.phase in (Phase.HELD, Phase.ROLLING_BACK):
                wrong.append(f"{name} is {state.phase}: {state.why}")
            on = speculates(self.replicas[name].url)
            if state.goal is not (Mode.ON if on else Mode.OFF):
                wrong.append(f"{name} is to be {state.goal}, and speculation is on: {on}")
            gaps = [later - at for at, later in itertools.pairwise(state.actions)]
            if len(state.actions) > MOST_ACTIONS or min(gaps, default=COOLDOWN) < COOLDOWN - 0.01:
                caps.append(f"{name}: {state.actions}")
            unexplained += self._unexplained(name)
        self.require("the servers run as the guards say", wrong)
        self.require("the caps hold", caps)
        self.require("`guard explain` words the end", unexplained)
        self.require("none stays out of rotation", sorted(self._balancer.drained))

    def _unexplained(self, name: str) -> list[str]:
        options = ("--target", name, "--database", self.database)
        with _one_command:
            answer = CliRunner().invoke(
                specwatch, ["guard", "explain", "latest", *options, "--json"]
            )
        if answer.exit_code:
            never = not any(step.incident for step in self._book.history(target=name))
            expected = never and "no incident yet" in answer.output
            return [] if expected else [f"{name}: {answer.output}"]
        incident = json.loads(answer.stdout)
        *_, last = steps = incident["steps"]
        missing = [f"no reason: {step}" for step in steps if not step["reason"]]
        if incident["state"] is not None and last["phase"] != incident["state"]["phase"]:
            missing.append(f"the last step is {last}, and the state {incident['state']}")
        return [f"{name}: {one}" for one in missing]

    def _judge_runs(self) -> None:
        """Each run of a command has a claim, and each claim one run; one more where the first was
        killed with its daemon, as the next daemon saw."""
        wrong, caps = [], []
        for name, replica in self.replicas.items():
            runs = replica.runs()
            self.facts["restarts"] += len(runs)
            self.facts["restarts that cut off a request"] += sum(run[-1] == "busy" for run in runs)
            steps = self._book.history(target=name)
            claims = [
                step
                for step in reversed(steps)
                if step.phase != step.phase_before and step.phase in ("restarting", "rolling_back")
            ]
            killed = sum("has ended, and did not restart" in step.reason for step in steps)
            if not len(claims) <= len(runs) <= len(claims) + killed:
                told = [f"{step.at:.1f} {step.phase} {step.incident}" for step in claims]
                wrong.append(f"{name}: runs {runs}, claims {told}")
            most = 2 * MOST_ACTIONS + self.orders[name]
            if len(runs) > most:
                caps.append(f"{name}: {len(runs)} restarts, {most} at most")
        self.require("each claim is one restart", wrong)
        self.require("the caps hold", caps)

    def _judge_counts(self, began: float) -> None:
        running = [*self.daemons.values()]
        present = {name: settled(one.metrics, ()) for name, one in self.replicas.items()}
        self._wait_scraped()
        for daemon in running:
            daemon.stop()
        # What the last one could not write any more is counted from its cursor by the next.
        running[0].start()
        running[0].wait(
            lambda status: (
                sum(one["last_success"] is not None for one in status["targets"])
                == len(self.replicas)
            ),
            what="one goes on alone",
            within=300.0,
        )
        running[0].stop()
        ended = time.time()
        windows = running[0].windows()
        twice, lost = [], []
        for name, replica in self.replicas.items():
            own = [window for window in windows if window.series.target == name]
            lives = replica.lives()
            have, most = stored(own), total([present[name], *(counts for _, counts in lives)])
            seen = [counts for at, counts in lives if not self._unseen(at)]
            self.facts["lives that a daemon saw to their end"] += len(seen)
            self.facts["lives that ended"] += len(lives)
            self.facts["targets with every count"] += have == most
            least = total([present[name], *seen])
            rows = [(one.start - round(began), one.tally.generation_tokens) for one in own]
            twice += [f"{name}: {line}; {rows}" for line in above(have, most)]
            lost += [f"{name}: {line}; {rows}" for line in above(least, have)]
            twice += [f"{name}: {line}" for line in covered_twice(own, ended - began)]
        self.require("no minute is counted twice", twice)
        self.require("what a survivor saw is stored", lost)

    def _unseen(self, at: float) -> bool:
        """Whether what a daemon saw of the life that ended then may have been lost with it."""
        since, until = at - 15.0, at + UNWRITTEN
        moved = any(since < moment < until for moment, _ in self._watchers[1:])
        (*_, whose) = [daemon for moment, daemon in self._watchers if moment <= at]
        hit = (
            point.who == whose and point.began < until and point.ends > since
            for point in self.points
        )
        return moved or any(hit)


def calm(state: GuardState) -> bool:
    """Whether nothing is under way or ordered."""
    return state.phase in CALM and state.order is None and not state.hooked


def above(counts: Counts, most: Counts) -> list[str]:
    """Whether counts are larger than others: how many, and the first."""
    larger = [name for name, count in counts.items() if count > most.get(name, 0)]
    first = [f"{name} {counts[name]} > {most.get(name, 0)}" for name in larger[:1]]
    return [f"{one}, as {len(larger)} counts" for one in first]


def covered_twice(windows: Sequence[Window], seconds: float) -> list[str]:
    """Minutes that are there twice, or add up to more than the time."""
    covered = sum(window.observed_seconds for window in windows)
    found = [] if covered < seconds + 60 else [f"{covered:.0f} s of {seconds:.0f} s"]
    starts = Counter((window.series, window.start) for window in windows)
    return found + [str(start) for start, times in starts.items() if times > 1]


def _requests(user: int) -> Iterator[Request]:
    for number in itertools.count(user):
        yield Request(prompt=prompt_number(number), max_tokens=24)


def _socket(url: sa.URL) -> Path:
    return Path(str(url.query["host"])) / ".s.PGSQL.5432"


def _over(url: sa.URL, port: int) -> str:
    """The same database over TCP."""
    plain = url.difference_update_query(["host"]).set(host="127.0.0.1", port=port)
    return plain.render_as_string(hide_password=False)


def tell(seed: int, folder: Path, seconds: float) -> Story:
    """One story from its beginning to its end."""
    with ExitStack() as stack:
        story = Story(seed, folder, stack)
        story.happen(seconds)
        return story


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """One, another each time."""
    folder = tmp_path_factory.mktemp("stories")
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return [tell(seed, folder, 45.0)]


def test_what_must_hold_holds_whatever_happens_to_the_daemons(stories: list[Story]) -> None:
    violated = [
        (story.seed, what, violations)
        for story in stories
        for what, violations in story.violations.items()
        if violations
    ]
    assert not violated


def test_faults_came_at_steps_of_restarts(stories: list[Story]) -> None:
    assert sum(len(story.points) for story in stories) >= 3
    assert sum(story.facts["restarts"] for story in stories) > 0


def report(seed: int, future: Future[Story], points: Counter[str], facts: Counter[str]) -> int:
    """Print a story that has ended and add it to the sums; how much did not hold."""
    if error := future.exception():
        traceback.print_exception(error, file=sys.stdout)
        print(f"== {seed}: it did not come to its end", flush=True)
        return 1
    story = future.result()
    points.update(f"{point.fault} at {point.step}" for point in story.points)
    facts.update(story.facts)
    print(f"== {seed}: {len(story.points)} points, {story.facts['restarts']} restarts", flush=True)
    violated = {what: ones for what, ones in story.violations.items() if ones}
    for what, ones in violated.items():
        print(*(f"   {what}: {one}" for one in ones), sep="\n", flush=True)
    return len(violated)


def main(first: int, count: int, seconds: float, together: int) -> int:
    """A campaign: prints each story as it ends, and the sums; 1 if something did not hold."""
    folder = Path(tempfile.mkdtemp(prefix="specwatch-restarts-"))
    print(folder)
    points, facts, violated = Counter[str](), Counter[str](), 0
    with ThreadPoolExecutor(together) as pool:
        seeds = range(first, first + count)
        telling = {pool.submit(tell, seed, folder, seconds): seed for seed in seeds}
        for future in as_completed(telling):
            with _one_command:
                violated += report(telling[future], future, points, facts)
    for name, number in sorted((points + facts).items()):
        print(f"{number:6} {name}")
    print(f"== {points.total()} points in {count} stories; {violated} violations")
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))

"""Damages files of a store, and starts the parts of a daemon on them.

``python -m tests.store.corruption --files 600`` runs it at length: see docs/reliability.md.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from specwatch.daemon.guard_service import GuardService
from specwatch.daemon.recorder import Recorder
from specwatch.daemon.rule_service import RuleService
from specwatch.domain.model import HOUR, MINUTE, Batch, Mode, Moment
from specwatch.errors import StoreError
from specwatch.pages.report_html import report_html
from specwatch.report.reader import read_report
from specwatch.report.text import plain
from specwatch.status import TargetStatus
from specwatch.store import rollups_and_retention, statements
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from tests.daemon.running import config_of
from tests.fixtures import target_of
from tests.store.examples import FOREVER, T0, batch, cursor, fill_tables, minute

DAEMON, TARGET = "left", "chat"
NOW = T0 + 5 * HOUR + 600.0
"""When a daemon starts on a file: hours are to be rolled up and to be read."""
KINDS = ("bytes", "page")
"""Some bytes anywhere; a stretch as long as a page."""
_PAGE = 4096


@dataclass(frozen=True)
class Outcome:
    """What came of a start: the rows that were left out, and whether the file was put aside.

    ``defects`` are tracebacks of what nobody caught.
    """

    left_out: int = 0
    put_aside: bool = False
    defects: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """In a word."""
        if self.defects:
            return "failed"
        return "put aside" if self.put_aside else "rows left out" if self.left_out else "whole"


class _Inline(Executor):
    """Runs at once what it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


def populate(path: Path) -> None:
    """A store with rows in every table, in some 40 pages."""
    store = Store(f"sqlite:///{path}", daemon=DAEMON, host="h", pid=1)
    store.open(T0)
    for hour in range(5):
        windows = [
            minute(
                T0 + hour * HOUR + number * MINUTE,
                temperature=temperature,
                mode=Mode.OFF if hour == 1 else Mode.ON,
                concurrency=1.0 + number % 3,
            )
            for number in range(0, 60, 3)
            for temperature in ("all", "0.7")
        ]
        store.write([batch(*windows, cursor=cursor())], T0)
        store.roll_up(T0 + hour * HOUR)
    for number in range(10):
        fill_tables(store, T0 + HOUR + number, TARGET, number % 2)
    store.close(T0 + 5 * HOUR)


def corrupt(path: Path, kind: str, chance: random.Random) -> None:
    """Damage a file."""
    data = bytearray(path.read_bytes())
    size = chance.randint(_PAGE // 2, _PAGE) if kind == "page" else chance.randint(1, 24)
    spots = 1 if kind == "page" else chance.randint(1, 8)
    for _ in range(spots):
        position = chance.randrange(len(data) - size)
        data[position : position + size] = chance.randbytes(size)
    path.write_bytes(data)


def _read(store: Store) -> None:
    """Read all tables."""
    list(store.windows(**FOREVER))
    list(store.windows(**FOREVER, length=HOUR))
    store.targets()
    store.verdicts(**FOREVER)
    store.open_breaches()
    store.measurements()
    store.experiments(0, 1e11)
    GuardBook(store).history()


def start(path: Path) -> Outcome:
    """Do all that a daemon and its surfaces do with a store, and what a report does."""
    now = Moment(NOW, NOW)
    store = Store(f"sqlite:///{path}", daemon=DAEMON, host="h", pid=2)
    config = config_of(path, [target_of("http://127.0.0.1:1", name=TARGET)], daemon=DAEMON)
    recorder = Recorder(
        store,
        queue_limit=100,
        now=lambda: now,
        resume=lambda _: None,
        supersede=lambda _: None,
        configuring=threading.Lock(),
    )
    judging = RuleService(store, config, now=lambda: now)
    guarding = GuardService(
        store,
        config,
        now=lambda: now,
        rule_service=judging,
        healthy=lambda _: True,
        status=lambda name: TargetStatus(name, "", 5.0),
        actuator=lambda _: None,
        pool=_Inline(),
    )
    defects: list[str] = []
    messages: list[str] = []

    def attempt(act: Callable[[], object]) -> None:
        try:
            act()
        except StoreError as error:
            messages.append(str(error))
        except Exception:
            defects.append(traceback.format_exc())

    read = partial(_read, store)

    def report() -> None:
        for hours in (4, 24):
            built = read_report(store, since=NOW - hours * HOUR, until=NOW, now=NOW)
            plain(built)
            report_html(built)

    def write() -> None:
        recorder.put(Batch((minute(T0 + 5 * HOUR + MINUTE),), None))
        recorder.flush(force=True)
        judging.flush(final=True)

    for act in (
        recorder.open,
        recorder.check,
        recorder.flush,
        guarding.turn,
        recorder.roll_up,
        judging.catch_up,
        read,
        write,
        report,
        lambda: recorder.prune(config.retention, config.baseline.max_age),
        guarding.turn,
        read,
        lambda: recorder.prune(config.retention.model_copy(update={"minutes": 0.0}), 0.0),
    ):
        attempt(act)
    status = recorder.status()
    if status.error is not None:
        messages.append(status.error)
    attempt(recorder.close)
    if judging.status().defects:
        defects.append(f"{judging.status().defects} defects of judging")
    put_aside = bool(recorder.status().damaged_files)
    if messages and not put_aside:
        defects.append(f"it goes on failing: {messages[0]}")
    return Outcome(len(statements._noted), put_aside, tuple(defects))


def main() -> None:
    """Run a campaign and print what came of it."""
    parser = argparse.ArgumentParser(description="Start on damaged files, and count how it went.")
    parser.add_argument("--files", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rollups_and_retention._PAUSE = 0.0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.db")
        populate(source)
        for number in range(chosen.files):
            kind = KINDS[number % len(KINDS)]
            with tempfile.TemporaryDirectory(dir=folder) as own:
                path = Path(own, "damaged.db")
                path.write_bytes(source.read_bytes())
                corrupt(path, kind, random.Random(f"{chosen.seed}-{number}"))
                statements._noted.clear()
                outcome = start(path)
            outcomes[kind][outcome.name] += 1
            for defect in outcome.defects:
                print(f"file {number} ({kind}): {defect}")
    names = ("whole", "rows left out", "put aside", "failed")
    print(f"{'':10}" + "".join(f"{name:>14}" for name in names))
    for kind, counts in outcomes.items():
        print(f"{kind:10}" + "".join(f"{counts[name]:14}" for name in names))
    print(f"{chosen.files} files, seed {chosen.seed}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

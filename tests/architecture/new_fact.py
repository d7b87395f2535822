"""How a new fact is added, and how many files of the product that takes.

``python -m tests.architecture.new_fact`` prints the numbers. Each fact is a change of the text of
the package, which is applied to a copy; a program that runs with the copy then finds the fact
wherever people and programs read it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.__main__ import ROOT


class Insertion(NamedTuple):
    """Lines that come before the line of a file that begins with ``before``."""

    file: str
    before: str
    lines: str


class NewFact(NamedTuple):
    """A fact, at most how many files it may touch, what is inserted, and the program."""

    name: str
    most_files: int
    insertions: Sequence[Insertion]
    proof: str

    @property
    def files(self) -> set[str]:
        """The files of the package that are touched."""
        return {insertion.file for insertion in self.insertions}


MODE = NewFact(
    "mode",
    4,
    (
        Insertion(
            "specwatch/domain/model.py",
            '    OFF = "off", ModeFacts(',
            """\
    DRAINING = "draining", ModeFacts(
        None, "not judged (the server drains)", "Time in which it drained",
        "the server drains, and takes no requests",
    )
""",
        ),
        Insertion(
            "specwatch/engines/vllm.py",
            '    Family("vllm:engine_sleep_state"',
            '    Family("vllm:engine_draining", "gauge", "draining"),\n',
        ),
        Insertion(
            "specwatch/engines/vllm.py",
            "    return Mode.SLEEPING if awake",
            """\
    if any(value > 0 for series, value in samples.items() if series.quantity == "draining"):
        return Mode.DRAINING
""",
        ),
    ),
    """
import tempfile
from contextlib import closing
from msgspec.structs import replace
from specwatch.domain.model import Mode, Moment
from specwatch.pages.status_view import modes
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store.batches import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from specwatch.wording import speculation
from tests.pages import capture, read
from tests.report.test_sections import PAYS, table
from tests.web.exported import page
from tests.web.statuses import daemon, target

# Read from a page of the engine, of a server that drafts.
watch = WindowBuilder("d", "chat", max_gap=15)
for number, text in enumerate((capture("draft-k4.2"), capture("draft-k4.3"))):
    gauge = b'vllm:engine_draining{engine="0",model_name="tiny"} 1.0\\n'
    watch.observe(read(text + gauge), Moment(5.0 * number, 5.0 * number))
assert watch.models == {"tiny": Mode.DRAINING}
batch = watch.close().batch
# Stored.
with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite:///{folder}/specwatch.db"
    store = Store(url, daemon="d")
    store.open(0.0)
    store.write([pack_batch(batch)], 10.0)
    store.close()
    with closing(Reader.of(url)) as reader:
        assert [one.mode for one in reader.windows(since=0.0, until=4e9)] == [Mode.DRAINING]
# Judged: it never is, and people read why.
outcome, sentence = speculation.answer(None, Mode.DRAINING)
assert (outcome, sentence) == (
    "unknown", "Speculation is not judged: the server drains, and takes no requests."
)
# Exported and shown.
status = daemon(target(models={"llama": Mode.DRAINING}))
assert 'specwatch_speculation_enabled{' not in page(status)
assert "speculation is not judged (the server drains) for 1 model" in modes(status)
# Reported.
model = replace(PAYS, traffic=replace(PAYS.traffic, seconds={Mode.DRAINING: 3600.0}))
rows = {row[0]: row[1] for row in table(model, "Speedup, traffic and time")}
assert rows["Time in which it drained"] == "1.0 h"
""",
)
COUNTER = NewFact(
    "counter",
    6,
    (
        Insertion(
            "specwatch/domain/model.py",
            "    prefix_cache_queries: Annotated[",
            """\
    swaps: Annotated[
        int | None, Fact("Times that a request was moved out of the GPU.", event="swap")
    ] = None
""",
        ),
        Insertion(
            "specwatch/engines/vllm.py",
            '    Family("vllm:num_preemptions"',
            '    Family("vllm:num_swaps", "counter", "swaps"),\n',
        ),
        Insertion(
            "migrations/versions/0001_initial.py",
            "    preemptions prefix_cache_queries",
            "    swaps\n",
        ),
    ),
    """
import dataclasses, sqlite3, tempfile
from contextlib import closing
from msgspec.structs import replace
from specwatch.cli.scrape import _lines
from specwatch.config.rules.metrics import MEASURES
from specwatch.domain.model import Gauges, Moment
from specwatch.domain.period_differences import differences
from specwatch.pages.status_model import _facts
from specwatch.rules.readings import _READERS
from specwatch.rules.summary import models_of
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store import migrate
from specwatch.store.batches import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests.domain.minutes import on
from tests.pages import capture, read
from tests.web.exported import page
from tests.web.statuses import daemon, target, whole

# Read from two pages of the engine, and counted.
watch = WindowBuilder("d", "chat", max_gap=15)
sample = 'vllm:num_swaps_total{engine="0",model_name="tiny"} %d.0\\n'
pages = [
    read(capture(f"draft-k4.{2 + number}") + (sample % (7 * number)).encode())
    for number in range(2)
]
for number, text in enumerate(pages):
    watch.observe(text, Moment(5.0 * number, 5.0 * number))
batch = watch.close().batch
assert [window.tally.swaps for window in batch.windows] == [7]
# Stored, rolled up, and read with SQL; a database that is migrated has the column too.
with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite:///{folder}/specwatch.db"
    migrate.upgrade(url)
    store = Store(url, daemon="d")
    store.open(0.0)
    store.write([pack_batch(batch)], 10.0)
    store.roll_up(7200.0)
    store.close()
    with closing(Reader.of(url)) as reader:
        for length in (60, 3600):
            (window,) = reader.windows(since=0.0, until=4e9, length=length)
            assert window.tally.swaps == 7
    with closing(sqlite3.connect(f"{folder}/specwatch.db")) as sql:
        assert sql.execute("SELECT swaps FROM hour_counts").fetchall() == [(7,)]
# Judged: a rule can name it, and what has changed is told with it.
assert MEASURES["swaps"].unit == "count" and "swaps" in _READERS
minutes = [dataclasses.replace(on(n), tally=replace(on(n).tally, swaps=n)) for n in range(9)]
assert "swaps 240 -> 240 per hour" in [fact.sentence for fact in differences(minutes, minutes)]
# Exported and shown.
recent = whole(swaps=6)
assert 'specwatch_swaps_per_second{model_name="llama",target="chat"} 0.05' in page(
    daemon(target(recent=(recent,)))
)
assert "6 swaps" in _facts("on", recent)
(model,) = models_of(pages[1], [])
assert any("7 swaps" in line for line, _ in _lines(model, "#"))
""",
)
DIMENSION = NewFact(
    "dimension",
    4,
    (
        Insertion(
            "tap/specwatch_tap/segment_kinds.py",
            "MOST_KINDS = 2",
            'THINKING = "thinking"\nKINDS = (*KINDS, THINKING)\n',
        ),
        Insertion(
            "tap/specwatch_tap/segments.py",
            "        if kind == STREAM:",
            """\
        if kind == "thinking":
            return "yes" if request.reasons else "no"
""",
        ),
        Insertion(
            "specwatch/wording/segments.py",
            '    (OUTPUT, "tool_call")',
            '    ("thinking", "no"): "requests without thinking",\n',
        ),
    ),
    """
import sqlite3, tempfile
from contextlib import closing
from dataclasses import replace
from msgspec.structs import replace as changed
from specwatch.report.build import build
from specwatch.report.grouped_data import ReportSources
from specwatch.store.batches import pack_batch
from specwatch.domain.model import Batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from specwatch.wording.segments import segment_words
from tests.segments import segment
from specwatch_tap.segment_kinds import checked_kinds
from tests.store.examples import minute
from tests.tap.test_segments import app_of, segments_of
from tests.web import test_exporter
from tests.web.exported import page
from tests.web.statuses import daemon, target, whole

# Told apart by the tap.
label = "thinking=no"
of = segment(label)
assert checked_kinds(["thinking"]) == ("thinking",)
assert list(segments_of(app_of(), "thinking")) == [label]
# Stored, rolled up, and read with SQL.
windows = tuple(minute(60 * n, temperature=one) for n in range(60) for one in ("all", label))
with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite:///{folder}/specwatch.db"
    store = Store(url, daemon="left")
    store.open(0.0)
    store.write([pack_batch(Batch(windows, None))], 10.0)
    store.roll_up(7200.0)
    store.close()
    with closing(Reader.of(url)) as reader:
        asked = {"since": 0.0, "until": 4e9, "length": 3600}
        hours = list(reader.windows(**asked))
    with closing(sqlite3.connect(f"{folder}/specwatch.db")) as sql:
        query = "SELECT value, drafts FROM hours WHERE dimension = 'thinking'"
        assert sql.execute(query).fetchall() == [("no", 6000)]
# Reported.
(report,) = build(ReportSources(target="chat", windows=hours), 0.0, 3600.0)
assert [one.segment for one in report.segments] == [segment("all"), of]
# Judged, exported, and called something.
test_exporter.SEGMENT = of
decision = test_exporter._decided_by_segment()
status = daemon(target(recent=(whole(),), decision=decision))
assert "thinking" in page(status)
assert segment_words(of) == "requests without thinking"
""",
)
FACTS = (MODE, COUNTER, DIMENSION)


def prove(fact: NewFact) -> None:
    """Apply a fact to a copy of the package, and run its program with that. Raises AssertionError
    where a line to insert before is missing, or the program fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "specwatch", copy / "specwatch", ignore=ignored)
        shutil.copytree(ROOT / "tap", copy / "tap", ignore=ignored)
        shutil.copytree(ROOT / "migrations", copy / "migrations", ignore=ignored)
        for insertion in fact.insertions:
            insert(copy / insertion.file, insertion)
        path = os.pathsep.join(map(str, (copy, copy / "tap", ROOT)))
        ran = subprocess.run(
            [sys.executable, "-c", fact.proof],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert ran.returncode == 0, f"a new {fact.name}:\n{ran.stderr[-3000:]}"


def insert(file: Path, insertion: Insertion) -> None:
    """Insert lines into a file."""
    lines = file.read_text().splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.startswith(insertion.before)]
    assert len(places) == 1, f"{insertion.file}: {len(places)} lines begin {insertion.before!r}"
    lines.insert(places[0], insertion.lines)
    file.write_text("".join(lines))


def main() -> None:
    """Print how many files each fact touches."""
    for fact in FACTS:
        prove(fact)
        print(f"a new {fact.name}: {len(fact.files)} files: {', '.join(sorted(fact.files))}")


if __name__ == "__main__":
    main()

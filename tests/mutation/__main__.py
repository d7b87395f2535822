"""``python -m tests.mutation --sample 60 --seed 1``: breaks product lines, and reports survivors.

Each mutant has one wrong operator, constant, condition or statement, and lives in a copy of the
checkout. The fast tests run until one fails: first those that import the module, then its room's,
then all. A mutant that none notices has survived. A test that hangs notices, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from tests.mutation.mutants import Mutant, sample

ROOT = Path(__file__).parents[2]
ROOMS: Mapping[str, tuple[str, ...]] = {
    "counters and windows": ("scrape",),
    "statistics": ("domain",),
    "rules": ("rules",),
    "guard": ("guard",),
    "store": ("store",),
    "command lines": ("vllm_cli", "engines"),
}
"""Folders of the package by what they are about."""
LIMIT = 600.0
"""Seconds after which a run of tests hangs."""
MEMORY = 6 * 2**30


def main() -> int:
    """Break what was asked for; the exit status is 1 if more survive than ``--at-most``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--at-least",
        type=float,
        default=85.0,
        metavar="PERCENT",
        help="of mutants are to be noticed (85)",
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    modules = {
        name: [
            path.relative_to(ROOT)
            for folder in folders
            for path in sorted((ROOT / "specwatch" / folder).rglob("*.py"))
        ]
        for name, folders in ROOMS.items()
    }
    os.chdir(ROOT)
    mutants = sample(modules, asked.sample, random.Random(asked.seed))
    survivors, killed = [], Counter[str]()
    with copies(asked.jobs) as free, ThreadPoolExecutor(asked.jobs) as pool:
        for number, (room, mutant, killer) in enumerate(
            pool.map(lambda chosen: (*chosen, killer_of(chosen[1], free)), mutants), 1
        ):
            killed[room] += killer is not None
            if killer is None:
                survivors.append(mutant)
            said = f"killed by {killer}" if killer else "SURVIVED"
            print(f"{number:3} {mutant}\n    {said}", file=sys.stderr, flush=True)
    total = sum(killed.values())
    percent = 100 * total / len(mutants)
    if asked.json:
        print(
            json.dumps(
                {
                    "seed": asked.seed,
                    "mutants": len(mutants),
                    "killed": total,
                    "survivors": [str(mutant) for mutant in survivors],
                }
            )
        )
    else:
        counted = Counter(room for room, _ in mutants)
        for room, count in counted.items():
            print(f"{room:22} {killed[room]:3} of {count:3}")
        print(f"seed {asked.seed}: {total} of {len(mutants)} noticed ({percent:.0f} %); survivors:")
        print(*survivors, sep="\n")
    return int(percent < asked.at_least)


@contextmanager
def copies(count: int) -> Iterator[Queue[Path]]:
    """Copies of the checkout, each for one mutant at a time."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    free: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory(prefix="specwatch-mutants-") as folder:
        for number in range(count):
            there = Path(folder) / str(number)
            for name in filter(None, listed.stdout.split("\0")):
                if (ROOT / name).exists():
                    (there / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, there / name)
            free.put(there)
        yield free


def killer_of(mutant: Mutant, free: Queue[Path]) -> str | None:
    """The first test that notices; None if none does."""
    there = free.get()
    module = there / mutant.module
    original = module.read_text()
    try:
        write(module, mutant.source)
        for tests in runs(mutant.module):
            if failed := first_failure(there, tests):
                return failed
        return None
    finally:
        write(module, original)
        free.put(there)


def write(module: Path, source: str) -> None:
    """Change a module so that what was compiled of it is not taken for current."""
    module.write_text(source)
    compiled = module.parent / "__pycache__"
    for file in compiled.glob(f"{module.stem}.*.pyc"):
        file.unlink()


def runs(module: Path) -> Iterator[list[str]]:
    """Tests to run one after the other: those of the module, of its room, all."""
    room = module.parts[1]
    dotted = ".".join(module.with_suffix("").parts)
    package, name = dotted.rsplit(".", 1)
    own = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if not {"e2e", "benchmarks", "nightly"}.intersection(file.parts)
        and (dotted in (text := file.read_text()) or f"from {package} import {name}" in text)
    ]
    if own:
        yield own
    if (ROOT / "tests" / room).is_dir():
        yield [f"tests/{room}"]
    yield ["tests"]


def first_failure(there: Path, tests: list[str]) -> str | None:
    """The first test that fails in a copy, or what else went wrong."""
    environment = {**os.environ, "PYTHONPATH": f"{there}{os.pathsep}{there / 'tap'}", "CI": ""}
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=there,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=limit_memory,
    )
    begun = time.monotonic()
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return f"hanging for {time.monotonic() - begun:.0f} s"
    if process.returncode == 0:
        return None
    failures = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].split(" - ")[0] if failures else f"status {process.returncode}"


def limit_memory() -> None:
    """A mutant may collect without end."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    sys.exit(main())

"""Imports point one way, and the pure rooms know neither clock nor outside world.

A *room* is a module or package directly under ``specwatch``.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "specwatch"

LAYERS = (
    ("errors",),
    ("model",),
    ("names", "temperature", "measures"),
    (
        "scalars",
        "yamlfile",
        "masking",
        "sections",
        "services",
        "target",
        "policy",
        "delivery",
        "ruling",
        "config",
    ),
    ("core", "guard"),
    ("vllm_cli", "codegen", "wording", "experiments", "advice"),
    ("report", "charts"),
    ("pages",),
    ("serving",),
    ("edges",),
    ("cycle", "recorder", "judging", "survey", "guardian", "guarding", "paging", "backfill"),
    ("daemon",),
    ("cli", "__main__"),
)
"""Lowest first; rooms of one layer may import one another and everything below."""

ASIDE = {
    "tap": {"model", "names", "temperature"},
    "simulated": {"errors", "model", "names", "core", "serving", "vllm_cli"},
}
"""Rooms beside the daemon, with all that they may import; only the top layer imports them."""

PURE = {
    "errors", "model", "names", "temperature", "measures", "core", "vllm_cli", "codegen", "guard",
    "experiments", "advice", "wording", "charts", "report", "pages",
}  # fmt: skip
"""Rooms that do no I/O and are told the time."""

IMPURE_MODULES = {
    # Clocks, chance and the machine.
    "time", "sched", "secrets", "uuid", "os", "sys", "platform", "signal", "locale", "resource",
    # Files.
    "io", "pathlib", "glob", "shutil", "tempfile", "fcntl", "mmap", "fileinput", "importlib",
    # Network and other processes.
    "socket", "ssl", "select", "selectors", "http", "urllib.request", "socketserver", "subprocess",
    "multiprocessing", "threading", "concurrent", "asyncio", "queue",
    "requests", "urllib3", "uvicorn", "starlette", "anyio",
    # Databases, schedulers, screens, logs.
    "sqlite3", "sqlalchemy", "alembic", "psycopg", "apscheduler", "click", "rich", "logging",
    "structlog", "prometheus_client", "pynvml", "platformdirs", "warnings",
}  # fmt: skip

IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "breakpoint"}
CLOCKS = {"now", "utcnow", "today"}


class Violation(NamedTuple):
    """Where a rule is broken, and how."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def rank(room: str) -> int | None:
    return next((number for number, layer in enumerate(LAYERS) if room in layer), None)


def may_import(room: str, other: str) -> bool:
    if room == other:
        return True
    if room in ASIDE:
        return other in ASIDE[room]
    own, others = rank(room), rank(other)
    assert own is not None
    if other in ASIDE:
        return own == len(LAYERS) - 1
    if others is None or others > own:
        return False
    return room not in PURE or other in PURE or other in LAYERS[3]


def room_of(file: Path, package: Path) -> str:
    first = file.relative_to(package).parts[0]
    return first.removesuffix(".py")


def imported(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of whatever is imported; ``module`` is the importing package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = module[: len(module) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def check_imports(tree: ast.AST, room: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for line, name in imported(tree, module):
        parts = name.split(".")
        if parts[0] == "specwatch":
            other = parts[1] if len(parts) > 1 else "__init__"
            if other != "__version__" and not may_import(room, other):
                yield line, f"{room} must not import specwatch.{other}"
        elif room in PURE and not IMPURE_MODULES.isdisjoint(
            ".".join(parts[:length]) for length in range(1, len(parts) + 1)
        ):
            yield line, f"{room} is pure and must not import {parts[0]}"
        elif room in PURE and parts[0] == "random" and name not in {"random", "random.Random"}:
            yield line, f"{room} is pure: take a random.Random with a seed, not {name}"


def check_calls(tree: ast.AST, room: str) -> Iterator[tuple[int, str]]:
    if room not in PURE:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, method = called.rpartition(".")
        if called in IMPURE_BUILTINS:
            yield node.lineno, f"{room} is pure and must not call {called}()"
        elif method in CLOCKS and owner.rpartition(".")[2] in {"datetime", "date"}:
            yield node.lineno, f"{room} is pure: time is an argument, not {called}()"
        elif called in {"Random", "random.Random", "np.random.default_rng"} and not node.args:
            yield node.lineno, f"{room} is pure: {called}() needs a seed"
        elif owner == "random" and method != "Random":
            yield node.lineno, f"{room} is pure: {called}() has no seed of its own"


def violations(package: Path) -> list[Violation]:
    """Every breach of the layers in the files of the package."""
    found = []
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package.parent)
        room = room_of(file, package)
        if room == "__init__":
            room = "errors"  # it may import as little as the lowest layer: nothing of ours
        elif rank(room) is None and room not in ASIDE:
            found.append(Violation(f"{place}:1", f"{room} belongs to no layer: see LAYERS"))
            continue
        tree = ast.parse(file.read_text(), str(place))
        module = place.parent.parts
        # One import of several names is one breach.
        breaches = {*check_imports(tree, room, module), *check_calls(tree, room)}
        for line, problem in sorted(breaches):
            found.append(Violation(f"{place}:{line}", problem))
    return found


def test_imports_point_downward_and_pure_rooms_are_pure() -> None:
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(map(str, found))


def test_the_checker_reads_the_whole_package() -> None:
    """An empty answer of a checker that looks at the wrong folder would prove nothing."""
    rooms = {room_of(file, PACKAGE) for file in PACKAGE.rglob("*.py")}
    assert {"errors", "model", "names", "core", "edges", "cli"} <= rooms


PLANTED = {
    "core imports an edge": ("core/a.py", "from specwatch.edges.http import get", "edges"),
    "core imports an edge, spelled otherwise": (
        "core/a.py",
        "from specwatch import edges",
        "edges",
    ),
    "a relative import": ("core/a.py", "from ..edges import http", "edges"),
    "an import inside a function": (
        "edges/a.py",
        """
        def late():
            import specwatch.cli.main
        """,
        "cli",
    ),
    "a daemon's import of the entry point": ("daemon.py", "from specwatch.cli import main", "cli"),
    "model imports names": ("model.py", "from specwatch.names import SAMPLES", "names"),
    "config imports core": ("config.py", "import specwatch.core", "core"),
    "a tap that knows the daemon": ("tap/a.py", "from specwatch.config import Config", "config"),
    "a tap that knows an edge": ("tap/a.py", "from specwatch.edges import http", "edges"),
    "a simulation that knows the store": (
        "simulated/a.py",
        "import specwatch.edges.store",
        "edges",
    ),
    "a daemon that knows the simulation": ("daemon.py", "import specwatch.simulated", "simulated"),
    "generated files that know the store": ("codegen/a.py", "import specwatch.edges.db", "edges"),
    "a core with a clock": ("core/a.py", "import time", "time"),
    "a core with today's date": (
        "core/a.py",
        """
        from datetime import datetime
        NOW = datetime.now()
        """,
        "datetime.now()",
    ),
    "a core that reads the environment": ("core/a.py", "from os import environ", "os"),
    "a core that opens sockets": ("core/deep/a.py", "import socket", "socket"),
    "a core that fetches": ("core/a.py", "import urllib.request", "urllib"),
    "a core that knows the database": ("core/a.py", "from sqlalchemy import select", "sqlalchemy"),
    "a core that opens a file": ("core/a.py", "text = open('x').read()", "open()"),
    "chance without a seed": ("core/a.py", "import random\nx = random.random()", "random.random()"),
    "a generator without a seed": ("core/a.py", "import random\nx = random.Random()", "seed"),
    "chance imported by name": ("core/a.py", "from random import choice", "random.choice"),
    "a room that no layer names": ("helpers.py", "x = 1", "belongs to no layer"),
    "a package that imports at once": (
        "__init__.py",
        "from specwatch.model import Window",
        "model",
    ),
}


@pytest.mark.parametrize(("file", "source", "problem"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found_with_its_line(
    tmp_path: Path, file: str, source: str, problem: str
) -> None:
    package = tmp_path / "specwatch"
    planted = package / file
    planted.parent.mkdir(parents=True)
    planted.write_text('"""Innocent."""\n' + textwrap.dedent(source).lstrip() + "\n")
    (found,) = violations(package)
    line = 1 if "no layer" in problem else 1 + len(textwrap.dedent(source).strip().splitlines())
    assert found.place == f"specwatch/{file}:{line}"
    assert problem in found.problem


ALLOWED = {
    "core on the lower layers": ("core/a.py", "from specwatch.model import Window\nimport math"),
    "core on core": ("core/a.py", "from specwatch.core.histogram import merge"),
    "core reading addresses": ("core/a.py", "from urllib.parse import urlsplit"),
    "core with given chance": ("core/a.py", "import random\nx = random.Random(7).random()"),
    "generated files with configuration": ("codegen/a.py", "from specwatch.config import Config"),
    "an edge on core": ("edges/a.py", "from specwatch.core import exposition\nimport time"),
    "a daemon on its cycle": ("daemon.py", "from specwatch.cycle import turn"),
    "the entry point on everything": ("cli/a.py", "from specwatch import daemon, simulated, tap"),
    "the version": ("edges/a.py", "from specwatch import __version__"),
    "a simulation on core": ("simulated/a.py", "from specwatch.core import histogram"),
}


@pytest.mark.parametrize(("file", "source"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed_is_not_reported(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / "specwatch" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source + "\n")
    assert violations(tmp_path / "specwatch") == []

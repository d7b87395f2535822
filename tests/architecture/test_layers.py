"""Imports point one way, and the pure rooms know neither clock nor outside world.

A *room* is a module or package directly under ``specwatch``, or under ``specwatch/lab``. Below all
rooms is ``specwatch_tap``, a wheel of its own.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "specwatch"
TAP = ROOT / "tap" / "specwatch_tap"

LAYERS = (
    ("errors",),
    ("domain",),
    ("engines", "config"),
    ("runtime",),
    ("scrape", "discovery"),
    ("rules",),
    ("guard",),
    ("store", "status"),
    ("problems",),
    ("wording",),
    ("alerts", "vllm_cli"),
    ("generate", "report"),
    ("actuators", "pages"),
    ("web",),
    ("daemon",),
    ("cli",),
    ("__main__",),
)
"""Lowest first; a room may import what is in a layer below its own, and itself."""

ASIDE = {
    "lab": set(),
    "lab.advise": {"errors", "domain", "vllm_cli", "wording"},
    "lab.backfill": {"errors", "domain", "engines", "config", "runtime", "scrape", "store"},
    "lab.loadtest": {
        "errors",
        "domain",
        "engines",
        "config",
        "runtime",
        "scrape",
        "rules",
        "wording",
    },
    "lab.simulator": {"errors", "domain", "engines", "scrape", "runtime", "vllm_cli"},
}
"""Rooms beside the daemon, with all that they may import; only the top layer imports them."""

SHARED = {
    "__version__",
    "MIDDLEWARE",
    "SCHEDULER",
    "acceptance",
    "families",
    "launch",
    "orders",
    "segment_kinds",
    "temperature",
}
"""What every room may import of ``specwatch_tap``: names, and modules as pure as ``domain``."""
SHARED_FILES = "switch_files"
"""What rooms and modules with effects may import of it, too."""
LOADS_TAP = {"cli", "lab.simulator"}
"""Rooms that may import all of it."""
OF_THE_PROXY = {"forwarding", "proxy", "upstream"}
"""Modules of ``specwatch_tap`` that need its extra ``proxy``."""

EFFECTS = {
    "__main__",
    "actuators",
    "cli",
    "config",
    "daemon",
    "runtime",
    "store",
    "web",
    "alerts.client",
    "alerts.sender",
    "lab.advise",
    "lab.backfill.prometheus",
    "lab.backfill.service",
    "lab.loadtest.answers_run",
    "lab.loadtest.bench_run",
    "lab.loadtest.calibration_run",
    "lab.loadtest.client",
    "lab.loadtest.load_generator",
    "lab.loadtest.probe_run",
    "lab.loadtest.server",
    "lab.simulator",
    "report.mail_and_webhooks",
    "report.deliveries",
    "report.reader",
    "discovery.pods",
    "discovery.sources",
    "report.bucket_sums",
    "report.hours",
    "scrape.engine_info",
    "scrape.gpu",
    "scrape.page_client",
}
"""Rooms and modules that do I/O or read the clock; others get the time as an argument."""

IMPURE_MODULES = {
    # Clocks, chance and the machine.
    "time",
    "sched",
    "secrets",
    "uuid",
    "os",
    "sys",
    "platform",
    "signal",
    "locale",
    "resource",
    # Files.
    "io",
    "pathlib",
    "glob",
    "shutil",
    "tempfile",
    "fcntl",
    "mmap",
    "fileinput",
    "importlib",
    # Network and other processes.
    "socket",
    "ssl",
    "select",
    "selectors",
    "http",
    "urllib.request",
    "socketserver",
    "subprocess",
    "multiprocessing",
    "threading",
    "concurrent",
    "asyncio",
    "queue",
    "requests",
    "urllib3",
    "uvicorn",
    "starlette",
    "anyio",
    # Databases, schedulers, screens, logs.
    "sqlite3",
    "sqlalchemy",
    "alembic",
    "psycopg",
    "apscheduler",
    "click",
    "rich",
    "logging",
    "structlog",
    "prometheus_client",
    "pynvml",
    "platformdirs",
    "warnings",
}

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
        return room == "cli"
    return others is not None and others < own


def has_effects(module: str) -> bool:
    """``module`` is a dotted name below ``specwatch``; it may go on with a name in the module."""
    parts = module.split(".")
    return any(".".join(parts[: count + 1]) in EFFECTS for count in range(len(parts)))


def room_of(file: Path, package: Path) -> str:
    parts = file.relative_to(package).with_suffix("").parts
    return room_in([part for part in parts if part != "__init__"] or ["__init__"])


def room_in(names: Sequence[str]) -> str:
    """The room of a module, by its names below ``specwatch``."""
    return ".".join(names[: 2 if names[0] == "lab" else 1])


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of an expression that is only that."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)) is not None:
        return f"{owner}.{node.attr}"
    return None


@cache
def statements(
    file: Path,
) -> tuple[list[ast.Import | ast.ImportFrom], list[tuple[int, str, bool]]]:
    """The imports of a module, and its calls: line, dotted name, and whether it passes anything."""
    imports, calls = [], []
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.Call) and (name := dotted(node.func)) is not None:
            calls.append((node.lineno, name, bool(node.args)))
    return imports, calls


def imported(file: Path, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of whatever is imported; ``module`` is the importing package."""
    for node in statements(file)[0]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        else:
            parents = module[: len(module) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def check_imports(file: Path, own: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    room, pure = room_in(own.split(".")), not has_effects(own)
    for line, name in imported(file, module):
        first, _, rest = name.partition(".")
        parts = name.split(".")
        if first == "specwatch":
            other = room_in(parts[1:]) if rest else "__init__"
            if other == "__version__":
                continue
            if not may_import(room, other):
                yield line, f"{room} must not import specwatch.{other}"
            elif pure and other != "config" and has_effects(rest):
                yield line, f"{own} is pure and must not import {name}"
        elif first == "specwatch_tap":
            of_tap = parts[1] if rest else "__version__"
            shared = of_tap in SHARED or (of_tap == SHARED_FILES and not pure)
            if not shared and room not in LOADS_TAP:
                yield line, f"{own} must not import specwatch_tap.{of_tap}"
        elif pure and not IMPURE_MODULES.isdisjoint(
            ".".join(parts[:length]) for length in range(1, len(parts) + 1)
        ):
            yield line, f"{own} is pure and must not import {first}"
        elif pure and first == "random" and name not in {"random", "random.Random"}:
            yield line, f"{own} is pure: take a random.Random with a seed, not {name}"


def check_calls(file: Path, own: str) -> Iterator[tuple[int, str]]:
    if has_effects(own):
        return
    for line, called, has_arguments in statements(file)[1]:
        owner, _, method = called.rpartition(".")
        if called in IMPURE_BUILTINS:
            yield line, f"{own} is pure and must not call {called}()"
        elif method in CLOCKS and owner.rpartition(".")[2] in {"datetime", "date"}:
            yield line, f"{own} is pure: time is an argument, not {called}()"
        elif called in {"Random", "random.Random", "np.random.default_rng"} and not has_arguments:
            yield line, f"{own} is pure: {called}() needs a seed"
        elif owner == "random" and method != "Random":
            yield line, f"{own} is pure: {called}() has no seed"


def violations(package: Path) -> list[Violation]:
    """Every breach of the layers in the files of the package."""
    found = []
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package.parent)
        room = room_of(file, package)
        own = ".".join(file.relative_to(package).with_suffix("").parts)
        if room == "__init__":
            room = own = "errors"  # it may import as little as the lowest layer: nothing of ours
        elif rank(room) is None and room not in ASIDE:
            found.append(Violation(f"{place}:1", f"{room} belongs to no layer: see LAYERS"))
            continue
        module = place.parent.parts
        # One import of several names is one breach.
        breaches = {*check_imports(file, own, module), *check_calls(file, own)}
        for line, problem in sorted(breaches):
            found.append(Violation(f"{place}:{line}", problem))
    return found


def test_imports_point_downward_and_pure_rooms_are_pure() -> None:
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(map(str, found))


def of_the_tap(tap: Path) -> list[Violation]:
    """Every import of the tap that its wheel does not bring, and what is not pure in its modules
    that all rooms share."""
    project = tomllib.loads((ROOT / "tap/pyproject.toml").read_text())["project"]
    needed, of_proxy = (
        {text.partition(">")[0].replace("-", "_") for text in requirements}
        for requirements in (project["dependencies"], project["optional-dependencies"]["proxy"])
    )
    found = []
    for file in sorted(tap.rglob("*.py")):
        allowed = {"specwatch_tap", *needed, *sys.stdlib_module_names}
        allowed |= of_proxy if file.stem in OF_THE_PROXY else set()
        breaches = {
            (line, f"{file.stem} must not import {name.partition('.')[0]}")
            for line, name in imported(file, ("specwatch_tap",))
            if name.partition(".")[0] not in allowed
        }
        if file.stem in SHARED:
            breaches |= {*check_imports(file, "domain", ("specwatch_tap",))}
            breaches |= {*check_calls(file, "domain")}
        found += [Violation(f"{file.name}:{line}", problem) for line, problem in sorted(breaches)]
    return found


def test_the_tap_imports_nothing_of_specwatch() -> None:
    """Only what its wheel brings; what all rooms share of it is pure."""
    found = of_the_tap(TAP)
    assert not found, "\n" + "\n".join(map(str, found))
    assert {file.stem for file in TAP.rglob("*.py")} >= {"proxy", SHARED_FILES, "acceptance"}
    assert circles(TAP) == []


@pytest.mark.parametrize(
    ("file", "source", "problem"),
    [
        ("metrics.py", "from specwatch.domain import merge", "metrics must not import specwatch"),
        ("middleware.py", "def late():\n    import yarl", "middleware must not import yarl"),
        ("orders.py", "import os", "domain is pure and must not import os"),
        ("orders.py", "from specwatch_tap import switch_files", "specwatch_tap.switch_files"),
        ("temperature.py", "text = open('x').read()", "open()"),
    ],
)
def test_what_the_tap_must_not_do_is_found(
    tmp_path: Path, file: str, source: str, problem: str
) -> None:
    (tmp_path / file).write_text(source + "\n")
    (found,) = of_the_tap(tmp_path)
    assert problem in found.problem


def test_the_manual_names_the_rooms_in_their_order() -> None:
    manual = (PACKAGE.parent / "docs/architecture.md").read_text().partition("\n## The way")[0]
    rows = re.findall(r"^\| (`.*?) \|", manual, re.MULTILINE)
    named = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert named == [set(layer) for layer in reversed(LAYERS) if layer != ("__main__",)]


def circles(package: Path) -> list[set[str]]:
    """Modules that import one another, whether when loaded, later, or for their types only."""
    files = {
        ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in package.rglob("*.py")
    }
    imports = {
        module: {
            other if other in files else other.rpartition(".")[0]
            for _, other in imported(file, file.relative_to(package).parts)
        }
        & files.keys()
        for module, file in files.items()
    }
    reached = {module: set(others) for module, others in imports.items()}
    for between in reached:
        for others in reached.values():
            if between in others:
                others |= reached[between]
    tied = [{other for other in reached[m] if m in reached[other]} for m in reached]
    return [ring for number, ring in enumerate(tied) if ring and ring not in tied[:number]]


def test_no_modules_import_one_another() -> None:
    assert circles(PACKAGE) == []


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "specwatch"
    package.mkdir()
    (package / "a.py").write_text("from specwatch.b import thing")
    (package / "b.py").write_text("def late():\n    from specwatch import c")
    (package / "c.py").write_text("if TYPE_CHECKING:\n    import specwatch.a")
    (package / "d.py").write_text("from specwatch import a")
    assert circles(package) == [{"specwatch.a", "specwatch.b", "specwatch.c"}]


def test_the_checker_reads_the_whole_package() -> None:
    """An empty answer of a checker that looks at the wrong folder would prove nothing."""
    rooms = {room_of(file, PACKAGE) for file in PACKAGE.rglob("*.py")}
    assert {"errors", "status", "domain", "engines", "web", "cli"} <= rooms


PLANTED = [
    ("domain/a.py", "from specwatch.store.schema import windows", "store"),
    ("domain/a.py", "from specwatch import store", "store"),
    ("domain/a.py", "from ..store import schema", "store"),
    ("web/a.py", "def late():\n    import specwatch.cli.main", "cli"),
    ("status.py", "import specwatch.store.schema", "store"),
    ("daemon/a.py", "from specwatch.cli import main", "cli"),
    ("config/a.py", "import specwatch.rules.judge", "rules"),
    ("daemon/a.py", "from specwatch_tap import Tap", "specwatch_tap.Tap"),
    ("engines/a.py", "from specwatch_tap import switch_files", "specwatch_tap.switch_files"),
    ("web/a.py", "import specwatch_tap.proxy", "specwatch_tap.proxy"),
    ("lab/simulator/a.py", "import specwatch.store.schema", "store"),
    ("lab/advise/a.py", "import specwatch.lab.simulator.api", "simulator"),
    ("daemon/a.py", "import specwatch.lab.simulator", "simulator"),
    ("generate/a.py", "import specwatch.web.api", "web"),
    (
        "report/a.py",
        "from specwatch.report.mail_and_webhooks import send",
        "report.mail_and_webhooks",
    ),
    ("report/a.py", "from specwatch.store import repository", "store.repository"),
    ("domain/a.py", "import time", "time"),
    ("domain/a.py", "from datetime import datetime\nNOW = datetime.now()", "datetime.now()"),
    ("domain/a.py", "from os import environ", "os"),
    ("domain/deep/a.py", "import socket", "socket"),
    ("domain/a.py", "import urllib.request", "urllib"),
    ("domain/a.py", "from sqlalchemy import select", "sqlalchemy"),
    ("domain/a.py", "text = open('x').read()", "open()"),
    ("domain/a.py", "import random\nx = random.random()", "random.random()"),
    ("domain/a.py", "import random\nx = random.Random()", "seed"),
    ("domain/a.py", "from random import choice", "random.choice"),
    ("helpers.py", "x = 1", "belongs to no layer"),
    ("__init__.py", "from specwatch.domain.model import Window", "domain"),
]
"""A file, what is in it, and a part of the problem that is reported."""


@pytest.mark.parametrize(("file", "source", "problem"), PLANTED)
def test_a_planted_violation_is_found_with_its_line(
    tmp_path: Path, file: str, source: str, problem: str
) -> None:
    package = tmp_path / "specwatch"
    planted = package / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f'"""Innocent."""\n{source}\n')
    (found,) = violations(package)
    line = 1 if "no layer" in problem else 1 + len(source.splitlines())
    assert found.place == f"specwatch/{file}:{line}"
    assert problem in found.problem


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("domain/a.py", "import specwatch.domain.merge, math"),
        ("domain/a.py", "from urllib.parse import urlsplit"),
        ("domain/a.py", "import random\nx = random.Random(7).random()"),
        ("generate/a.py", "from specwatch.config.loading import Config"),
        ("report/deliveries.py", "from specwatch.runtime import tls\nimport smtplib, time"),
        ("store/a.py", "from specwatch.domain import merge\nimport time"),
        ("daemon/a.py", "from specwatch.guard import machine"),
        ("cli/a.py", "from specwatch import daemon\nfrom specwatch.lab import simulator"),
        ("cli/a.py", "from specwatch_tap import settings"),
        ("domain/a.py", "from specwatch_tap.orders import Order"),
        ("actuators/a.py", "from specwatch_tap import switch_files"),
        ("__init__.py", "from specwatch_tap import __version__"),
        ("web/a.py", "from specwatch import __version__"),
        ("lab/simulator/a.py", "from specwatch.scrape import exposition"),
        ("lab/simulator/a.py", "from specwatch_tap.switch import Switch"),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / "specwatch" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source + "\n")
    assert violations(tmp_path / "specwatch") == []

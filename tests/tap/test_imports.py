"""The tap runs where only vLLM is installed, and a daemon loads nothing that only others use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import specwatch_tap

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys, msgspec, prometheus_client
before = set(sys.modules)
from specwatch_tap import Scheduler, Tap
print(*(set(sys.modules) - before), sep="\\n")
"""


def test_importing_the_tap_loads_nothing_that_vllm_does_not_bring() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert {"specwatch_tap.middleware", "specwatch_tap.scheduler"} <= loaded
    assert not loaded & {"specwatch_tap.proxy", "specwatch_tap.upstream"}
    others = {module.partition(".")[0] for module in loaded} - {"specwatch_tap"}
    assert others <= sys.stdlib_module_names | {"msgspec", "prometheus_client"}


def test_the_classes_have_the_names_that_vllm_gets() -> None:
    for name in (specwatch_tap.MIDDLEWARE, specwatch_tap.SCHEDULER):
        module, _, member = name.rpartition(".")
        assert (module, getattr(specwatch_tap, member).__name__) == ("specwatch_tap", member)
    with pytest.raises(AttributeError, match="'specwatch_tap' has no attribute 'Tape'"):
        specwatch_tap.Tape  # noqa: B018


UNUSED = {"aiohttp", "jinja2", "specwatch.pages"}
"""What the proxy needs, and the pages that nobody may ever look at."""
IMPORT = re.compile(r"^(?:from (\S+) import (\([^)]*\)|.+)|import (.+))$", re.MULTILINE)


def imported(module: str) -> set[str]:
    """The modules, ours and others, that a module of ours and its packages import at once, with
    those that these import."""
    known: set[str] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        known.add(name)
        base = ROOT / "tap" if name.partition(".")[0] == "specwatch_tap" else ROOT
        source = base / name.replace(".", "/")
        file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
        if file.exists():
            waiting |= _named(file.read_text()) | {name.rpartition(".")[0] or name}
        waiting -= known
    return known


def _named(source: str) -> set[str]:
    names: set[str] = set()
    for package, members, modules in IMPORT.findall(source):
        names |= {package} if package else {each.split()[0] for each in modules.split(",")}
        names |= {f"{package}.{each}" for each in re.findall(r"\w+", members) if package}
    return names


def test_a_daemon_loads_neither_the_proxy_s_client_nor_templates() -> None:
    for module in ("specwatch.daemon.daemon", "specwatch.cli.tap"):
        assert imported(module) & UNUSED == set()
    assert imported("specwatch_tap.proxy") >= {"aiohttp"}
    assert imported("specwatch.pages.status_html") >= {"specwatch.pages"}

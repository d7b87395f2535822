"""The tap runs where only vLLM is installed, and a daemon loads nothing that only others use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys, msgspec, prometheus_client
before = set(sys.modules)
import specwatch.tap
print(*(set(sys.modules) - before), sep="\\n")
"""
OURS = {
    "specwatch",
    "specwatch.domain",
    "specwatch.engines",
    "specwatch.domain.draft_lengths",
    "specwatch.domain.facts",
    "specwatch.domain.model",
    "specwatch.engines.acceptance",
    "specwatch.engines.base",
    "specwatch.engines.switch",
    "specwatch.engines.switch_files",
    "specwatch.engines.tap",
    "specwatch.engines.vllm",
    "specwatch.domain.segments",
    "specwatch.domain.temperature",
}


def test_importing_the_tap_loads_nothing_that_vllm_does_not_bring() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "specwatch.tap.middleware" in loaded
    ours = {module for module in loaded if module.partition(".")[0] == "specwatch"}
    assert {one for one in ours if not one.startswith("specwatch.tap")} == OURS
    assert not ours & {"specwatch.tap.proxy", "specwatch.tap.upstream"}
    others = {module.partition(".")[0] for module in loaded - ours}
    assert others <= sys.stdlib_module_names | {"msgspec", "prometheus_client"}


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
        source = ROOT / name.replace(".", "/")
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
    assert imported("specwatch.tap.proxy") >= {"aiohttp"}
    assert imported("specwatch.pages.status_html") >= {"specwatch.pages"}

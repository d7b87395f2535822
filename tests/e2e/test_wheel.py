"""What a user installs, as opposed to the checkout: the built wheel in an empty environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = (
    ".py", ".mako", ".typed", ".j2", ".yml", ".yaml", ".tpl", ".json", ".conf", ".service",
    ".socket", ".timer", ".sysusers",
)  # fmt: skip
PAGE = ROOT / "tests/data/vllm-0.32-draft-k4.2.prom"


def ran(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command's end; without the checkout in its environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPECWATCH"))}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def run(*command: str | Path, cwd: Path) -> str:
    """What the command prints, which must succeed."""
    done = ran(*command, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT,
        cwd=folder,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has nothing to do with the checkout."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def specwatch(wheel: Path, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a new environment with just the wheel and what it depends on."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    run(
        sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "--quiet",
        "--no-compile", wheel, cwd=elsewhere,
    )  # fmt: skip
    return environment / "bin/specwatch"


def test_the_wheel_carries_every_module_template_and_migration_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(SUFFIXES)}
    expected = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "specwatch").rglob("*")
        if file.suffix in SUFFIXES
    } | {
        f"specwatch/{file.relative_to(ROOT)}"
        for file in (ROOT / "migrations").rglob("*")
        if file.suffix in SUFFIXES
    }
    assert packed == expected


def test_it_says_its_version(specwatch: Path, wheel: Path, elsewhere: Path) -> None:
    version = wheel.name.split("-")[1]
    assert re.search(rf"\b{re.escape(version)}\b", run(specwatch, "--version", cwd=elsewhere))


def test_it_brings_a_new_database_to_its_schema(specwatch: Path, elsewhere: Path) -> None:
    """The migrations are found without the checkout; a second upgrade changes nothing."""
    url = f"sqlite:///{elsewhere / 'history.db'}"
    run(specwatch, "db", "upgrade", "--database", url, cwd=elsewhere)
    revision = run(specwatch, "db", "current", "--database", url, cwd=elsewhere)
    newest = max(file.name for file in (ROOT / "migrations/versions").glob("[0-9]*.py"))
    assert re.search(rf"\b{newest.split('_')[0]}\b", revision)
    run(specwatch, "db", "upgrade", "--database", url, cwd=elsewhere)
    assert run(specwatch, "db", "current", "--database", url, cwd=elsewhere) == revision


def test_it_reads_a_page(specwatch: Path, elsewhere: Path) -> None:
    answer = json.loads(run(specwatch, "scrape", PAGE, "--json", cwd=elsewhere))
    (model,) = answer["models"]
    assert model["model_name"] == "tiny"
    assert model["speculation"] == "on"
    assert len(model["accepted_per_position"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "--off", "http://127.0.0.1:9"),
        ("probe", "--target", "http://127.0.0.1:9"),
        ("bench", "--target", "http://127.0.0.1:9"),
        ("tap", "proxy", "--upstream", "http://127.0.0.1:9", "--listen", "nowhere.invalid:1"),
    ],
)
def test_what_sends_requests_needs_no_further_package(
    specwatch: Path, elsewhere: Path, arguments: tuple[str, ...]
) -> None:
    done = ran(specwatch, *arguments, cwd=elsewhere)
    assert done.returncode in (1, 2)
    assert "needs the package" not in done.stderr
    assert "nothing listens" in done.stderr or "nowhere.invalid" in done.stderr

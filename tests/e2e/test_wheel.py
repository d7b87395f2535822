"""What a user installs, as opposed to the checkout: each built wheel in an empty environment."""

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
TAP = ROOT / "tap"
SUFFIXES = (
    ".py",
    ".mako",
    ".typed",
    ".j2",
    ".yml",
    ".yaml",
    ".tpl",
    ".json",
    ".conf",
    ".service",
    ".socket",
    ".timer",
    ".sysusers",
)
PAGE = ROOT / "tests/data/vllm-0.32-draft-k4.2.prom"
RESPONSE = ROOT / "tests/data/chat-response.json"

SERVED = """
import asyncio, json, sys
from pathlib import Path
from types import SimpleNamespace as Thing

from prometheus_client import REGISTRY, generate_latest
import specwatch_tap

module, _, name = specwatch_tap.MIDDLEWARE.rpartition(".")
body = Path(sys.argv[1]).read_bytes()
model = Thing(base_model_paths=[Thing(name="tiny")])
handler = Thing(default_sampling_params={"temperature": 0.6})


async def app(scope, receive, send):
    await receive()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def ask(tap, request):
    received = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(request).encode()}

    async def send(message):
        received.append(message)

    state = Thing(openai_serving_models=model, openai_serving_chat=handler)
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
        "app": Thing(state=state),
    }
    await tap(scope, receive, send)
    assert received[-1]["body"] == body


tap = getattr(sys.modules[module], name)(app)
asyncio.run(ask(tap, {"model": "tiny", "messages": [], "temperature": 0.2}))
asyncio.run(ask(tap, {"model": "tiny", "messages": []}))
assert specwatch_tap.Scheduler
assert "specwatch" not in sys.modules
print(generate_latest(REGISTRY).decode())
"""
"""An application under the tap, in the environment of its wheel."""


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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both."""
    folder = tmp_path_factory.mktemp("wheels")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        TAP,
        ROOT,
        cwd=folder,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    (built,) = wheels.glob("specwatch-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel_of_tap(wheels: Path) -> Path:
    (built,) = wheels.glob("specwatch_tap-*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has nothing to do with the checkout."""
    return tmp_path_factory.mktemp("elsewhere")


def installed(environment: Path, *wheel: str | Path) -> Path:
    """A new environment with just the wheel and what it depends on."""
    venv.create(environment, with_pip=False)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        environment / "bin/python",
        "install",
        "--quiet",
        "--no-compile",
        *wheel,
        cwd=environment,
    )
    return environment


@pytest.fixture(scope="module")
def specwatch(wheel: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own; the tap is in no index."""
    environment = tmp_path_factory.mktemp("environment")
    return installed(environment, "--find-links", wheels, wheel) / "bin/specwatch"


@pytest.fixture(scope="module")
def python_with_tap(wheel_of_tap: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python in an environment with the tap only."""
    return installed(tmp_path_factory.mktemp("environment"), wheel_of_tap) / "bin/python"


def packed_in(wheel: Path) -> set[str]:
    """What the wheel has of the package."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.endswith(SUFFIXES)}


def test_the_wheel_carries_every_module_template_and_migration_and_no_tests(wheel: Path) -> None:
    expected = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "specwatch").rglob("*")
        if file.suffix in SUFFIXES
    } | {
        f"specwatch/{file.relative_to(ROOT)}"
        for file in (ROOT / "migrations").rglob("*")
        if file.suffix in SUFFIXES
    }
    assert packed_in(wheel) == expected


def test_the_wheel_of_the_tap_carries_its_modules_only(wheel_of_tap: Path) -> None:
    expected = {
        str(file.relative_to(TAP))
        for file in (TAP / "specwatch_tap").rglob("*")
        if file.suffix in SUFFIXES
    }
    assert packed_in(wheel_of_tap) == expected
    assert "specwatch_tap/py.typed" in expected


def test_both_are_of_one_version_and_one_needs_the_other(wheel: Path, wheel_of_tap: Path) -> None:
    version = wheel.name.split("-")[1]
    assert wheel_of_tap.name.split("-")[1] == version
    assert f"specwatch-tap[proxy]=={version}" in required(wheel)
    assert {re.split("[>=]", each)[0] for each in required(wheel_of_tap)} == {
        "msgspec",
        "prometheus-client",
    }


def required(wheel: Path) -> set[str]:
    """What a wheel depends on without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        needed = re.findall("^Requires-Dist: (.*)$", archive.read(name).decode(), re.MULTILINE)
    return {each for each in needed if "extra ==" not in each}


def test_the_tap_runs_where_only_what_it_depends_on_is(
    python_with_tap: Path, elsewhere: Path
) -> None:
    """With the name that vLLM gets, around an application that has what vLLM's has."""
    listed = run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python_with_tap,
        "list",
        "--format",
        "json",
        cwd=elsewhere,
    )
    names = {package["name"].replace("_", "-") for package in json.loads(listed)}
    assert names == {"specwatch-tap", "msgspec", "prometheus-client"}
    page = run(python_with_tap, "-c", SERVED, RESPONSE, cwd=elsewhere)
    for bucket in ("(0,0.3]", "(0.3,0.7]"):
        labels = f'finish_reason="length",model_name="tiny",temperature="{bucket}"'
        assert f"specwatch_requests_total{{{labels}}} 1.0" in page
    assert re.search(r'specwatch_tap_failures_total{stage="count"} 0\.0', page)


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

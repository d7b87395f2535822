"""``specwatch tap flags``: the flags to add, and safe changes of commands."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings
from specwatch_tap import __version__
from tests.cli.conftest import Run

COMMAND = ["/opt/vllm/bin/vllm", "serve", "M", "--spec-method", "ngram", "--spec-tokens", "3"]
RECORD = ["--per-request-spec-decode-metrics", "summary"]
TAP = ["--middleware", "specwatch_tap.Tap"]
CHECKOUT = Path(__file__).parents[2]
BUCKETS = "SPECWATCH_TAP_TEMPERATURE_BUCKETS"


def flags(run: Run, *arguments: object) -> Any:
    """The JSON output of a command that succeeds."""
    done = run("tap", "flags", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_each_flag_comes_with_its_reason(run: Run) -> None:
    done = run("tap", "flags", "--vllm-version", "0.32.0")
    assert done.exit_code == 0
    printed = unwrapped(done.stdout)
    for flag in flags(run, "--vllm-version", "0.32.0")["flags"]:
        assert f"{flag['flag']} {flag['value']} {flag['why']}" in printed
    install = f"pip install {shlex.quote(str(CHECKOUT / 'tap'))}"
    assert f'{install} python -c "from specwatch_tap import Tap"' in printed
    lines = [line for line in done.stdout.splitlines() if "pip install" not in line]
    assert max(map(len, lines)) <= 80


def test_segments_are_set_in_the_environment(run: Run) -> None:
    advice = flags(run, "--vllm-version", "0.32.0", "--segments", "prompt_length,header:x-tenant")
    assert advice["environment"] == {"SPECWATCH_TAP_SEGMENTS": "prompt_length,header:x-tenant"}
    for command in (("flags",), ("proxy", "--upstream", "http://127.0.0.1:1")):
        refused = run("tap", *command, "--segments", "tools")
        assert refused.exit_code == 2
        assert "'tools' is not a kind of segment; use prompt_length" in unwrapped(refused.stderr)


def test_json_has_all_that_the_text_has(run: Run) -> None:
    advice = flags(run, "--vllm-version", "0.32.0", "--per-request-metrics", "--remove-metrics")
    assert list(advice) == ["flags", "environment", "install", "command", "drop_in", "notes"]
    assert [(flag["flag"], flag["value"]) for flag in advice["flags"]] == [
        ("--middleware", "specwatch_tap.Tap"),
        ("--per-request-spec-decode-metrics", "summary"),
        ("--enable-per-request-metrics", None),
    ]
    assert advice["environment"] == {"SPECWATCH_TAP_REMOVE_METRICS": "1"}
    assert advice["install"] == f"pip install {shlex.quote(str(CHECKOUT / 'tap'))}"
    assert (advice["command"], advice["drop_in"]) == (None, None)


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": "file:///nowhere", "dir_info": {}}, f"specwatch-tap=={__version__}"),
        ({"url": "file://FOLDER", "dir_info": {}}, "FOLDER"),
        (
            {"url": "https://h/x.git", "vcs_info": {"vcs": "git", "commit_id": "0f"}},
            "git+https://h/x.git@0f",
        ),
        (
            {
                "url": "https://h/x.git",
                "subdirectory": "tap",
                "vcs_info": {"vcs": "git", "commit_id": "0f"},
            },
            "'git+https://h/x.git@0f#subdirectory=tap'",
        ),
        (None, f"specwatch-tap=={__version__}"),
    ],
)
def test_the_tap_is_installed_from_where_that_of_specwatch_was(
    run: Run,
    origin: dict[str, Any] | None,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = "" if origin is None else json.dumps(origin).replace("FOLDER", str(tmp_path))
    noted_by_pip = SimpleNamespace(read_text=lambda name: noted or None)
    installed = f"{tmp_path}/site-packages/specwatch_tap/__init__.py"
    monkeypatch.setattr("specwatch_tap.__file__", installed)
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", lambda name: noted_by_pip)
    source = source.replace("FOLDER", str(tmp_path))
    assert flags(run)["install"] == f"pip install {source}"


def test_the_whole_command_can_be_pasted_into_a_shell(run: Run) -> None:
    given = [*COMMAND, "--chat-template", "it's {{ $x }}\n", "--served-model-name", "a b"]
    done = run(
        "tap", "flags", "--vllm-version", "0.32", "--temperature-buckets", "0,0.5", "--", *given
    )
    line = done.stdout.partition("The whole command:\n\n")[2]
    shown = "import sys, os, json; print(json.dumps([os.environ[sys.argv[1]], sys.argv[2:]]))"
    pasted = line.strip().replace(given[0], f"python3 -c {shlex.quote(shown)} {BUCKETS}", 1)
    run_by = subprocess.run(["/bin/sh", "-c", pasted], capture_output=True, text=True, timeout=60)
    assert json.loads(run_by.stdout) == ["0,0.5", [*given[1:], *TAP, *RECORD]], run_by.stderr


def test_a_command_that_has_it_all_is_left_alone(run: Run) -> None:
    words = [*COMMAND, *TAP, *RECORD]
    advice = flags(run, "--vllm-version", "0.32", "--", *words)
    assert (advice["flags"], advice["command"]) == ([], words)
    assert "has all flags" in run("tap", "flags", "--vllm-version", "0.32", "--", *words).stdout


def test_the_version_is_asked_of_a_server(run: Run, web: Callable[..., str]) -> None:
    with SimulatedServer(SimulatedSettings(port=0, engine_version="0.10.2")) as server:
        advice = flags(run, "--target", server.url)
    assert [flag["flag"] for flag in advice["flags"]] == [TAP[0]]
    assert "derived" in advice["notes"][0]
    unknown = web("/health", lambda _: Response())
    assert flags(run, "--target", unknown) == flags(run)


def test_a_server_that_is_not_vllm_exits_with_1(run: Run, web: Callable[..., str]) -> None:
    props = web("/props", lambda _: JSONResponse({"build_info": "b6119-cd6983d5"}))
    done = run("tap", "flags", "--target", props)
    assert done.exit_code == 1
    assert "b6119-cd6983d5" in done.stderr
    assert "specwatch tap proxy --upstream" in done.stderr
    done = run("tap", "flags", "--target", "http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(("buckets", "set_to"), [("0, 0.5,1.5", "0,0.5,1.5"), ("0,.3,.7,1", None)])
def test_buckets_are_set_unless_they_are_the_default(
    run: Run, buckets: str, set_to: str | None
) -> None:
    environment = flags(run, "--temperature-buckets", buckets)["environment"]
    assert environment == ({} if set_to is None else {BUCKETS: set_to})


def test_a_drop_in_can_be_piped_into_its_place(run: Run) -> None:
    done = run(
        "tap", "flags", "--vllm-version", "0.32", "--systemd", "--remove-metrics", "--", *COMMAND
    )
    lines = done.stdout.splitlines()
    start = lines.index("[Service]")
    assert all(line.startswith("#") for line in lines[:start])
    assert lines[start + 1 :] == [
        "Environment=SPECWATCH_TAP_REMOVE_METRICS=1",
        "ExecStart=",
        f"ExecStart={' '.join([*COMMAND, *TAP, *RECORD])}",
    ]
    advice = flags(run, "--vllm-version", "0.32", "--systemd", "--remove-metrics", "--", *COMMAND)
    assert advice["drop_in"] == done.stdout
    assert advice["command"] == [*COMMAND, *TAP, *RECORD]


def test_json_keeps_the_environment_apart_from_the_words(run: Run) -> None:
    advice = flags(run, "--vllm-version", "0.32", "--remove-metrics", "--", "A=b \udcff", *COMMAND)
    assert advice["environment"] == {"A": "b \ufffd", "SPECWATCH_TAP_REMOVE_METRICS": "1"}
    assert advice["command"] == [*COMMAND, *TAP, *RECORD]


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), ("- a", "not a mapping"), ("a: [", "not YAML")]
)
def test_a_file_that_cannot_be_read_is_noted(
    run: Run, tmp_path: Path, content: str | None, why: str
) -> None:
    file = tmp_path / "line\nfeed.yml"
    if content is not None:
        file.write_text(content)
    words = ["/bin/vllm", "serve", "M", "--config", str(file)]
    advice = flags(run, "--vllm-version", "0.32", "--systemd", "--", *words)
    assert advice["command"] == [*words, *TAP]
    assert why in " ".join(advice["notes"])
    comments = advice["drop_in"].partition("[Service]")[0].splitlines()
    assert all(line.startswith("#") for line in comments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--", "bash", "-c", "cd /m; vllm serve M"], "give the plain command"),
        (["--", "docker", "run", "vllm/vllm-openai", "M"], "docker starts vLLM in a container"),
        (["--", "vllm", "bench"], "no `vllm serve`"),
        (["--systemd", "--", "vllm", "serve", "M"], "full path"),
        (["--systemd"], "--systemd needs the command"),
        (["--vllm-version", "new"], "not a version of vLLM"),
        (["--vllm-version", "0.29", "--target", "http://x"], "not both"),
        (["--target", "nonsense"], "--target"),
        (["--temperature-buckets", "1,0"], "--temperature-buckets"),
        (["--temperature-buckets", "warm"], "--temperature-buckets"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error_with_the_reason(
    run: Run, arguments: list[str], why: str
) -> None:
    done = run("tap", "flags", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in unwrapped(done.stderr)


def test_bytes_that_are_no_text_do_not_break_it(run: Run) -> None:
    words = [*COMMAND, "--chat-template", "\udcff"]
    assert flags(run, "--vllm-version", "0.32", "--", *words)["command"][-5] == "\ufffd"
    assert (
        '"\\xff"' in run("tap", "flags", "--vllm-version", "0.32", "--systemd", "--", *words).stdout
    )

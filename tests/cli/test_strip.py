"""``specwatch strip``: commands without speculation, and refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("words", "stripped", "removed"),
    [
        (
            ["vllm", "serve", "a b", "--speculative-config", '{"method": "ngram"}', "--port", "1"],
            ["vllm", "serve", "a b", "--port", "1"],
            ["--speculative-config", '{"method": "ngram"}'],
        ),
        (
            ["A=b c", "vllm", "serve", "M", "-sc", "{}"],
            ["A=b c", "vllm", "serve", "M"],
            ["-sc", "{}"],
        ),
        (["vllm", "serve", "M"], ["vllm", "serve", "M"], []),
    ],
    ids=["with speculation", "with an assignment", "without speculation"],
)
def test_it_prints_a_line_for_a_shell_and_what_was_removed_beside_it(
    run: Run, words: list[str], stripped: list[str], removed: list[str]
) -> None:
    done = run("strip", "--", *words)
    assert done.exit_code == 0
    assert done.stdout.count("\n") == 1
    assert shlex.split(done.stdout) == stripped
    assert not done.stdout.startswith("'"), "an assignment remains one"
    assert done.stderr == (
        f"removed: {shlex.join(removed)}\n" if removed else "nothing to remove\n"
    )
    answer = json.loads(run("strip", "--json", "--", *words).stdout)
    assert answer == {"command": stripped, "removed": removed, "notes": []}


def test_the_config_file_is_read_and_noted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("port: 1\nspec-tokens: 3\n")
    words = ("vllm", "serve", "M", "--config", file)
    answer = json.loads(run("strip", "--json", "--", *words).stdout)
    assert answer["command"] == ["vllm", "serve", "M", "--port", "1"]
    assert answer["removed"] == ["--spec-tokens", "3"]
    assert str(file) in answer["notes"][0]
    assert str(file) in run("strip", "--", *words).stderr


@pytest.mark.parametrize("content", [None, b"\xff", b"#" * ((1 << 20) + 1)])
def test_a_config_file_that_cannot_be_read_is_refused(
    run: Run, content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "vllm.yaml"
    if content is not None:
        file.write_bytes(content)
    done = run("strip", "--", "vllm", "serve", "M", "--config", file)
    assert done.exit_code == 2
    assert "may hold speculation and cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-- vllm serve M $ARGS", "COMMAND: '$ARGS' may expand to several words"),
        ("-- sh -c 'vllm serve M | tee log'", "give the plain command"),
        ("", "give the command that starts vLLM"),
    ],
)
def test_a_refusal_is_a_usage_error(run: Run, line: str, why: str) -> None:
    for option in ((), ("--json",)):
        done = run("strip", *option, *shlex.split(line))
        assert (done.exit_code, done.stdout) == (2, "")
        assert why in done.stderr


def test_nothing_in_a_command_can_command_the_terminal(run: Run) -> None:
    done = run("strip", "--", "vllm", "serve", "M\x1b[2J", "--spec-model", "\x1b[2J")
    assert "\x1b" not in done.stdout + done.stderr

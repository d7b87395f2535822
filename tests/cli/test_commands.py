"""Behaviour of all commands."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from specwatch import __version__
from specwatch.cli import group, main, options
from specwatch.cli.examples import EXAMPLES
from tests.cli.conftest import Run


def every(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of its subcommands."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from every(inner, (*words, name))


EVERY = tuple(every(group))


def test_it_says_its_version(run: Run) -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"specwatch, version {__version__}\n")


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_fits_a_terminal_and_explains_every_option(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert done.exit_code == 0
    assert run(*words, "-h").stdout == done.stdout
    widest = max(map(len, done.stdout.splitlines()))
    assert widest <= (90 if words == ("simulate",) else 80)
    command: click.Command = group
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.name} is not explained"


def test_every_help_ends_with_examples_that_parse(run: Run) -> None:
    assert set(EXAMPLES) == {" ".join(words) for words in EVERY} | {"guard-helper"}
    for name, lines in EXAMPLES.items():
        shown = run(*name.split(), "--help").stdout
        for line in lines:
            assert line.startswith(name)
            assert f"    specwatch {line}\n" in shown
            command: click.Command = group
            context = click.Context(group, info_name="specwatch")
            words = shlex.split(line)
            while isinstance(command, click.Group) and words and not words[0].startswith("-"):
                inner = command.get_command(context, words.pop(0))
                assert inner is not None, line
                command = inner
            command.make_context(line, words, parent=context)


@pytest.mark.parametrize("words", [["check-config"], ["guard", "status"]])
def test_an_interruption_exits_with_130(
    run: Run, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "load", interrupted)
    monkeypatch.setattr(options, "loaded", interrupted)
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("line", "remedies"),
    [
        ("statsu", ['did you mean "status"?']),
        ("check_config", ['did you mean "check-config"?']),
        ("scape -", ['did you mean "scrape"?']),
        ("db upgrad", ['did you mean "upgrade"?']),
        ("zzz\x1b", [words[0] for words in EVERY[1:]]),
    ],
)
def test_a_mistyped_command_gets_the_nearest_and_an_unlike_one_gets_them_all(
    run: Run, line: str, remedies: list[str]
) -> None:
    done = run(*line.split(" "))
    assert done.exit_code == 2
    assert all(remedy in done.stderr for remedy in remedies)
    assert "\x1b" not in done.stderr


def test_a_specwatch_error_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "--url", "http://127.0.0.1:1"])
    assert ended.value.code == 1
    done = capsys.readouterr()
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "no daemon answers" in done.err


def test_a_closed_pipe_prints_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[1] / "data/vllm-0.32-draft-k4.2.prom"
    closed, pipe = os.pipe()
    os.close(closed)
    with (
        contextlib.suppress(BrokenPipeError),  # as the pipe is closed
        open(pipe, "w") as out,
        contextlib.redirect_stdout(out),
        pytest.raises(SystemExit) as ended,
    ):
        main(["scrape", str(page)])
    assert (ended.value.code, capsys.readouterr().err) == (1, "")


def test_a_command_loads_only_what_it_needs() -> None:
    """The daemon stays small, and scrape stays fast."""
    code = (
        "import sys\n"
        "from specwatch.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "print({'rich', 'alembic', 'uvicorn', 'sqlalchemy', 'specwatch.lab.simulator'}"
        " & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "run",
        "run -- vllm serve m",
        "status",
        "check-config",
        "report",
        "rules list",
        "db current",
        "guard status",
        "guard plan",
        "probe --target http://127.0.0.1:9",
        "backfill --prometheus http://127.0.0.1:9",
    ],
)
def test_a_configuration_that_this_user_may_not_look_for_is_an_error(
    run: Run, forbid: Callable[[Path], None], words: str
) -> None:
    """Such as /etc/specwatch, if only root may read it."""
    options.DEFAULT_FILE.parent.mkdir()
    options.DEFAULT_FILE.write_text("targets: [http://127.0.0.1:9]\n")
    forbid(options.DEFAULT_FILE.parent)
    done = run(*words.split())
    assert done.exit_code == 2
    assert f"cannot read {options.DEFAULT_FILE}: Permission denied; make it" in done.stderr
    assert "or use sudo" in done.stderr

"""``specwatch run -- COMMAND``: the configuration from a command, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specwatch.cli import run as run_command
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.domain.model import Mode
from specwatch.errors import StoreUnavailable
from specwatch.guard.state import Phase, Step
from specwatch.store import database as store_database
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from tests.cli.conftest import Run

SERVE = ("vllm", "serve", "m")
SUPERVISED = "{kind: supervised}"


def configured(
    words: Sequence[str], *, file: Path | None = None, targets: Sequence[str] = ()
) -> Config:
    return run_command.configured(file, targets, words, database=None, listen=None)


def written(folder: Path, *targets: str) -> Path:
    file = folder / "specwatch.yml"
    file.write_text("targets:\n" + "".join(f"  - {target}\n" for target in targets))
    return file


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ((), "http://127.0.0.1:8000"),
        (("--port", "9000"), "http://127.0.0.1:9000"),
        (("--port=9000", "--host=0.0.0.0"), "http://127.0.0.1:9000"),
        (("--port", "1", "--por", "9000", "--hos", "10.0.0.1"), "http://10.0.0.1:9000"),
        (("--host", "::"), "http://[::1]:8000"),
        (("--host", "fd00::1"), "http://[fd00::1]:8000"),
        (("--host", "gpu7.lan"), "http://gpu7.lan:8000"),
        (("--host", ""), "http://127.0.0.1:8000"),
        (("--ssl-keyfile", "k.pem", "--ssl-certfile", "c.pem"), "https://127.0.0.1:8000"),
        (("--ssl_keyfile=k.pem", "--port", "443"), "https://127.0.0.1:443"),
    ],
)
def test_the_target_is_what_the_command_serves(flags: tuple[str, ...], url: str) -> None:
    """Certificates are not checked, because the connection stays on this machine."""
    (target,) = configured([*SERVE, *flags]).targets
    assert target.url == url
    assert isinstance(target.service, SupervisedService)
    assert target.insecure_skip_verify is url.startswith("https://")


def test_the_file_of_the_command_counts_less_than_its_flags(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yml"
    file.write_text("port: 9000\nhost: '::1'\n")
    (target,) = configured([*SERVE, "--config", str(file)]).targets
    assert target.url == "http://[::1]:9000"
    (target,) = configured(["env", "A=b", *SERVE, "--config", str(file), "--port", "1"]).targets
    assert target.url == "http://[::1]:1"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((*SERVE, "--uds", "/run/v.sock"), "the socket file /run/v.sock"),
        (("llama-server", "-m", "M.gguf", "--host", "/run/l.sock"), "the socket file /run/l.sock"),
        ((*SERVE, "--port", "http"), "--port http: expected 1 to 65535"),
        ((*SERVE, "--port", "0"), "--port 0: expected 1 to 65535"),
        ((*SERVE, "--port"), "--port : expected 1 to 65535"),
        ((*SERVE, "--config", "/none.yml"), "/none.yml' may hold speculation and cannot be read"),
        (("sh", "-c", "cd /m; vllm serve m"), "add --target URL before the --"),
        (("./start-vllm",), "there is no `vllm serve` or plain"),
        (("API_KEY=secret", *SERVE), "put env before it"),
        (("docker", "run", "--gpus", "all", "vllm/vllm-openai"), "would outlive specwatch"),
        (("sudo", "systemctl", "start", "vllm"), "would outlive specwatch"),
    ],
)
def test_a_command_without_an_address_exits_with_2(
    run: Run, words: list[str], problem: str
) -> None:
    done = run("run", "--", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("COMMAND")
    assert problem in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ((), "http://127.0.0.1:8080"),
        (("--host", "::1", "--port", "9000"), "http://[::1]:9000"),
        (("--ssl-key-file", "k.pem", "--port", "1", "--port", "2"), "https://127.0.0.1:2"),
    ],
)
def test_the_target_is_where_llama_server_serves(flags: tuple[str, ...], url: str) -> None:
    words = ["nice", "llama-server", "-m", "M.gguf", "-md", "D.gguf", *flags]
    (target,) = configured(words).targets
    assert (target.url, isinstance(target.service, SupervisedService)) == (url, True)


def test_a_target_may_be_named_for_what_cannot_be_read(run: Run) -> None:
    words = ("sh", "-c", "cd /m; exec vllm serve m")
    (target,) = configured(words, targets=["http://h:1"]).targets
    assert (target.url, isinstance(target.service, SupervisedService)) == ("http://h:1", True)
    done = run("run", "--target", "http://h:1", "--target", "http://h:2", "--", *words)
    assert done.exit_code == 2
    assert "give --target once" in done.stderr


def test_the_supervised_target_of_a_file_is_the_commands(tmp_path: Path) -> None:
    """The other targets are watched too; the file is used for a command that cannot be read."""
    file = written(
        tmp_path,
        f"{{name: ours, url: 'http://127.0.0.1:9000', service: {SUPERVISED}}}",
        "{name: other, url: 'http://h:8000'}",
    )
    for words in ([*SERVE, "--port", "9000"], ["./start-vllm"]):
        assert [target.name for target in configured(words, file=file).targets] == ["ours", "other"]


@pytest.mark.parametrize(
    ("targets", "words", "problem"),
    [
        (["{url: 'http://h:1'}"], SERVE, "no target is run by COMMAND"),
        (
            [f"{{name: {name}, url: 'http://h:1', service: {SUPERVISED}}}" for name in "ab"],
            SERVE,
            "targets[1].service: targets[0] is supervised too, and specwatch runs one vLLM",
        ),
        (
            [f"{{name: a, url: 'http://127.0.0.1:1', service: {SUPERVISED}}}"],
            SERVE,
            "COMMAND serves http://127.0.0.1:8000; make the ports agree",
        ),
        (
            [f"{{name: a, url: 'http://127.0.0.1:1', service: {SUPERVISED}}}"],
            (),
            "target a: its service is supervised, which needs the command",
        ),
    ],
    ids=["none", "two", "another port", "no command"],
)
def test_a_file_and_a_command_that_do_not_fit_exit_with_2(
    run: Run, tmp_path: Path, targets: list[str], words: tuple[str, ...], problem: str
) -> None:
    done = run("run", "--config", written(tmp_path, *targets), "--", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in done.stderr


def test_a_command_that_cannot_be_started_exits_with_2(
    run: Run, daemon_here: list[Any], tmp_path: Path
) -> None:
    """The first word of a command ends the options of run."""
    command = [str(tmp_path / "vllm"), "serve", "m", "--config", "of-the-command.yml"]
    ours = ["run", "--listen", "127.0.0.1:0", "--target", "http://127.0.0.1:1"]
    done = run(*ours, *command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"COMMAND: cannot start {command[0]}: No such file or directory\n"
    assert all(entry["event"].startswith("vllm_") for entry in daemon_here)


@pytest.fixture
def config(database: str) -> Config:
    return run_command.configured(None, (), SERVE, database=database, listen=None)


def test_it_is_started_as_the_guard_left_it(config: Config) -> None:
    assert run_command.stored_mode(config) is Mode.ON
    (target,) = config.targets
    book = GuardBook(Store(config.database.connect_url(), daemon="d"))
    book.hold([target.name], "d:1", 0.0, able=True)
    entry = book.look()[target.name]
    off = replace(entry.state, phase=Phase.DISABLED, goal=Mode.OFF)
    book.advance(entry, Step(off, "so it is"), 0.0, by="d")
    assert run_command.stored_mode(config) is Mode.OFF


def test_a_database_that_comes_late_is_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a database, vLLM is started after a while."""
    answers = iter([StoreUnavailable("away"), StoreUnavailable("away"), None])
    asked: list[str] = []

    def create(url: str) -> bool:
        asked.append(url)
        answer = next(answers, StoreUnavailable("away"))
        if answer is not None:
            raise answer
        return created(url)

    created = store_database.create
    monkeypatch.setattr(store_database, "create", create)
    monkeypatch.setattr(run_command, "_AGAIN_SECONDS", 0.0)
    assert run_command.stored_mode(config) is Mode.ON
    assert len(asked) == 3
    monkeypatch.setattr(run_command, "DATABASE_SECONDS", 0.0)
    assert run_command.stored_mode(config) is Mode.ON
    assert len(asked) == 4

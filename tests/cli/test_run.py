"""``specwatch run``: start, refusals and end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "give --target URL, or --config FILE"),
        ("--target http://127.0.0.1:1 --config x.yml", "not both"),
        ("--target foo", 'write "http://foo"'),
        ("--config /nonexistent.yml", "cannot read /nonexistent.yml"),
        ("--target http://127.0.0.1:1 --database mysql://h/d", "mysql"),
        ("--target http://127.0.0.1:1 --listen 9469", "127.0.0.1:9469"),
        ("--config FILE --database mysql://h/d", "--database: "),
        ("--config FILE --listen 9469", "--listen: "),
        ("--log-format xml", "xml"),
    ],
)
def test_wrong_options_exit_with_2(run: Run, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "specwatch.yml"
    file.write_text("targets: [{url: 'http://127.0.0.1:1'}]\n")
    done = run("run", *line.replace("FILE", str(file)).split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in done.stderr


@contextmanager
def daemon(*command: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A running daemon and its log event ``started``."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        try:
            assert p.stderr is not None
            for line in p.stderr:
                event = json.loads(line)
                if event["event"] == "started":
                    yield p, event
                    break
            else:
                raise AssertionError("it did not start")
        finally:
            p.kill()


def test_a_url_is_enough_and_a_signal_ends_it(
    run: Run, specwatch: list[str], tmp_path: Path
) -> None:
    """It logs its address and database; ``status`` finds it there. Of the signals, Ctrl-C."""
    command = [*specwatch, "run", "--target", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]
    with daemon(*command) as (process, started):
        assert str(tmp_path / "state/specwatch/specwatch.db") in str(started["database"])
        done = run("status", "--url", started["listen"])
        assert "watching 1 target" in done.stdout
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert json.loads(err.splitlines()[-1])["event"] == "stopped"
    assert (tmp_path / "state/specwatch/specwatch.db").exists()


def test_a_used_address_exits_with_2_at_once(specwatch: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*specwatch, "run", "--target", "http://127.0.0.1:1", "--listen", listen],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "Address already in use; choose another" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_standard_streams_it_runs(specwatch: list[str], tmp_path: Path) -> None:
    """Some supervisors start processes like that."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *specwatch, "run", "--target",
        "http://127.0.0.1:1", "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                # It listens before it has its handlers of signals, and answers after that.
                with suppress(OSError):
                    requests.get(f"http://127.0.0.1:{port}/healthz", timeout=1)
                    break
                time.sleep(0.05)
            else:
                raise AssertionError("it does not answer")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()

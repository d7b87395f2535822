"""``specwatch run``: start, refusals and end."""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from tests.cli.conftest import Run
from tests.hostile import wait_for


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "give --target URL, or --config FILE"),
        ("--target http://127.0.0.1:1 --config x.yml", "not both"),
        ("--target foo", 'write "http://foo"'),
        ("--config /nonexistent.yml", "cannot read /nonexistent.yml"),
        ("--target http://127.0.0.1:1 --database mysql://h/d", "mysql"),
        ("--target http://127.0.0.1:1 --listen 9469", "127.0.0.1:9469"),
        ("--target http://127.0.0.1:1 --daemon=", 'daemon: "" is empty'),
        ("--config FILE --database mysql://h/d", "--database: "),
        ("--config FILE --listen 9469", "--listen: "),
        ("--config FILE --daemon=", "--daemon: "),
        ("--log-format xml", "xml"),
    ],
)
def test_wrong_options_exit_with_2(run: Run, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "specwatch.yml"
    file.write_text("targets: [{url: 'http://127.0.0.1:1'}]\n")
    done = run("run", *line.replace("FILE", str(file)).split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in done.stderr


def test_a_url_is_enough_and_a_signal_ends_it(
    run: Run, specwatch: list[str], tmp_path: Path
) -> None:
    """Also without standard streams, as some supervisors start processes. Of the signals, Ctrl-C;
    ``status`` finds it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "/bin/sh",
        "-c",
        'exec "$@" 0<&- 1>&- 2>&-',
        "sh",
        *specwatch,
        "run",
        "--target",
        "http://127.0.0.1:1",
        "--listen",
        address,
        "--daemon",
        "left",
    ]
    with subprocess.Popen(command) as process:
        try:
            # It listens before it has its handlers of signals and its targets, and answers then.
            wait_for(lambda: process.poll() is not None or answers(f"http://{address}/healthz"))
            status = ("status", "--url", f"http://{address}")
            wait_for(lambda: "watching 1 target" in run(*status).stdout)
            assert " on left, up " in run(*status).stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    assert (tmp_path / "state/specwatch/specwatch.db").exists()


def answers(url: str) -> bool:
    with suppress(OSError):
        requests.get(url, timeout=1)
        return True
    return False


@pytest.mark.usefixtures("daemon_here")
def test_a_used_address_exits_with_2_at_once(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("run", "--target", "http://127.0.0.1:1", "--listen", listen)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Address already in use; choose another" in done.stderr

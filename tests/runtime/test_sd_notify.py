"""What systemd is told, by the sd_notify protocol."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specwatch.errors import ConfigError
from specwatch.runtime.sd_notify import ServiceManager
from tests.fixtures import Log, events
from tests.runtime.notify import NotifySocket


@pytest.fixture(params=["path", "abstract"])
def notify(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    path = str(tmp_path / "n") if request.param == "path" else f"@specwatch-test-{os.getpid()}"
    with NotifySocket(path) as listening:
        yield listening


def test_every_notification_is_one_datagram(notify: NotifySocket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": notify.address, "WATCHDOG_USEC": "30000000"})
    assert manager.watchdog_seconds == 30
    manager.ready("All\nwell")
    manager.reloading()
    manager.alive()
    manager.status("Fine")
    manager.stopping()
    messages = [notify.next() for _ in range(5)]
    assert messages[0] == {"READY": "1", "STATUS": "All well"}
    assert messages[1].keys() == {"RELOADING", "MONOTONIC_USEC"}
    assert int(messages[1]["MONOTONIC_USEC"]) > 0
    assert messages[2:] == [
        {"WATCHDOG": "1"},
        {"STATUS": "Fine"},
        {"STOPPING": "1", "STATUS": "Stopping"},
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_sign_of_life_where_nobody_waits_for_ours(
    notify: NotifySocket, environ: dict[str, str]
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": notify.address, **environ})
    assert manager.watchdog_seconds is None
    manager.alive()
    manager.status("after it")
    assert notify.next() == {"STATUS": "after it"}


def test_our_own_watchdog_pid_is_ours(notify: NotifySocket) -> None:
    environ = {"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager({"NOTIFY_SOCKET": notify.address, **environ})
    assert manager.watchdog_seconds == 0.5


def test_a_watchdog_interval_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        ServiceManager({"WATCHDOG_USEC": "often"})


def test_a_long_sentence_is_cut(notify: NotifySocket) -> None:
    ServiceManager({"NOTIFY_SOCKET": notify.address}).status("x" * 10_000)
    assert len(notify.next()["STATUS"]) == 500


@pytest.mark.parametrize(
    "address", ["/nonexistent/socket", "/" + "x" * 200, "vsock:2:1234", "a\0b"]
)
def test_a_service_manager_that_is_gone_is_told_of_once_and_kills_nobody(
    log: Log, address: str
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    for _ in range(3):
        manager.ready("well")
        manager.alive()
        manager.stopping()
    assert len(events(log, "notify_failed")) == 1


def test_a_service_manager_that_came_back_is_told_again(log: Log, tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "n")})
    manager.status("lost")
    with NotifySocket(str(tmp_path / "n")) as notify:
        manager.status("found")
        assert notify.next() == {"STATUS": "found"}
    manager.status("lost")
    assert len(events(log, "notify_failed")) == 2


def test_a_service_manager_that_does_not_read_holds_nobody(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.runtime.sd_notify._SEND_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "n"))
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "n")})
        begun = time.monotonic()
        for _ in range(2000):
            manager.status("x" * 400)
            if events(log, "notify_failed"):
                assert time.monotonic() - begun < 10.0
                return
    pytest.fail("2000 datagrams fit into a queue that nobody reads")

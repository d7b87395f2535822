"""Orders to a running server, through its directory and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from specwatch.actuators.base import Claim
from specwatch.actuators.switch import SwitchClient
from specwatch.config.target import Target
from specwatch.errors import ActuatorError
from specwatch_tap import switch_files
from specwatch_tap.orders import ORDER_FILE, Order, SwitchState, encode
from tests.switched_server import LAUNCH, TOKEN, SwitchedServer


@pytest.fixture(params=["directory", "token_file"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def switched(folder: Path, launch: SwitchState = LAUNCH) -> Iterator[SwitchedServer]:
    """A server that looks for orders when a test makes it look."""
    server = SwitchedServer(folder / "switch", launch)
    with patch.object(server.switch, "start"), server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SwitchedServer]:
    with switched(tmp_path) as running:
        yield running


def target_of(server: SwitchedServer, way: str, **access: Any) -> Target:
    token = server.directory.parent / "token"
    if not token.exists():
        token.write_text(TOKEN)
    usual = {"directory": server.directory} if way == "directory" else {"token_file": token}
    return Target(url=server.url, switch={**usual, **access})


def test_an_order_is_given_and_ended(server: SwitchedServer, way: str) -> None:
    looks = iter([lambda: None, *[server.switch.turn] * 4])
    client = SwitchClient(target_of(server, way), sleep=lambda _: next(looks)())
    with closing(client) as switch:
        assert switch.state() == server.switch.state
        state = switch.order(0, lease=60.0, by="me")
        assert (state.draft_tokens, state.by, state.number) == (0, "me", 1)
        assert switch.order(2, lease=60.0, by="me").draft_tokens == 2
        schedule = ((1, 8, 4), (9, 256, 0))
        assert switch.order(schedule, lease=60.0, by="me").schedule == schedule
        assert switch.order(None, lease=60.0, by="me").ordered is None
    assert server.used == [0, 2, schedule, None]
    assert not [*looks], "it asks until an order is followed"


def test_without_a_lease_no_order_is_sent(server: SwitchedServer, way: str) -> None:
    with (
        closing(SwitchClient(target_of(server, way))) as switch,
        pytest.raises(ActuatorError, match="the lease of the guard has ended"),
    ):
        switch.order(0, lease=60.0, by="me", claim=Claim("a", until=lambda: 0.0))
    server.switch.turn()
    assert server.used == []


def test_more_than_the_launch_is_not_sent(server: SwitchedServer, way: str) -> None:
    with (
        closing(SwitchClient(target_of(server, way))) as switch,
        pytest.raises(ActuatorError, match="5 draft tokens are more") as refused,
    ):
        switch.order(5, lease=60.0, by="")
    assert not refused.value.changed
    assert not (server.directory / ORDER_FILE).exists()


def test_a_schedule_with_more_than_the_launch_is_not_sent(server: SwitchedServer, way: str) -> None:
    with (
        closing(SwitchClient(target_of(server, way))) as switch,
        pytest.raises(ActuatorError, match="5 draft tokens are more"),
    ):
        switch.order(((1, 1, 4), (2, 2, 5)), lease=60.0, by="")
    assert not (server.directory / ORDER_FILE).exists()


def test_a_server_that_cannot_switch(tmp_path: Path, way: str) -> None:
    launch = msgspec.structs.replace(LAUNCH, unavailable="it has no schedule")
    with (
        switched(tmp_path, launch) as server,
        closing(SwitchClient(target_of(server, way))) as switch,
        pytest.raises(ActuatorError, match="it has no schedule"),
    ):
        switch.order(1, lease=60.0, by="")


def test_a_server_that_reads_no_order(server: SwitchedServer) -> None:
    with (
        closing(SwitchClient(target_of(server, "directory"), sleep=lambda _: None)) as switch,
        pytest.raises(ActuatorError, match="not read within 5 s") as silent,
    ):
        switch.order(1, lease=60.0, by="")
    assert silent.value.changed
    assert silent.value.retry


def test_an_order_of_somebody_else_at_the_same_time(server: SwitchedServer) -> None:
    other = Order(server=server.switch.state.server, number=6, draft_tokens=3, lease=9.0)

    def overtaken(_: float) -> None:
        switch_files.write(server.directory / ORDER_FILE, encode(other))
        server.switch.turn()

    with (
        closing(SwitchClient(target_of(server, "directory"), sleep=overtaken)) as switch,
        pytest.raises(ActuatorError, match="another order came at the same time"),
    ):
        switch.order(1, lease=60.0, by="")


def test_a_directory_without_a_server(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    switch = SwitchClient(Target(url="http://127.0.0.1:1", switch={"directory": tmp_path}))
    with pytest.raises(ActuatorError, match=r"state.json: start vLLM with what `specwatch tap"):
        switch.state()


def test_a_directory_in_which_everybody_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    switch = SwitchClient(Target(url="http://127.0.0.1:1", switch={"directory": tmp_path}))
    with pytest.raises(ActuatorError, match="everybody can write"):
        switch.state()


def test_a_directory_that_may_not_be_written(
    server: SwitchedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    switch = SwitchClient(target_of(server, "directory"))
    monkeypatch.setattr(switch_files, "write", refused)
    with pytest.raises(ActuatorError, match="its group needs the right to write"):
        switch.order(1, lease=60.0, by="")


def test_a_state_that_is_none(server: SwitchedServer) -> None:
    (server.directory / "state.json").write_bytes(b"[]")
    with pytest.raises(ActuatorError, match="the state of the switch: Expected `object`"):
        SwitchClient(target_of(server, "directory")).state()


def test_a_wrong_token(server: SwitchedServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("f" * 32)
    with (
        closing(SwitchClient(target_of(server, "token_file", token_file=wrong))) as switch,
        pytest.raises(ActuatorError, match="answered 401") as refused,
    ):
        switch.state()
    assert "f" * 32 not in str(refused.value)


def test_a_server_without_the_route(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with switched(tmp_path) as server:
        target = Target(url=server.url + "/elsewhere", switch={"token_file": token})
        with (
            closing(SwitchClient(target)) as switch,
            pytest.raises(ActuatorError, match="404") as no,
        ):
            switch.state()
    assert "`specwatch tap flags --switch`" in str(no.value)


def test_a_server_that_is_down(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    target = Target(url="http://127.0.0.1:1", switch={"token_file": token})
    with pytest.raises(ActuatorError, match="nothing listens"):
        SwitchClient(target).state()


def test_a_server_that_has_ended_is_not_taken_for_a_live_one(server: SwitchedServer) -> None:
    """Its state stays in the directory."""
    server.switch.stop()
    assert (server.directory / "state.json").exists()
    with pytest.raises(ActuatorError, match="no vLLM uses"):
        SwitchClient(target_of(server, "directory")).state()

"""Orders in a directory, followed by the thread of an engine; its clock is ours."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch_tap import switch_files
from specwatch_tap.orders import (
    LARGEST,
    ORDER_FILE,
    STATE_FILE,
    Order,
    SwitchState,
    encode,
    objection,
)
from specwatch_tap.switch import Switch, lookup_of, schedule_of

LAUNCH = SwitchState(server="", launch_draft_tokens=4, launch_schedule=((1, 4),))


class Engine:
    """A switch with k = 4 in a directory, and what it told the engine."""

    def __init__(self, directory: Path, launch: SwitchState = LAUNCH) -> None:
        self.directory = directory
        self.used: list[int | None] = []
        self.now = 100.0
        self.switch = Switch(
            directory,
            launch,
            self.used.append,
            monotonic=lambda: self.now,
            wall=lambda: 1000.0 + self.now,
        )
        self.switch.turn()

    @property
    def written(self) -> SwitchState:
        return msgspec.json.decode((self.directory / STATE_FILE).read_bytes(), type=SwitchState)

    def order(self, draft_tokens: int | None, **changes: Any) -> SwitchState:
        """Write an order, let the engine look, and read its state."""
        state = self.switch.state
        usual = {"server": state.server, "number": state.number + 1, "lease": 30.0, "by": "me"}
        order = Order(**{**usual, **changes}, draft_tokens=draft_tokens)
        return self.write(encode(order))

    def write(self, data: bytes) -> SwitchState:
        switch_files.write(self.directory / ORDER_FILE, data)
        self.switch.turn()
        return self.written


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    tmp_path.chmod(0o770)
    return Engine(tmp_path)


def test_an_order_is_followed_until_its_lease_ends(engine: Engine) -> None:
    state = engine.order(0)
    assert (state.draft_tokens, state.number, state.by, state.until) == (0, 1, "me", 1130.0)
    assert state.draft_tokens_now == 0
    engine.now += 29.9
    engine.switch.turn()
    assert engine.used == [0]
    engine.now += 0.1
    engine.switch.turn()
    assert engine.used == [0, None]
    assert engine.written == msgspec.structs.replace(state, draft_tokens=None, by="", until=None)
    assert engine.written.draft_tokens_now == 4


def test_a_renewed_order_switches_nothing(engine: Engine) -> None:
    engine.order(2)
    engine.now += 20
    assert engine.order(2).until == 1150.0
    engine.now += 20
    engine.switch.turn()
    assert engine.used == [2]


def test_an_order_of_the_launch_mode_ends_another(engine: Engine) -> None:
    engine.order(2)
    state = engine.order(None)
    assert engine.used == [2, None]
    assert (state.draft_tokens, state.until, state.number, state.by) == (None, None, 2, "me")


@pytest.mark.parametrize("end", ["lease", "order", "unreadable", "gone", "directory"])
def test_it_ends_with_its_order(engine: Engine, tmp_path: Path, end: str) -> None:
    engine.order(0)
    if end == "lease":
        engine.now += 30
        engine.switch.turn()
    elif end == "order":
        engine.order(None)
    elif end == "unreadable":
        engine.write(b"{")
    elif end == "gone":
        (tmp_path / ORDER_FILE).unlink()
        engine.switch.turn()
    else:  # nothing can be read or written, nor that be said
        (tmp_path / ORDER_FILE).unlink()
        tmp_path.rename(tmp_path.with_name("elsewhere"))
        engine.switch.turn()
    assert engine.used == [0, None]


SCHEDULE = ((1, 8, 4), (9, 256, 0))


def test_a_schedule_is_followed_as_a_number_is(engine: Engine) -> None:
    assert engine.written.schedules
    state = engine.order(None, schedule=SCHEDULE)
    assert (state.draft_tokens, state.schedule, state.until) == (None, SCHEDULE, 1130.0)
    assert (state.ordered, state.draft_tokens_now) == (SCHEDULE, 4)
    engine.order(None, schedule=SCHEDULE)
    assert engine.used == [SCHEDULE]
    assert engine.order(0).ordered == 0
    assert engine.written.schedule == ()
    engine.order(None, schedule=((1, 1, 2),))
    engine.now += 30
    engine.switch.turn()
    assert engine.used == [SCHEDULE, 0, ((1, 1, 2),), None]
    assert (engine.written.ordered, engine.written.by) == (None, "")
    refused = engine.order(None, schedule=((1, 8, 4), (9, 256, 5))).refused
    assert refused.startswith("5 draft tokens are more than the 4 that the server was launched")
    assert engine.used[-1] is None


def test_an_order_without_a_schedule_is_as_earlier_servers_know_it() -> None:
    order = Order(server="x", number=1, draft_tokens=None, lease=1.0, by="me")
    assert json.loads(encode(order)) == {
        "server": "x",
        "number": 1,
        "draft_tokens": None,
        "lease": 1.0,
        "by": "me",
    }
    scheduled = msgspec.structs.replace(order, schedule=SCHEDULE)
    earlier = SwitchState(server="x", launch_draft_tokens=4)
    assert "knows no schedules" in objection(scheduled, earlier)
    assert objection(scheduled, msgspec.structs.replace(earlier, schedules=True)) == ""
    assert objection(order, earlier) == ""


def test_a_schedule_by_number_of_requests() -> None:
    assert lookup_of(SCHEDULE, 11) == [0, 4, 4, 4, 4, 4, 4, 4, 4, 0, 0]
    several = ((1, 1, 2), (2, 3, 1), (4, 4, 0), (5, 5, 3))
    assert lookup_of(several, 11) == [0, 2, 1, 1, 0, 3, 3, 3, 3, 3, 3]
    assert lookup_of(((1, 40, 2), (41, 50, 0)), 11) == [0, *[2] * 10]


UNREADABLE = (
    (b"{", "cannot be read: Input data was truncated"),
    (b"", "cannot be read"),
    (b"\xff", "cannot be read"),
    (b'{"server":"x"}', "missing required field `number`"),
    (b'{"server":"x","number":9,"draft_tokens":-1,"lease":1}', "Expected `int` >= 0"),
    (b'{"server":"x","number":9,"draft_tokens":1,"lease":1e9}', "Expected `float` <= 86400"),
    (b'{"server":"x","number":9,"draft_tokens":1,"lease":1,"k":1}', "unknown field `k`"),
    (
        b'{"server":"x","number":9,"draft_tokens":1,"schedule":[[1,2,3]],"lease":1}',
        "it has draft_tokens and a schedule",
    ),
    *(
        (b'{"server":"x","number":9,"draft_tokens":null,"lease":1,"schedule":%b}' % data, why)
        for data, why in (
            (b"[[2,4,1]]", "the range [2, 4, 1] of the schedule: expected one from 1 on"),
            (b"[[1,2,4],[4,8,1]]", "the range [4, 8, 1] of the schedule: expected one from 3"),
            (b"[[1,2,4],[2,8,1]]", "the range [2, 8, 1] of the schedule: expected one from 3"),
            (b"[[1,4,4],[5,3,1]]", "the range [5, 3, 1] of the schedule: expected one from 5"),
            (b"[[1,2,-1]]", "Expected `int` >= 0"),
            (b"[[1,2]]", "Expected `array` of length 3"),
            (b"[[1,2,1.5]]", "Expected `int`, got `float`"),
            (b'{"1":2}', "Expected `array`"),
            (b"[%b]" % b",".join(b"[%d,%d,1]" % (n, n) for n in range(1, 66)), "length <= 64"),
        )
    ),
    (b" " * (LARGEST + 1), f"longer than {LARGEST} bytes"),
)


def test_what_cannot_be_read_means_the_launch_mode(engine: Engine) -> None:
    for data, why in UNREADABLE:
        engine.order(2)
        assert why in engine.write(data).refused
        assert engine.used[-2:] == [2, None], data
        assert engine.order(1).refused == ""


def test_an_order_that_is_gone_means_the_launch_mode(engine: Engine) -> None:
    engine.order(2)
    (engine.directory / ORDER_FILE).unlink()
    engine.switch.turn()
    assert engine.used == [2, None]


def test_a_number_counts_once(engine: Engine) -> None:
    """Two clients at once, or one that sends again: the first order holds."""
    first = engine.order(2, number=7)
    sent_again = engine.order(0, number=7)
    assert "its number 7 was used before" in sent_again.refused
    assert (sent_again.draft_tokens, sent_again.until) == (2, first.until)
    assert engine.order(1, number=8).draft_tokens == 1
    assert engine.used == [2, 1]


def test_a_number_that_leaves_none_for_later_orders_is_refused(engine: Engine) -> None:
    engine.order(2)
    assert "no number would be left" in engine.order(0, number=2**53 - 1).refused
    state = engine.order(1)
    assert (state.draft_tokens, state.number, engine.used) == (1, 2, [2, None, 1])


def test_a_directory_that_is_opened_to_all_later_is_not_read(engine: Engine) -> None:
    engine.order(2)
    engine.directory.chmod(0o777)
    assert "everybody can write" in engine.order(0).refused
    assert engine.used == [2, None]


def test_a_missing_directory_is_logged_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.order(2)
    caplog.clear()
    shutil.rmtree(engine.directory)
    for _ in range(5):
        engine.switch.turn()
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [f"the switch in {engine.directory} cannot be used: No such file or directory"]


def test_orders_of_an_earlier_process_are_not_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    earlier = Engine(tmp_path)
    earlier.order(0)
    earlier.switch.stop()
    later = Engine(tmp_path)
    assert later.written.refused == ""
    state = later.order(0, server=earlier.switch.state.server, number=99)
    assert "another process" in state.refused
    assert (state.number, later.used) == (0, [])


def test_a_switch_that_stopped_leaves_the_directory_alone(tmp_path: Path) -> None:
    """Also where it was about to follow an order, so that the next process has it to itself."""
    tmp_path.chmod(0o770)
    following, stopped = threading.Event(), threading.Event()
    too_early: list[bool] = []

    def use(_: object) -> None:
        following.set()
        assert switch._stopping.wait(10)
        too_early.append(stopped.wait(0.05))

    switch = Switch(tmp_path, LAUNCH, use)
    switch.turn()
    order = Order(server=switch.state.server, number=1, draft_tokens=0, lease=30.0)
    switch_files.write(tmp_path / ORDER_FILE, encode(order))
    switch.start()
    assert following.wait(10)
    switch.stop()
    stopped.set()
    assert too_early == [False]
    assert not switch._thread.is_alive()


def test_more_than_the_launch_is_refused(engine: Engine) -> None:
    assert "5 draft tokens are more than the 4" in engine.order(5).refused
    assert engine.order(4).draft_tokens == 4


def test_a_server_without_a_schedule_says_why(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    engine = Engine(tmp_path, msgspec.structs.replace(LAUNCH, unavailable="no schedule"))
    assert engine.order(2).refused == "no schedule"
    assert engine.used == []


def test_a_second_engine_in_a_directory_switches_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    second = Engine(engine.directory)
    for _ in range(3):
        second.switch.turn()
    assert [record.message for record in caplog.records] == [
        f"the switch in {engine.directory} cannot be used: another vLLM uses this directory; give"
        " each its own"
    ]
    assert engine.order(2).draft_tokens == 2
    assert second.used == []


def test_a_directory_in_which_everybody_can_write_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    switch = Switch(tmp_path, LAUNCH, lambda _: None)
    switch.turn()
    assert "everybody can write" in caplog.text
    assert not (tmp_path / STATE_FILE).exists()
    tmp_path.chmod(0o770)
    switch.turn()  # repaired while vLLM runs
    assert (tmp_path / STATE_FILE).exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "open to all"])
def test_an_order_must_be_a_plain_file(engine: Engine, kind: str) -> None:
    state = engine.switch.state
    data = encode(Order(server=state.server, number=1, draft_tokens=1, lease=9.0))
    file = engine.directory / ORDER_FILE
    if kind == "link":
        (engine.directory / "elsewhere").write_bytes(data)
        file.symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(data)
        file.chmod(0o666)
    engine.switch.turn()
    assert "cannot be read" in engine.written.refused
    assert engine.used == []


def test_a_state_that_cannot_be_written_means_the_launch_mode(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.order(1)

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "lstat", full)
        engine.switch.turn()
    assert engine.used == [1, None]
    engine.switch.turn()
    assert engine.written.draft_tokens is None


def test_a_state_that_is_not_true_does_not_stay(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(switch_files, "write", full)
        engine.now += 1
        engine.switch.state = msgspec.structs.replace(engine.switch.state, refused="new")
        engine.switch.turn()
    assert not (engine.directory / STATE_FILE).exists()
    engine.switch.turn()
    assert engine.written == engine.switch.state


def test_documents_are_readable_for_the_group_only(engine: Engine) -> None:
    engine.order(1)
    for name in (ORDER_FILE, STATE_FILE):
        assert (engine.directory / name).stat().st_mode & 0o777 == 0o640
    assert json.loads((engine.directory / STATE_FILE).read_bytes())["draft_tokens"] == 1


def test_a_lookup_as_ranges() -> None:
    assert schedule_of([0, 4, 4, 4]) == ((1, 4),)
    assert schedule_of([0, 4, 4, 2, 2, 0]) == ((1, 4), (3, 2), (5, 0))
    assert schedule_of([0, 0]) == ((1, 0),)
    assert schedule_of([0]) == ()

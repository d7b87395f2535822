"""The scheduler with the switch, on schedulers as vLLM's releases have them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

import msgspec
import pytest

from specwatch_tap import scheduler, switch, switch_files
from specwatch_tap.orders import (
    ORDER_FILE,
    STATE_FILE,
    Order,
    SwitchState,
    decode,
    encode,
)
from specwatch_tap.scheduler import Scheduler
from specwatch_tap.settings import SWITCH_DIRECTORY
from tests.hostile import wait_for

LOOKUP = [0, 4, 4, 2]


class VllmScheduler:
    """What the switch needs of vLLM's scheduler, 0.24 and later."""

    def __init__(self, *, vllm_config: Any, block_size: int) -> None:
        self.block_size = block_size
        self.dynamic_sd_lookup = vllm_config.lookup


class OldScheduler:
    """Before 0.24."""

    def __init__(self, *, vllm_config: Any, block_size: int) -> None:
        self.block_size = block_size


class SchedulerConfig:
    def __init__(self, made: type) -> None:
        self.scheduler_cls: str | None = "specwatch_tap.Scheduler"
        self._made = made

    def get_scheduler_cls(self) -> type:
        return Scheduler if self.scheduler_cls else self._made


def config(
    lookup: list[int] | None = LOOKUP,
    made: type = VllmScheduler,
    *,
    speculates: bool = True,
    data_parallel_size: int = 1,
    **speculation: Any,
) -> Any:
    return Thing(
        lookup=lookup,
        scheduler_config=SchedulerConfig(made),
        speculative_config=Thing(num_speculative_tokens=4, **speculation) if speculates else None,
        parallel_config=Thing(data_parallel_size=data_parallel_size),
    )


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(switch, "_SECONDS", 0.005)
    tmp_path.chmod(0o770)
    monkeypatch.setenv(SWITCH_DIRECTORY, str(tmp_path))
    return tmp_path


def state_of(directory: Path) -> SwitchState:
    """The state that the thread writes, waited for."""
    wait_for((directory / STATE_FILE).exists)
    return decode((directory / STATE_FILE).read_bytes(), SwitchState)


def test_the_lookup_of_vllms_own_scheduler_is_replaced(directory: Path) -> None:
    wanted = config()
    made: Any = Scheduler(vllm_config=wanted, block_size=16)
    assert (type(made), made.block_size) == (VllmScheduler, 16)
    assert wanted.scheduler_config.scheduler_cls is not None
    state = state_of(directory)
    assert (state.launch_draft_tokens, state.launch_schedule) == (4, ((1, 4), (3, 2)))
    by_batch = {"draft_tokens": None, "schedule": ((1, 1, 3), (2, 9, 1))}
    orders: list[tuple[dict[str, Any], list[int]]] = [
        ({"draft_tokens": 1}, [1] * 4),
        (by_batch, [0, 3, 1, 1]),
        ({"draft_tokens": 0}, [0] * 4),
        ({"draft_tokens": None}, LOOKUP),
    ]
    for number, (ordered, lookup) in enumerate(orders, 1):
        order = Order(server=state.server, number=number, lease=30.0, **ordered)
        switch_files.write(directory / ORDER_FILE, encode(order))
        wait_for(lambda: state_of(directory).number >= number)  # noqa: B023
        assert made.dynamic_sd_lookup == lookup


@pytest.mark.parametrize(
    ("configured", "why"),
    [
        (config(None), scheduler.NO_SCHEDULE),
        (config(None, data_parallel_size=2), scheduler.DATA_PARALLEL),
        (config(data_parallel_size=2), scheduler.DATA_PARALLEL),
        (config(method="suffix"), "vLLM fails when the number of draft tokens changes with suffix"),
        (
            config(parallel_drafting=True),
            "vLLM fails when the number of draft tokens changes with parallel drafting",
        ),
        (config(None, speculates=False), scheduler.NO_SPECULATION),
        (config(made=OldScheduler), scheduler.NO_LOOKUP),
    ],
)
def test_a_server_that_cannot_switch_says_why(directory: Path, configured: Any, why: str) -> None:
    Scheduler(vllm_config=configured, block_size=16)
    assert state_of(directory).unavailable == why


def test_without_a_directory_it_only_makes_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH_DIRECTORY, raising=False)
    made: Any = Scheduler(vllm_config=config(), block_size=16)
    assert type(made) is VllmScheduler
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_ours_leaves_vllm_its_scheduler(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = config()
    broken.parallel_config = None
    broken.lookup = None
    made: Any = Scheduler(vllm_config=broken, block_size=16)
    assert type(made) is VllmScheduler
    assert "vLLM goes on without it" in caplog.text


def test_a_state_document_has_no_other_fields() -> None:
    state = SwitchState(server="x", launch_draft_tokens=4)
    assert decode(encode(state), SwitchState) == state
    assert set(msgspec.to_builtins(state)) == {
        "server",
        "launch_draft_tokens",
        "launch_schedule",
        "draft_tokens",
        "number",
        "by",
        "until",
        "refused",
        "unavailable",
        "schedule",
        "schedules",
    }

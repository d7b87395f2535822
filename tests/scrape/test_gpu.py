"""GPU memory: quietly absent, never a partial sum, and never an old number."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from specwatch.scrape.gauges import GpuMemory
from specwatch.scrape.gpu import GpuMemoryReader


class NVMLError(Exception):
    pass


class Driver:
    """A stand-in for pynvml; ``memory`` is used and total of each GPU, None for a lost one."""

    NVMLError = NVMLError

    def __init__(self, *memory: tuple[int, int] | None) -> None:
        self.memory = memory
        self.down = False
        self.begun = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.down:
            raise NVMLError("Driver Not Loaded")
        self.begun += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.down:
            raise NVMLError("Unknown Error")
        return len(self.memory)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        memory = self.memory[handle]
        if memory is None:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=memory[0], total=memory[1])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver((10, 100), (20, 100), (40, 200))
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


@pytest.mark.parametrize(
    ("indices", "memory"),
    [
        (None, GpuMemory(70, 400)),
        ((0, 2), GpuMemory(50, 300)),
        ((), None),
        ((3,), None),
        ((0, 7), None),
    ],
)
def test_memory_is_summed_over_the_gpus_of_a_target(
    driver: Driver, indices: tuple[int, ...] | None, memory: GpuMemory | None
) -> None:
    reader = GpuMemoryReader()
    assert reader.read(indices, 0.0) is None
    reader.refresh(0.0)
    reader.refresh(5.0)
    assert reader.absent is None
    assert reader.read(indices, 6.0) == memory
    assert driver.begun == 1


def test_what_was_found_long_ago_is_unknown(driver: Driver) -> None:
    """The driver hangs, most likely."""
    reader = GpuMemoryReader()
    reader.refresh(0.0)
    assert reader.read(None, 30.0) is not None
    assert reader.read(None, 30.1) is None


def test_a_lost_gpu_hides_only_the_sums_that_it_belongs_to(driver: Driver) -> None:
    reader = GpuMemoryReader()
    driver.memory = ((10, 100), None)
    reader.refresh(0.0)
    assert reader.read((0,), 0.0) == GpuMemory(10, 100)
    assert reader.read(None, 0.0) is None
    assert reader.absent == "NVML: GPU 1: GPU is lost"


def test_a_driver_that_is_loaded_later_is_found(driver: Driver) -> None:
    reader = GpuMemoryReader()
    driver.down = True
    reader.refresh(0.0)
    assert (reader.read(None, 0.0), reader.absent) == (None, "NVML: Driver Not Loaded")
    driver.down = False
    reader.refresh(5.0)
    assert reader.read(None, 5.0) == GpuMemory(70, 400)
    driver.down = True
    reader.refresh(10.0)
    assert reader.read(None, 10.0) is None


def test_a_machine_without_gpu_or_library_is_quietly_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = GpuMemoryReader()
    reader.refresh(0.0)
    assert reader.read(None, 0.0) is None
    assert reader.absent == "the gpu extra (nvidia-ml-py) is not installed"
    monkeypatch.setitem(sys.modules, "pynvml", Driver())
    reader.refresh(0.0)
    assert (reader.read(None, 0.0), reader.absent) == (None, "no GPU was found")

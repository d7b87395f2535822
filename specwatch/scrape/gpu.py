"""GPU memory through NVML, where there is a GPU and the ``gpu`` extra is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.scrape.gauges import GpuMemory

_FRESH_SECONDS = 30.0


class GpuMemoryReader:
    """Knows memory in use and in total; quietly absent without driver, library or GPU.

    A driver in trouble may hold a call for minutes. So :meth:`refresh` has a thread of its own,
    and :meth:`read` tells what it last found.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._found: tuple[GpuMemory | None, ...] = ()
        self._found_at: float | None = None
        self.absent: str | None = "not looked for yet"
        """Why nothing, or not all, can be read; None when everything can."""

    def refresh(self, now: float) -> None:
        """Ask the driver; ``now`` is a time of the monotonic clock, in seconds."""
        try:
            import pynvml
        except ImportError:
            self.absent = "the gpu extra (nvidia-ml-py) is not installed"
            return
        try:
            if self._nvml is None:
                pynvml.nvmlInit()
                self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.absent = f"NVML: {error}"
            self._found = ()
            return
        self.absent = None if count else "no GPU was found"
        self._found = tuple(self._one(index) for index in range(count))
        self._found_at = now

    def read(self, indices: Sequence[int] | None, now: float) -> GpuMemory | None:
        """Bytes over the GPUs of these NVML indices (None for all).

        None when one of them could not be read within the last 30 s.
        """
        memories, found_at = self._found, self._found_at
        if not memories or found_at is None or now - found_at > _FRESH_SECONDS:
            return None
        chosen = range(len(memories)) if indices is None else indices
        used = total = 0
        for index in chosen:
            memory = memories[index] if index < len(memories) else None
            if memory is None:
                return None
            used += memory.used
            total += memory.total
        return GpuMemory(used, total) if total else None

    def _one(self, index: int) -> GpuMemory | None:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            self.absent = f"NVML: GPU {index}: {error}"
            return None
        return GpuMemory(int(memory.used), int(memory.total))

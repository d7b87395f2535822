"""GPU memory through NVML, where there is a GPU and the ``gpu`` extra is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.scrape.gauges import GpuMemory

_FRESH_SECONDS = 30.0


class GpuMemoryReader:
    """Memory in use and in total; without driver, library or GPU it reads nothing.

    A failing driver may block a call for minutes. So :meth:`refresh` is called in its own thread,
    and :meth:`read` returns what it last found.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._memories: tuple[GpuMemory | None, ...] = ()
        self._read_at: float | None = None
        self.absent: str | None = "not looked for yet"
        """Why some or all GPUs cannot be read; None if all can."""

    def refresh(self, now: float) -> None:
        """Ask the driver; ``now`` is in seconds of the monotonic clock."""
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
            self._memories = ()
            return
        self.absent = None if count else "no GPU was found"
        self._memories = tuple(self._one(index) for index in range(count))
        self._read_at = now

    def read(self, indices: Sequence[int] | None, now: float) -> GpuMemory | None:
        """Bytes over the GPUs with these NVML indices (None for all).

        None if one of them was not read within the last 30 s.
        """
        memories, read_at = self._memories, self._read_at
        if not memories or read_at is None or now - read_at > _FRESH_SECONDS:
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

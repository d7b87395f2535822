"""Traces on disk: a thousand hours take minutes to run and a second to read."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import specwatch.simulated
from specwatch.model import Mode
from specwatch.simulated.acceptance import SimulatedAcceptance
from specwatch.simulated.profile import CONSTANT
from tests.worlds import recording
from tests.worlds.trace import Trace
from tests.worlds.world import World

_ENGINE = ("acceptance", "costs", "counters", "engine", "profile", "scheduler", "workload")


def folder() -> Path:
    """Where traces lie."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "specwatch-worlds"


def trace_of(
    world: World,
    mode: Mode,
    hours: int,
    *,
    seed: int | None = None,
    progress: Callable[[int], object] = lambda minutes: None,
    room: Path | None = None,
) -> Trace:
    """So many hours of a world, from disk where a run as long or longer lies there."""
    room = room or folder()
    digest = _digest(world, mode, seed)
    for path in room.glob(f"{digest}-*.npz") if room.exists() else ():
        found = re.fullmatch(r".*-(\d+)h", path.stem)
        if found and int(found[1]) >= hours:
            return _read(path, mode).upto(60 * hours)
    recorded = recording.record(world, mode, hours, seed=seed, progress=progress)
    room.mkdir(parents=True, exist_ok=True)
    _write(room / f"{digest}-{hours}h.npz", recorded)
    return recorded


def _digest(world: World, mode: Mode, seed: int | None) -> str:
    """Of all that a trace depends on: without speculation, worlds with one traffic share theirs."""
    settings = world.settings
    if mode is Mode.OFF:
        costs = dataclasses.replace(settings.costs, draft_base=0.0, draft_per_sequence=0.0)
        settings = dataclasses.replace(
            settings, speculation=None, acceptance=SimulatedAcceptance(), drift=CONSTANT,
            costs=costs,
        )  # fmt: skip
    parts = [repr(settings), repr(world.hot), repr(seed), mode.value]
    source = Path(specwatch.simulated.__file__).parent
    files = [source / f"{name}.py" for name in _ENGINE] + [Path(recording.__file__)]
    parts += [path.read_text() for path in files]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _write(path: Path, trace: Trace) -> None:
    columns: dict[str, Any] = {f"bucket {label}": each for label, each in trace.buckets.items()}
    made = path.with_suffix(f".{os.getpid()}.tmp")
    with made.open("wb") as file:
        np.savez_compressed(
            file, gauges=trace.gauges, engine=trace.engine, lengths=trace.lengths,
            sizes=np.array([trace.k, trace.max_model_len]), **columns,
        )  # fmt: skip
    made.replace(path)


def _read(path: Path, mode: Mode) -> Trace:
    with np.load(path) as file:
        buckets = {
            name.removeprefix("bucket "): file[name]
            for name in file.files
            if name.startswith("bucket ")
        }
        k, longest = map(int, file["sizes"])
        return Trace(mode, k, longest, file["gauges"], file["engine"], file["lengths"], buckets)

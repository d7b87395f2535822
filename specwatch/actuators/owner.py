"""Which process holds a guard, so that its successor on the same machine knows that it is gone."""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path

from specwatch.actuators import process_holder


@functools.cache
def _place() -> str:
    """This machine since it was started, and the namespace of process ids that we are in."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:8]}.{os.stat('/proc/self/ns/pid').st_ino}"


def identity() -> str:
    """Of this process, with a random part; without a colon."""
    pid = os.getpid()
    own = process_holder.process(pid)
    started = 0 if own is None else own.started
    return f"{_place()}.{pid}.{started}.{secrets.token_hex(2)}"


def is_gone(of: str) -> bool:
    """Whether the process of an identity has certainly ended; of one on another machine, or in
    another container, that cannot be known."""
    *place, pid, started, _ = ["", "", *of.split(".")]
    if ".".join(place[2:]) != _place() or not pid.isdigit():
        return False
    present = process_holder.process(int(pid))
    return present is None or present.gone or str(present.started) != started

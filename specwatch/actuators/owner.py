"""Which process holds a guard, so that its successor on the same machine knows that it is gone."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
from pathlib import Path

from specwatch.actuators import process_holder


@functools.cache
def _place() -> str:
    """This machine, and the namespace of process ids that we are in.

    A hardened service does not see the boot of the machine, but its id and its name.
    """
    known = [socket.gethostname()]
    for file in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            known.append(Path(file).read_text().strip())
            break
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()
    return f"{digest[:16]}.{os.stat('/proc/self/ns/pid').st_ino}"


def identity() -> str:
    """Of this process, with a random part; without a colon."""
    pid = os.getpid()
    own = process_holder.process(pid)
    started = 0 if own is None else own.started
    return f"{_place()}.{pid}.{started}.{secrets.token_hex(2)}"


def is_gone(of: str) -> bool:
    """Whether the process of an identity has certainly ended; of one on another machine, or in
    another container, that cannot be known."""
    place, *own = of.rsplit(".", 3)
    if len(own) != 3 or place != _place():
        return False
    pid, started, _ = own
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # of another user: whether it is still the same one is not shown
    present = process_holder.process(int(pid))
    return present is not None and (present.gone or str(present.started) != started)

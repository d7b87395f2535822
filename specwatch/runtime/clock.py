"""The one place where time is read."""

from __future__ import annotations

import time

from specwatch.domain.model import Moment


def now() -> Moment:
    """This moment on the wall clock and on the monotonic clock, in seconds."""
    return Moment(time.time(), time.monotonic())

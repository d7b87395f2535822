"""The tap: acceptance and latency by sampling temperature, from the traffic of an OpenAI server.

vLLM loads it with ``--middleware specwatch_tap.Tap``, and the switch with ``--scheduler-cls
specwatch_tap.Scheduler``; ``specwatch tap proxy`` is the tap as a reverse proxy. It imports nothing
of specwatch, and but for the proxy only what vLLM installs anyway.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specwatch_tap.middleware import Tap
    from specwatch_tap.scheduler import Scheduler

__all__ = ["MIDDLEWARE", "SCHEDULER", "Scheduler", "Tap", "__version__"]

__version__ = "0.1.0"
"""Of both wheels, specwatch-tap and specwatch."""

MIDDLEWARE = "specwatch_tap.Tap"
SCHEDULER = "specwatch_tap.Scheduler"
"""What vLLM gets as ``--middleware`` and ``--scheduler-cls``."""

_MODULES = {"Tap": "middleware", "Scheduler": "scheduler"}


def __getattr__(name: str) -> Any:
    """The class, whose module is imported only now: few processes need both."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

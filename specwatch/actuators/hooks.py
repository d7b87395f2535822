"""The user's commands around a restart: they take the server out of a load balancer, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.errors import ActuatorError
from specwatch.runtime.child_process import run_command


def run_hook(words: Sequence[str], *, timeout: float, environment: Mapping[str, str]) -> None:
    """Run a hook to its end, ``timeout`` seconds at most; it may be run again.

    ``environment`` says why it runs, as ``child_process.environment_for`` makes it. Raises
    ActuatorError when it fails; ``retry`` is set, for the server itself was not touched.
    """
    failure = run_command(words, timeout=timeout, environment=environment).failure
    if failure is not None:
        raise ActuatorError(f"the hook {failure}", retry=True)

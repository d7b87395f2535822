"""The systemd units of specwatch."""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.generate.environment import render
from specwatch.generate.systemd import is_plain_path

DEFAULT_EXECUTABLE = "/opt/specwatch/bin/specwatch"
DEFAULT_CONFIG = "/etc/specwatch/specwatch.yml"

_FILES = (
    "specwatch.service", "specwatch-report.service", "specwatch-report.timer",
    "specwatch-guard@.service", "specwatch-guard@.socket", "specwatch.sysusers",
)  # fmt: skip


def units(
    *,
    executable: str = DEFAULT_EXECUTABLE,
    config: str = DEFAULT_CONFIG,
    gpu: bool = False,
) -> Mapping[str, str]:
    """The text of each file by its name.

    ``executable`` and ``config`` are absolute paths; ``gpu`` gives access to NVIDIA's devices.
    Raises ValueError for a path that is not absolute or that systemd would take apart.
    """
    for path in (executable, config):
        if not is_plain_path(path):
            raise ValueError(f"{path!r} is not an absolute path without spaces, quotes, % or $")
    return {name: render(name, executable=executable, config=config, gpu=gpu) for name in _FILES}

"""What users and terminals ask of output."""

from __future__ import annotations

import io
import os
import sys


def no_color() -> bool:
    """Whether the user wants no colours (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def spell_unknown_characters() -> None:
    """Have standard output spell what its encoding lacks, as standard error does, not raise."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")

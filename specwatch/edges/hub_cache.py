"""Where the Hugging Face hub's cache keeps a model, if it is on this machine.

Source: ``huggingface_hub.constants`` (HF_HUB_CACHE, HF_HOME) and its "Manage your cache" guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache, whether or not it is there."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := environ.get(name):
            return Path(chosen).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def find(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the cached folder of a model such as ``Qwen/Qwen3-8B``; None where there is none."""
    if not _ID.fullmatch(name):
        return None
    try:
        folder = cache_folder(environ) / f"models--{name.replace('/', '--')}"
        return folder if any((folder / "snapshots").iterdir()) else None
    except (OSError, RuntimeError, ValueError):
        # Of pathlib: a home that is not known, and a NUL in the path.
        return None

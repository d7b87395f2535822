"""A cache of the Hugging Face hub for programs that take no folder for a tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path


def hub_with(tokenizer: Path, folder: Path) -> Path:
    """Make one in ``folder`` that knows the tokenizer as ``lab/tiny``; returns ``HF_HOME``."""
    revision = "0" * 40
    model = folder / "hf/hub/models--lab--tiny"
    shutil.copytree(tokenizer, model / "snapshots" / revision)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(revision)
    return folder / "hf"

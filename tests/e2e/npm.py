"""Packages from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any


def package(folder: Path, **settings: Any) -> None:
    """Write a ``package.json`` into this folder."""
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, **settings}))


def install(folder: Path) -> None:
    """Install what the package in this folder needs."""
    npm = shutil.which("npm")
    assert npm, "npm is not installed: on Debian and Ubuntu, apt install nodejs npm"
    subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=300,
    )

"""axe-core from npm: the checks of accessibility that browsers can do by themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

VERSION = "4.14.1"


def install(folder: Path) -> str:
    """Its source, installed below this folder."""
    npm = shutil.which("npm")
    assert npm, "npm is not installed: on Debian and Ubuntu, apt install nodejs npm"
    package = {"private": True, "dependencies": {"axe-core": VERSION}}
    (folder / "package.json").write_text(json.dumps(package))
    subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return (folder / "node_modules/axe-core/axe.min.js").read_text()

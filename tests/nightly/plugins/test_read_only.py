"""The tests in a checkout that cannot be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-o",
            f"cache_dir={tmp_path}/file/cache",
            "tests/domain/test_units.py",
            "-k",
            "duration_that_is_written",
        ],
        cwd=ROOT,
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": f"{tmp_path}/file/found"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stdout

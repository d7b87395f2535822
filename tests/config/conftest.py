"""Files that the configurations of tests/data name."""

from __future__ import annotations

from pathlib import Path

import pytest

_FILES = {
    "token": "token-hunter2\n",
    "db-password": "p@ss/hunter2\n",
    "password": "pass-hunter2\n",
    "two-lines": "hunter2\nhunter2\n",
    "hook": "https://hooks.example/services/T0/B0/hunter2\n",
    "ca.pem": "certificate",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with those files."""
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path

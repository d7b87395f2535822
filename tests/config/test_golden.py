"""Every key of a file reaches its place: compared whole, with secrets masked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.config.files import valid
from tests.plugins.golden import Golden

BRIEF = ("config/valid-full", "guard/valid", "report/valid")


@pytest.mark.golden
@pytest.mark.parametrize("name", [*BRIEF, "config/valid-least", "ruling/valid"])
def test_a_configuration_has_what_its_file_says(golden: Golden, folder: Path, name: str) -> None:
    """One with all defaults, most without them."""
    environ = {"CREDENTIALS": str(folder), "SCOPE": "x", "STATE_DIRECTORY": "/var/lib/specwatch"}
    config = valid(f"{name}.yml", folder, **environ)
    shown = config.model_dump(mode="json", by_alias=True, exclude_defaults=name in BRIEF)
    text = json.dumps(shown, indent=1, ensure_ascii=False).replace(str(folder), "FOLDER")
    golden(f"config/{name.replace('/', '-')}.json", text + "\n")

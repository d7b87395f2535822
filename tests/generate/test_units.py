"""The units in ``systemd/`` are what is generated, and grant no more than was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.generate.systemd import units

FOLDER = Path(__file__).parents[2] / "systemd"


def test_the_folder_holds_what_is_generated_and_nothing_else() -> None:
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == units()


def test_another_program_is_taken_everywhere() -> None:
    texts = units(executable="/usr/bin/specwatch")
    assert not any("/opt/specwatch" in text for text in texts.values())


@pytest.mark.parametrize(
    ("unit", "lines"),
    [
        (
            "specwatch-guard@.service",
            [
                "ConfigurationDirectory=systemd/system/%i.service.d",
                "CapabilityBoundingSet=CAP_DAC_READ_SEARCH",
                "RestrictAddressFamilies=AF_UNIX",
            ],
        ),
        ("specwatch-guard@.socket", ["SocketGroup=specwatch", "SocketMode=0660"]),
    ],
)
def test_the_helper_may_do_no_more_than_it_must(unit: str, lines: list[str]) -> None:
    """A setting of the same name elsewhere in the unit would add to it."""
    text = units()[unit].splitlines()
    for line in lines:
        name = line.partition("=")[0] + "="
        assert [found for found in text if found.startswith(name)] == [line]
    assert not any(found.startswith(("ReadWritePaths=", "BindPaths=")) for found in text)

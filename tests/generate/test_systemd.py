"""Units are what is generated and grant no more than needed; words arrive as they are quoted.

The end-to-end tests start programs with such words under a real systemd.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.generate.systemd import exec_start, quoted, units

FOLDER = Path(__file__).parents[2] / "systemd"


SPELT = {
    "--port=80": "--port=80",
    "": '""',
    "a b": '"a b"',
    "it's": '"it\'s"',
    '{"a": 1}': '"{\\"a\\": 1}"',
    "back\\slash": '"back\\\\slash"',
    "end\\": '"end\\\\"',
    "50%": '"50%%"',
    "%n": '"%%n"',
    "tab\tline\nreturn\r": '"tab\\tline\\nreturn\\r"',
    "\x1b\x01": '"\\x1b\\x01"',
    "語": '"語"',
    "\udcff": '"\\xff"',
    ";": '";"',
    "#": '"#"',
    "$HOME": '"$HOME"',
}


def test_a_word_is_spelt_as_systemd_reads_it() -> None:
    assert {word: quoted(word) for word in SPELT} == SPELT


def test_no_variable_of_a_command_is_replaced() -> None:
    assert exec_start(["/bin/x", "$A", "p${B}", "$$"]) == '/bin/x "$$A" "p$${B}" "$$$$"'


def test_a_program_that_systemd_would_take_apart_is_refused() -> None:
    for program in (
        "vllm",
        "./vllm",
        "",
        "/opt/my vllm",
        "/opt/$x",
        "/opt/%n",
        "-/bin/x",
        "@/bin/x",
    ):
        with pytest.raises(ValueError, match="full path"):
            exec_start([program, "serve"])


def test_the_folder_holds_what_is_generated_and_nothing_else() -> None:
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == units()


def test_another_program_is_taken_everywhere() -> None:
    texts = units(executable="/usr/bin/specwatch")
    assert not any("/opt/specwatch" in text for text in texts.values())

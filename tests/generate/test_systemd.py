"""systemd reads just the words that were meant.

The spellings were seen to arrive as they are in a program that a real systemd started; the
end-to-end tests look again.
"""

from __future__ import annotations

import pytest

from specwatch.generate.systemd import exec_start, quoted


@pytest.mark.parametrize(
    ("word", "spelt"),
    [
        ("--port=80", "--port=80"),
        ("", '""'),
        ("a b", '"a b"'),
        ("it's", '"it\'s"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("back\\slash", '"back\\\\slash"'),
        ("end\\", '"end\\\\"'),
        ("50%", '"50%%"'),
        ("%n", '"%%n"'),
        ("tab\tline\nreturn\r", '"tab\\tline\\nreturn\\r"'),
        ("\x1b\x01", '"\\x1b\\x01"'),
        ("語", '"語"'),
        ("\udcff", '"\\xff"'),
        (";", '";"'),
        ("#", '"#"'),
        ("$HOME", '"$HOME"'),
    ],
)
def test_a_word_is_spelt_as_systemd_reads_it(word: str, spelt: str) -> None:
    assert quoted(word) == spelt


def test_no_variable_of_a_command_is_replaced() -> None:
    assert exec_start(["/bin/x", "$A", "p${B}", "$$"]) == '/bin/x "$$A" "p$${B}" "$$$$"'


@pytest.mark.parametrize(
    "program", ["vllm", "./vllm", "", "/opt/my vllm", "/opt/$x", "/opt/%n", "-/bin/x", "@/bin/x"]
)
def test_a_program_that_systemd_would_take_apart_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match="full path"):
        exec_start([program, "serve"])

"""Variables are replaced as systemd replaces them.

The end-to-end tests compare with a real systemd; these are the cases that must not be lost.
"""

from __future__ import annotations

import pytest

from specwatch.actuators.systemd.environment import (
    environment_file,
    expanded,
    parse_environment_file,
    split,
    without,
)

VALUES = {"A": "one two", "Q": "'a b' c\\ d", "E": "", "HOME": None}


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("plain", ("plain",)),
        ("$A", ("one", "two")),
        ("${A}", ("one two",)),
        ("x${A}y", ("xone twoy",)),
        ("x$A", ("x$A",)),
        ("$Q", ("a b", "c d")),
        ("$E", ()),
        ("$NONE", ()),
        ("${NONE}", ("",)),
        ("$A-x", ()),
        ("$", ()),
        ("$$A", ("$A",)),
        ("$${A}", ("${A}",)),
        ("a$$b", ("a$b",)),
        ("${A", ("${A",)),
        ("${A:-x}", ("${A:-x}",)),
        ("${A:${A}", ("${A:one two",)),
        ("${A$$", ("${A$$",)),
        ("$HOME", ("\ue000HOME\ue000",)),
        ("${HOME}/x", ("\ue000HOME\ue000/x",)),
    ],
)
def test_a_word_becomes_what_the_program_gets(word: str, words: tuple[str, ...]) -> None:
    found = expanded(word, VALUES)
    assert found.words == words
    assert bool(found.unknown) == ("HOME" in word)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", []),
        ("  a\tb\n", ["a", "b"]),
        ("'' \"\"", ["", ""]),
        ("a'b c'd", ["ab cd"]),
        ("'a\\'b'", ["a'b"]),
        ("a\\", ["a"]),
        ("'open", ["open"]),
        ('{"k": 1}', ["{k:", "1}"]),
    ],
)
def test_a_value_is_split_into_words(value: str, words: list[str]) -> None:
    assert list(split(value)) == words


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1\nB=2\nA=3\n", {"A": "3", "B": "2"}),
        ("# A=1\n; B=2\n\n  C = x y  \n", {"C": "x y"}),
        ("A='a b' c\n", {"A": "a bc"}),
        ('A="x\\"y\\z\\\nw"', {"A": 'x"y\\zw'}),
        ("A='x\\y'\n", {"A": "x\\y"}),
        ("A=a\\\n  b\n", {"A": "a  b"}),
        ("A=a\\ \n", {"A": "a "}),
        ("A=it's\n", {"A": "it's"}),
        ("A=\nB\nC=1", {"A": "", "C": "1"}),
        ("1A=x\nA B=x\nA-B=x\nG=\x01\n", {"G": "\x01"}),
        ('A="two\nlines"\n', {"A": "two\nlines"}),
        ("A=$B${C}\n", {"A": "$B${C}"}),
    ],
)
def test_an_environment_file_is_read(text: str, variables: dict[str, str]) -> None:
    assert parse_environment_file(text) == variables


@pytest.mark.parametrize("value", ["", " a\tb ", "two\nlines", 'a"b\\c`d$e', "語", "#;'=", "\\\n"])
def test_a_written_environment_file_is_read_back(value: str) -> None:
    variables = {"A": value, "B": "1"}
    assert parse_environment_file(environment_file(variables)) == variables


@pytest.mark.parametrize("value", ["\0", "\r", "\x7f", "\udc80"])
def test_a_value_that_systemd_leaves_out_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="A would have a character"):
        environment_file({"A": f"a{value}"})


@pytest.mark.parametrize(("text", "why"), [("# old \\\nA=1\n", "systemd 254"), ("A=\0", "zero")])
def test_a_text_that_versions_of_systemd_read_differently_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_environment_file(text)


def test_variables_can_be_unset_by_name_or_with_their_value() -> None:
    assert without({"A": "1", "B": "2", "C": "3"}, ["A", "B=2", "C=4"]) == {"C": "3"}

"""A unit's command is rewritten word by word, and keeps the spelling of what it need not change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specwatch.actuators.systemd.command import rewritten
from specwatch.actuators.systemd.drop_in import DropIn
from specwatch.actuators.systemd.loaded_unit import UnitCommand
from specwatch.errors import CannotStrip
from specwatch.vllm_cli import Stripped

VALUES = {
    "MODEL": "m1",
    "EMPTY": "",
    "HOME": None,
    "BOTH": "-x SPEC -y $Z",
    "ONLY": "SPEC",
    "KEEP": "--a 'b c'",
}


def strip(words: Sequence[str]) -> Stripped:
    """Takes the word SPEC away, and ``+SPEC`` out of the middle of a word."""
    left = tuple(word.replace("+SPEC", "") for word in words if word != "SPEC")
    return Stripped(left, () if left == tuple(words) else ("SPEC",), ())


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["$MODEL", "SPEC", "${MODEL}", "$$x", "$KEEP"], ["$MODEL", "${MODEL}", "$$x", "$KEEP"]),
        (["$EMPTY", "SPEC", "$NONE"], ["$EMPTY", "$NONE"]),
        (["$BOTH", "$MODEL"], ["-x", "-y", "${SPECWATCH_WORD_1}", "$MODEL"]),
        (["a", "$ONLY", "$MODEL"], ["a", "$MODEL"]),
        (["SPEC", "${HOME}/x"], ["${HOME}/x"]),
        (["a+SPEC$$", "b"], ["a$$", "b"]),
        (["$MODEL+SPEC", "SPEC"], ["$MODEL+SPEC"]),
        (["a", "a", "SPEC", "a", "$MODEL", "m1"], ["a", "a", "a", "$MODEL", "m1"]),
    ],
)
def test_only_what_must_change_is_spelt_anew(words: list[str], after: list[str]) -> None:
    command = UnitCommand("/p", ("/p", *words))
    assert rewritten(command, VALUES, strip).command.words == ("/p", *after)


def test_values_of_variables_are_kept_apart_from_the_command() -> None:
    """Everybody may ask systemd for the command; the names of flags are no secret."""
    command = UnitCommand("/p", ("/p", "$BOTH", "$MODEL", "a+SPEC"))
    result = rewritten(command, VALUES, strip)
    assert result.variables == {"SPECWATCH_WORD_1": "$Z", "SPECWATCH_WORD_2": "a"}
    assert result.words == ("/p", "-x", "-y", "$Z", "m1", "a")
    (note,) = result.notes
    assert note.startswith("$BOTH is replaced")


def test_words_of_a_file_are_kept_apart_from_the_command() -> None:
    """Where nothing is expanded, too: then what stands in the command is escaped."""

    def inlining(words: Sequence[str]) -> Stripped:
        return Stripped((*words[:-1], "--api-key", "x$Z"), ("SPEC",), (), inlined=True)

    command = UnitCommand("/p", ("/p", "$MODEL", "a$", "SPEC"), ("no-env-expand", "privileged"))
    result = rewritten(command, VALUES, inlining)
    words = ("/p", "$$MODEL", "a$$", "--api-key", "${SPECWATCH_WORD_1}")
    assert result.command == UnitCommand("/p", words, ("privileged",))
    assert result.variables == {"SPECWATCH_WORD_1": "x$Z"}


def test_a_value_that_no_variable_can_have_is_refused() -> None:
    command = UnitCommand("/p", ("/p", "$ODD"))
    with pytest.raises(CannotStrip, match="a character that no variable"):
        rewritten(command, {"ODD": "SPEC a\x01"}, strip)


def test_a_command_without_speculation_stays_as_it_is() -> None:
    command = UnitCommand("/p", ("/p", "$MODEL"), ("privileged",))
    assert rewritten(command, VALUES, strip).command is command


def test_without_expansion_dollars_are_nothing_special() -> None:
    command = UnitCommand("/p", ("/p", "$BOTH", "SPEC", "$$"), ("no-env-expand",))
    assert rewritten(command, VALUES, strip).command.words == ("/p", "$BOTH", "$$")


def test_another_name_of_the_program_is_kept() -> None:
    command = UnitCommand("/p", ("name", "SPEC", "x"))
    assert rewritten(command, VALUES, strip).command.words == ("name", "x")


def test_a_word_that_must_change_and_cannot_be_known_is_refused() -> None:
    command = UnitCommand("/p", ("/p", "${HOME}+SPEC"))
    with pytest.raises(CannotStrip, match="HOME"):
        rewritten(command, VALUES, strip)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (UnitCommand("/p", ("/p", "a b", "50%")), '/p "a b" "50%%"'),
        (UnitCommand("/p", ("n", "x"), ("ignore-failure", "no-env-expand")), "-:@/p n x"),
        (UnitCommand("/p", ("/p",), ("ambient",)), '"!!/p"'),
        (UnitCommand("/my p", ("/my p",)), '"/my p"'),
    ],
)
def test_a_command_is_written_as_systemd_reads_it(command: UnitCommand, line: str) -> None:
    assert command.line() == line


def test_a_flag_of_a_systemd_to_come_is_refused() -> None:
    with pytest.raises(CannotStrip, match="time-travel"):
        UnitCommand("/p", ("/p",), ("time-travel",)).line()


def test_a_drop_in_is_read_back_and_an_edited_one_is_not() -> None:
    original = UnitCommand("/p", ("/p", "SPEC", "語\n"), ("ambient",))
    command = UnitCommand("/p", ("/p", "語\n"), ("ambient",))
    drop_in = DropIn("i-1", original, command, {"/etc/x": "00"})
    text = drop_in.text()
    assert DropIn.parse(text) == drop_in
    assert "\nExecStart=\nExecStart=" in text
    assert DropIn.parse(text + "Environment=A=1\n") is None
    assert DropIn.parse("[Service]\n") is None
    assert DropIn.parse('# specwatch: {"incident": 1}\n') is None


def test_a_drop_in_names_its_file_of_variables() -> None:
    command = UnitCommand("/p", ("/p", "${SPECWATCH_WORD_1}"))
    path = "/etc/a%b.env"
    drop_in = DropIn("i-1", command, command, {path: "00"}, path)
    text = drop_in.text()
    assert DropIn.parse(text) == drop_in
    assert "\nEnvironmentFile=/etc/a%%b.env\nExecStart=\n" in text

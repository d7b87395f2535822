"""Answers that part are found, and compared with how a server differs from itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.lab.loadtest.answers import AnswerSet, compare, parting
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind

ASK = Ask("hello", 40, 0.0, read_text=True)


def answer(text: str, finish_reason: str = "length") -> Answer:
    return Answer(ASK, 0.0, 1.0, status=200, text=text, finish_reason=finish_reason)


def sets(same: int = 0, on: int = 0, again: int = 0, both: int = 0) -> list[AnswerSet]:
    """As many prompts of which all answers are equal, or the one with speculation differs, or the
    second one without, or each."""
    usual, other = answer("the same text"), answer("the sane text")
    return [
        *[AnswerSet(usual, usual, usual)] * same,
        *[AnswerSet(other, usual, usual)] * on,
        *[AnswerSet(usual, usual, other)] * again,
        *[AnswerSet(other, usual, other)] * both,
    ]


@pytest.mark.parametrize(
    ("first", "second", "position"),
    [
        (answer("abc"), answer("abc"), None),
        (answer("abc"), answer("abd"), 2),
        (answer("abc"), answer("ab"), 2),
        (answer(""), answer("ab"), 0),
        (answer("abc", "stop"), answer("abc", "length"), 3),
    ],
)
def test_answers_part_at_the_first_character_that_differs(
    first: Answer, second: Answer, position: int | None
) -> None:
    assert parting(first, second) == parting(second, first) == position


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (sets(), "unknown"),
        (sets(same=20), "no_more"),
        (sets(same=14, on=6), "more"),
        (sets(same=15, on=5), "no_more"),
        (sets(same=5, both=15), "no_more"),
        (sets(on=6, both=14), "more"),
        (sets(same=7, on=9, again=4), "no_more"),
        (sets(again=20), "no_more"),
        (sets(on=1100), "more"),
        (sets(on=600, again=600), "no_more"),
    ],
)
def test_only_more_differences_than_of_the_server_itself_count(
    asked: list[AnswerSet], outcome: str
) -> None:
    assert compare(asked).outcome == outcome


def test_the_differences_of_both_pairs_are_counted() -> None:
    found = compare(sets(same=6, on=3, both=1))
    assert found.differences is not None
    assert found.again is not None
    assert (found.differences.count, found.again.count) == (4, 1)
    assert (found.differences.first_position, found.differences.median_position) == (6, 6)
    share = found.differences.share
    assert share.value == 0.4
    assert share.lower == pytest.approx(0.168, abs=1e-3)
    assert share.upper == pytest.approx(0.687, abs=1e-3)
    assert found.at_limit == {"on": 10, "off": 10, "again": 10}


def test_partings_are_shown_from_where_they_part_the_earliest_first() -> None:
    late = AnswerSet(answer("abcdef"), answer("abcxyz"), answer("abcxyz"))
    early = AnswerSet(answer("b", "stop"), answer("a"), answer("a"))
    partings = compare([late, *sets(same=1), early]).partings
    assert [(one.prompt, one.position, one.on, one.off) for one in partings] == [
        (2, 0, "b", "a"),
        (0, 3, "def", "xyz"),
    ]


def test_prompts_without_all_answers_are_left_out() -> None:
    failed = replace(answer("something else"), error=ErrorKind.TIMEOUT)
    found = compare([*sets(same=2), AnswerSet(failed, answer("a"), failed)])
    assert found.differences is not None
    assert (found.differences.count, found.differences.share.value) == (0, 0.0)
    assert found.errors == {"timeout": 2}
    assert compare([AnswerSet(failed, failed, failed)]).outcome == "unknown"

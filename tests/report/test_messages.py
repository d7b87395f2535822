"""A report in a line and in a chat says what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.report.messages import LONGEST_CHAT, answer, chat, day, subject
from specwatch.report.model import ModelReport, Report
from tests.report import sample


def report(*outcomes: str, names: Sequence[str] = "abcdef") -> Report:
    (model, *_) = sample.full().targets
    return replace(sample.full(), targets=tuple(map(_of, [model] * len(outcomes), names, outcomes)))


def _of(model: ModelReport, name: str, outcome: Any) -> ModelReport:
    return replace(model, target=name, answer=replace(model.answer, outcome=outcome))


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ((), "nothing was watched"),
        (("pays",), "speculation pays on a"),
        (("not_worth_it",), "speculation hardly pays on a"),
        (("unknown",), "speculation has not been measured on a"),
        (("pays", "pays", "unknown"), "speculation pays on 2 of 3 targets"),
        (("pays", "loses", "off"), "speculation pays on 1 and loses on 1 of 3 targets"),
        (("loses", "even"), "speculation loses on 1 of 2 targets"),
        (("off", "off"), "speculation was off on 2 targets"),
        (("even", "unknown"), "no gain was measured on 2 targets"),
    ],
)
def test_the_answer_in_some_words(outcomes: tuple[str, ...], message: str) -> None:
    assert answer(report(*outcomes)) == message


def test_models_are_counted_where_targets_have_several() -> None:
    assert answer(report("pays", "loses", "pays", names="aab")).endswith("of 3 models")


def test_a_subject_has_the_answer_and_the_day_of_the_end() -> None:
    model = subject("[ops] {answer} ({date})", report("pays", "pays"))
    assert model == "[ops] speculation pays on 2 of 2 targets (9 Nov 2026)"
    assert day(0) == "1 Jan 1970"


def test_a_subject_is_a_line_of_a_mail_whatever_the_name() -> None:
    model = subject("specwatch: {answer}, {date}", report("unknown", names=("x" * 200,)))
    assert model.startswith("specwatch: speculation has not been measured on xx")
    assert model.endswith("xx, 9 Nov 2026")
    assert len(model) <= 78


def test_a_long_chat_is_cut_between_answers_and_says_so() -> None:
    many = replace(sample.full(), targets=sample.full().targets * 100)
    text = chat(many)
    assert len(text) < LONGEST_CHAT + 1000 <= 40_000
    head, _, rest = text.partition("\n... and ")
    assert int(rest.split()[0]) == 300 - head.count("\n\n")


def test_what_slack_would_act_on_is_text() -> None:
    (model, *_) = sample.full().targets
    evil = "<!channel> *x* & <http://e|f>\n@here"
    text = chat(replace(sample.full(), targets=(replace(model, target=evil),)))
    assert r"*&lt;!channel&gt; 'x' &amp; &lt;http://e|f&gt;\n@here, " in text

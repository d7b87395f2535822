"""A report in a line and in a chat says what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.report.messages import answer, chat, day, subject
from specwatch.report.model import ModelReport, Report
from tests.report import sample


def report(*outcomes: str, names: Sequence[str] = "abcdef") -> Report:
    (model, *_) = sample.full().targets
    return replace(sample.full(), targets=tuple(map(_of, [model] * len(outcomes), names, outcomes)))


def _of(model: ModelReport, name: str, outcome: Any) -> ModelReport:
    return replace(model, target=name, answer=replace(model.answer, outcome=outcome))


ANSWERS = {
    (): "nothing was watched",
    ("pays",): "speculation pays on a",
    ("not_worth_it",): "speculation hardly pays on a",
    ("unknown",): "speculation has not been measured on a",
    ("pays", "pays", "unknown"): "speculation pays on 2 of 3 targets",
    ("pays", "loses", "off"): "speculation pays on 1 and loses on 1 of 3 targets",
    ("loses", "even"): "speculation loses on 1 of 2 targets",
    ("off", "off"): "speculation was off on 2 targets",
    ("even", "unknown"): "no gain was measured on 2 targets",
}


def test_the_answer_in_some_words() -> None:
    assert {outcomes: answer(report(*outcomes)) for outcomes in ANSWERS} == ANSWERS


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


@pytest.mark.parametrize("name", [*sample.ALL, "fifty targets"])
def test_a_chat_message_keeps_the_limits_of_slack(name: str) -> None:
    """Source: https://docs.slack.dev/reference/block-kit/blocks/"""
    given = sample.many(50) if name == "fifty targets" else sample.ALL[name]()
    message = chat(given, "https://reports.example.com/report.html")
    blocks = message["blocks"]
    assert len(blocks) <= 50
    assert blocks[0]["type"] == "header"
    for block in blocks:
        if block["type"] == "header":
            assert block["text"]["type"] == "plain_text"
            assert 0 < len(block["text"]["text"]) <= 150
        elif block["type"] == "section":
            assert 0 < len(block["text"]["text"]) <= 3000
        else:
            assert block["type"] == "context"
            assert 0 < len(block["elements"]) <= 10
    assert len(message["text"]) < 16_383, "Mattermost refuses more"


def sections(report: Report, url: str | None = None) -> list[str]:
    blocks = chat(report, url)["blocks"]
    return [block["text"]["text"] for block in blocks if block["type"] == "section"]


def test_a_chat_message_has_the_total_the_worst_five_and_a_link() -> None:
    total, changes, *answers, footer = sections(sample.many(50), "https://h/a?b&c")
    assert total.startswith("Of 50 targets, 17 lose 328 server hours with speculation, 17 gain")
    assert changes.startswith(
        "*What to do, the greatest saving first*\n• gpu-00.example.com:8000, 7%"
    )
    assert [answer.partition(",")[0] for answer in answers] == [
        f"*gpu-{number:02}.example.com:8000" for number in (1, 4, 7, 10, 13)
    ]
    assert footer.endswith("45 more targets\n<https://h/a?b&amp;c|Open the whole report>")


def test_a_chat_message_on_one_target_is_its_answer() -> None:
    (answer,) = sections(replace(report("pays"), notes=()))
    assert answer.startswith("*a, meta-llama/Llama-3.3-70B-Instruct*\nYes: speculation made")


def test_what_slack_would_act_on_is_text() -> None:
    (model, *_) = sample.full().targets
    evil = "<!channel> *x* & <http://e|f>\n@here"
    (text, _) = sections(replace(sample.full(), targets=(replace(model, target=evil),)))
    assert r"*&lt;!channel&gt; 'x' &amp; &lt;http://e|f&gt;\n@here, " in text

"""Whole reports as they are read, in every form."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from specwatch.pages.mail_html import mail_html
from specwatch.pages.report_html import report_html
from specwatch.report.markdown import markdown
from specwatch.report.messages import chat, subject
from specwatch.report.text import lines, plain
from tests.plugins.golden import Golden
from tests.report import page, sample, story

pytestmark = pytest.mark.golden

URL = "https://reports.example.com/report-2026-11-09.html"


def test_a_week_of_three_targets_on_a_terminal_with_its_colours(golden: Golden) -> None:
    texts = (
        "".join(f"<{style}>{text}</>" if style and text.strip() else text for text, style in line)
        for line in lines(sample.full(), 100)
    )
    golden("report/week.txt", "".join(f"{text.rstrip()}\n" for text in texts))


def test_a_day_of_which_little_is_known_as_markdown(golden: Golden) -> None:
    golden("report/day.md", markdown(sample.partial()))


def test_a_day_of_which_little_is_known_as_a_page(golden: Golden) -> None:
    root = page.read(report_html(replace(sample.partial(), targets=sample.partial().targets[:1])))
    golden("report/day.html.txt", page.outline(root))


def test_a_mail_has_the_answers_and_leads_to_the_whole_report(golden: Golden) -> None:
    golden("report/week.mail.html", mail_html(sample.full(), url=URL, pictures=False).html)


def test_a_chat_message_has_the_answers_and_leads_to_the_whole_report(golden: Golden) -> None:
    message = chat(sample.full(), URL)
    golden("report/week.chat.json", json.dumps(message, indent=1, ensure_ascii=False) + "\n")


def test_what_was_computed_of_a_day_with_incidents_segments_and_experiments(golden: Golden) -> None:
    golden("report/incidents.txt", plain(story.told(), 100))


def test_nothing_is_told_in_every_form(golden: Golden) -> None:
    report = sample.empty()
    texts = {
        "text": plain(report),
        "markdown": markdown(report),
        "page": page.outline(page.read(report_html(report))),
        "mail": page.outline(page.read(mail_html(report).html)),
        "chat": json.dumps(chat(report, None), indent=1) + "\n",
        "subject": subject("specwatch: {answer}, {date}", report) + "\n",
    }
    golden("report/nothing.txt", "\n".join(f"--- {form}\n{text}" for form, text in texts.items()))

"""A report as it is sent: in one line, in a chat message, and as the parts of a mail."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from specwatch.report.fleet import unit_of, worst_first
from specwatch.report.layout import Listing, Sentence
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections.answer import OUTCOMES, all_targets
from specwatch.wording.figures import counted, moment
from specwatch.wording.text import LONGEST_SENTENCE, shown

MOST_MODELS = 5
"""Models in a mail and in a chat message."""
_LONGEST_HEADER, _LONGEST_SECTION = 150, 3000
"""Characters of a block. Source: https://docs.slack.dev/reference/block-kit/blocks/"""
_LONGEST_SUBJECT_NAME, _LEAST_SUBJECT_NAME = 40, 12
_LONGEST_SUBJECT = 78
"""Characters of a line of a mail. Source: RFC 5322, 2.1.1."""


@dataclass(frozen=True, slots=True)
class MailBody:
    """The HTML of a mail, and its pictures (PNG) by content id."""

    html: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A report that is ready to be sent; ``name`` is that of its files, ``made`` a Unix time."""

    name: str
    made: float
    subject: str
    text: str
    html: str
    """The whole page, which is attached to the mail."""
    mail: MailBody
    chat: Mapping[str, Any]
    json: bytes

    @property
    def id(self) -> str:
        """The same whenever the same report is sent; unique to it."""
        return f"{self.name}.{hashlib.sha256(self.json).hexdigest()[:20]}"


def day(time: float) -> str:
    """The day of a Unix time in UTC, as a subject says it: ``23 Nov 2026``."""
    moment = datetime.fromtimestamp(time, UTC)
    return f"{moment.day} {moment:%b %Y}"


def answer(report: Report, longest: int = _LONGEST_SUBJECT_NAME) -> str:
    """The answer for all targets in a few words: ``speculation pays on 2 of 3 targets``.

    The name of a single target has at most ``longest`` characters. Models whose answer is not known
    count neither as paying nor as losing.
    """
    models = report.targets
    if not models:
        return "nothing was watched"
    pays = sum(model.answer.outcome in ("pays", "not_worth_it") for model in models)
    loses = sum(model.answer.outcome == "loses" for model in models)
    if len(models) == 1:
        verb = OUTCOMES[models[0].answer.outcome].verb
        return f"speculation {verb} on {_name(models[0], longest)}"
    all_models = counted(len(models), unit_of(models))
    if pays and loses:
        return f"speculation pays on {pays} and loses on {loses} of {all_models}"
    if pays or loses:
        return f"speculation {'pays' if pays else 'loses'} on {pays or loses} of {all_models}"
    outcomes = {model.answer.outcome for model in models}
    if len(outcomes) == 1:
        return f"speculation {OUTCOMES[outcomes.pop()].verb} on {all_models}"
    return f"no gain was measured on {all_models}"


def subject(template: str, report: Report) -> str:
    """A template with ``{answer}`` and ``{date}`` filled in, the day of the period's end.

    A long name is cut to keep the subject of one line.
    """
    ends = day(report.until)
    subject = template.format(answer=answer(report), date=ends)
    over = len(subject) - _LONGEST_SUBJECT
    if over <= 0 or len(report.targets) != 1:
        return subject
    longest = len(_name(report.targets[0], _LONGEST_SUBJECT_NAME)) - over
    text = answer(report, max(longest, _LEAST_SUBJECT_NAME))
    return template.format(answer=text, date=ends)


def chat(report: Report, url: str | None = None) -> dict[str, Any]:
    """What Slack is posted: the total, what to do, the worst five targets and a link, as blocks.

    ``text`` is for notifications, and for Mattermost, which has no blocks.
    """
    models = worst_first(report.targets)
    title = answer(report)
    period = f"{moment(report.since)} to {moment(report.until)}"
    sections = [*_total(report), *map(_answer_of, models[:MOST_MODELS])]
    left_out = len(models) - MOST_MODELS
    footer = [f"_{_escaped(shown(note, LONGEST_SENTENCE))}_" for note in report.notes[:3]]
    if left_out > 0:
        footer.append(counted(left_out, "more target"))
    if url is not None:
        footer.append(f"<{_escaped(url)}|Open the whole report>")
    sections = [_cut(text) for text in [*sections, *(["\n".join(footer)] if footer else [])]]
    return {
        "text": "\n\n".join([f"*specwatch: {_escaped(title)}*\n{period}", *sections]),
        "blocks": [
            {
                "type": "header",
                "text": {
                    "type": "plain_text",
                    "text": shown(f"specwatch: {title}", _LONGEST_HEADER),
                },
            },
            {"type": "context", "elements": [{"type": "mrkdwn", "text": period}]},
            *({"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in sections),
        ],
    }


def _total(report: Report) -> Iterator[str]:
    """Yield the total of several targets, and what to do."""
    if len(report.targets) == 1:
        return
    for part in all_targets(report).parts:
        if isinstance(part, Sentence):
            yield _escaped(part.text)
        elif isinstance(part, Listing):
            listed = "\n".join(f"• {_escaped(item)}" for item in part.items)
            yield f"*{part.title}*\n{listed}"


def _answer_of(model: ModelReport) -> str:
    # Without the characters that would end the bold text.
    name = f"{shown(model.target)}, {shown(model.model_name)}"
    name = " ".join(name.translate(dict.fromkeys(map(ord, "*`"), "'")).split())
    texts = (model.answer.sentence, model.answer.recommendation)
    lines = [_escaped(shown(text, 3 * LONGEST_SENTENCE)) for text in texts if text]
    return "\n".join([f"*{_escaped(name)}*", *lines])


def _cut(text: str) -> str:
    """Text that fits a section; an escaped character is not cut in its middle."""
    if len(text) <= _LONGEST_SECTION:
        return text
    return text[: _LONGEST_SECTION - 3].rpartition(" ")[0] + "..."


def _name(model: ModelReport, longest: int) -> str:
    return " ".join(shown(model.target, longest).split())


def _escaped(text: str) -> str:
    """Source: https://api.slack.com/reference/surfaces/formatting, "Escaping text"."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

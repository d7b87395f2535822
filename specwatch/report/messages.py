"""A report as it is sent: in one line, in a chat message, and as the parts of a mail."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from specwatch.report.model import ModelReport, Report
from specwatch.report.sections.answer import OUTCOMES
from specwatch.wording.figures import counted, moment
from specwatch.wording.text import LONGEST_SENTENCE, shown

LONGEST_CHAT = 39_000
"""Characters; Slack cuts at 40,000. Source:
https://api.slack.com/changelog/2018-04-truncating-really-long-messages"""
_LONGEST_SUBJECT_NAME, _LEAST_SUBJECT_NAME = 40, 12
_LONGEST_SUBJECT = 78
"""Characters of a line of a mail. Source: RFC 5322, 2.1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A report that is ready to be sent; ``name`` is that of its files, ``made`` a Unix time."""

    name: str
    made: float
    subject: str
    text: str
    html: str
    chat: str
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
    unit = "target" if len({model.target for model in models}) == len(models) else "model"
    all_models = counted(len(models), unit)
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


def chat(report: Report) -> str:
    """The answers as Slack's mrkdwn, of at most 39,000 characters."""
    period = f"{moment(report.since)} to {moment(report.until)}"
    lines = [f"*specwatch: {_escaped(answer(report))}*", period]
    length, models = sum(map(len, lines)) + 100, list(report.targets)
    for index, model in enumerate(models):
        text = _answer_of(model)
        length += len(text) + 2
        if length > LONGEST_CHAT:
            lines.append(f"\n... and {counted(len(models) - index, 'more answer')}")
            break
        lines.append(f"\n{text}")
    lines += [f"\n_{_escaped(shown(note, LONGEST_SENTENCE))}_" for note in report.notes[:3]]
    return "\n".join(lines)


def _answer_of(model: ModelReport) -> str:
    # Without the characters that would end the bold text.
    name = f"{shown(model.target)}, {shown(model.model_name)}"
    name = " ".join(name.translate(dict.fromkeys(map(ord, "*`"), "'")).split())
    texts = (model.answer.sentence, model.answer.recommendation)
    lines = [_escaped(shown(text, 3 * LONGEST_SENTENCE)) for text in texts if text]
    return "\n".join([f"*{_escaped(name)}*", *lines])


def _name(model: ModelReport, longest: int) -> str:
    return " ".join(shown(model.target, longest).split())


def _escaped(text: str) -> str:
    """Source: https://api.slack.com/reference/surfaces/formatting, "Escaping text"."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

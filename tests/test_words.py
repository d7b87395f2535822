"""Comments, docstrings and messages are plain English: some phrases have a plainer form."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "specwatch"
ROOMS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})
PLAIN = {
    r"(?<!there )\b(is|are|was|were) no\b(?! (longer|more|less|worse|better))": "is not a; has no",
    r"\b(is|are|was|were) (of )?(nobody|(?-i:none))\b": "has no; there is no; nobody",
    r"\btold\b": "reported; known; given; distinguished",
    r"\btells? (of|apart|from)\b": "reports; distinguishes",
    r"\banew\b": "again; from the start",
    r"\bonce more\b": "again",
    r"\bof (its|their|his|her|our|your|one's) own\b": "its own; automatically; by itself",
    r"\b(amid|lest|wherein|whoever|whatsoever)\b": "in; so that; who; the operator; the caller",
    r"\bwhat stands\b": "the contents",
    r"\bas it stands\b": "as written; unchanged",
    r"\bstands? for\b": "means; is shown as",
    r"\bin turns\b": "alternately",
    r"\bfor certain\b": "certainly; not clear yet",
    r"\bbe (it|they|there)\b": "whether",
    r"\b(is|are|was|were) (that is )?meant\b": "means; is selected",
    r"\bwhere (it|that|they|those|there) (is|are) several\b": "if there are several",
    r"\bis known of\b": "is known about; data on",
    r"\bknows? (of|nothing|why|how|which)\b": "has; contains; see",
    r"\b(is|are) (theirs|its|his|yours|ours) to\b": "is up to",
    r"\bfor (itself|dear|good)\b": "permanently; again",
    r"\bgoes by\b": "uses; is decided by",
    r"\bmay be had\b": "is available",
    r"\bto be had\b": "available",
    r"\bcomes? of\b": "results from",
    r"\bof late\b": "recently",
    r"\bin vain\b": "without success",
    r"\bat most once each\b": "at most once",
    r"\bthe way to end\b": "shutdown",
    r"\bas (well|far) as may be\b": "as far as possible",
    r"\bas (many|few|much|little|late|early|soon) as may be\b": "as many as possible",
    r"\b(must|need|needs) know\b": "needs",
    r"\bwhich (lasts|lasted|does|did) not\b": "that did not",
    r"\bby way of\b": "through; with",
}
"""Phrases, as regular expressions, and what to write in their place."""


def phrases(text: str) -> list[tuple[int, str]]:
    """Lines of comments and strings with phrases that have a plainer form, and that form."""
    lines = iter(text.splitlines(keepends=True))
    problems = []
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type not in (tokenize.COMMENT, tokenize.STRING):
            continue
        for phrase, plain in PLAIN.items():
            for match in re.finditer(phrase, re.sub(r"\s", " ", token.string), re.IGNORECASE):
                line = token.start[0] + token.string[: match.start()].count("\n")
                problems.append((line, f"{match[0]!r}: rather {plain}"))
    return problems


@pytest.mark.parametrize("room", ROOMS)
def test_text_is_plain_english(room: str) -> None:
    path = PACKAGE / room
    modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
    problems = [
        f"{module.relative_to(ROOT)}:{line}: {problem}"
        for module in modules
        for line, problem in phrases(module.read_text())
    ]
    assert problems == []


def test_phrases_are_seen_in_strings_and_comments_only() -> None:
    assert phrases(
        'told = 1  # it is no unit\n"""A line.\n\nAs told."""\n"there is no unit"\n'
    ) == [
        (1, "'is no': rather is not a; has no"),
        (2 + 2, "'told': rather reported; known; given; distinguished"),
    ]

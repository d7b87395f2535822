"""Prompts come in an order that only the seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import pytest

from specwatch.lab.loadtest.prompts import PROMPTS, endless, sized
from specwatch.lab.loadtest.requests import Prompt
from specwatch.lab.loadtest.result_parts import workload_of


def test_each_round_has_every_prompt_once_in_another_order() -> None:
    count = len(PROMPTS)
    sent = list(islice(endless(PROMPTS, 7), 2 * count))
    assert sorted(sent[:count]) == sorted(sent[count:]) == sorted(PROMPTS)
    assert sent[:count] != sent[count:]
    assert len(set(PROMPTS)) == count >= 24


def test_no_prompts_are_an_error() -> None:
    with pytest.raises(ValueError, match="no prompts"):
        next(endless((), 0))


@pytest.mark.parametrize("words", [None, 1, 7, 1000])
def test_texts_have_the_wanted_words_in_the_order_of_their_seed(words: int | None) -> None:
    make: Callable[[str], Iterator[str]] = partial(endless, PROMPTS)
    if words is not None:
        make = partial(sized, PROMPTS, words)
    first, again, other = (list(islice(make(seed), 20)) for seed in ("3/a", "3/a", "3/b"))
    assert first == again != other
    assert words is None or {len(text.split()) for text in first} == {words}


def test_workloads_differ_by_what_is_sent() -> None:
    talk = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    sorted_keys = tuple(dict(sorted(message.items())) for message in talk)
    a, whole, other, same = (
        workload_of(
            [prompt], source="x", endpoint="chat", max_tokens=8, temperatures=(0.0,), seed=0
        ).digest
        for prompt in (
            Prompt("a"),
            Prompt("a", talk),
            Prompt("a", talk[::-1]),
            Prompt("a", sorted_keys),
        )
    )
    assert len({a, whole, other}) == 3
    assert same == whole, "whatever the order of keys"

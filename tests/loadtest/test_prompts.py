"""The workload of a calibration: unlike prompts, in an order that a seed decides."""

from __future__ import annotations

from itertools import islice

import pytest

from specwatch.loadtest.prompts import PROMPTS, endless, sized


def test_each_round_has_every_prompt_once_in_another_order() -> None:
    count = len(PROMPTS)
    sent = list(islice(endless(PROMPTS, 7), 2 * count))
    assert sorted(sent[:count]) == sorted(sent[count:]) == sorted(PROMPTS)
    assert sent[:count] != sent[count:]
    assert len(set(PROMPTS)) == count >= 24


def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    first, again, other = (list(islice(endless(PROMPTS, seed), 50)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_no_prompts_are_an_error() -> None:
    with pytest.raises(ValueError, match="no prompts"):
        next(endless((), 0))


def test_texts_have_the_words_that_are_wanted_in_the_order_of_their_seed() -> None:
    for words in (1, 7, 1000):
        first, again, other = (
            list(islice(sized(PROMPTS, words, seed), 20)) for seed in ("3/a", "3/a", "3/b")
        )
        assert {len(text.split()) for text in first} == {words}
        assert first == again
        assert first != other

"""Names are divided evenly among shards, each has one owner, and only those move that must."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.shard import Shard, owner_of, parse_shard

names = st.text(min_size=1, max_size=8)


def shards(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(count)]


@given(st.sets(names, max_size=30), st.integers(1, 8))
def test_every_name_is_in_one_shard(known: set[str], count: int) -> None:
    owned = [name for shard in shards(count) for name in known if shard.owns(name)]
    assert sorted(owned) == sorted(known)


@given(names, st.lists(names, min_size=1, unique=True), st.randoms())
def test_the_owner_is_the_same_whatever_the_order(
    name: str, candidates: list[str], random: Random
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert owner_of(name, candidates) == owner_of(name, shuffled)


@given(names, st.integers(1, 8))
def test_with_one_shard_more_names_move_only_to_that(name: str, count: int) -> None:
    before = [shard.number for shard in shards(count) if shard.owns(name)]
    after = [shard.number for shard in shards(count + 1) if shard.owns(name)]
    assert after in (before, [count])


def test_the_shards_are_alike() -> None:
    """Of 1000 names each of ten shards has about 100: the standard deviation is 9.5."""
    owned = Counter(
        shard.number for shard in shards(10) for n in range(1000) if shard.owns(f"chat-{n}")
    )
    assert len(owned) == 10
    assert all(60 <= count <= 140 for count in owned.values()), owned


def test_a_shard_is_written_as_its_number_and_their_count() -> None:
    assert parse_shard("2/3") == Shard(2, 3)
    assert parse_shard("east-specwatch-2/3") == Shard(2, 3)
    assert str(Shard(0, 12)) == "0/12"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "expected NUMBER/COUNT"),
        ("-1/3", "expected NUMBER/COUNT"),
        ("a/3", "expected NUMBER/COUNT"),
        (None, "expected NUMBER/COUNT"),
        ("3/3", "numbered from 0: the last of 3 is 2/3"),
        ("0/0", "expected 1 to 1000 shards"),
        ("0/1001", "expected 1 to 1000 shards"),
    ],
)
def test_what_is_no_shard_is_refused(text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_shard(text)

"""Targets are divided evenly, in the same way by every member, and only those move that must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.fleet import (
    FleetMember,
    FleetStatus,
    digest_of,
    owner_of,
    share_of,
)

names = st.text(min_size=1, max_size=8)
members_of_one = st.sets(names, min_size=1, max_size=8)
targets_of_one = st.sets(names, max_size=30)


def alone(targets: Iterable[str]) -> dict[str, str]:
    """Targets that may be watched anywhere."""
    return {target: target for target in targets}


def member(name: str, *targets: str, left: float = 10.0, started: float = 0.0) -> FleetMember:
    known = len(targets)
    digest = digest_of(alone(targets))
    return FleetMember(name, f"http://{name}", "1", digest, known, known, started, 15 - left, left)


def test_a_member_lives_until_its_lease_ends() -> None:
    assert [member("m", left=left).live for left in (0.1, 0.0, -0.1)] == [True, False, False]


@given(targets_of_one, members_of_one)
def test_every_target_is_in_one_share(targets: set[str], members: set[str]) -> None:
    shares = [share_of(member, alone(targets), members) for member in members]
    assert sorted(target for share in shares for target in share) == sorted(targets)


@given(targets_of_one, st.lists(names, min_size=1, unique=True), st.randoms())
def test_all_members_agree_whatever_the_order(
    targets: set[str], members: list[str], random: Random
) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)
    for target in targets:
        assert owner_of(target, members) == owner_of(target, shuffled)


@given(targets_of_one, st.sets(names, min_size=2, max_size=8), st.data())
def test_only_the_targets_of_the_dead_move(
    targets: set[str], members: set[str], data: st.DataObject
) -> None:
    """And none but those that a new member gets, when it joins."""
    dead = data.draw(st.sampled_from(sorted(members)))
    for target in targets:
        before, after = owner_of(target, members), owner_of(target, members - {dead})
        assert after == before or before == dead


def test_pods_are_watched_where_their_workload_is() -> None:
    pods = {f"pod-{number}": "workload" for number in range(9)}
    members = [f"gpu-{number}" for number in range(4)]
    owner = owner_of("workload", members)
    other = next(name for name in members if name != owner)
    for name in members:
        share = share_of(name, {**pods, "workload": "workload"}, members)
        assert share == ({*pods, "workload"} if name == owner else set())
        # One that acts on a workload keeps it for that time, and gets its new pods.
        held = share_of(name, pods, members, {"workload": other})
        assert held == (set(pods) if name == other else set())
    assert share_of(owner, pods, members, {"workload": "dead"}) == set(pods)


def test_the_shares_are_alike() -> None:
    """Of 1000 targets each of ten members has about 100: the standard deviation is 9.5."""
    members = [f"gpu-{number}" for number in range(10)]
    shares = Counter(owner_of(f"chat-{number}", members) for number in range(1000))
    assert all(60 <= shares[name] <= 140 for name in members), shares


def test_lists_of_targets_are_compared_by_their_names() -> None:
    assert digest_of({"b": "b", "a": "a"}) == digest_of({"a": "a", "b": "b"})
    assert digest_of(alone(["a", "b"])) != digest_of(alone(["ab"]))
    assert digest_of(alone(["ab"])) != digest_of(alone(["1:a", "b"]))
    assert digest_of({"a": "w", "w": "w"}) != digest_of({"a": "a", "w": "w"})


def test_members_with_other_targets_than_most_are_named() -> None:
    usual = [member("one", "a", "b"), member("two", "b", "a")]
    other, dead = member("three", "a"), member("four", "c", left=-1.0)
    assert FleetStatus("one", (*usual, other, dead)).unlike == (other,)
    assert FleetStatus("one", tuple(usual)).unlike == ()
    assert FleetStatus("one").unlike == ()


def test_of_two_lists_the_one_of_the_newest_member_is_usual() -> None:
    """A new configuration is rolled out member by member."""
    old, new = member("old", "a", started=1.0), member("new", "a", "b", started=2.0)
    assert FleetStatus("old", (old, new)).unlike == (old,)

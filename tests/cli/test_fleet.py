"""``specwatch fleet``, and the fleet in ``specwatch status``."""

from __future__ import annotations

import json

import pytest

from specwatch.store.repository import Store
from tests.cli.conftest import Run
from tests.fixtures import OpenStore
from tests.store.test_fleet import Joined, die

TARGETS = ["chat", "code", "search"]


@pytest.fixture
def url(database: str) -> str:
    """The URL of a database."""
    return database


@pytest.fixture
def members(url: str, open_store: OpenStore) -> tuple[Joined, Joined]:
    """``one`` watches every target, and ``two`` none yet."""
    one, two = (Joined(open_store(url, member=name), name) for name in ("one", "two"))
    one.renew(TARGETS)
    one.renew(TARGETS)
    two.renew(TARGETS)
    return one, two


def test_the_members_are_shown(run: Run, url: str, members: tuple[Joined, Joined]) -> None:
    done = run("fleet", "status", "--database", url)
    assert done.exit_code == 0
    heading, titles, one, two = done.stdout.splitlines()
    assert heading == "left: 2 members share 3 targets"
    assert titles.split() == ["member", "state", "targets", "up", "version", "page"]
    assert one.split()[:3] == ["one", "live", "3"]
    assert two.split()[:3] == ["two", "live", "0"]
    assert "http://two" in two


def test_targets_that_nobody_watches_are_a_problem(
    run: Run, url: str, members: tuple[Joined, Joined]
) -> None:
    members[0].book.release(["code"], 0.0)
    done = run("fleet", "status", "--database", url)
    assert done.exit_code == 1
    assert "1 target is watched by nobody: code." in " ".join(done.stdout.split())


def test_members_with_other_targets_are_a_problem(
    run: Run, url: str, members: tuple[Joined, Joined], open_store: OpenStore
) -> None:
    Joined(open_store(url, member="three"), "three").renew(["chat"])
    done = run("fleet", "status", "--database", url)
    assert done.exit_code == 1
    assert "Members with other targets than the rest: three." in " ".join(done.stdout.split())


def test_a_dead_member_is_shown_and_watches_nothing(
    run: Run, url: str, members: tuple[Joined, Joined]
) -> None:
    die(members[0])
    done = run("fleet", "status", "--database", url)
    assert done.exit_code == 1
    assert "3 targets are watched by nobody" in done.stdout
    assert "dead, seen" in done.stdout
    members[1].renew(TARGETS)
    members[1].renew(TARGETS)
    done = run("fleet", "status", "--database", url)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (
        0, "left: 2 members, 1 of them live, share 3 targets",
    )  # fmt: skip


def test_who_watches_a_target_is_said(run: Run, url: str, members: tuple[Joined, Joined]) -> None:
    done = run("fleet", "status", "code", "--database", url)
    assert done.exit_code == 0
    assert done.stdout.startswith("code: watched by one since 20")
    assert done.stdout.endswith(", http://one\n")
    members[0].book.release(["code"], 0.0)
    done = run("fleet", "status", "code", "--database", url)
    assert (done.exit_code, done.stdout) == (1, "code: nobody watches it now\n")
    done = run("fleet", "status", "toad", "--database", url)
    assert done.exit_code == 1
    assert "no fleet has a target" in done.stderr


def test_programs_read_json(run: Run, url: str, members: tuple[Joined, Joined]) -> None:
    done = run("fleet", "status", "--database", url, "--json")
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert (fleet["daemon"], fleet["targets"], fleet["unwatched"]) == ("left", 3, [])
    assert [(one["member"], one["live"], one["watched"]) for one in fleet["members"]] == [
        ("one", True, 3), ("two", True, 0),
    ]  # fmt: skip
    assert {one["target"]: one["member"] for one in fleet["watched"]} == dict.fromkeys(
        TARGETS, "one"
    )


def test_without_a_fleet_it_says_what_makes_one(run: Run, url: str, store: Store) -> None:
    done = run("fleet", "status", "--database", url)
    assert done.exit_code == 1
    assert "the key `fleet`" in done.stderr

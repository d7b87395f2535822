"""Changes of verdicts are stored once, with their numbers, and the open ones found again."""

from __future__ import annotations

import math

from specwatch.rules.decisions import Decision
from specwatch.store.repository import Store
from tests.fixtures import OpenStore
from tests.store.examples import FOREVER, T0


def change(
    time: float = T0,
    verdict: str = "breach",
    *,
    daemon: str = "left",
    target: str = "chat",
    model_name: str = "llama",
    temperature: str = "all",
    rule: str = "low-acceptance",
) -> Decision:
    """A change with some numbers in it."""
    inputs = {"readings": [{"metric": "acceptance_ratio", "value": 0.42}], "window": 600.0}
    return Decision(
        daemon, target, model_name, temperature, rule, time, verdict, "warning", "alert", inputs
    )


def test_changes_come_back_equal_newest_first_and_once(store: Store) -> None:
    changes = [change(T0), change(T0 + 60, "pass"), change(T0 + 120, temperature="(0,0.3]")]
    for _ in range(2):
        store.write_verdicts(changes, now=0)
    assert store.verdicts(**FOREVER) == changes[::-1]


def test_they_are_chosen_by_time_target_and_rule(store: Store) -> None:
    changes = [change(T0), change(T0 + 60, target="code"), change(T0 + 120, rule="garbage")]
    store.write_verdicts(changes, now=0)
    assert store.verdicts(since=T0 + 60, until=T0 + 120) == [changes[1]]
    assert store.verdicts(**FOREVER, target="chat") == [changes[2], changes[0]]
    assert store.verdicts(**FOREVER, rule="garbage") == [changes[2]]
    assert store.verdicts(**FOREVER, limit=1) == [changes[2]]


def test_a_breach_is_open_until_it_ends_for_each_scope_and_daemon_by_itself(
    store: Store, url: str, open_store: OpenStore
) -> None:
    still = [
        change(T0 + 60, temperature="0"),
        change(T0 + 60, model_name="qwen"),
        change(T0 + 60, target="code"),
        change(T0 + 60, rule="garbage"),
    ]
    ended = [change(T0), change(T0 + 60, "pass")]
    again = [change(T0, temperature=">1"), change(T0 + 60, "pass", temperature=">1")]
    again.append(change(T0 + 120, temperature=">1"))
    foreign = change(T0 + 180, daemon="right")
    theirs = [foreign, change(T0 + 240, "pass", daemon="right", target="code")]
    open_store(url, "right").write_verdicts(theirs, now=0)
    store.write_verdicts([*still, *ended, *again], now=0)
    breaches = store.open_breaches()
    assert len(breaches) == 5
    assert all(decision in breaches for decision in (*still, again[-1]))
    assert store.open_breaches("code") == [still[2]]
    assert open_store(url, "right").open_breaches() == [foreign]


def test_a_number_that_json_has_not_is_unknown(store: Store) -> None:
    odd = Decision("d", "t", "m", "all", "r", T0, "breach", "info", "alert", {"value": math.inf})
    store.write_verdicts([odd], now=0)
    assert store.verdicts(**FOREVER)[0].inputs == {"value": None}


def test_hostile_names_are_written_too(store: Store) -> None:
    store.write_verdicts([change(model_name="\0" + "m" * 100_000, temperature="é" * 9000)], now=0)
    assert len(store.verdicts(**FOREVER)) == len(store.open_breaches()) == 1

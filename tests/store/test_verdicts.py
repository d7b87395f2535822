"""Changes of verdicts are stored once, with their inputs; open breaches are found."""

from __future__ import annotations

import math
from dataclasses import replace

from specwatch.domain.model import ALL
from specwatch.rules.decisions import Decision
from specwatch.store.repository import Store
from tests.fixtures import OpenStore, each_database
from tests.segments import segment
from tests.store.examples import FOREVER, T0


def change(time: float = T0, verdict: str = "breach", **fields: str) -> Decision:
    """A change with some numbers in it."""
    inputs = {"readings": [{"metric": "acceptance_ratio", "value": 0.42}], "window": 600.0}
    decision = Decision(
        "left", "chat", "llama", ALL, "low-acceptance", time, verdict, "warning", "alert", inputs
    )
    return replace(decision, **fields)


def test_changes_are_stored_once_and_read_newest_first(store: Store) -> None:
    changes = [change(T0), change(T0 + 60, "pass"), change(T0 + 120, segment=segment("(0,0.3]"))]
    for _ in range(2):
        store.write_verdicts(changes, now=0)
    assert store.verdicts(**FOREVER) == changes[::-1]


def test_changes_are_selected_by_time_target_and_rule(store: Store) -> None:
    changes = [change(T0), change(T0 + 60, target="code"), change(T0 + 120, rule="garbage")]
    store.write_verdicts(changes, now=0)
    assert store.verdicts(since=T0 + 60, until=T0 + 120) == [changes[1]]
    assert store.verdicts(**FOREVER, target="chat") == [changes[2], changes[0]]
    assert store.verdicts(**FOREVER, rule="garbage") == [changes[2]]
    assert store.verdicts(**FOREVER, limit=1) == [changes[2]]


@each_database
def test_a_breach_is_open_until_it_ends_in_its_own_scope_and_daemon(
    store: Store, url: str, open_store: OpenStore
) -> None:
    scopes = (
        {"segment": segment("0")},
        {"model_name": "qwen"},
        {"target": "code"},
        {"rule": "garbage"},
    )
    still = [change(T0 + 60, **scope) for scope in scopes]
    ended = [change(T0), change(T0 + 60, "pass")]
    again = [
        change(T0 + 60 * n, verdict, segment=segment(">1"))
        for n, verdict in enumerate(("breach", "pass", "breach"))
    ]
    foreign = change(T0 + 180, daemon="right")
    theirs = [foreign, change(T0 + 240, "pass", daemon="right", target="code")]
    open_store(url, "right").write_verdicts(theirs, now=0)
    store.write_verdicts([*still, *ended, *again], now=0)
    breaches = store.open_breaches()
    assert len(breaches) == 5
    assert all(decision in breaches for decision in (*still, again[-1]))
    assert store.open_breaches("code") == [still[2]]
    assert open_store(url, "right").open_breaches() == [foreign]


@each_database
def test_infinite_numbers_and_hostile_names_are_stored(store: Store) -> None:
    odd = replace(change(model_name="\0" + "m" * 100_000), inputs={"value": math.inf})
    store.write_verdicts([odd, change(segment=segment("é" * 9000))], now=0)
    stored = store.verdicts(**FOREVER)
    assert len(stored) == len(store.open_breaches()) == 2
    assert {"value": None} in [decision.inputs for decision in stored]

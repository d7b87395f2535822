"""Experiments are stored whole and found by time and target."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from specwatch.domain.experiments import Comparison, read
from specwatch.domain.model import HOUR
from specwatch.domain.switchback import Moments, Switchback, SwitchbackDesign, SwitchbackState
from specwatch.errors import ConfigError
from specwatch.store import schema
from specwatch.store.repository import Store
from tests.fixtures import each_database
from tests.store.examples import SUBJECT, T0, WORKLOAD, bench


def comparison(ended: float) -> Comparison:
    return Comparison(
        version="1",
        began=ended - 60,
        ended=ended,
        complete=False,
        off=msgspec.structs.replace(SUBJECT, mode="off"),
        on=SUBJECT,
        workload=WORKLOAD,
        interleaved=True,
        levels=(),
        speedup=None,
        crossing=None,
        verdict="unknown",
        sentence="-",
    )


@each_database
def test_an_experiment_is_read_equal(store: Store) -> None:
    for experiment in (bench(T0 + 0.5), comparison(T0), bench(T0, "nul \0")):
        number = store.add_experiment(experiment, T0)
        assert store.experiment(number) == experiment
        assert store.experiment(number + 1) is None


@each_database
def test_experiments_are_selected_by_time_and_target(store: Store) -> None:
    other = bench(T0 + 1, "other")
    for experiment in (bench(T0 + HOUR), bench(T0), other, comparison(T0 + 2 * HOUR)):
        store.add_experiment(experiment, T0)
    stored = store.experiments(T0, T0 + 2 * HOUR)
    assert [row.experiment.ended for row in stored] == [T0, T0 + 1, T0 + HOUR]
    (row,) = store.experiments(T0, T0 + HOUR, "other")
    assert (row.id, row.experiment) == (3, other)


def test_the_format_of_another_version_is_skipped_and_named_when_asked_for(store: Store) -> None:
    number = store.add_experiment(bench(T0), T0)
    with store.writing(T0) as connection:
        data = '{"kind":"bench","format":2}'
        connection.execute(sa.update(schema.experiments).values(data=data))
    assert store.experiments(0, T0 + 1) == []
    with pytest.raises(ConfigError, match=f"stored result {number}: "):
        store.experiment(number)


OF_FORMAT_2 = msgspec.json.encode(msgspec.structs.replace(bench(T0), format=2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *(
            (data, "no result of specwatch probe or bench")
            for data in ("", "[]", '{"kind": "bunch"}', b"\xff\xfe")
        ),
        (OF_FORMAT_2, "format 2, and this specwatch reads 1; measure again"),
    ],
)
def test_other_files_are_refused_by_name(data: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(data, "x")
    assert str(refused.value).startswith(f"x: {message}")


DESIGN = SwitchbackDesign(arms=("launch", "0"), usual="launch", seed=7)


def switchback(target: str = "chat", **changes: Any) -> Switchback:
    """An experiment on live traffic, in the middle of an episode."""
    state = SwitchbackState(
        environment="0.33/abc",
        began=T0,
        counted=T0 + 60.5,
        arm="0",
        usual="launch",
        order=("0", "launch"),
        start=T0 + 30.25,
        episodes=3,
        dropped={"launch": ("0",)},
        differences={"all": {"0": {"launch": Moments(3, 0.25, 0.125)}}},
        settling={"slower": (Moments(1, 0.5, 0.0),)},
    )
    return Switchback(target=target, design=DESIGN, state=state, **changes)


def put(store: Store, one: Switchback) -> None:
    assert store.change_switchback(one.target, lambda _: one, T0) == one


@each_database
def test_a_target_has_one_experiment_on_live_traffic_read_equal(store: Store) -> None:
    put(store, switchback())
    put(store, switchback("nul \0"))
    put(store, switchback(stopped="ann: a demo"))
    assert store.switchbacks() == [switchback(stopped="ann: a demo"), switchback("nul \0")]
    assert store.switchbacks("chat") == [switchback(stopped="ann: a demo")]
    assert store.switchbacks("code") == []
    assert store.change_switchback("chat", lambda _: None, T0) == store.switchbacks("chat")[0]
    assert store.change_switchback("code", lambda stored: stored, T0) is None


def test_it_disturbs_no_result_of_probe_or_bench(store: Store) -> None:
    number = store.add_experiment(bench(T0), T0)
    put(store, switchback())
    assert [row.id for row in store.experiments(0, T0 + HOUR)] == [number]
    before = store.experiment_spans(0, "chat")
    assert len(before) == 1
    with pytest.raises(ConfigError, match="no result of specwatch probe or bench"):
        store.experiment(number + 1)


def test_one_of_another_version_and_one_that_somebody_wrote_are_left_out(store: Store) -> None:
    def overwrite(target: str, data: str) -> None:
        table = schema.experiments
        chosen = sa.update(table).where(table.c.kind == "switchback", table.c.target == target)
        with store.writing(T0) as connection:
            connection.execute(chosen.values(data=data))

    for target in ("chat", "code", "newer"):
        put(store, switchback(target))
    overwrite("newer", '{"kind": "switchback", "format": 2, "target": 5}')
    overwrite("code", '{"kind": "switchback", "format": 1, "target": "code"}')
    with capture_logs() as log:
        assert [one.target for one in store.switchbacks()] == ["chat"]
    assert [(entry["event"], entry["row"]) for entry in log] == [("row_unreadable", "id=2")]

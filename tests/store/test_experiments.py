"""Experiments are stored whole and found by time and target."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from specwatch.domain.experiments import Comparison, Experiment, read
from specwatch.domain.model import HOUR
from specwatch.errors import ConfigError
from specwatch.store import schema
from specwatch.store.repository import Store
from tests.store.examples import SUBJECT, T0, WORKLOAD, bench


def comparison(ended: float) -> Comparison:
    return Comparison(
        version="1", began=ended - 60, ended=ended, complete=False,
        off=msgspec.structs.replace(SUBJECT, mode="off"), on=SUBJECT, workload=WORKLOAD,
        interleaved=True, levels=(), speedup=None, crossing=None, verdict="unknown", sentence="-",
    )  # fmt: skip


@pytest.mark.parametrize("experiment", [bench(T0 + 0.5), comparison(T0), bench(T0, "nul \0")])
def test_an_experiment_is_read_equal(store: Store, experiment: Experiment) -> None:
    number = store.add_experiment(experiment, T0)
    assert store.experiment(number) == experiment
    assert store.experiment(number + 1) is None


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
        data = b'{"kind":"bench","format":2}'
        connection.execute(sa.update(schema.experiments).values(data=data))
    assert store.experiments(0, T0 + 1) == []
    with pytest.raises(ConfigError, match=f"stored result {number}: "):
        store.experiment(number)


OF_FORMAT_2 = msgspec.json.encode(msgspec.structs.replace(bench(T0), format=2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "no result of specwatch probe or bench")
          for data in ("", "[]", '{"kind": "bunch"}', b"\xff\xfe")),
        (OF_FORMAT_2, "format 2, and this specwatch reads 1; measure again"),
    ],
)  # fmt: skip
def test_other_files_are_refused_by_name(data: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(data, "x")
    assert str(refused.value).startswith(f"x: {message}")

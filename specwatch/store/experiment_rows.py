"""Rows of the table ``experiments``: probes, benches, comparisons and calibrations, as JSON, and
one row for each target with an experiment on live traffic."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from specwatch.domain.experiments import (
    FORMAT,
    Calibration,
    Comparison,
    Experiment,
    Subject,
    read,
)
from specwatch.domain.switchback import FORMAT as SWITCHBACK_FORMAT
from specwatch.domain.switchback import Switchback
from specwatch.store.schema import experiments
from specwatch.store.statements import decoded
from specwatch.store.texts import storable

_SWITCHBACK = "switchback"
_NO_RESULTS = ("calibration", _SWITCHBACK)
"""Kinds of rows without a result of probe or bench."""


class _Header(msgspec.Struct):
    format: int
    kind: str = ""


class Stored(NamedTuple):
    """An experiment and its number in the database."""

    id: int
    experiment: Experiment


class LoadSpan(msgspec.Struct, frozen=True):
    """The Unix times between which an experiment put load on a target."""

    began: float
    ended: float


def add(connection: sa.Connection, experiment: Experiment | Calibration) -> int:
    """Store an experiment; returns its number."""
    subject = subject_of(experiment)
    added = connection.execute(
        experiments.insert()
        .values(
            target=storable(subject.target),
            model_name=storable(subject.model_name),
            kind=experiment.__struct_config__.tag,
            ended_at=int(experiment.ended),
            data=msgspec.json.encode(experiment).decode(),
        )
        .returning(experiments.c.id)
    )
    return int(added.scalar_one())


def fetch(connection: sa.Connection, number: int) -> Experiment | None:
    """The experiment with this number.

    Raises ConfigError for the format of another version, and for one that cannot be decoded.
    """
    query = sa.select(experiments).where(experiments.c.id == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    experiment = next(decoded(experiments, [row], _experiment_of), None)
    return experiment or read(row.data.encode(), f"stored result {number}")


def between(
    connection: sa.Connection, since: float, until: float, target: str | None = None
) -> list[Stored]:
    """Experiments that ended from ``since`` up to ``until`` (Unix seconds), oldest first.

    Calibrations, and rows in the format of another version, are skipped.
    """
    query = (
        sa.select(experiments)
        .where(experiments.c.ended_at >= since, experiments.c.ended_at < until)
        .order_by(experiments.c.ended_at, experiments.c.id)
    )
    if target is not None:
        query = query.where(experiments.c.target == storable(target))

    def decode(row: sa.Row[Any]) -> tuple[int, Experiment | None]:
        return row.id, _experiment_of(row)

    stored = decoded(experiments, connection.execute(query).all(), decode)
    return [Stored(number, experiment) for number, experiment in stored if experiment is not None]


def _experiment_of(row: sa.Row[Any]) -> Experiment | None:
    """Decode a row; None without a result in it, and for the format of another version."""
    header = msgspec.json.decode(row.data, type=_Header)
    if header.format != FORMAT or header.kind in _NO_RESULTS:
        return None
    return read(row.data.encode(), "")


def spans(connection: sa.Connection, since: float, target: str) -> list[LoadSpan]:
    """When experiments and calibrations of a target ran that ended at ``since`` (Unix seconds) or
    later, of any kind and format."""
    query = sa.select(experiments).where(
        experiments.c.ended_at >= int(since),
        experiments.c.target == storable(target),
        experiments.c.kind != _SWITCHBACK,
    )
    return list(decoded(experiments, connection.execute(query).all(), _span_of))


def _span_of(row: sa.Row[Any]) -> LoadSpan:
    return msgspec.json.decode(row.data, type=LoadSpan)


def subject_of(experiment: Experiment | Calibration) -> Subject:
    """The server that was measured; of a comparison the one that speculates."""
    return experiment.on if isinstance(experiment, Comparison) else experiment.subject


def switchbacks(connection: sa.Connection, target: str | None = None) -> list[Switchback]:
    """The experiments on live traffic of all targets, or of one; others are skipped that cannot be
    decoded, as from another version."""
    query = sa.select(experiments).where(experiments.c.kind == _SWITCHBACK)
    if target is not None:
        query = query.where(experiments.c.target == storable(target))
    rows = connection.execute(query.order_by(experiments.c.target)).all()
    found = decoded(experiments, rows, _switchback_of)
    return [switchback for switchback in found if switchback is not None]


def _switchback_of(row: sa.Row[Any]) -> Switchback | None:
    """Decode a row; None for the format of another version."""
    if msgspec.json.decode(row.data, type=_Header).format != SWITCHBACK_FORMAT:
        return None
    return msgspec.json.decode(row.data, type=Switchback)


def put_switchback(connection: sa.Connection, switchback: Switchback, now: float) -> None:
    """Store the experiment of a target, in place of the one before."""
    name = storable(switchback.target)
    connection.execute(
        experiments.delete().where(experiments.c.kind == _SWITCHBACK, experiments.c.target == name)
    )
    connection.execute(
        experiments.insert().values(
            target=name,
            model_name="",
            kind=_SWITCHBACK,
            ended_at=int(now),
            data=msgspec.json.encode(switchback).decode(),
        )
    )

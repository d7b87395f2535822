"""Rows of the table ``experiments``: what was measured on purpose, as its own JSON."""

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
from specwatch.errors import DamagedRow
from specwatch.store import damage
from specwatch.store.contexts import storable
from specwatch.store.schema import experiments


class _Header(msgspec.Struct):
    format: int
    kind: str = ""


class Stored(NamedTuple):
    """An experiment and the number it is stored under."""

    id: int
    experiment: Experiment


class LoadSpan(msgspec.Struct, frozen=True):
    """When a target was put under load on purpose: Unix times."""

    began: float
    ended: float


def add(connection: sa.Connection, experiment: Experiment | Calibration) -> int:
    """Store one; returns its number."""
    subject = subject_of(experiment)
    added = connection.execute(
        experiments.insert()
        .values(
            target=storable(subject.target),
            model_name=storable(subject.model_name),
            kind=experiment.__struct_config__.tag,
            ended_at=int(experiment.ended),
            data=msgspec.json.encode(experiment),
        )
        .returning(experiments.c.id)
    )
    return int(added.scalar_one())


def fetch(connection: sa.Connection, number: int) -> Experiment | None:
    """The one stored under a number.

    Raises ConfigError for one of another specwatch, DamagedRow for one that cannot be decoded.
    """
    query = sa.select(experiments).where(experiments.c.id == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    try:
        experiment = experiment_of(row)
    except damage.UNDECODABLE as error:
        raise DamagedRow(experiments.name, {"id": number}, damage.reason(error)) from error
    return experiment or read(bytes(row.data), f"stored result {number}")


def between(
    connection: sa.Connection, since: float, until: float, target: str | None = None
) -> list[Stored]:
    """Those that ended from ``since`` up to ``until`` (Unix seconds), oldest first.

    Calibrations, and what another specwatch stored in a format of its own, are passed over.
    """
    query = (
        sa.select(experiments)
        .where(experiments.c.ended_at >= since, experiments.c.ended_at < until)
        .order_by(experiments.c.ended_at, experiments.c.id)
    )
    if target is not None:
        query = query.where(experiments.c.target == storable(target))

    def decode(row: sa.Row[Any]) -> tuple[int, Experiment | None]:
        return row.id, experiment_of(row)

    stored = damage.sound(
        damage.of(connection), experiments, connection.execute(query).all(), decode
    )
    return [Stored(number, experiment) for number, experiment in stored if experiment is not None]


def experiment_of(row: sa.Row[Any]) -> Experiment | None:
    """What a row holds; None for a calibration, and for what another specwatch stored in a format
    of its own.

    Raises one of ``damage.UNDECODABLE``.
    """
    damage.require_types(experiments, row._fields, row)
    data = bytes(row.data)
    header = msgspec.json.decode(data, type=_Header)
    if header.format != FORMAT or header.kind == "calibration":
        return None
    return read(data, "")


def spans(connection: sa.Connection, since: float, target: str) -> list[LoadSpan]:
    """When experiments and calibrations of a target ran that ended from ``since`` on (Unix
    seconds), of whatever kind and format."""
    query = sa.select(experiments.c.data).where(
        experiments.c.ended_at >= int(since), experiments.c.target == storable(target)
    )
    measured = []
    for data in connection.execute(query).scalars():
        try:
            measured.append(msgspec.json.decode(data, type=LoadSpan))
        except msgspec.DecodeError:
            continue
    return measured


def prune(connection: sa.Connection, before: float) -> int:
    """Delete what ended before a time (Unix seconds); returns how many rows."""
    return connection.execute(experiments.delete().where(experiments.c.ended_at < before)).rowcount


def subject_of(experiment: Experiment | Calibration) -> Subject:
    """Whose result it is; of a comparison the server that speculates."""
    return experiment.on if isinstance(experiment, Comparison) else experiment.subject

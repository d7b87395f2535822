"""Rows of the table ``experiments``: what was measured on purpose, as its own JSON."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from specwatch.edges.packing import storable
from specwatch.edges.schema import experiments
from specwatch.errors import ConfigError
from specwatch.experiments.model import Calibration, Comparison, Experiment, Subject, read


class Stored(NamedTuple):
    """An experiment and the number it is stored under."""

    id: int
    experiment: Experiment


class Span(msgspec.Struct, frozen=True):
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
    """The one stored under a number. Raises ConfigError for one of another specwatch."""
    query = sa.select(experiments.c.data).where(experiments.c.id == number)
    row = connection.execute(query).one_or_none()
    return None if row is None else read(bytes(row.data), f"stored result {number}")


def between(
    connection: sa.Connection, since: float, until: float, target: str | None = None
) -> list[Stored]:
    """Those that ended from ``since`` up to ``until`` (Unix seconds), oldest first.

    Calibrations, and what another specwatch stored in a format of its own, are passed over.
    """
    query = (
        sa.select(experiments.c.id, experiments.c.data)
        .where(experiments.c.ended_at >= since, experiments.c.ended_at < until)
        .order_by(experiments.c.ended_at, experiments.c.id)
    )
    if target is not None:
        query = query.where(experiments.c.target == storable(target))
    found = []
    for row in connection.execute(query):
        try:
            found.append(Stored(row.id, read(bytes(row.data), "")))
        except ConfigError:
            continue
    return found


def spans(connection: sa.Connection, since: float, target: str) -> list[Span]:
    """When experiments and calibrations of a target ran that ended from ``since`` on (Unix
    seconds), of whatever kind and format."""
    query = sa.select(experiments.c.data).where(
        experiments.c.ended_at >= int(since), experiments.c.target == storable(target)
    )
    found = []
    for data in connection.execute(query).scalars():
        try:
            found.append(msgspec.json.decode(data, type=Span))
        except msgspec.DecodeError:
            continue
    return found


def prune(connection: sa.Connection, before: float) -> int:
    """Delete what ended before a time (Unix seconds); returns how many rows."""
    return connection.execute(experiments.delete().where(experiments.c.ended_at < before)).rowcount


def subject_of(experiment: Experiment | Calibration) -> Subject:
    """Whose result it is; of a comparison the server that speculates."""
    return experiment.on if isinstance(experiment, Comparison) else experiment.subject

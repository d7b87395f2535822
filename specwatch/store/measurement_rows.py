"""Rows of the table ``baselines``: the cost of serving without speculation, by load.

The points and histograms of a row are JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from specwatch.domain.baseline import BaselineKey, Measurement, Origin, join
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import Histogram
from specwatch.store.schema import baselines
from specwatch.store.statements import decoded, insert
from specwatch.store.texts import storable

_KEY = ("target", "model_name", "engine_version", "configuration", "load_bin", "origin")


class _MeasurementData(msgspec.Struct, frozen=True, gc=False):
    """A measurement without its key; ``fields`` names the numbers of each point."""

    fields: tuple[str, ...]
    points: tuple[Point, ...]
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    points_behind: int = 0


_DECODER = msgspec.json.Decoder(_MeasurementData)


def put(connection: sa.Connection, measurements: Iterable[Measurement]) -> None:
    """Write measurements; those of traffic are joined with stored ones, others replace them."""
    # In one order everywhere, so that two daemons never wait for each other's locks.
    for key, new in sorted(
        ((_key(measurement), measurement) for measurement in measurements if measurement.points),
        key=lambda pair: pair[0],
    ):
        values = _values(new)
        statement = insert(connection, baselines).values(dict(zip(_KEY, key, strict=True)) | values)
        if new.origin is not Origin.WINDOWS:
            connection.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=values))
            continue
        # Inserts the row, or locks an existing one by an update that changes nothing, so that no
        # other daemon writes it in between.
        locked = statement.on_conflict_do_update(
            index_elements=_KEY, set_={"measured_at": baselines.c.measured_at}
        )
        stored = connection.execute(locked.returning(baselines)).one()
        if stored.data != values["data"]:
            same = (baselines.c[name] == value for name, value in zip(_KEY, key, strict=True))
            known = decoded(baselines, [stored], _measurement_of)
            joined = next((join(measurement, new) for measurement in known), new)
            connection.execute(baselines.update().where(*same).values(_values(joined)))


def read(connection: sa.Connection, target: str | None = None) -> list[Measurement]:
    """All measurements, of one target or of all, by key, load bin and origin."""
    query = sa.select(baselines).order_by(*(baselines.c[name] for name in _KEY))
    if target is not None:
        query = query.where(baselines.c.target == storable(target))
    rows = connection.execute(query).all()
    return list(decoded(baselines, rows, _measurement_of))


def version(connection: sa.Connection) -> tuple[float, ...]:
    """Numbers that change with any measurement, and are much cheaper to read."""
    size = sa.func.sum(sa.func.length(baselines.c.data))
    query = sa.select(sa.func.count(), sa.func.sum(baselines.c.measured_at), size)
    return tuple(float(number or 0) for number in connection.execute(query).one())


def _values(measurement: Measurement) -> dict[str, Any]:
    return {"measured_at": int(measurement.at), "data": _data(measurement)}


def _key(measurement: Measurement) -> tuple[str, str, str, str, int, str]:
    key = measurement.key
    names = (key.target, key.model_name, key.engine_version or "", key.configuration or "")
    target, model_name, version, configuration = map(storable, names)
    return target, model_name, version, configuration, measurement.load_bin, str(measurement.origin)


def _data(measurement: Measurement) -> str:
    data = _MeasurementData(
        Point._fields,
        measurement.points,
        measurement.ttft,
        measurement.tpot,
        measurement.points_behind,
    )
    return msgspec.json.encode(data).decode()


def _measurement_of(row: sa.Row[Any]) -> Measurement:
    data = _DECODER.decode(row.data)
    return Measurement(
        BaselineKey(
            row.target, row.model_name, row.engine_version or None, row.configuration or None
        ),
        row.load_bin,
        Origin(row.origin),
        data.points,
        data.ttft,
        data.tpot,
        data.points_behind,
    )

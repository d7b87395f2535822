"""Rows of the table ``baselines``: the cost of serving without speculation, by load.

The points and histograms of a row are one msgpack array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from specwatch.domain.baseline import BaselineKey, Measurement, Origin, join
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import LOAD_BINS, Histogram
from specwatch.store import damage
from specwatch.store.contexts import Finite, storable
from specwatch.store.schema import baselines
from specwatch.store.statements import insert

_KEY = ("target", "model_name", "engine_version", "configuration", "load_bin", "origin")

_Packed = tuple[
    tuple[float, ...],
    tuple[Annotated[int, msgspec.Meta(ge=0)], ...],
    Finite,
    bool,
]


class _Point(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """As :class:`specwatch.domain.baseline.Point`.

    Rows of earlier versions end after ``by_token`` or after ``output``. In their points of traffic
    ``arrival_load`` is the running requests, without the one that arrives.
    """

    at: Finite
    concurrency: Finite
    seconds: Finite
    tokens: Finite
    by_token: bool
    length: Finite = 60.0
    firsts: Finite | None = None
    first_seconds: Finite = 0.0
    prompt_tokens: Finite = 0.0
    arrival_load: Finite = 0.0
    prompt: Finite | None = None
    output: Finite | None = None
    on_arrival: bool = False


class _MeasurementData(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A measurement without its key; new fields go to the end."""

    points: tuple[_Point, ...]
    ttft: _Packed | None
    tpot: _Packed | None
    points_behind: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_MeasurementData)


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
        if bytes(stored.data) != values["data"]:
            same = (baselines.c[name] == value for name, value in zip(_KEY, key, strict=True))
            known = damage.sound(damage.of(connection), baselines, [stored], measurement_of)
            joined = _values(next((join(measurement, new) for measurement in known), new))
            connection.execute(baselines.update().where(*same).values(joined))


def read(connection: sa.Connection, target: str | None = None) -> list[Measurement]:
    """All measurements, of one target or of all, by key, load bin and origin."""
    query = sa.select(baselines).order_by(*(baselines.c[name] for name in _KEY))
    if target is not None:
        query = query.where(baselines.c.target == storable(target))
    rows = connection.execute(query).all()
    return list(damage.sound(damage.of(connection), baselines, rows, measurement_of))


def version(connection: sa.Connection) -> tuple[float, ...]:
    """Numbers that change with any measurement, and are much cheaper to read."""
    size = sa.func.sum(sa.func.length(baselines.c.data))
    query = sa.select(sa.func.count(), sa.func.sum(baselines.c.measured_at), size)
    return tuple(float(number or 0) for number in connection.execute(query).one())


def _values(measurement: Measurement) -> dict[str, Any]:
    return {"measured_at": int(measurement.at), "data": _pack(measurement)}


def _key(measurement: Measurement) -> tuple[str, str, str, str, int, str]:
    key = measurement.key
    names = (key.target, key.model_name, key.engine_version or "", key.configuration or "")
    target, model_name, version, configuration = map(storable, names)
    return target, model_name, version, configuration, measurement.load_bin, str(measurement.origin)


def _pack(measurement: Measurement) -> bytes:
    return _ENCODER.encode(
        _MeasurementData(
            tuple(_Point(*point, on_arrival=True) for point in measurement.points),
            _packed(measurement.ttft),
            _packed(measurement.tpot),
            measurement.points_behind,
        )
    )


def _packed(histogram: Histogram | None) -> _Packed | None:
    return (
        None
        if histogram is None
        else (histogram.bounds, histogram.counts, histogram.sum, histogram.coarsened)
    )


def _point(stored: _Point, origin: Origin) -> Point:
    *values, on_arrival = msgspec.structs.astuple(stored)
    point = Point(*values)
    if on_arrival or origin is not Origin.WINDOWS:
        return point
    return point._replace(arrival_load=point.arrival_load + 1.0)


def measurement_of(row: sa.Row[Any]) -> Measurement:
    """Decode a row. Raises one of ``damage.UNDECODABLE``."""
    damage.require_types(baselines, row._fields, row)
    if row.load_bin not in range(len(LOAD_BINS)):
        raise ValueError(f"load_bin is {row.load_bin}")
    data = _DECODER.decode(bytes(row.data))
    return Measurement(
        BaselineKey(
            row.target, row.model_name, row.engine_version or None, row.configuration or None
        ),
        row.load_bin,
        Origin(row.origin),
        tuple(_point(point, Origin(row.origin)) for point in data.points),
        None if data.ttft is None else Histogram(*data.ttft),
        None if data.tpot is None else Histogram(*data.tpot),
        data.points_behind,
    )

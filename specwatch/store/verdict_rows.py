"""Rows of the table ``verdicts``: each change of a confirmed verdict, with its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Required, TypedDict, Unpack

import msgspec
import sqlalchemy as sa

from specwatch.domain.model import Segment
from specwatch.rules.decisions import Decision
from specwatch.store.schema import verdicts
from specwatch.store.statements import decoded, insert
from specwatch.store.texts import storable

_SCOPE = ("target", "model_name", "dimension", "value", "rule")
_PLAIN = ("daemon", "target", "model_name", "rule", "verdict", "severity", "action")
_ORDER = ("daemon", *_SCOPE)


class VerdictSelection(TypedDict, total=False):
    """Which changes to read; what is None or left out is not restricted."""

    since: Required[float]
    until: Required[float]
    target: str | None
    rule: str | None
    limit: int | None


def add(connection: sa.Connection, decisions: Sequence[Decision]) -> None:
    """Add changes; existing ones stay unchanged."""
    if decisions:
        connection.execute(
            insert(connection, verdicts).on_conflict_do_nothing(), list(map(_row, decisions))
        )


def read(connection: sa.Connection, **selection: Unpack[VerdictSelection]) -> list[Decision]:
    """Changes in ``since <= at < until`` (Unix seconds), newest first."""
    query = sa.select(verdicts).where(
        verdicts.c.at >= selection["since"], verdicts.c.at < selection["until"]
    )
    for name in ("target", "rule"):
        value = selection.get(name)
        if value is not None:
            query = query.where(verdicts.c[name] == storable(str(value)))
    ordered = query.order_by(verdicts.c.at.desc(), *(verdicts.c[name] for name in _ORDER))
    rows = connection.execute(ordered.limit(selection.get("limit"))).all()
    return list(decoded(verdicts, rows, _decision_of))


def open_breaches(
    connection: sa.Connection, daemon: str, target: str | None = None
) -> list[Decision]:
    """The last change of each rule and scope of a daemon, if it is to a breach."""
    later = verdicts.alias("later")
    followed = sa.exists().where(
        later.c.daemon == verdicts.c.daemon,
        later.c.at > verdicts.c.at,
        *(later.c[name] == verdicts.c[name] for name in _SCOPE),
    )
    query = sa.select(verdicts).where(
        verdicts.c.daemon == storable(daemon), verdicts.c.verdict == "breach", ~followed
    )
    if target is not None:
        query = query.where(verdicts.c.target == storable(target))
    rows = connection.execute(query.order_by(verdicts.c.at)).all()
    return list(decoded(verdicts, rows, _decision_of))


def _row(decision: Decision) -> dict[str, Any]:
    measured = decision.inputs.get("speedup") or {}
    return {
        **{name: storable(getattr(decision, name)) for name in _PLAIN},
        "dimension": storable(decision.segment.dimension),
        "value": storable(decision.segment.value),
        "at": int(decision.at),
        "speedup": measured.get("value") if "lower" in measured else None,
        "speedup_low": measured.get("lower"),
        "speedup_high": measured.get("upper"),
        "inputs": msgspec.json.encode(decision.inputs).decode(),
    }


def _decision_of(row: sa.Row[Any]) -> Decision:
    return Decision(
        **{name: getattr(row, name) for name in _PLAIN},
        segment=Segment(row.dimension, row.value),
        at=float(row.at),
        inputs=msgspec.json.decode(row.inputs, type=dict[str, Any]),
    )

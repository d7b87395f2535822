"""The language in which facts about the traffic are declared.

A fact is one field of :class:`~specwatch.domain.model.Tally`,
:class:`~specwatch.domain.model.Gauges` or :class:`~specwatch.domain.model.Window`, with a
:class:`Fact` as its annotation. Its column in the database, how it adds up and what the reference
pages say of it follow from that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple, get_args, get_type_hints

MILLIONTHS = 1_000_000


class Kind(enum.Enum):
    """How a fact adds up. Each is None, or empty, where the server does not say."""

    COUNT = "a whole number; adds up"
    POSITIONS = "whole numbers by position, from 0; add up by position"
    KEYS = "whole numbers by word; add up by word"
    HISTOGRAM = "a histogram; adds up bucket by bucket, exactly"
    INTEGRAL = "a time in seconds, or an integral over time; adds up"
    LARGEST = "the largest of what was sampled"


class Fact(NamedTuple):
    """What is declared of one fact."""

    help: str
    """A sentence for reference pages."""
    kind: Kind = Kind.COUNT
    unit: str = ""
    """Of what is counted or measured: ``s`` is stored in microseconds, ``ratio`` in millionths, any
    other unit as it is."""
    event: str = ""
    """Of a count of events of the server, in the singular, such as "preemption". It is a metric, a
    measure of rules and of what has changed, and is shown beside the load."""
    column: str = ""
    """Its column in the database; by default its name."""
    name: str = ""
    """The name of the field."""
    of: str = ""
    """Where the field is: ``tally``, ``gauges``, or empty for the window itself."""

    @property
    def scale(self) -> int:
        """By what a value is multiplied to be stored as a whole number."""
        return MILLIONTHS if self.unit in ("s", "ratio") else 1

    @property
    def suffix(self) -> str:
        """What the names of columns of scaled values end with."""
        return {"s": "_us", "ratio": "_ppm"}.get(self.unit, "")


def facts_of(struct: type, of: str) -> Iterator[Fact]:
    """The facts that a struct declares, in the order of its fields."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for annotation in get_args(hint)[1:]:
            if isinstance(annotation, Fact):
                column = annotation.column or name
                if annotation.kind in (Kind.INTEGRAL, Kind.LARGEST):
                    column = column.removesuffix("_seconds") + annotation.suffix
                yield annotation._replace(name=name, of=of, column=column)

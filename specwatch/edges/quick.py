"""Values of the model made several times as fast, for readers of a hundred thousand rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import TypeVar

from specwatch.model import Gauges, Histogram, Tally, Window

_Kind = TypeVar("_Kind", Histogram, Tally, Gauges, Window)


def _maker(kind: type[_Kind]) -> Callable[..., _Kind]:
    """What makes values of a frozen class from all its fields by position, unchecked.

    A frozen dataclass sets each field through a call; a plain one of the same slots does not, and
    a value of it becomes one of the other when its class is changed.
    """
    twin = make_dataclass(kind.__name__, [field.name for field in fields(kind)], slots=True)

    def make(*values: object) -> _Kind:
        made = twin(*values)
        made.__class__ = kind
        return made  # type: ignore[no-any-return]

    return make


histogram = _maker(Histogram)
tally = _maker(Tally)
gauges = _maker(Gauges)
window = _maker(Window)

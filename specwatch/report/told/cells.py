"""Values of a report as the text of a cell; ``-`` for what is not known, or is no number."""

from __future__ import annotations

from specwatch.domain.histogram import wide
from specwatch.domain.model import HOUR
from specwatch.report.charts.scale import finite
from specwatch.report.model import Amount, Quantiles, Ratio, Side
from specwatch.wording import figures, moments
from specwatch.wording.text import LONGEST_SENTENCE, shown

UNKNOWN = figures.UNKNOWN
LONGEST_TEXT = 4 * LONGEST_SENTENCE
_LEAST_CHANGE = 0.0005


def number(value: float | None, digits: int = 0) -> str:
    """``2,940``."""
    return figures.number(finite(value), digits)


def compact(value: float | None) -> str:
    """``12.3k``."""
    return figures.compact(finite(value))


def percent(value: float | None) -> str:
    """``59.4%``."""
    return figures.percent(finite(value))


def seconds(value: float | None) -> str:
    """``235 ms``."""
    return figures.seconds(finite(value))


def span(value: float | None) -> str:
    """``5 h``; of nothing ``0 s``."""
    known = finite(value)
    return UNKNOWN if known is None else figures.span(known)


def moment(value: float | None) -> str:
    """``2026-11-19 14:33 UTC``."""
    known = finite(value)
    return UNKNOWN if known is None else moments.moment(known)


def name(text: str) -> str:
    """Foreign text, with its middle left out where it is long."""
    return shown(text)


def sentence(text: str) -> str:
    """A sentence that foreign text may be in."""
    return shown(text, LONGEST_TEXT)


def short(text: str) -> str:
    """A reason or a cause, all of it but for what nobody reads."""
    return shown(text, LONGEST_SENTENCE)


def ratio(found: Ratio | None) -> str:
    """``1.62x (1.55 to 1.69)``; ``about 1.4x, assumed``."""
    value = None if found is None else finite(found.value)
    if found is None or value is None:
        return UNKNOWN
    if found.basis != "measured":
        return f"about {value:.1f}x, {shown(found.basis)}"
    return f"{value:.2f}x{_between(found.lower, found.upper, '{:.2f}')}"


def rate(found: Ratio | None) -> str:
    """A ratio that is a rate: ``41.2%``; ``about 50%, assumed``."""
    value = None if found is None else finite(found.value)
    if found is None or value is None:
        return UNKNOWN
    said = "any" if value <= 0 else percent(value) if value <= 1 else "out of reach"
    return said if found.basis == "measured" else f"{said}, {shown(found.basis)}"


def share(found: Ratio | None) -> str:
    """A ratio that is a share, with its interval: ``81.2% (79.0 to 83.1)``."""
    value = None if found is None else finite(found.value)
    if found is None or value is None:
        return UNKNOWN
    lower, upper = (None if each is None else 100 * each for each in (found.lower, found.upper))
    return f"{percent(value)}{_between(lower, upper, '{:.1f}')}"


def per_second(value: float | None, of: float | None) -> str:
    """A number a second, with the digits that suit the number ``of`` that it is a part of."""
    known, whole = finite(value), finite(of)
    return UNKNOWN if known is None or whole is None else figures.rate(known, whole)


def hours(found: Amount | None, unit: str = "h") -> str:
    """``41 h (38 to 45)``."""
    value = None if found is None else finite(found.value)
    if found is None or value is None:
        return UNKNOWN
    form = "{:,.1f}" if abs(value) < 10 else "{:,.0f}"
    return f"{form.format(value)} {unit}{_between(found.lower, found.upper, form)}"


def length(value: float | None) -> str:
    """Seconds as hours: ``111.7 h``."""
    known = finite(value)
    return UNKNOWN if known is None else f"{known / HOUR:,.1f} h"


def quantile(found: Quantiles | Side | None, which: str) -> str:
    """``235 ms``; ``10 to 25 ms`` where its bucket is wide, ``> 10 s`` beyond the last bound."""
    if found is None:
        return UNKNOWN
    bucket = found.buckets.get(which)
    if bucket is not None and wide(bucket.lower, bucket.upper):
        return figures.within(bucket.lower, bucket.upper)
    return figures.bounded(finite(getattr(found, which)), beyond=which in found.beyond)


def mean(found: Quantiles | None) -> str:
    """``235 ms``."""
    return UNKNOWN if found is None else seconds(found.mean)


def change(now: Quantiles | None, other: Quantiles | None) -> str:
    """How much more one mean is than another: ``+4%``. Quantiles are too coarse to say."""
    return UNKNOWN if now is None or other is None else relative(now.mean, other.mean)


def relative(now: float | None, other: float | None) -> str:
    """How much more a number is than another: ``+4%``, ``-12%``, ``same``."""
    one, base = finite(now), finite(other)
    if one is None or base is None or base <= 0:
        return UNKNOWN
    by = one / base - 1
    if by >= 10:
        return f"{min(one / base, 9999):,.0f}x"
    return "same" if abs(by) < 10 * _LEAST_CHANGE else f"{by:+.0%}"


def points(now: float | None, other: float | None) -> str:
    """How many percent points a rate is above another: ``+2.1``."""
    one, base = finite(now), finite(other)
    if one is None or base is None:
        return UNKNOWN
    return "same" if abs(one - base) < _LEAST_CHANGE else f"{100 * (one - base):+.1f}"


def _between(lower: float | None, upper: float | None, form: str) -> str:
    low, high = finite(lower), finite(upper)
    if low is None or high is None:
        return ""
    return f" ({form.format(low)} to {form.format(high)})"

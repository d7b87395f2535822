"""What rules would have done, as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from specwatch.cli.replaying import Replayed
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import ALL_TEMPERATURES, load_bin_label
from specwatch.rules import decisions
from specwatch.rules.attribution import Attribution
from specwatch.rules.replay import Course, Firing
from specwatch.wording import figures
from specwatch.wording import rules as rule_words
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

_TABLE = {"rule": 34, "temp": 9, "fired": 6, "in breach": 11, "no data": 9}
"""Headers and widths; with two spaces between them, 77 columns."""

Styled = tuple[str, str]


def lines(one: Replayed, now: float) -> Iterator[Styled]:
    """Yield lines and their styles for one target; ``now`` is the Unix time."""
    since, until = one.judged
    yield shown(one.target), "bold underline"
    span = figures.span(until - since)
    yield f"judged from {moment(since)} to {moment(until, zone=True)}, {span}", ""
    if one.gap:
        yield from wrapped("  of the time before only hours are kept, which are not judged")
    for model in sorted({course.model_name for course in one.courses}):
        courses = [course for course in one.courses if course.model_name == model]
        yield "", ""
        yield shown(model), "bold"
        yield from _baseline(one.baselines.get(model, Baseline()), now)
        yield _row(*_TABLE), "dim"
        for course in courses:
            yield from _course(course, since, until)
        for course in courses:
            for firing in course.firings:
                yield from _firing(course, firing, since, until)


def moment(time: float, *, zone: bool = False) -> str:
    """A Unix time as the clock on the wall shows it: ``2026-11-19 14:33``."""
    local = datetime.fromtimestamp(time, UTC).astimezone()
    return f"{local:%Y-%m-%d %H:%M %Z}" if zone else f"{local:%Y-%m-%d %H:%M}"


def _baseline(known: Baseline, now: float) -> Iterator[Styled]:
    age = known.age(now)
    if age is None:
        yield "no baseline: rules on the speedup have no data", ""
        return
    by_origin: dict[str, list[str]] = {}
    for bin_, measurement in sorted(known.bins.items()):
        by_origin.setdefault(str(measurement.origin), []).append(load_bin_label(bin_))
    origins = "; ".join(f"{origin}, load {', '.join(at)}" for origin, at in by_origin.items())
    said = f"baseline from {origins}; {figures.span(age)} old, for all of that time"
    yield from wrapped(f"  {said}")


def _course(course: Course, since: float, until: float) -> Iterator[Styled]:
    breach = sum(each.seconds(since, until) for each in course.firings)
    share = course.unknown / course.judged if course.judged else None
    yield (
        _row(
            course.rule.name,
            shown(course.temperature, _TABLE["temp"]),
            figures.number(len(course.firings)),
            figures.span(breach) if course.firings else figures.UNKNOWN,
            figures.percent(share),
        ),
        "red" if course.firings else "",
    )


def _row(name: str, temperature: str, *cells: str) -> str:
    from specwatch.cli.terminal import row

    widths = list(_TABLE.values())
    first = f"{shown(name, widths[0]):{widths[0]}}  {temperature:{widths[1]}}"
    right = (f"{cell:>{width}}" for cell, width in zip(cells, widths[2:], strict=True))
    return row([first, *right], "  ")


def _firing(course: Course, firing: Firing, since: float, until: float) -> Iterator[Styled]:
    yield "", ""
    rule = course.rule
    who = "" if course.temperature == ALL_TEMPERATURES else f", {shown(course.temperature)}"
    yield f"{rule.name}{who} ({rule.severity}, {rule.action})", "bold"
    lasted = figures.span(firing.seconds(since, until))
    began = "before" if firing.fired < since else moment(firing.fired)
    if firing.cleared is None:
        yield f"  fired {began}, still in breach after {lasted}", ""
    else:
        yield f"  fired {began}, cleared {moment(firing.cleared)} after {lasted}", ""
    found = decisions.leading(firing.finding)
    if found is not None:
        condition, reading = found
        said = f"{condition.metric} {rule_words.amount(condition.metric, reading.value)}"
        bounds = reading.interval
        if bounds is not None:
            low, high = (
                rule_words.amount(condition.metric, at) for at in (bounds.lower, bounds.upper)
            )
            said += f" ({low} to {high})"
        yield from wrapped(f"  {said}; fires {rule_words.comparison(condition)}")
    yield from _cause(firing.attribution)


def _cause(found: Attribution) -> Iterator[Styled]:
    if found.missing is not None:
        yield from wrapped(f"  cause unknown: {found.missing}")
        return
    before, after = (figures.number(at, 2) for at in (found.before, found.now))
    said = f"{found.metric} {before} the day before, {after} now"
    leading = found.leading
    if leading is None or found.within_noise:
        yield from wrapped(f"  {said}: {'; '.join(found.notes) or 'nothing changed'}")
        return
    cause = shown(leading.sentence, LONGEST_SENTENCE)
    yield from wrapped(f"  {said}; {leading.share:.0%} of it: {cause}")

"""Acceptance, accepted lengths and latency by temperature, as sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from specwatch.domain.model import ALL_TEMPERATURES
from specwatch.report.model import Latency, ModelReport, Series, Temperature
from specwatch.report.told import cells
from specwatch.report.told.parts import Figure, Part, Section, Sentence, table

_MOST_LENGTHS = 17
_SIDES = (("before", "against before"), ("off", "against off"))
_METRICS: dict[Literal["ttft", "tpot"], str] = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
}
_QUANTILES = ("p50", "p95", "p99")


def by_temperature(model: ModelReport) -> Section:
    """Shares, acceptance and speedup, and the lengths of what was accepted."""
    return Section("Temperatures", [*_acceptance(model)])


def latencies(model: ModelReport) -> Section:
    """TTFT and TPOT with speculation, against the period before and against without."""
    return Section("Latency", [*_latencies(model)])


def _acceptance(model: ModelReport) -> Iterator[Part]:
    rows = model.temperatures
    if not any(each.acceptance.drafts or each.requests for each in rows):
        yield Sentence("There was no request, so nothing is known by temperature.")
        return
    if len(rows) == 1:
        yield Sentence(
            "Temperatures are not known: only the server's own counters were read."
            " `specwatch tap flags` says what to add to vLLM's command line."
        )
    drafted = _drafted(rows)
    if _any_rate(model.series):
        yield Figure(
            "acceptance", "Acceptance rate over time, by temperature. The table has its means."
        )
    if drafted:
        yield Figure(
            "histogram",
            "Share of drafts by the number of tokens accepted. The second table has the figures.",
        )
    yield table(
        "Traffic, acceptance and speedup by temperature",
        "*Temperature|Requests|Share|Acceptance|Points against before|P10 of requests|P50|P90"
        "|Tokens a step|Speedup",
        [_row(each) for each in rows],
        whole=len(rows) > 1,
    )
    yield _lengths(drafted)


def _drafted(rows: Sequence[Temperature]) -> list[Temperature]:
    return [each for each in rows if any(each.acceptance.histogram or ())]


def _any_rate(series: Series) -> bool:
    return any(points for points in series.acceptance.values())


def _label(each: Temperature) -> str:
    return cells.name(each.temperature)


def _row(each: Temperature) -> tuple[str, ...]:
    found, spread = each.acceptance, each.acceptance.per_request
    return (
        _label(each),
        cells.number(each.requests),
        cells.percent(each.share),
        cells.percent(found.rate),
        cells.points(found.rate, each.acceptance_before),
        *(
            cells.percent(None if spread is None else getattr(spread, which))
            for which in ("p10", "p50", "p90")
        ),
        cells.number(found.mean_length, 2),
        cells.ratio(each.speedup),
    )


def _lengths(known: Sequence[Temperature]) -> Part:
    if not known:
        return Sentence("How many tokens of a draft were accepted is not known.")
    longest = min(max(len(each.acceptance.histogram or ()) for each in known), _MOST_LENGTHS)
    return table(
        "Share of drafts by the number of tokens accepted",
        "|".join(["*Temperature", *map(str, range(longest))]),
        [(_label(each), *_shares(each.acceptance.histogram or (), longest)) for each in known],
        whole=len(known) > 1,
    )


def _shares(counts: Sequence[int], longest: int) -> list[str]:
    whole = sum(counts)
    shares = [cells.percent(count / whole) for count in counts[:longest]]
    return shares + [cells.UNKNOWN] * (longest - len(shares))


def _latencies(model: ModelReport) -> Iterator[Part]:
    if not any(each.ttft.on or each.tpot.on for each in model.temperatures) and not (
        model.series.latency
    ):
        yield Sentence("No latency is known.")
        return
    for metric, title in _METRICS.items():
        if any(_known(each, metric) for each in model.series.latency):
            yield Figure(
                metric,
                f"{title} over time, P50 and P99 (interpolated), with speculation on and off."
                " The table has the whole period.",
            )
    for metric, title in _METRICS.items():
        found = [(each.temperature, getattr(each, metric)) for each in model.temperatures]
        yield from _table(title, [(label, each) for label, each in found if each.on is not None])
    yield Sentence(
        "Means are exact. A quantile given as a range lies anywhere in that histogram bucket, so"
        " its change is not given."
    )


def _known(point: object, metric: str) -> bool:
    return getattr(point, f"{metric}_p50") is not None


def _table(title: str, rows: Sequence[tuple[str, Latency]]) -> Iterator[Part]:
    """Yield a table with what can be compared; a sentence where nothing is known."""
    if not rows:
        yield Sentence(f"{title} is not known.")
        return
    sides = [(side, said) for side, said in _SIDES if any(getattr(each, side) for _, each in rows)]
    columns = ["*Temperature", "Mean", *(f"Mean {said}" for _, said in sides)]
    off = "off" in dict(sides)
    for which in _QUANTILES:
        columns += [which.upper(), *([f"{which.upper()} off"] if off else [])]
    told = "with speculation"
    if sides:
        words = {"before": "the period before", "off": "without speculation at the same load"}
        told += ", against " + " and ".join(words[side] for side, _ in sides)
    yield table(
        f"{title} {told}",
        "|".join(columns),
        [(cells.name(label), *_compared(each, [s for s, _ in sides])) for label, each in rows],
        whole=len(rows) > 1 and rows[0][0] == ALL_TEMPERATURES,
    )
    missing = [said for side, said in (("before", "the period before"), ("off", "a baseline"))
               if side not in dict(sides)]  # fmt: skip
    if missing:
        yield Sentence(f"There is nothing to compare it with from {' or '.join(missing)}.")


def _compared(found: Latency, sides: Sequence[str]) -> Iterator[str]:
    yield cells.mean(found.on)
    for side in sides:
        yield cells.change(found.on, getattr(found, side))
    for which in _QUANTILES:
        yield cells.quantile(found.on, which)
        if "off" in sides:
            yield cells.quantile(found.off, which)

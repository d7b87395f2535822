"""What was measured on purpose, as a section."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.loadtest import verdicts, zones
from specwatch.report.charts.scale import finite
from specwatch.report.experiments import headline, others
from specwatch.report.model import Experiment, MeasuredLoad, ModelReport
from specwatch.report.told import cells
from specwatch.report.told.parts import Part, Section, Sentence, Table, table


def experiments(model: ModelReport) -> Section | None:
    """Each with its figures; None where there was none."""
    if not model.experiments:
        return None
    return Section("Measured on purpose", [*_parts(model)])


def load(found: MeasuredLoad) -> str:
    """``16`` clients, or ``4/s``; ``16, in part`` of one that was broken off."""
    rate = finite(found.rate)
    known = found.concurrency is not None or rate is None
    said = cells.number(found.concurrency) if known else f"{rate:g}/s"
    return said if found.complete else f"{said}, in part"


def temperature(value: float) -> str:
    """``0.7``, as it was asked for."""
    known = finite(value)
    return cells.UNKNOWN if known is None else f"{known:g}"


def _parts(model: ModelReport) -> Iterator[Part]:
    for each in model.experiments:
        yield Sentence(cells.sentence(headline(each)))
        if each.temperatures:
            yield _probe(each)
        elif each.loads:
            yield _comparison(each) if each.kind == "comparison" else _bench(each)
    if model.more_experiments:
        yield Sentence(f"And {others(model.more_experiments)}.")


def _probe(found: Experiment) -> Table:
    return table(
        f"Probe of {cells.moment(found.at)}: acceptance by temperature",
        "*Temperature|Acceptance|*Against break-even|Speedup",
        [
            (
                temperature(each.temperature),
                cells.share(each.acceptance_rate),
                zones.LABELS[each.zone],
                cells.ratio(each.speedup),
            )
            for each in found.temperatures
        ],
    )


def _comparison(found: Experiment) -> Table:
    return table(
        f"Comparison of {cells.moment(found.at)}: with speculation against without, by load",
        "*Load|Speedup|Tokens/s with|Tokens/s without|*Verdict",
        [
            (
                load(each),
                cells.ratio(each.speedup),
                cells.compact(each.throughput),
                cells.compact(each.throughput_off),
                cells.UNKNOWN if each.verdict is None else verdicts.LABELS[each.verdict],
            )
            for each in found.loads
        ],
    )


def _bench(found: Experiment) -> Table:
    return table(
        f"Bench of {cells.moment(found.at)}: throughput by load",
        "*Load|Tokens/s|Tokens/s of a request|TPOT P99",
        [
            (
                load(each),
                cells.compact(each.throughput),
                cells.number(each.per_user, 1),
                cells.seconds(each.tpot_p99),
            )
            for each in found.loads
        ],
    )

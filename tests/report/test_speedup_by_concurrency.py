"""The chart of a comparison, taken apart."""

from __future__ import annotations

import pytest

from specwatch.domain.experiments import ComparedLevel, Estimate
from specwatch.report.charts import speedup_by_concurrency
from specwatch.wording import experiment_verdicts
from tests.report.drawing import Drawing


def compared(
    load: float,
    value: float,
    lower: float | None = None,
    upper: float | None = None,
    *,
    rate: bool = False,
) -> ComparedLevel:
    speedup = Estimate(value=value, lower=lower, upper=upper)
    return ComparedLevel(
        concurrency=None if rate else int(load),
        rate=load if rate else None,
        speedup=speedup,
        decode=None,
        ttft=None,
        throughput_off=1,
        throughput_on=1,
        per_user_off=None,
        per_user_on=None,
        tpot_p99_off=None,
        tpot_p99_on=None,
        acceptance_rate=None,
        verdict=experiment_verdicts.verdict_of(speedup),
    )


LEVELS = (
    compared(1, 1.9, 1.8, 2.0),
    compared(4, 1.5, 1.2, 1.66),
    compared(16, 1.1, 1.02, 1.2),
    compared(32, 0.8, 0.74, 0.87),
)


def test_each_load_has_its_figure_and_both_lines_are_named() -> None:
    drawing = Drawing(speedup_by_concurrency(LEVELS, 19.7))
    for text in ("1.90x", "1.50x", "1.10x", "0.80x", "1", "4", "16", "32", "requests at once"):
        assert text in drawing.texts
    assert "as fast" in drawing.texts
    assert "worth it: 1.3x" in drawing.texts
    assert "slower from 19.7" in drawing.texts
    drawing.inside()


def test_where_it_begins_to_pay_is_marked_too() -> None:
    levels = (compared(1, 0.6, 0.5, 0.7), compared(16, 1.9, 1.8, 2.0))
    drawing = Drawing(speedup_by_concurrency(levels, rising=4.51))
    assert "faster from 4.51" in drawing.texts
    assert drawing.words.endswith("It rises to 1 at about 4.51.")
    drawing.inside()


def test_it_is_told_to_those_who_cannot_see_it() -> None:
    drawing = Drawing(speedup_by_concurrency(LEVELS, 19.7))
    assert drawing.title == "Speedup by requests at once, with the lines at 1 and 1.3"
    assert "at 4 requests at once 1.50x (1.20 to 1.66)" in drawing.words
    assert drawing.words.endswith("It falls to 1 at about 19.7.")


def test_verdicts_differ_by_shape_and_only_those_there_are_are_in_the_legend() -> None:
    drawing = Drawing(speedup_by_concurrency(LEVELS))
    assert [text for text in drawing.texts if text in ("ship", "not worth it", "do not", "unsure")]
    few = Drawing(speedup_by_concurrency(LEVELS[:1]))
    assert "ship" in few.texts
    assert "do not" not in few.texts


def test_loads_lie_on_a_logarithmic_scale() -> None:
    """From 1 to 4 it is as far as from 4 to 16."""
    drawing = Drawing(speedup_by_concurrency(LEVELS))
    at = {"".join(e.itertext()): float(e.get("x", 0)) for e in drawing.all("text")}
    assert at["16"] - at["4"] == pytest.approx(at["4"] - at["1"], abs=0.2)


def test_rates_are_called_rates() -> None:
    drawing = Drawing(speedup_by_concurrency([compared(0.5, 1.2, 1.1, 1.4, rate=True)]))
    assert "requests a second" in drawing.texts
    assert "0.5" in drawing.texts


def test_hostile_values_draw_no_nonsense() -> None:
    odd = [compared(1, 1e9, 0.0, float("inf")), compared(2, 1e-9), compared(4, float("nan"))]
    Drawing(speedup_by_concurrency(odd, float("nan"))).inside()
    assert "No speedup is known" in speedup_by_concurrency([compared(4, float("nan"))])
    assert "No speedup is known" in speedup_by_concurrency([])

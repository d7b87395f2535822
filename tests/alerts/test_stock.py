"""The alerts on stock vLLM metrics, as a real Prometheus evaluates them; ``tests/nightly`` has all
cases."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules import Slo
from specwatch.generate.alerts import objectives, stock_groups
from specwatch.scrape.exposition import PageReader
from tests.alerts.promtool import write
from tests.alerts.stock import SLOS, odd_names_file, quick_cases, run_promtool

ODD_NAME = """{"a\\b"} {{ $value }} }} `x` it's 99%"""


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """The name of an objective is text, whatever it means in an expression or a template."""
    files = write(tmp_path, stock_groups(SLOS[:1]), quick_cases())
    run_promtool(*files, odd_names_file(tmp_path, ODD_NAME))


def test_the_bounds_are_those_of_vllm() -> None:
    """Of a real page: no bound is missing, and none is made up."""
    page = Path(__file__).parents[1] / "data" / "vllm-0.32-draft-k4.3.prom"
    samples = PageReader().read(page.read_bytes())
    for metric, known in objectives.HISTOGRAMS.items():
        bounds = {
            float(sample.key)
            for sample in samples
            if (sample.quantity, sample.part) == (metric, "bucket")
        }
        assert bounds == {*known.bounds, float("inf")}


def test_what_is_not_measured_as_configured_is_noted() -> None:
    odd = (
        Slo(name="a", metric="ttft", threshold="600ms", objective="99%"),
        Slo(name="b", metric="e2e", threshold="200ms", objective="99%"),
        Slo(name="c", metric="tpot", threshold="2m", objective="99%"),
        Slo(name="d", metric="ttft", threshold="500ms", objective="90%"),
    )
    assert tuple(objectives.notes(odd)) == (
        "objective a: 600ms is not a bound of vLLM's histogram: only what is slower than 750ms"
        " counts as slow; 500ms or 750ms would be exact",
        "objective b: 200ms is not a bound of vLLM's histogram: only what is slower than 300ms"
        " counts as slow; 300ms would be exact",
        "objective c: 2m is above the last bound of vLLM's histogram (1m20s): it has no"
        " alerts here",
        "objective d: with 0.9 the error budget cannot burn 14.4 times too fast, so that rate"
        " has no alert",
    )
    (group,) = objectives.groups(odd)
    assert {alert.labels["slo"] for alert in group.alerts} == {"a", "b", "d"}
    assert objectives.groups(odd[2:3]) == ()


@given(st.sampled_from(sorted(objectives.HISTOGRAMS)), st.integers(1, 3_000_000))
def test_no_objective_is_held_to_a_stricter_threshold(metric: str, milliseconds: int) -> None:
    slo = Slo(name="a", metric=metric, threshold=f"{milliseconds}ms", objective="99%")
    bound = objectives.bound_of(slo)
    assert bound is None or bound >= slo.threshold


def test_an_objective_on_a_bound_needs_no_note() -> None:
    on_a_bound = Slo(name="e", metric="e2e", threshold="1s", objective="99%")
    assert list(objectives.notes([on_a_bound])) == []

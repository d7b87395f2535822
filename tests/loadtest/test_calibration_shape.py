"""What a calibration sends is what traffic was like."""

from __future__ import annotations

from specwatch.domain.model import Gauges, Histogram, Mode, Tally
from specwatch.domain.sample import Sample
from specwatch.lab.loadtest import calibration_shape
from specwatch.lab.loadtest.engine import counted_of
from tests.loadtest.test_calibration import OFF, page


def traffic(requests: int, prompt: int, output: int, *, load: float, busy: float = 60.0) -> Sample:
    """A minute of so many requests."""
    return Sample(
        start=0,
        length=60,
        mode=Mode.ON,
        tally=Tally(
            prompt_tokens=prompt * requests,
            generation_tokens=output * requests,
            ttft=Histogram((), (requests,), 0.1 * requests),
            output_length=Histogram((), (requests,), float(output * requests)),
        ),
        gauges=Gauges(60.0, busy, load * busy, 0.0, 4),
    )


def test_the_shape_of_traffic_has_its_mean_lengths_and_more_than_its_highest_load() -> None:
    shape = calibration_shape.shape_of(
        [traffic(30, 100, 40, load=2.0), traffic(10, 300, 80, load=3.0)]
    )
    assert shape == (150, 50, (1, 2, 4, 8))


def test_the_highest_load_is_weighted_by_its_duration() -> None:
    """An hour at one load may be a few busy seconds, and another a whole hour."""
    samples = [traffic(50, 100, 40, load=2.0, busy=3600.0), traffic(5, 100, 40, load=30.0, busy=9)]
    shape = calibration_shape.shape_of(samples)
    assert shape.loads == (1, 2, 4)


def test_a_few_requests_have_no_shape() -> None:
    assert calibration_shape.shape_of([traffic(19, 100, 40, load=2.0)]) is None
    assert calibration_shape.shape_of([]) is None


def test_a_page_has_the_shape_of_all_that_was_served() -> None:
    counted = counted_of(page(5000, 100), OFF)
    assert calibration_shape.shape_of_page(counted) == (30, 50, calibration_shape.LOADS)
    assert calibration_shape.shape_of_page(counted_of(page(50, 1), OFF)) is None
    assert calibration_shape.shape_of_page(Tally()) is None


def test_prompts_of_three_lengths_are_cut_to_the_context_length() -> None:
    assert calibration_shape.fitted(200, 100, None) == ((100, 200, 400), 100, ())
    assert calibration_shape.fitted(200, 100, 4096) == ((100, 200, 400), 100, ())
    assert calibration_shape.fitted(None, 100, 4096) == ((), 100, ())
    assert calibration_shape.fitted(1, 100, None).prompts == (1, 2)
    prompts, output, (outputs_cut, prompts_cut) = calibration_shape.fitted(600, 900, 1000)
    assert (prompts, output) == ((300, 484), 500)
    assert "outputs of 900 tokens are cut to 500" in outputs_cut
    assert "prompts of 600 and 1200 tokens are cut to 484" in prompts_cut

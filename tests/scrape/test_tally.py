"""Samples become tallies and gauges; what makes no sense is left out and said."""

from __future__ import annotations

import math

import pytest

from specwatch.domain.model import Environment, Histogram, Series
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape import tally
from tests.pages import capture, counter, gauge, histogram, page, read, speculation

LABELS = {"engine": "0", "model_name": "m"}


def only(text: str) -> dict[Series, float]:
    (samples,) = tally.parts_of(read(text)).models.values()
    return samples


def test_samples_of_the_process_belong_to_no_model():
    text = page(
        gauge("process_start_time_seconds", 1.5),
        gauge("vllm:cache_config_info", 1, engine="0", block_size="16"),
    )
    assert tally.parts_of(read(text)).models == {}


def test_accepted_tokens_are_not_those_of_the_positions():
    counts = tally.tally_of(only(speculation(10, [6, 3, 1])), [])
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (10, 30, 10)
    assert counts.accepted_per_position == (6, 3, 1)


def test_positions_are_in_numerical_order():
    counts = tally.tally_of(only(speculation(20, range(19, 7, -1))), [])
    assert counts.accepted_per_position == tuple(range(19, 7, -1))


@pytest.mark.parametrize(
    ("metric", "label", "field"),
    [
        ("vllm:request_success", "finished_reason", "requests"),
        ("specwatch_tap_uncovered_requests", "reason", "uncovered"),
        ("specwatch_tap_records", "method", "records"),
        ("specwatch_tap_request_endings", "ending", "endings"),
    ],
)
def test_reasons_are_bounded_in_number_and_length(metric, label, field):
    """The most frequent are kept, and the sum is right."""
    long = "r" * 500
    counts = {**{f"r{n}": n for n in range(1, 100)}, long: 1000, "other": 7}
    text = page(
        *(counter(metric, count, **LABELS, **{label: key}) for key, count in counts.items())
    )
    limited = getattr(tally.tally_of(read(text), []), field)
    assert len(limited) == tally.MOST_KEYS
    assert sum(limited.values()) == sum(counts.values())
    assert limited[long[:64]] == 1000
    assert limited["r99"] == 99
    assert limited["other"] > 7
    assert "r1" not in limited


def test_a_histogram_of_too_many_buckets_is_left_out_and_said():
    bounds, counts = range(1, 301), [1] * 301
    text = page(histogram("vllm:time_to_first_token_seconds", bounds, counts, 1.0, **LABELS))
    problems: list[str] = []
    assert tally.tally_of(only(text), problems).ttft is None
    assert problems == ["ttft of engine '0' has 301 buckets: expected at most 256"]


@pytest.mark.parametrize("position", ["", "x", "-1", "1.5", "1000", "1000000000", "²"])
def test_a_position_that_is_none_is_left_out_and_said(position):
    """Also one that would need gigabytes."""
    samples = only(speculation(10, [6, 3]))
    samples[Series("accepted_per_position", "", "m", "0", position)] = 1.0
    problems: list[str] = []
    counts = tally.tally_of(samples, problems)
    assert counts.accepted_per_position is None
    assert counts.accepted_tokens == 9
    assert problems == [f"{position!r} is not a position of a draft token"]


@pytest.mark.parametrize(
    ("series", "value", "words"),
    [
        (Series("ttft", "bucket", "m", "0", "x"), 1.0, "a bucket of ttft of engine '0' has no"),
        (Series("ttft", "bucket", "m", "0", ""), 1.0, "a bucket of ttft of engine '0' has no"),
        (Series("ttft", "bucket", "m", "0", "0.5"), 9.0, "the buckets of ttft of engine '0' do"),
        (Series("ttft", "bucket", "m", "0", "NaN"), 1.0, "the buckets of ttft of engine '0' do"),
        (Series("ttft", "bucket", "m", "0", "0.7"), 2.5, "the buckets of ttft of engine '0' do"),
    ],
)
def test_a_histogram_that_is_none_is_left_out_and_said(series, value, words):
    samples = only(
        page(
            histogram("vllm:time_to_first_token_seconds", [0.5, 1], [2, 1, 0], 1.5, **LABELS),
            histogram("vllm:e2e_request_latency_seconds", [1], [2, 1], 1.5, **LABELS),
        )
    )
    samples[series] = value
    problems: list[str] = []
    counts = tally.tally_of(samples, problems)
    assert counts.ttft is None
    assert counts.e2e == Histogram((1.0,), (2, 1), 1.5)
    assert len(problems) == 1
    assert problems[0].startswith(words)


def test_a_broken_histogram_is_not_replaced_by_a_mean():
    """Time per output token is derived only where the server has no such family."""
    samples = only(
        page(
            histogram("vllm:request_time_per_output_token_seconds", [1], [2, 1], 1.5, **LABELS),
            histogram("vllm:request_decode_time_seconds", [1], [2, 1], 1.5, **LABELS),
            histogram("vllm:request_generation_tokens", [1], [2, 1], 9, **LABELS),
        )
    )
    problems: list[str] = []
    assert tally.tally_of(samples, problems).tpot == Histogram((1.0,), (2, 1), 1.5)
    samples[Series("tpot", "bucket", "m", "0", "1")] = 7.0
    assert tally.tally_of(samples, problems).tpot is None
    assert len(problems) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_totals_that_are_no_numbers_are_refused_with_their_name(value):
    samples = only(speculation(10, [6, 3]))
    samples[Series("drafts", "", "m", "0", "")] = value
    with pytest.raises(PageError, match="drafts of model 'm'") as caught:
        tally.tally_of(samples, [])
    assert caught.value.reason is ScrapeReason.NOT_A_NUMBER


def test_gauges_of_engines_add_up_and_usage_is_that_of_the_fullest():
    text = page(
        *(
            gauge(name, value + int(engine), engine=engine, model_name="m")
            for engine in ("0", "1")
            for name, value in (
                ("vllm:num_requests_running", 3),
                ("vllm:num_requests_waiting", 5),
                ("vllm:kv_cache_usage_perc", 0.5),
            )
        )
    )
    assert tally.sampled(only(text)) == tally.Sampled(7, 11, 1.5, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e308", "1e19"])
def test_a_gauge_that_makes_no_sense_is_not_said(value):
    text = page(
        gauge("vllm:num_requests_running", float(value), **LABELS),
        gauge("vllm:num_requests_waiting", 2, **LABELS),
        gauge("vllm:kv_cache_usage_perc", float(value), **LABELS),
    )
    assert tally.sampled(only(text)) == tally.Sampled(None, 2, None, None)


def test_one_engine_without_a_number_does_not_hide_the_other():
    text = page(
        gauge("vllm:num_requests_running", math.nan, engine="0", model_name="m"),
        gauge("vllm:num_requests_running", 4, engine="1", model_name="m"),
    )
    assert tally.sampled(only(text)).running == 4


def fingerprint(text: str) -> str:
    return tally.fingerprint_of(read(text))


def test_the_fingerprint_changes_with_the_configuration_and_not_with_the_counts():
    def cache_of(block_size: str, num_gpu_blocks: str):
        labels = {"block_size": block_size, "num_gpu_blocks": num_gpu_blocks}
        return gauge("vllm:cache_config_info", 1, engine="0", **labels)

    cache, smaller = cache_of("16", "100"), cache_of("8", "100")
    base = fingerprint(page(cache) + speculation(10, [6, 3]))
    assert fingerprint(page(cache) + speculation(99, [60, 30])) == base
    assert fingerprint(speculation(10, [6, 3]) + page(cache)) == base
    measured_anew = cache_of("16", "97")
    assert fingerprint(page(measured_anew) + speculation(10, [6, 3])) == base
    others = {
        fingerprint(page(cache)),
        fingerprint(page(cache) + speculation(10, [6, 3, 1])),
        fingerprint(page(smaller) + speculation(10, [6, 3])),
    }
    assert len(others | {base}) == 4


def switch(draft_tokens: float, ordered: float) -> str:
    return page(
        gauge("specwatch_switch_draft_tokens", draft_tokens),
        gauge("specwatch_switch_ordered", ordered),
    )


def test_the_fingerprint_has_the_draft_tokens_that_are_ordered():
    def k_of(text: str) -> str:
        return fingerprint(speculation(10, [6, 3]) + text).partition("-")[2]

    assert [k_of(text) for text in (page(), switch(2, 0), switch(1, 1), switch(0, 1))] == [
        "2",
        "2",
        "1",
        "0",
    ]
    assert fingerprint(switch(1, 1)).endswith("-0")  # it does not speculate


def test_the_same_server_with_and_without_speculation_has_one_configuration():
    """As vLLM really shows it: the draft model takes half of the cache, which is no difference."""
    on, off = (
        Environment(None, tally.fingerprint_of(read(capture(name))))
        for name in ("draft-k4.3", "spec-off.3")
    )
    assert on.configuration == off.configuration
    assert on.fingerprint == f"{on.configuration}-4"
    assert off.fingerprint == f"{off.configuration}-0"


def test_where_old_and_new_names_differ_the_new_one_counts():
    text = page(
        gauge("vllm:kv_cache_usage_perc", 0.25, **LABELS),
        gauge("vllm:gpu_cache_usage_perc", 0.75, **LABELS),
        counter("vllm:gpu_prefix_cache_hits", 64, **LABELS),
        counter("vllm:prefix_cache_hits", 4, **LABELS),
    )
    assert tally.sampled(only(text)).kv_cache_usage == 0.25
    assert tally.tally_of(only(text), []).prefix_cache_hits == 4

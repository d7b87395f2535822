"""What each version of each engine says, and what it only seems to say.

The pages are captures of vLLM 0.32 and llama.cpp b11434, and written after the metric definitions
of older versions.
"""

from __future__ import annotations

import msgspec
import pytest

from specwatch.domain.histogram import mean, quantile
from specwatch.domain.model import Environment, Histogram, Mode, Moment, Series, Tally
from specwatch.domain.sample import samples_of
from specwatch.engines.sample_names import mode_of
from specwatch.scrape import tally
from specwatch.scrape.window_builder import WindowBuilder
from tests.pages import (
    DATA,
    capture,
    counter,
    faithful,
    gauge,
    llama_capture,
    multiprocess,
    page,
    ray,
    read,
)

ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def totals(text: bytes | str) -> Tally:
    """What the only model of a page counted since its start."""
    problems: list[str] = []
    (samples,) = tally.parts_of(read(text)).models.values()
    counts = tally.tally_of(samples, problems)
    assert problems == []
    return counts


def gauges(text: bytes | str) -> tally.Sampled:
    (samples,) = tally.parts_of(read(text)).models.values()
    return tally.sampled(samples)


def mode(text: bytes | str, drafting: bool | None = None) -> Mode:
    (samples,) = tally.parts_of(read(text)).models.values()
    return mode_of(samples, drafting)


def between(first: bytes | str, second: bytes | str):
    """The only window of two pages, 5 s apart."""
    watch = WindowBuilder("d", "t", max_gap=15)
    watch.observe(read(first), Moment(0, 0))
    watch.observe(read(second), Moment(5, 5))
    observation = watch.close()
    assert observation.problems == ()
    assert observation.batch is not None
    (window,) = observation.batch
    return window


def test_vllm_0_32_with_a_draft_model():
    values = totals(capture("draft-k4.3"))
    assert (values.drafts, values.draft_tokens, values.accepted_tokens) == (1576, 6304, 3582)
    assert values.accepted_per_position == (1178, 949, 795, 660)
    assert (values.prompt_tokens, values.generation_tokens, values.preemptions) == (7230, 5044, 0)
    assert (values.prefix_cache_queries, values.prefix_cache_hits) == (7230, 512)
    assert values.requests == {"abort": 0, "error": 0, "length": 102, "repetition": 0, "stop": 0}
    counts = {
        name: getattr(values, name).count
        for name in ("ttft", "tpot", "inter_token", "e2e", "output_length")
    }
    assert counts == {
        "ttft": 102,
        "tpot": 102,
        "inter_token": 1576,
        "e2e": 102,
        "output_length": 102,
    }
    assert values.tpot is not None
    assert values.tpot.bounds
    assert mode(capture("draft-k4.3")) is Mode.ON


def test_workers_of_ray_are_added_up():
    """Every name of vLLM has one in Ray; only zeros are absent, and the process."""
    values, alone = totals(ray(capture("draft-k4.3"), "a", "b")), totals(capture("draft-k4.3"))
    for name in ("drafts", "draft_tokens", "accepted_tokens", "prompt_tokens", "generation_tokens"):
        assert getattr(values, name) == 2 * getattr(alone, name), name
    assert values.accepted_per_position == tuple(2 * n for n in alone.accepted_per_position)
    assert values.requests == {"length": 2 * alone.requests["length"]}
    for name in ("ttft", "tpot", "inter_token", "e2e", "output_length"):
        assert getattr(values, name).counts == tuple(2 * n for n in getattr(alone, name).counts)
    assert mode(ray(capture("draft-k4.3"), "a")) is Mode.ON
    assert mode(ray(capture("spec-off.3"), "a")) is Mode.OFF


def test_a_worker_of_ray_that_is_replaced_counts_from_zero():
    before, after = ray(capture("draft-k4.2"), "a", "b"), ray(capture("draft-k4.2"), "b", "c")
    window, drafts = between(before, after), totals(capture("draft-k4.2")).drafts
    assert (window.tally.drafts, window.restarts) == (drafts, 0)


def test_labels_of_ray_are_not_configuration():
    first, other = (
        [series.key for series in read(ray(page, worker)) if series.quantity == "cache_config"]
        for page, worker in ((capture("draft-k4.2"), "a"), (capture("draft-k4.2"), "b"))
    )
    own = [s.key for s in read(capture("draft-k4.2")) if s.quantity == "cache_config"]
    assert first == other == own != []


def test_a_window_between_two_captures_has_their_difference():
    before, after = totals(capture("draft-k4.2")), totals(capture("draft-k4.3"))
    window = between(capture("draft-k4.2"), capture("draft-k4.3"))
    assert window.tally.drafts == after.drafts - before.drafts == 338
    assert window.tally.accepted_per_position == tuple(
        b - a
        for a, b in zip(before.accepted_per_position, after.accepted_per_position, strict=True)
    )
    assert window.tally.requests["length"] == after.requests["length"] - before.requests["length"]
    for name in ("ttft", "tpot", "inter_token", "e2e", "output_length"):
        first, second, counted = (getattr(t, name) for t in (before, after, window.tally))
        assert counted.counts == tuple(
            b - a for a, b in zip(first.counts, second.counts, strict=True)
        )
        assert counted.sum == pytest.approx(second.sum - first.sum)
        assert not counted.coarsened
    assert window.mode is Mode.ON
    assert window.server_drafts == 338


def test_speculation_off_is_unknown_and_not_zero():
    """The families are absent: mode off, no drafts; the rest is counted as ever."""
    window = between(capture("spec-off.2"), capture("spec-off.3"))
    assert window.mode is Mode.OFF
    assert window.tally.drafts is window.tally.draft_tokens is None
    assert window.tally.accepted_tokens is window.tally.accepted_per_position is None
    assert window.server_drafts is None
    assert window.tally.generation_tokens > 0


def test_speculation_switched_off_in_the_middle_of_a_minute_is_mixed():
    window = between(capture("draft-k4.3"), capture("spec-off.3"))
    assert window.mode is Mode.MIXED
    assert window.restarts == 1
    assert window.tally.drafts == 0
    assert window.tally.generation_tokens == totals(capture("spec-off.3")).generation_tokens


@pytest.mark.parametrize("name", ["draft-k4.3", "ngram-k3.3"])
def test_created_series_and_positions_are_not_totals(name):
    """Without them on the page the totals are the same."""
    text = capture(name).decode()
    lines = [line for line in text.splitlines() if "_created" not in line]
    assert totals("\n".join(lines) + "\n") == totals(text)
    lines = [line for line in lines if "_per_pos_total" not in line]
    bare = totals("\n".join(lines) + "\n")
    assert bare.accepted_per_position is None
    assert bare.accepted_tokens == totals(text).accepted_tokens


def test_multiprocess_mode_without_process_and_created_series():
    """The same engine behind several API processes says the same."""
    several = multiprocess(capture("draft-k4.3"))
    assert b"process_" not in several
    assert b"_created" not in several
    assert totals(several) == totals(capture("draft-k4.3"))


def test_engines_of_a_model_are_added():
    one = totals(capture("draft-k4.3"))
    two = totals(multiprocess(capture("draft-k4.3"), engines=("0", "1")))
    assert two.drafts == 2 * one.drafts
    assert two.accepted_per_position == tuple(2 * n for n in one.accepted_per_position)
    assert two.requests == {reason: 2 * count for reason, count in one.requests.items()}
    assert two.ttft.counts == tuple(2 * n for n in one.ttft.counts)
    assert two.ttft.sum == 2 * one.ttft.sum
    assert not two.ttft.coarsened


def test_a_restart_in_multiprocess_mode_shows_only_as_counters_that_fall():
    """Everything of the page after it counts."""
    window = between(
        multiprocess(capture("draft-k4.3"), engines=("0", "1")),
        multiprocess(capture("draft-k4.1"), engines=("0", "1")),
    )
    assert window.restarts == 1
    assert window.tally.drafts == 2 * totals(capture("draft-k4.1")).drafts


def test_models_of_one_server_are_kept_apart():
    text = page(
        counter("vllm:generation_tokens", 3, engine="0", model_name="a"),
        counter("vllm:generation_tokens", 5, engine="0", model_name='b "\\\n'),
        gauge("vllm:num_requests_running", 2, engine="0", model_name="a"),
    )
    models = tally.parts_of(read(text)).models
    generated = {m: tally.tally_of(part, []).generation_tokens for m, part in models.items()}
    assert generated == {"a": 3, 'b "\\\n': 5}
    assert tally.sampled(models["a"]).running == 2
    assert tally.sampled(models['b "\\\n']).running is None


def test_v0_says_only_the_ratio_of_its_whole_life():
    """Its token counters are sums of running totals."""
    text = faithful("vllm-0.8.2-v0-speculation")
    counts = totals(text)
    assert mode(text) is Mode.ON
    assert counts.drafts is counts.draft_tokens is counts.accepted_tokens is None
    assert counts.accepted_per_position is None
    assert gauges(text) == tally.Sampled(2, 1, 0.125, 0.625)
    assert counts.generation_tokens == 64
    assert counts.requests == {"length": 3, "stop": 1}
    assert quantile(counts.ttft, 0.99)[:2] == (10.0, True)


def test_a_window_of_v0_has_no_drafts_either():
    text = faithful("vllm-0.8.2-v0-speculation").decode()
    grown = text.replace(
        'vllm:spec_decode_num_draft_tokens_total{model_name="facebook/opt-125m"} 104.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="facebook/opt-125m"} 250.0',
    )
    assert grown != text
    window = between(text, grown)
    assert window.mode is Mode.ON
    assert window.tally.draft_tokens is window.tally.drafts is window.server_drafts is None


def test_vllm_0_8_3_says_tokens_but_neither_drafts_nor_positions():
    text = faithful("vllm-0.8.3-ngram")
    counts = totals(text)
    assert mode(text) is Mode.ON
    assert (counts.drafts, counts.accepted_per_position) == (None, None)
    assert (counts.draft_tokens, counts.accepted_tokens) == (90, 18)
    assert (counts.prefix_cache_queries, counts.prefix_cache_hits) == (16, 4)
    assert gauges(text).kv_cache_usage == 0.25
    assert counts.inter_token.bounds == ITL
    assert counts.inter_token.count == 32


def test_before_0_11_time_per_output_token_is_a_mean_only():
    """Decode time over the tokens after the first: no quantile is made up."""
    counts = totals(faithful("vllm-0.8.3-ngram"))
    assert counts.tpot.bounds == ()
    assert counts.tpot.count == 20 + 30 - 2
    assert mean(counts.tpot) == 1.5 / 48
    assert quantile(counts.tpot, 0.5)[:2] == (None, True)


def test_families_under_both_names_count_once():
    """0.10.2 to 0.12: latency between tokens, cache usage, prefix cache."""
    text = faithful("vllm-0.10.2-draft-k2")
    assert b"vllm:time_per_output_token_seconds_count" in text
    counts = totals(text)
    assert counts.inter_token.count == 40
    assert counts.inter_token.sum == pytest.approx(0.8)
    assert (counts.prefix_cache_queries, counts.prefix_cache_hits) == (640, 64)
    assert gauges(text) == tally.Sampled(3, 2, 0.5, None)
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (40, 80, 45)
    assert counts.accepted_per_position == (30, 15)


@pytest.mark.parametrize(
    "gone",
    [
        ["vllm:kv_cache_usage_perc", "vllm:prefix_cache", "vllm:inter_token"],
        ["vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache", "vllm:time_per_output_token"],
    ],
    ids=["only the old names", "only the new names"],
)
def test_old_and_new_names_mean_the_same(gone):
    text = faithful("vllm-0.10.2-draft-k2").decode()
    lines = [line for line in text.splitlines() if not any(name in line for name in gone)]
    one = "\n".join(lines) + "\n"
    assert len(one) < len(text)
    assert totals(one) == totals(text)
    assert gauges(one) == gauges(text)


def test_diffusion_is_not_speculation():
    text = faithful("vllm-0.24-diffusion")
    assert mode(text) is Mode.OFF
    assert totals(text).drafts is totals(text).accepted_tokens is None
    assert totals(text).generation_tokens == 32


def test_llama_cpp_names_no_model():
    text = faithful("llamacpp")
    counts = totals(text)
    assert (counts.prompt_tokens, counts.generation_tokens) == (1280, 1234500)
    assert gauges(text) == tally.Sampled(2, 1, None, None)
    assert counts.ttft is counts.drafts is None
    assert (counts.tpot.count, counts.tpot.sum) == (1234500, 8.25)
    window = between(text, faithful("llamacpp").replace(b"1280", b"1300"))
    assert window.series.model_name == "t"
    assert window.tally.prompt_tokens == 20


def test_llama_cpp_counts_drafts():
    counts = totals(llama_capture("draft-k4.1"))
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (50, 195, 126)
    assert counts.accepted_per_position == (37, 35, 29, 25)
    assert (counts.tpot.count, counts.tpot.sum) == (counts.generation_tokens, 0.258157)
    assert mode(llama_capture("draft-k4.1")) is Mode.ON
    window = between(llama_capture("draft-k4.0"), llama_capture("draft-k4.1"))
    assert (window.mode, window.tally.drafts, window.server_drafts) == (Mode.ON, 50, 50)


@pytest.mark.parametrize(
    "text",
    [llama_capture("spec-off"), llama_capture("draft-k4.0"), faithful("llamacpp")],
    ids=["without a draft model", "before the first request", "an older build"],
)
def test_llama_cpp_without_a_draft_is_off_only_where_the_server_says_so(text):
    """Its families are 0 without speculation too, and older builds have none."""
    assert mode(text) is Mode.UNKNOWN
    assert mode(text, drafting=False) is Mode.OFF
    assert mode(text, drafting=True) is Mode.ON


def test_a_draft_proves_more_than_what_llama_cpp_says():
    assert mode(llama_capture("draft-k4.1"), drafting=False) is Mode.ON


def test_minutes_of_which_it_is_not_known_whether_speculation_ran_are_no_baseline():
    window = between(llama_capture("draft-k4.0"), llama_capture("spec-off"))
    assert window.mode is Mode.UNKNOWN
    assert window.tally.generation_tokens
    (sample,) = samples_of([window])
    assert sample.mode is Mode.UNKNOWN
    (given_away,) = samples_of(
        [msgspec.structs.replace(window, tally=msgspec.structs.replace(window.tally, drafts=3))]
    )
    assert given_away.mode is Mode.ON


def test_bounds_that_change_over_an_upgrade_are_coarsened_and_said_to_be():
    """0.8.3 ends at 10 s, 0.10.2 at 2560 s: what both know stays exact."""
    before = faithful("vllm-0.8.3-ngram").decode()
    after = faithful("vllm-0.10.2-draft-k2").decode()
    start = "process_start_time_seconds 1.76364999042e+09"
    assert start in before
    after = after.replace(start, "process_start_time_seconds 1.76365999042e+09")
    watch = WindowBuilder("d", "t", max_gap=15)
    pages = [page(counter("vllm:prompt_tokens", 0, engine="0", model_name="tiny")), before, after]
    for second, text in enumerate(pages):
        watch.observe(read(text), Moment(second, second))
    batch = watch.close().batch
    assert batch is not None
    (window,) = batch
    assert window.restarts == 1
    assert window.tally.ttft.coarsened
    assert window.tally.ttft.bounds == totals(before).ttft.bounds
    assert window.tally.ttft.count == 5
    assert window.tally.draft_tokens == 90 + 80


def test_one_engine_with_other_bounds_is_coarsened_and_said_to_be():
    engines = [
        Series("ttft", part, "m", engine, le)
        for engine, bounds in (("0", ("0.5", "1.0", "+Inf")), ("1", ("1.0", "+Inf")))
        for part, le in (*(("bucket", le) for le in bounds), ("sum", ""), ("count", ""))
    ]
    histogram = tally.tally_of(dict.fromkeys(engines, 2.0), []).ttft
    assert histogram == Histogram((1.0,), (4, 0), 4.0, coarsened=True)


def test_a_server_that_sleeps_is_not_judged() -> None:
    """All of its engines do: requests wait until it is woken."""
    page = (DATA / "vllm-0.32-draft-k4.1.prom").read_text()
    asleep = page.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    assert (mode(page.encode()), mode(asleep.encode())) == (Mode.ON, Mode.SLEEPING)
    line = next(line for line in asleep.splitlines() if 'sleep_state="awake"' in line)
    other = line.replace('engine="0"', 'engine="1"').replace("} 0.0", "} 1.0")
    one_of_two = asleep.replace(line, f"{line}\n{other}")
    assert mode(one_of_two.encode()) is Mode.ON


def test_changed_weights_are_another_environment_with_the_same_baseline() -> None:
    """vLLM 0.33 changes them without a restart, and counts it from the first time on."""
    page = (DATA / "vllm-0.32-draft-k4.1.prom").read_text()
    family = "vllm:rl_weight_update_operation_duration_seconds_count"
    updated = f'{page}{family}{{operation="start"}} 2\n{family}{{operation="update"}} 2\n'
    first, second = (
        Environment("0.33.0", tally.fingerprint_of(read(one.encode()))) for one in (page, updated)
    )
    assert (first.drafting, second.drafting) == ("4", "4 weights-2")
    assert not first.agrees(second)
    assert first.resembles(second)
    assert list(tally.parts_of(read(updated.encode())).models) == ["tiny"]

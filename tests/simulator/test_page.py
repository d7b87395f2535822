"""The simulated page is the page of a real vLLM but for the values."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.http_stats import SimulatedHttpStats
from specwatch.lab.simulator.page import SimulatedPage
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedTraffic

DATA = Path(__file__).parent.parent / "data"
LIKE_THE_CAPTURE = SimulatedSettings(
    model="Org/Model",
    served_model_names=("tiny",),
    max_model_len=1024,
    speculation=SimulatedSpeculation(4),
    traffic=SimulatedTraffic(rate=3.0),
)


def page_after(settings: SimulatedSettings, seconds: float = 30.0) -> tuple[SimulatedEngine, str]:
    engine = SimulatedEngine(settings)
    http = SimulatedHttpStats()
    http.record("/v1/chat/completions", "POST", 200, 300, 1000, 0.25)
    page = SimulatedPage(engine, http)
    engine.advance(seconds)
    return engine, page.render().decode()


def layout(page: str) -> list[str]:
    """The lines of a page without values, and without the labels that only describe the cache."""
    lines = [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in page.splitlines()]
    return [re.sub(r"(cache_config_info)\{.*", r"\1", line) for line in lines]


@functools.cache
def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page: str, name: str, **labels: str) -> float:
    """Sum of the samples of ``name`` that carry ``labels``."""
    values = [
        number
        for (sample, present), number in samples(page).items()
        if sample == name and set(labels.items()) <= present
    ]
    assert values, f"no {name} with {labels}"
    return sum(values)


@pytest.mark.parametrize(
    ("capture", "speculation"),
    [
        ("vllm-0.32-draft-k4.3.prom", SimulatedSpeculation(4)),
        ("vllm-0.32-ngram-k3.3.prom", SimulatedSpeculation(3, "ngram")),
        ("vllm-0.32-spec-off.3.prom", None),
    ],
)
def test_every_line_is_that_of_the_capture_but_for_values(
    capture: str, speculation: SimulatedSpeculation | None
) -> None:
    """Names, HELP, TYPE, labels and their order, bounds, `_created`, and the order of lines."""
    _, page = page_after(dataclasses.replace(LIKE_THE_CAPTURE, speculation=speculation))
    real = (DATA / capture).read_text(encoding="utf-8")
    assert layout(page) == layout(real)


def test_cache_configuration_has_the_labels_of_the_capture() -> None:
    _, page = page_after(LIKE_THE_CAPTURE)
    real = (DATA / "vllm-0.32-draft-k4.3.prom").read_text(encoding="utf-8")

    def labels(text: str) -> list[str]:
        line = next(
            number for number in text.splitlines() if number.startswith("vllm:cache_config")
        )
        return re.findall(r'([a-z_]+)="', line)

    assert labels(page) == labels(real)


def test_a_fresh_page_has_everything_at_zero() -> None:
    """As a real server before its first request: HTTP families are named, without samples."""
    page = SimulatedPage(SimulatedEngine(LIKE_THE_CAPTURE)).render().decode()
    real = (DATA / "vllm-0.32-spec-off.0.prom").read_text(encoding="utf-8")
    headers = {line for line in real.splitlines() if line.startswith("#")}
    assert headers <= set(page.splitlines())
    assert not re.search(r"^http_requests", page, re.MULTILINE)
    assert value(page, "vllm:generation_tokens_total") == 0


def test_values_are_the_counters_of_the_engine() -> None:
    engine, page = page_after(dataclasses.replace(LIKE_THE_CAPTURE, engines=2), 20.0)
    tally = engine.tally()
    assert value(page, "vllm:spec_decode_num_drafts_total") == tally.drafts
    assert value(page, "vllm:spec_decode_num_accepted_tokens_total") == tally.accepted_tokens
    assert tally.accepted_per_position is not None
    for position, count in enumerate(tally.accepted_per_position):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert value(page, name, position=str(position)) == count
    assert (
        value(page, "vllm:request_success_total", finished_reason="stop")
        == (tally.requests["stop"])
    )
    assert tally.ttft is not None
    name = "vllm:time_to_first_token_seconds"
    assert value(page, f"{name}_count") == value(page, f"{name}_bucket", le="+Inf")
    assert value(page, f"{name}_count") == tally.ttft.count
    assert value(page, f"{name}_bucket", le="0.1") == sum(tally.ttft.counts[:8])
    assert value(page, f"{name}_sum") == pytest.approx(tally.ttft.sum)
    assert value(page, "vllm:num_requests_running") == sum(
        core.running_shown for core in engine.cores
    )
    for index, core in enumerate(engine.cores):
        usage = value(page, "vllm:kv_cache_usage_perc", engine=str(index))
        assert usage == pytest.approx(core.kv_cache_usage)
    assert value(page, "process_start_time_seconds") == engine.process_start


def test_a_page_rendered_again_shows_what_was_counted_meanwhile_and_restarts() -> None:
    engine = SimulatedEngine(LIKE_THE_CAPTURE)
    page = SimulatedPage(engine)
    first = page.render().decode()
    engine.advance(30.0)
    second = page.render().decode()
    assert value(second, "vllm:inter_token_latency_seconds_count") > 0
    assert value(first, "vllm:inter_token_latency_seconds_count") == 0
    engine.restart(speculation=False)
    third = page.render().decode()
    assert "spec_decode" in second
    assert "spec_decode" not in third
    assert value(third, "vllm:generation_tokens_total") == 0
    assert value(third, "process_start_time_seconds") > value(second, "process_start_time_seconds")


VERSIONS = {
    "0.8.5": {"gpu_cache_usage_perc", "time_per_output_token_seconds"},
    "0.10.2": {
        "gpu_cache_usage_perc",
        "time_per_output_token_seconds",
        "kv_cache_usage_perc",
        "inter_token_latency_seconds",
    },
    "0.32.0": {
        "kv_cache_usage_perc",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
    },
}


@pytest.mark.parametrize(("version", "expected"), VERSIONS.items())
def test_older_versions_have_the_names_of_their_time(version: str, expected: set[str]) -> None:
    _, page = page_after(dataclasses.replace(LIKE_THE_CAPTURE, engine_version=version))
    names = {family.name.removeprefix("vllm:") for family in text_string_to_metric_families(page)}
    assert set.union(*VERSIONS.values()) & names == expected
    reasons = set(re.findall(r'finished_reason="([a-z]+)"', page))
    assert ("repetition" in reasons) == (version == "0.32.0")


def test_prefix_cache_is_counted_in_blocks_by_0_8_5_and_in_tokens_later() -> None:
    old = page_after(dataclasses.replace(LIKE_THE_CAPTURE, engine_version="0.8.5"))[1]
    new = page_after(LIKE_THE_CAPTURE)[1]
    blocks = value(old, "vllm:gpu_prefix_cache_hits_total")
    assert value(new, "vllm:prefix_cache_hits_total") == 16 * blocks > 0


def test_several_processes_show_neither_process_families_nor_creation_times() -> None:
    settings = dataclasses.replace(LIKE_THE_CAPTURE, multiprocess=True, engines=2)
    _, page = page_after(settings)
    assert not re.search(r"_created|^process_|^python_", page, re.MULTILINE)
    assert value(page, "vllm:generation_tokens_total", engine="1") > 0


def test_a_model_name_with_quotes_and_percents_survives() -> None:
    name = 'we"ird\\100%s\nname'
    _, page = page_after(dataclasses.replace(LIKE_THE_CAPTURE, served_model_names=(name,)))
    assert value(page, "vllm:generation_tokens_total", model_name=name) > 0


def test_large_and_small_numbers_are_written_as_prometheus_client_does() -> None:
    engine = SimulatedEngine(LIKE_THE_CAPTURE)
    page = SimulatedPage(engine)
    engine.cores[0].counters.generation_tokens = 12_345_678
    engine.cores[0].counters.prompt_tokens = 1_000_000
    text = page.render().decode()
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.2345678e+07\n' in text
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1e+06\n' in text
    assert "process_start_time_seconds 1.795e+09\n" in text

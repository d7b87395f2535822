"""Numbers for people and programs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from specwatch.domain.model import Gauges, Histogram, Tally
from specwatch.rules import summary
from tests import pages
from tests.web.statuses import minute, of_tap

KEYS = [
    "model_name",
    "engine_count",
    "speculation",
    "draft_lengths",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "accepted_length_histogram",
    "accepted_per_position",
    "running",
    "waiting",
    "kv_cache_usage",
    "events",
    "ttft",
    "tpot",
    "inter_token",
    "tap",
    "segments",
]
"""Of a model, in this order: programs rely on them."""


def as_json(view: object) -> Any:
    """As the HTTP API has it."""
    return msgspec.json.decode(msgspec.json.encode(view))


@pytest.mark.parametrize("file", [*pages.CAPTURES, *sorted((pages.DATA / "pages").glob("*.prom"))])
def test_every_page_gives_the_same_keys_in_the_same_order(file) -> None:
    problems: list[str] = []
    for model in as_json(summary.models_of(pages.read(file.read_bytes()), problems)):
        assert list(model) == KEYS
        for name in ("ttft", "tpot", "inter_token"):
            assert model[name] is None or list(model[name]) == [
                "count",
                "sum",
                "p50",
                "p90",
                "p95",
                "p99",
                "open_ended",
                "buckets",
            ]
        assert (model["tap"] is not None) is ("tap" in file.name)
    assert problems == []


def test_a_page_with_a_tap_shows_its_buckets_by_temperature() -> None:
    """The figures are those of the requests that the page was made of."""
    (model,) = as_json(summary.models_of(pages.read(pages.faithful("vllm-0.32-tap")), []))
    assert model["drafts"] == 1238
    assert model["tap"] == {
        "source": "tap",
        "drafts": 995,
        "coverage": 995 / 1238,
        "failures": 0,
        "records": {"record": 90},
        "uncovered": {"disconnected": 1, "several": 3},
    }
    buckets = model["segments"]
    assert [bucket["segment"]["value"] for bucket in buckets] == [
        "0",
        "(0,0.3]",
        "(0.3,0.7]",
        "(0.7,1]",
        ">1",
        "unknown",
    ]
    assert sum(bucket["drafts"] for bucket in buckets) == 995
    assert sum(bucket["share"] for bucket in buckets) == pytest.approx(1.0)
    assert sum(sum(bucket["requests"].values()) for bucket in buckets) == 93
    assert list(buckets[0]) == [
        "segment",
        "share",
        "requests",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "acceptance_rate",
        "mean_acceptance_length",
        "accepted_length_histogram",
        "accepted_per_position",
        "ttft",
        "tpot",
        "request_acceptance",
    ]
    greedy, hot = buckets[0], buckets[4]
    assert sum(greedy["accepted_length_histogram"]) == greedy["drafts"]
    assert hot["acceptance_rate"] < 0.1 < 0.7 < greedy["acceptance_rate"]
    spread = greedy["request_acceptance"]
    assert list(spread) == ["count", "p10", "p50", "p90"]
    assert 0 < spread["p10"] < spread["p50"] < spread["p90"] <= 1


def test_a_tap_that_has_counted_nothing_is_shown_with_no_coverage() -> None:
    page = pages.speculation(10, [5, 3]) + pages.tap(failures=2)
    (model,) = as_json(summary.models_of(pages.read(page), []))
    assert model["segments"] == []
    assert (model["tap"]["drafts"], model["tap"]["coverage"], model["tap"]["failures"]) == (0, 0, 2)


def test_a_model_that_only_the_tap_has_is_reported() -> None:
    problems: list[str] = []
    other = {"model_name": "other", "temperature": "0", "accepted": [1], "method": "record"}
    (model,) = as_json(
        summary.models_of(pages.read(pages.speculation(10, [5]) + pages.tap(other)), problems)
    )
    assert model["segments"] == []
    assert len(problems) == 1
    assert "'other'" in problems[0]


def test_a_captured_page_gives_its_totals() -> None:
    (model,) = as_json(summary.models_of(pages.read(pages.capture("draft-k4.2")), []))
    assert model["speculation"] == "on"
    assert (model["drafts"], model["draft_tokens"], model["accepted_tokens"]) == (1238, 4952, 2940)
    assert model["acceptance_rate"] == 2940 / 4952
    assert model["mean_acceptance_length"] == 1 + 2940 / 1238
    assert sum(model["accepted_length_histogram"]) == model["drafts"]
    lengths = enumerate(model["accepted_length_histogram"])
    assert sum(length * drafts for length, drafts in lengths) == model["accepted_tokens"]
    assert model["ttft"]["count"] == 78
    assert model["ttft"]["open_ended"] is False


def test_without_speculation_its_figures_are_unknown_and_not_zero() -> None:
    (model,) = as_json(summary.models_of(pages.read(pages.capture("spec-off.2")), []))
    assert model["speculation"] == "off"
    for key in KEYS[3:10]:
        assert model[key] is None, key


def test_engines_of_one_model_are_added_and_counted() -> None:
    page = pages.multiprocess(pages.capture("draft-k4.2"), engines=("0", "1", "2"))
    (model,) = as_json(summary.models_of(pages.read(page), []))
    assert (model["engine_count"], model["drafts"]) == (3, 3 * 1238)


def test_models_come_sorted_by_name() -> None:
    page = pages.speculation(3, [2, 1], model="b")
    other = pages.speculation(5, [4], model="a").splitlines()[2::3]
    result = as_json(
        summary.models_of({**pages.read(page), **pages.read("\n".join(other) + "\n")}, [])
    )
    assert [(model["model_name"], model["drafts"]) for model in result] == [("a", 5), ("b", 3)]


def test_the_old_engine_gives_its_lifetime_rate() -> None:
    (model,) = as_json(
        summary.models_of(pages.read(pages.faithful("vllm-0.8.2-v0-speculation")), [])
    )
    assert (model["drafts"], model["acceptance_rate"]) == (None, 0.625)


@pytest.mark.parametrize(
    ("histogram", "quantile", "open_ended", "buckets"),
    [
        pytest.param(
            Histogram((1.0,), (1, 1), 9.0),
            1.0,
            True,
            {"p50": [0.0, 1.0]},
            id="beyond the last bound",
        ),
        pytest.param(Histogram((), (60,), 2.0), None, False, {}, id="only the mean is known"),
        pytest.param(Histogram((1.0,), (0, 0), 0.0), None, False, {}, id="no observations"),
    ],
)
def test_quantiles_say_what_is_known_of_them(
    histogram: Histogram, quantile: float | None, open_ended: bool, buckets: dict[str, list[float]]
) -> None:
    assert as_json(summary.latency(histogram)) == {
        "count": histogram.count,
        "sum": histogram.sum,
        "open_ended": open_ended,
        **dict.fromkeys(("p50", "p90", "p95", "p99"), quantile),
        "buckets": buckets,
    }
    assert summary.latency(None) is None


def test_a_window_shows_whose_it_is_what_was_counted_and_sampled() -> None:
    shown = as_json(summary.window_view(minute(1_700_000_040, model_name="llama")))
    assert (shown["daemon"], shown["target"], shown["model_name"]) == ("left", "chat", "llama")
    assert (shown["mode"], shown["source"], shown["coverage"]) == ("on", "server", 1.0)
    assert (shown["acceptance_rate"], shown["mean_acceptance_length"]) == (0.5, 3.0)
    assert shown["requests"] == {"stop": 7, "length": 2}
    assert (shown["running_mean"], shown["load_bin"]) == (1.5, "3-4")
    assert shown["e2e"] is None
    assert (shown["server_drafts"], shown["source_drafts"]) == (100, 100)
    assert (shown["records"], shown["uncovered"], shown["request_acceptance"]) == ({}, {}, None)


def test_a_window_of_a_bucket_shows_what_its_tap_saw() -> None:
    shown = as_json(summary.window_view(of_tap(1_700_000_040, "0", drafts=30, of=100, server=120)))
    assert (shown["segment"]["value"], shown["source"], shown["coverage"]) == (
        "0",
        "tap",
        100 / 120,
    )
    assert (shown["records"], shown["uncovered"]) == ({"record": 5}, {"several": 2})
    assert shown["request_acceptance"] == {
        "count": 5,
        "p10": 0.25,
        "p50": 0.6875,
        "p90": 0.9375,
    }


def test_an_empty_window_is_all_unknown_and_no_division_by_zero() -> None:
    empty = msgspec.structs.replace(
        minute(1_700_000_040),
        tally=Tally(),
        gauges=Gauges(),
        server_drafts=None,
        source_drafts=None,
    )
    shown = as_json(summary.window_view(empty))
    for key in ("acceptance_rate", "coverage", "load_bin", "running_mean", "ttft", "drafts"):
        assert shown[key] is None, key

"""Samples of a Prometheus become the pages that they were, and its servers our targets."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.target import Target
from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import HOUR, MINUTE, Series
from specwatch.engines.sample_names import SAMPLES
from specwatch.errors import ConfigError
from specwatch.lab.backfill.prometheus_pages import (
    ResultSeries,
    ScrapedPage,
    ScrapedServer,
    joined,
    merged,
    page_selector,
    pages_of,
    presence_selector,
    servers_of,
)
from specwatch.lab.backfill.prometheus_targets import named, sources

T0 = 1_700_000_000 // HOUR * HOUR
LABELS = (("instance", "gpu-1:8000"), ("job", "vllm"))
TARGETS = (
    Target(url="http://gpu-1:8000", name="chat"),
    Target(url="http://127.0.0.1:8000", name="here"),
)
minute_starts = st.integers(0, 200).map(lambda number: T0 + number * MINUTE)


def found(name: str, *points: tuple[float, str], **labels: str) -> ResultSeries:
    return {"__name__": name, **dict(LABELS), **labels}, list(points)


def test_samples_of_one_time_are_one_page() -> None:
    """Labels of the server mean nothing; those of a series stay, and so do NaN and infinity."""
    running, info = "vllm:num_requests_running", "vllm:cache_config_info"
    got = pages_of(
        [
            found(running, (T0 + 1.5, "2"), (T0 + 16.5, "NaN"), model_name="m", engine="0"),
            found(
                "vllm:time_to_first_token_seconds_bucket",
                (T0 + 1.5, "7"),
                model_name="m",
                engine="0",
                le="+Inf",
            ),
            found(info, (T0 + 16.5, "1"), engine="0", block_size="16"),
            found("process_start_time_seconds", (T0 + 16.5, "+Inf")),
            found("vllm:num_requests_swapped", (T0 + 1.5, "3"), model_name="m"),
            found("up", (T0 + 1.5, "1")),
        ],
        LABELS,
        T0,
        T0 + 60,
    )
    first, second = got
    assert first.at == T0 + 1.5
    assert first.samples == {
        Series("running", "", "m", "0", ""): 2.0,
        Series("ttft", "bucket", "m", "0", "+Inf"): 7.0,
    }
    assert second.at == T0 + 16.5
    assert math.isnan(second.samples.pop(Series("running", "", "m", "0", "")))
    assert second.samples == {
        Series("cache_config", "", "", "0", "block_size=16"): 1.0,
        Series("process_start", "", "", "", ""): math.inf,
    }


def test_only_what_lies_in_the_span_is_taken() -> None:
    """Some servers give a range with its beginning, some without: neighbours never share a page."""
    points = [(T0 + offset, "1") for offset in (-0.001, 0.0, 59.999, 60.0)]
    got = pages_of([found("vllm:num_requests_running", *points)], LABELS, T0, T0 + 60)
    assert [page.at for page in got] == [T0, T0 + 59.999]


def test_samples_that_differ_in_nothing_that_we_know_are_combined() -> None:
    """Counts add up, usage is the highest: as on a page."""
    got = pages_of(
        [
            found(name, (T0, value), model_name="m", engine="0", other=other)
            for name, other, value in (
                ("vllm:prompt_tokens_total", "a", "3"),
                ("vllm:prompt_tokens_total", "b", "4"),
                ("vllm:kv_cache_usage_perc", "a", "0.25"),
                ("vllm:kv_cache_usage_perc", "b", "0.5"),
            )
        ],
        LABELS,
        T0,
        T0 + 1,
    )
    assert sorted(got[0].samples.values()) == [0.5, 7.0]


def test_a_selector_asks_for_every_name_that_we_read_and_for_one_server_only() -> None:
    asked = page_selector((("instance", 'a"b\\c\n'), ("k8s.pod", "")))
    names = re.compile(asked.removeprefix('{__name__=~"').partition('"')[0])
    assert [name for name in SAMPLES if not names.fullmatch(name)] == []
    assert not names.fullmatch("vllm:something_else_total")
    assert len(asked) < 8000
    assert asked.endswith(r'instance="a\"b\\c\n","k8s.pod"=""}')


@pytest.mark.parametrize(
    ("given", "inside"),
    [("{}", ""), ('{job="vllm"}', ',job="vllm"'), (' { job="a", } ', ',job="a"')],
)
def test_a_users_selector_narrows_the_search(given: str, inside: str) -> None:
    asked = presence_selector(given)
    assert asked.startswith('{__name__=~"vllm:num_requests_running|ray_vllm:num_requests_running|')
    assert asked.endswith(f'|ray_tokenspeed_num_requests_running"{inside}}}')
    for gauge in ("ray_vllm_num_requests_running", "sglang_num_running_reqs"):
        assert f"|{gauge}|" in asked


@pytest.mark.parametrize("given", ["", 'job="vllm"', 'up{job="vllm"}', '{job="a"}[5m]', "{a\n}"])
def test_what_is_no_selector_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not a selector; write labels in braces"):
        presence_selector(given)


def test_servers_are_told_apart_by_what_is_not_the_engines() -> None:
    """A point at the last millisecond of a minute, or at its very end, stands for that minute."""
    points = [(T0 + 59.999, "4"), (T0 + 120.0, "4")]
    gauge = {"__name__": "vllm:num_requests_running", "engine": "0"}
    got = servers_of(
        [
            ({**gauge, "model_name": "m", "instance": "a:1"}, points),
            ({**gauge, "model_name": "m", "instance": "a:1", "engine": "1"}, points),
            ({**gauge, "model_name": "n", "instance": "a:1"}, points[:1]),
            ({**gauge, "model_name": "m", "instance": "b:1", "pod": "p"}, points[1:]),
        ]
    )
    assert [server.labels for server in got] == [
        (("instance", "a:1"), ("pod", "")),
        (("instance", "b:1"), ("pod", "p")),
    ]
    assert {m: minutes.hours for m, minutes in got[0].models.items()} == {"m": [T0], "n": [T0]}
    assert len(got[0].models["m"]) == 2
    assert (got[1].present.first, got[1].present.last) == (T0 + 60, T0 + 60)


def test_a_label_that_came_later_is_empty_before() -> None:
    early = ScrapedServer((("instance", "a:1"),), {"m": MinuteSet([T0])})
    late = ScrapedServer((("instance", "a:1"), ("pod", "")), {"m": MinuteSet([T0 + HOUR])})
    (one,) = merged([early, late])
    assert one.labels == (("instance", "a:1"), ("pod", ""))
    assert one.present.hours == [T0, T0 + HOUR]


def server(instance: str, *minutes: int, **more: str) -> ScrapedServer:
    labels = tuple(sorted({"instance": instance, **more}.items()))
    return ScrapedServer(labels, {"m": MinuteSet(T0 + MINUTE * number for number in minutes)})


def names(*servers: ScrapedServer, name: str | None = None) -> dict[str, str]:
    got = sources(servers, TARGETS, name=name, hostname="box", default_name="new {}".format)
    if got.refused:
        raise ConfigError("; ".join(got.refused))
    return {source.target: source.instance for source in got.sources}


def test_a_configured_target_is_known_by_host_and_port() -> None:
    """However this machine is called; any other instance gets the name that it would get."""
    assert names(server("GPU-1:8000", 0), server("gpu-1:8001", 0)) == {
        "chat": "GPU-1:8000",
        "new gpu-1:8001": "gpu-1:8001",
    }
    for instance in ("localhost:8000", "box:8000", "[::1]:8000"):
        assert names(server(instance, 0)) == {"here": instance}
    assert names(server("not an address", 0)) == {"new not an address": "not an address"}


def test_a_given_name_is_that_of_all_that_follow_one_another() -> None:
    """As the pods of one deployment do."""
    assert names(server("a:1", 0, 1), server("b:1", 1, 2), name="chat") == {"chat": "a:1, b:1"}


@pytest.mark.parametrize("name", [None, "chat"])
def test_two_at_a_time_are_refused(name: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        names(server("a:1", 0, 1, 2, 3, replica="x"), server("a:1", 1, 2, replica="y"), name=name)
    assert str(refused.value) == (
        '{instance="a:1",replica="x"} and {instance="a:1",replica="y"} are both target'
        f" {name or 'new a:1'} at the same time, and would be counted twice; choose one, like"
        " --selector '{replica=\"x\"}'"
    )


def test_two_instances_under_one_name_are_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigError) as refused:
        names(server("a:1", 0, 1, 3), server("b:1", 0, 1), name="chat")
    assert str(refused.value).endswith("""'{instance="a:1"}', or leave --target out""")


def test_a_loopback_instance_is_on_the_machine_of_prometheus() -> None:
    """Which is this one only where Prometheus is reached over loopback."""
    got = sources(
        [server("localhost:8000", 0), server("gpu-1:8000", 0)],
        TARGETS,
        name=None,
        hostname="box",
        default_name=str,
        near=False,
    )
    assert [source.target for source in got.sources] == ["chat"]
    assert got.refused == [
        '"localhost:8000" is on the machine of Prometheus, which is not this one; give --target'
        " NAME with --selector '{instance=\"localhost:8000\"}'"
    ]


def test_labels_that_change_back_are_one_history() -> None:
    """Which servers share minutes counts, not when they were first and last."""
    old, new = server("a:1", 0, 1, 5, 6, pod="old"), server("a:1", 1, 2, 3, 4, pod="new")
    assert names(old, new) == {"new a:1": "a:1"}
    scraped = [
        [ScrapedPage(T0 + 60.0 * n + 5, {}) for n in some] for some in ((0, 1, 5, 6), (2, 3, 4))
    ]
    got = joined(
        [
            *scraped,
            [ScrapedPage(T0 + 1.0, {}), ScrapedPage(T0 + 5.0, {}), ScrapedPage(T0 + 70.0, {})],
        ]
    )
    assert [page.at - T0 for page in got] == [1, 5, 65, 70, 125, 185, 245, 305, 365]


def test_many_names_are_cut() -> None:
    assert named(["a"] * 8) == ", ".join("a" * 8)
    assert named(["a"] * 10).endswith("a and 2 more")


@given(st.sets(minute_starts), st.sets(minute_starts), minute_starts, minute_starts)
def test_a_set_of_minutes_is_a_set(own: set[int], others: set[int], since: int, until: int) -> None:
    minutes, other = MinuteSet(own), MinuteSet(others)
    everything = range(T0, T0 + 202 * MINUTE, MINUTE)

    def listed(minutes: MinuteSet) -> set[int]:
        return {start for start in everything if start in minutes}

    assert listed(minutes) == own
    assert len(minutes) == len(own)
    assert (minutes.first, minutes.last) == (min(own, default=None), max(own, default=None))
    assert listed(minutes.without(other)) == own - others
    assert listed(minutes.within(since, until)) == {m for m in own if since <= m < until}
    assert listed(minutes.of_hour(T0)) == {m for m in own if m < T0 + HOUR}
    assert minutes.last_before(until) == max((m for m in own if m < until), default=None)
    assert minutes.hours == sorted({m - m % HOUR for m in own})
    minutes.update(other)
    assert listed(minutes) == own | others


def test_a_span_takes_every_minute_that_it_touches() -> None:
    minutes = MinuteSet()
    minutes.add_span(T0 - 0.5, T0 + 60)
    assert [start for start in range(T0 - 120, T0 + 120, 60) if start in minutes] == [T0 - 60, T0]

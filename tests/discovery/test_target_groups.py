"""Prometheus's target groups become targets: names, URLs, labels and options."""

from __future__ import annotations

import pytest

from specwatch.config.target import Target
from specwatch.discovery.target_groups import Group, TargetMaker, merged, parse_groups
from specwatch.domain.model import PodInstance
from specwatch.errors import DiscoveryError, DiscoveryReason
from tests.discovery.sources import source_of
from tests.fixtures import target_of

SOURCE = "file_sd: {files: [a.json]}"


def made(*groups: Group, source: str = SOURCE) -> tuple[list[Target], list[str]]:
    return TargetMaker(source_of(source)).targets(groups)


@pytest.mark.parametrize(
    ("data", "is_yaml"),
    [
        (b'[{"targets": ["a:1", "b:2"], "labels": {"port": "8000"}}, {"targets": []}]', False),
        (b"- targets: [a:1, 'b:2']\n  labels: {port: 8000}\n- targets:\n    []\n", True),
    ],
)
def test_a_list_of_groups_in_json_or_yaml(data: bytes, is_yaml: bool) -> None:
    assert parse_groups(data, "f", is_yaml=is_yaml) == (
        Group(("a:1", "b:2"), {"port": "8000"}),
        Group((), {}),
    )


@pytest.mark.parametrize(("data", "is_yaml"), [(b"[]", False), (b"", True), (b"null", False)])
def test_an_empty_list(data: bytes, is_yaml: bool) -> None:
    assert parse_groups(data, "f", is_yaml=is_yaml) == ()


@pytest.mark.parametrize(
    ("data", "is_yaml"),
    [
        (b"", False),
        (b"{}", False),
        (b'[{"targets": ["a:1"], "label": {}}]', False),
        (b'[{"targets": [1]}]', False),
        (b'[{"labels": {"a": 1}}]', False),
        (b"[null]", False),
        (b"\xff", False),
        (b"- targets: [a:1\n", True),
        (b"- target: [a:1]\n", True),
        (b"just text", True),
        (b"[" * 5000, True),
        (b'- targets: ["\\UFFFFFFFF"]', True),
        (b'- targets: ["\\U00110000"]', True),
    ],
)
def test_what_prometheus_refuses_is_malformed(data: bytes, is_yaml: bool) -> None:
    with pytest.raises(DiscoveryError) as refused:
        parse_groups(data, "the list", is_yaml=is_yaml)
    assert refused.value.reason is DiscoveryReason.MALFORMED
    assert str(refused.value).startswith("the list is not a list of target groups: ")
    assert "\n" not in str(refused.value)


def test_labels_become_labels_and_double_underscores_do_not() -> None:
    labels = {"zone": "a", "__meta_rack": "7", "__param_x": "y", "empty": ""}
    (target,), refused = made(Group(("gpu-7:8000",), labels))
    assert (target.name, target.url) == ("gpu-7:8000", "http://gpu-7:8000")
    assert (target.labels, target.group, refused) == ({"zone": "a"}, "", [])


def test_labels_that_mean_something() -> None:
    labels = {
        "instance": "chat-1",
        "group": "chat",
        "__scheme__": "https",
        "__metrics_path__": "/m",
        "__address__": "never:1",
    }
    (target,), _ = made(Group(("[::1]:8000",), labels))
    assert (target.name, target.group, target.labels) == ("chat-1", "chat", {})
    assert target.metrics_url == "https://[::1]:8000/m"


def test_a_prefix_of_the_path_is_that_of_the_server() -> None:
    (target,), _ = made(Group(("gw:80",), {"__metrics_path__": "/llm-a/metrics"}))
    assert (target.url, target.metrics_path) == ("http://gw:80/llm-a", "/metrics")


def test_options_of_the_source_hold_for_its_targets() -> None:
    source = (
        f"{SOURCE}, scheme: https, target: {{interval: 20s, timeout: 7s, group: g,"
        " labels: {zone: a, site: x}, metrics_path: /m, objective: ttft, headers: {K: v}}"
    )
    (target,), _ = made(Group(("a:1",), {"zone": "b"}), source=source)
    assert (target.interval, target.timeout, target.objective) == (20.0, 7.0, "ttft")
    assert (target.group, target.labels) == ("g", {"zone": "b", "site": "x"})
    assert target.metrics_url == "https://a:1/m"
    assert target.request_headers() == {"K": "v"}


@pytest.mark.parametrize("address", ["", "http://a:1", "a:1/x", "a:99999", "us er:1", "x@a:1"])
def test_one_address_that_cannot_be_one_leaves_the_others(address: str) -> None:
    targets, refused = made(Group((address, "b:2"), {}))
    assert [target.name for target in targets] == ["b:2"]
    assert len(refused) == 1


def test_an_unchanged_target_is_the_same_object_and_a_replaced_pod_is_another() -> None:
    maker = TargetMaker(source_of(SOURCE))
    pod = Group(("10.0.0.1:8000",), {"instance": "ns/vllm-0"}, PodInstance("uid-1", 100.0))
    (before, other), _ = maker.targets([pod, Group(("a:1",), {})])
    successor = pod._replace(pod=PodInstance("uid-2", 200.0))
    (after, same), _ = maker.targets([successor, Group(("a:1",), {})])
    assert other is same
    assert after != before
    assert after.pod == PodInstance("uid-2", 200.0)


def test_the_first_of_two_with_one_name_or_url_is_kept() -> None:
    configured = [target_of("http://a:1", "a"), target_of("http://a:1", "a again")]
    first = [target_of("http://b:2", "b"), target_of("http://a:1", "taken URL")]
    second = [target_of("http://c:3", "b"), target_of("http://c:3", "c")]
    targets, left_out = merged(configured, [("one", first), ("two", second)])
    assert [target.name for target in targets] == ["a", "a again", "b", "c"]
    assert left_out == (
        "taken URL at http://a:1/metrics, from one: the URL http://a:1/metrics is that of a target"
        " from the configuration",
        "b at http://c:3/metrics, from two: the name b is that of a target from one",
    )


def test_a_label_that_no_database_and_no_page_could_have_is_refused() -> None:
    half, nul = Group(("a:1",), {"zone": "\ud800"}), Group(("b:1",), {"group": "\0"})
    targets, refused = made(half, nul, Group(("c:1",), {}))
    assert [target.name for target in targets] == ["c:1"]
    assert ["NUL or half of a surrogate pair" in sentence for sentence in refused] == [True, True]

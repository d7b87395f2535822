"""Files, HTTP servers and DNS as sources of targets, and their failures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from specwatch.config.discovery import DiscoverySource
from specwatch.discovery.sources import Outcome, Read, reader
from specwatch.errors import DiscoveryError, DiscoveryReason
from tests.discovery.sources import dns_server, source_of
from tests.fixtures import Serve
from tests.hostile import Visit, hanging

JSON = "Content-Type: application/json\r\n"


def addresses(outcomes: Mapping[str, Outcome]) -> list[str]:
    return [
        address
        for outcome in outcomes.values()
        if isinstance(outcome, tuple)
        for group in outcome
        for address in group.targets
    ]


def failures(outcomes: Mapping[str, Outcome]) -> dict[str, DiscoveryReason]:
    return {
        part: outcome.reason
        for part, outcome in outcomes.items()
        if isinstance(outcome, DiscoveryError)
    }


def write(path: Path, *targets: str) -> None:
    path.with_suffix(".new").write_text(json.dumps([{"targets": targets}]))
    path.with_suffix(".new").replace(path)


def files(folder: Path) -> Read:
    return reader(source_of(f"file_sd: {{files: ['{folder}/tg_*.json', '{folder}/more.yml']}}"))


def test_files_of_several_patterns_come_change_and_go(tmp_path: Path) -> None:
    read = files(tmp_path)
    assert addresses(read()) == []
    write(tmp_path / "tg_1.json", "a:1")
    write(tmp_path / "tg_2.json", "b:1", "b:2")
    write(tmp_path / "other.json", "no:1")
    (tmp_path / "more.yml").write_text("- targets: [c:1]\n")
    assert addresses(read()) == ["a:1", "b:1", "b:2", "c:1"]
    write(tmp_path / "tg_1.json", "a:2")
    (tmp_path / "tg_2.json").unlink()
    assert addresses(read()) == ["a:2", "c:1"]


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    write(tmp_path / "tg_1.json", "a:1")
    read = files(tmp_path)
    (first,) = read().values()
    (second,) = read().values()
    assert first is second


def test_a_bad_file_fails_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "tg_1.json", "a:1")
    (tmp_path / "tg_2.json").write_text("[{")
    (tmp_path / "tg_3.json").mkdir()
    outcomes = files(tmp_path)()
    assert addresses(outcomes) == ["a:1"]
    assert failures(outcomes) == {
        f"{tmp_path}/tg_2.json": DiscoveryReason.MALFORMED,
        f"{tmp_path}/tg_3.json": DiscoveryReason.UNREADABLE,
    }


def http(url: str, **keys: object) -> DiscoverySource:
    return source_of(f"http_sd: {json.dumps({'url': url, **keys})}")


def test_a_request_is_that_of_prometheus(serve: Serve, tmp_path: Path) -> None:
    def behave(visit: Visit) -> None:
        kind = 'Content-Type: application/json; charset="utf-8"\r\n'
        visit.answer(b'[{"targets": ["a:1"]}]', headers=kind)

    server = serve(behave)
    (tmp_path / "token").write_text("hunter2\n")
    token = str(tmp_path / "token")
    source = http(f"{server.url}/list?site=x", bearer_token_file=token, refresh_interval="30s")
    assert addresses(reader(source)()) == ["a:1"]
    headers = server.visits[0].headers
    assert server.paths == ["/list?site=x"]
    assert headers["accept"] == "application/json"
    assert headers["x-prometheus-refresh-interval-seconds"] == "30"
    assert headers["authorization"] == "Bearer hunter2"


def test_a_redirect_is_followed(serve: Serve) -> None:
    def behave(visit: Visit) -> None:
        if visit.path == "/old":
            visit.answer(b"", "302 Found", "Location: /new\r\nConnection: close\r\n")
        else:
            visit.answer(b'[{"targets": ["a:1"]}]', headers=JSON)

    assert addresses(reader(http(f"{serve(behave).url}/old"))()) == ["a:1"]


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason"),
    [
        ("500 Oh", JSON, b"[]", DiscoveryReason.HTTP_STATUS),
        ("204 No Content", JSON, b"", DiscoveryReason.HTTP_STATUS),
        ("200 OK", "Content-Type: text/html\r\n", b"[]", DiscoveryReason.MALFORMED),
        ("200 OK", "", b"[]", DiscoveryReason.MALFORMED),
        ("200 OK", JSON, b'[{"targets": "a:1"}]', DiscoveryReason.MALFORMED),
        ("200 OK", JSON, b"<html>", DiscoveryReason.MALFORMED),
    ],
)
def test_a_bad_answer_has_a_reason(
    serve: Serve, status: str, headers: str, body: bytes, reason: DiscoveryReason
) -> None:
    server = serve(lambda visit: visit.answer(body, status, headers))
    assert failures(reader(http(server.url))()) == {server.url: reason}


def test_a_server_that_hangs_or_never_ends_takes_the_timeout_at_most(serve: Serve) -> None:
    def drip(visit: Visit) -> None:
        visit.send(f"HTTP/1.1 200 OK\r\n{JSON}Content-Length: 100000\r\n\r\n[".encode())
        while True:
            visit.send(b" ")

    for behaviour in (hanging, drip):
        url = serve(behaviour).url
        source = http(url)
        short = source.http_sd.model_copy(update={"timeout": 0.05})
        read, begun = reader(source.model_copy(update={"http_sd": short})), time.monotonic()
        outcomes = read()
        assert time.monotonic() - begun < 5.0
        assert failures(outcomes) == {url: DiscoveryReason.TIMEOUT}


def test_nothing_listens() -> None:
    (error,) = reader(http("http://127.0.0.1:1"))().values()
    assert isinstance(error, DiscoveryError)
    assert error.reason is DiscoveryReason.REFUSED
    assert str(error) == "nothing listens at http://127.0.0.1:1; is the server up, on this port?"


def test_a_secret_that_has_gone_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    read = reader(http("http://127.0.0.1:1", bearer_token_file=str(tmp_path / "token")))
    (tmp_path / "token").unlink()
    assert failures(read()) == {"http://127.0.0.1:1": DiscoveryReason.CREDENTIALS}


def dns(server: str, keys: str) -> Read:
    return reader(source_of(f"dns: {{server: '{server}', {keys}}}"))


def test_srv_records_have_the_port() -> None:
    srv = ("SRV", ["0 5 8001 gpu-2.example.", "0 5 8000 gpu-1.example."])
    with dns_server({"_vllm._tcp.example.": srv}) as server:
        outcomes = dns(server, "names: [_vllm._tcp.example.]")()
    assert addresses(outcomes) == ["gpu-1.example:8000", "gpu-2.example:8001"]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("A", ["10.0.0.2", "10.0.0.1"], ["10.0.0.1:8000", "10.0.0.2:8000"]),
        ("AAAA", ["fd00::1"], ["[fd00::1]:8000"]),
    ],
)
def test_addresses_get_the_port(kind: str, values: list[str], expected: list[str]) -> None:
    with dns_server({"vllm.example.": (kind, values)}) as server:
        read = dns(server, f"names: [vllm.example.], type: {kind}, port: 8000")
        assert addresses(read()) == expected


def test_each_name_fails_by_itself_and_one_without_records_is_empty() -> None:
    records: dict[str, tuple[str, list[str]] | None] = {
        "a.example.": ("A", ["10.0.0.1"]),
        "empty.example.": None,
        "bad.example.": ("SERVFAIL", []),
    }
    with dns_server(records) as server:
        outcomes = dns(
            server,
            "names: [a.example., empty.example., gone.example., bad.example.], type: A, port: 1",
        )()
    assert addresses(outcomes) == ["10.0.0.1:1"]
    assert failures(outcomes) == {
        "gone.example.": DiscoveryReason.NOT_FOUND,
        "bad.example.": DiscoveryReason.UNREACHABLE,
    }

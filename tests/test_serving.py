"""The daemon's HTTP server: where it listens, how it ends, and who can hold it up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from specwatch.errors import ConfigError
from specwatch.serving import HttpServer

entered, leave = threading.Event(), threading.Event()


def quick(_: Request) -> Response:
    return PlainTextResponse("quick")


def slow(_: Request) -> Response:
    entered.set()
    leave.wait(20)
    return PlainTextResponse("slow")


def large(_: Request) -> Response:
    return PlainTextResponse("x" * (64 << 20))


APP = Starlette(routes=[Route("/", quick), Route("/slow", slow), Route("/large", large)])


@pytest.fixture
def server() -> Iterator[HttpServer]:
    entered.clear()
    leave.clear()
    running = HttpServer(APP, "127.0.0.1", 0, name="http")
    running.start()
    yield running
    leave.set()
    assert running.stop(timeout=10)


def get(server: HttpServer) -> str:
    return requests.get(server.url, timeout=10).text


def test_port_0_takes_a_free_one_and_shows_it(server: HttpServer) -> None:
    assert server.port > 0
    assert get(server) == "quick"


def test_a_port_that_is_taken_is_a_configuration_error(server: HttpServer) -> None:
    with pytest.raises(ConfigError, match=rf"port {server.port}: .*in use; choose another"):
        HttpServer(APP, "127.0.0.1", server.port, name="http").start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}"):
        HttpServer(APP, host, 0, name="http").start()


@pytest.mark.parametrize("host", ["::1", "::", "0.0.0.0", "localhost"])
def test_other_addresses_are_served_under_a_url_that_works(host: str) -> None:
    server = HttpServer(APP, host, 0, name="http")
    server.start()
    assert get(server) == "quick"
    assert server.stop(timeout=10)


def test_what_has_stopped_listens_no_more_and_frees_its_port(server: HttpServer) -> None:
    other = HttpServer(APP, "127.0.0.1", 0, name="other")
    other.start()
    assert other.stop(timeout=10)
    with pytest.raises(requests.ConnectionError):
        get(other)
    HttpServer.start(other)
    assert get(other) == "quick"
    assert other.stop(timeout=10)


def test_stopping_what_never_started_is_nothing() -> None:
    assert HttpServer(APP, "127.0.0.1", 0, name="http").stop()


def test_clients_that_send_or_read_slowly_hold_nobody_up(server: HttpServer) -> None:
    """Half requests, requests under way, and answers that nobody takes."""
    address = ("127.0.0.1", server.port)
    clients = [socket.create_connection(address, timeout=10) for _ in range(60)]
    try:
        for client in clients[:40]:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for client in clients[40:50]:
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        for client in clients[50:]:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(10)
        assert get(server) == "quick"
    finally:
        leave.set()
        for client in clients:
            client.close()


def test_stopping_waits_for_no_slow_client(server: HttpServer) -> None:
    """It says that it is not over, and the caller goes on."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(10)
        assert not server.stop(timeout=0.1)

"""Through the proxy, no request becomes two."""

from __future__ import annotations

import random
import socket

import pytest

from tests.fixtures import Serve
from tests.robustness.smuggling import Notes, request, run


def test_no_request_becomes_two() -> None:
    """Of these each is answered, so that none is waited for in vain."""
    outcome = run(50, seed=6, silence=20.0)

    assert outcome.defects == []
    assert outcome.answers.keys() == {"200", "400"}
    assert outcome.arrived > 2


def test_the_campaign_hides_a_request_in_each() -> None:
    rng = random.Random(4)
    assert all(b"GET /hidden" in request(rng, number) for number in range(100))


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: +1",
        "Content-Length: 1\r\nContent-Length: 1",
        "A : b",
        "A: b\r\n c: d",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 1",
        "A: b\nC: d",
    ],
)
def test_the_upstream_notes_ambiguous_requests(serve: Serve, fields: str) -> None:
    notes = Notes()
    server = serve(notes.answer)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n".encode())
        assert client.recv(1) == b"", "it is not answered"
    assert len(notes.faults) == 1

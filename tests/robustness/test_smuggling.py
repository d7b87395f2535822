"""Through the proxy, no request becomes two."""

from __future__ import annotations

import random

import pytest

from tests.hostile import Visit
from tests.robustness.smuggling import Notes, request, run


def test_no_request_becomes_two() -> None:
    outcome = run(150, seed=3)

    assert outcome.defects == []
    assert outcome.answers["400"] > 50
    assert outcome.arrived > 2


def test_the_campaign_hides_a_request_in_each() -> None:
    rng = random.Random(4)
    assert all(b"GET /hidden" in request(rng, number) for number in range(100))


class Said:
    """A visit with a head, and what follows it."""

    def __init__(self, head: str) -> None:
        self.head = head

    def answer(self, *_: object, **__: object) -> None:
        """Nobody hears it."""


@pytest.mark.parametrize(
    "fields",
    ["Content-Length: +1", "Content-Length: 1\r\nContent-Length: 1", "A : b", "A: b\r\n c: d",
     "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked\r\nContent-Length: 1",
     "A: b\nC: d"],
)  # fmt: skip
def test_the_upstream_of_the_campaign_notes_what_can_be_read_in_two_ways(fields: str) -> None:
    notes = Notes()
    visit: Visit = Said(f"POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n")  # type: ignore[assignment]
    assert notes.answer(visit) is False
    assert len(notes.faults) == 1

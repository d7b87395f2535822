"""What a client gets from the simulated vLLM."""

from __future__ import annotations

import json
from typing import Any

import requests

from specwatch.lab.simulator.server import SimulatedServer


def post(server: SimulatedServer, path: str, body: Any) -> requests.Response:
    """The response to a request with a JSON body."""
    return requests.post(f"{server.url}{path}", json=body, timeout=60)


def events(response: requests.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE]."""
    assert response.status_code == 200, response.text
    lines = [line for line in response.content.decode().split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def page(server: SimulatedServer) -> dict[str, float]:
    """The samples of /metrics by name and labels."""
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def total(server: SimulatedServer, family: str) -> float:
    """The sum of a family over its series."""
    samples = page(server).items()
    return sum(value for name, value in samples if name.partition("{")[0] == family)

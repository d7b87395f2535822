"""A real vLLM with the switch: starting it, clients that ask all the time, and its orders."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.e2e.processes import specwatch
from tests.e2e.waiting import eventually
from tests.lab.traffic import Outcome, Request, send
from tests.lab.vllm_server import VllmServer

K = 4
_FOLLOWS_WITHIN = 120.0
TOKEN = "e2e-token-0123456789abcdef"
PROMPT = "the loop reads a page of numbers and keeps what changed"
NAMES = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:generation_tokens_total": "tokens",
}


class Switched(NamedTuple):
    """A vLLM with the switch, and the directory that it shares with specwatch; ends its server."""

    server: VllmServer
    directory: Path

    @property
    def target(self) -> dict[str, Any]:
        """Its entry in a configuration."""
        url, switch = self.server.url, {"directory": str(self.directory)}
        return {"name": "chat", "url": url, "interval": "1s", "switch": switch}

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def __enter__(self) -> Switched:
        return self


def prepare(folder: Path, speculation: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The flags and the environment of a vLLM with the switch, as ``tap flags --switch`` prints."""
    directory, token = folder / "switch", folder / "token"
    directory.mkdir(mode=0o770)
    token.write_text(TOKEN)
    advice = specwatch(
        "tap",
        "flags",
        "--json",
        "--vllm-version",
        "0.32.0",
        "--switch",
        "--switch-directory",
        str(directory),
        "--",
        "vllm",
        "serve",
        "M",
        *speculation,
    )
    environment = {
        "SPECWATCH_SWITCH_DIRECTORY": str(directory),
        "SPECWATCH_SWITCH_TOKEN_FILE": str(token),
    }
    return json.loads(advice.stdout)["command"][3:], environment


@dataclass
class Traffic:
    """Clients that ask the same again and again, at temperature 0, while a ``with`` block runs."""

    url: str
    clients: int = 3
    pause: float = 0.0
    """Seconds from the end of a client's request to its next one."""
    max_tokens: int = 300
    outcomes: list[Outcome] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[Traffic]:
        threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _ask(self) -> None:
        request = Request(prompt=PROMPT, max_tokens=self.max_tokens, stream=True)
        while not self._ended.is_set():
            self.outcomes.append(send(self.url, request))
            self._ended.wait(self.pause)

    def check(self) -> None:
        """No request failed, and all have the same text."""
        assert [outcome.error for outcome in self.outcomes if not outcome.ok] == []
        assert len({outcome.text for outcome in self.outcomes}) == 1
        assert {outcome.tokens for outcome in self.outcomes} == {self.max_tokens}


def counters(server: VllmServer) -> dict[str, float]:
    sums = dict.fromkeys(NAMES.values(), 0.0)
    for line in server.metrics().splitlines():
        name = NAMES.get(line.partition("{")[0])
        if name is not None:
            sums[name] += float(line.rpartition(" ")[2])
    return sums


def seconds_per_token(server: VllmServer) -> tuple[float, float]:
    """Seconds between outputs so far, and tokens after the first of each request."""
    sums = dict.fromkeys(("seconds", "tokens", "first"), 0.0)
    names = {
        "vllm:inter_token_latency_seconds_sum": "seconds",
        "vllm:generation_tokens_total": "tokens",
        "vllm:time_to_first_token_seconds_count": "first",
    }
    for line in server.metrics().splitlines():
        name = names.get(line.partition("{")[0])
        if name is not None:
            sums[name] += float(line.rpartition(" ")[2])
    return sums["seconds"], sums["tokens"] - sums["first"]


def gauge(server: VllmServer, name: str) -> float:
    (line,) = (line for line in server.metrics().splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def ask(
    server: VllmServer, method: str, body: bytes = b"", token: str | None = TOKEN
) -> tuple[int, dict[str, Any]]:
    """A request to the switch, without specwatch."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request(method, "/specwatch/switch", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def order(server: VllmServer, k: int | None, lease: float = 60.0) -> dict[str, Any]:
    """Give an order over HTTP; returns the state in which it is followed."""
    _, state = ask(server, "GET")
    fields = {"server": state["server"], "number": state["number"] + 1}
    body = json.dumps({**fields, "draft_tokens": k, "lease": lease, "by": "e2e"}).encode()
    status, answer = ask(server, "PUT", body)
    assert status == 200, answer
    return eventually(
        lambda: (now := ask(server, "GET")[1])["number"] > state["number"] and now,
        what="the order is read",
        within=10,
        every=0.05,
    )


def follows(server: VllmServer, k: int, exact: bool) -> float:
    """Seconds until a stretch of at least 10 tokens in which drafts have ``k`` tokens; at most so
    many unless ``exact``."""
    began = time.monotonic()
    before = counters(server)
    while time.monotonic() - began < _FOLLOWS_WITHIN:
        time.sleep(0.1)
        now = counters(server)
        drafts, drafted, tokens = (now[name] - before[name] for name in NAMES.values())
        if tokens < 10 and drafted <= k * drafts:
            continue
        # The last drafts of a request are cut at its end; n-grams may find fewer tokens.
        longest = drafted > (k - 1) * drafts if exact and k else True
        if drafted <= k * drafts and (drafts or not k) and longest:
            return time.monotonic() - began
        before = now
    raise AssertionError(f"the server does not follow k = {k}")

"""Clients that keep a server busy, and how long its requests take."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median
from typing import Self

from tests.lab.traffic import Outcome, Request, prompt_number, requests_at, send


def streams(user: int) -> Iterator[Request]:
    """Short streams without an end, at temperature 0."""
    for number in itertools.count(user):
        yield Request(stream=True, prompt=prompt_number(number), max_tokens=24)


def request_seconds(urls: Iterable[str], temperatures: Sequence[float], tokens: int) -> float:
    """How long a request takes: the median of the slowest of some servers."""
    requests = requests_at(temperatures, 6, max_tokens=tokens)
    medians = []
    for url in urls:
        outcomes = [send(url, request) for request in requests]
        assert all(outcome.ok for outcome in outcomes)
        medians.append(median(outcome.finished or 0.0 for outcome in outcomes))
    return max(medians)


class Clients:
    """Some users of a server, each of whom asks again when answered; for a ``with`` block.

    ``requests`` makes the requests of a user by its number. ``pause`` is in seconds, between an
    answer and the next request. Users send nothing while ``held_back`` is true.
    """

    def __init__(
        self,
        url: str,
        users: int = 2,
        requests: Callable[[int], Iterator[Request]] = streams,
        *,
        pause: float = 0.0,
        held_back: Callable[[], bool] = lambda: False,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._url = url
        self._requests = requests
        self._pause = pause
        self._held_back = held_back
        self._ended = threading.Event()
        self._users = users
        self._pool = ThreadPoolExecutor(users)
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._ask, user) for user in range(self._users)]
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        for user in self._running:
            user.result()

    def _ask(self, user: int) -> None:
        for request in self._requests(user):
            while self._held_back() and not self._ended.wait(0.05):
                pass
            if self._ended.is_set():
                return
            outcome = send(self._url, request)
            self.outcomes.append(outcome)
            self._ended.wait(self._pause if outcome.status else max(self._pause, 0.2))

    @property
    def answered(self) -> int:
        """How many requests got their whole answer."""
        return sum(outcome.ok for outcome in self.outcomes)

    def errors(self) -> list[str]:
        """Of the requests that did not."""
        return [outcome.error or "" for outcome in self.outcomes if not outcome.ok]

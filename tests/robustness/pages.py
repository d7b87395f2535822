"""Damaged metrics pages among good ones, through the real scrape cycle, store, judge and guard.

``python -m tests.robustness.pages --count 20000`` runs the long campaign. Each defect is printed
with its traceback and the seed of its hour of pages, which ``--count 700 --seed SEED`` repeats.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import structlog
from structlog.testing import capture_logs

from tests.pages import capture
from tests.robustness.campaign import progress, show_defects
from tests.worlds.daemon import Specwatch
from tests.worlds.life import Server
from tests.worlds.world import START

CAPTURES = ("draft-k4", "ngram-k3", "spec-off")
INTERVAL = 5.0
_PAGES_EACH = 700
"""Pages that one daemon is fed, about an hour of them."""
UNSTORABLE = "windows_unstorable"
"""What is said, and no defect, of counts that no database holds."""
VALUES = (
    b"NaN",
    b"+Inf",
    b"-Inf",
    b"-1",
    b"1e308",
    b"1e400",
    b"-0",
    b"9" * 400,
    b"0x10",
    b"1_000",
    b"",
    b"1 2 3",
    b"\xd9\xa1",
    b"1e-320",
    b"18446744073709551616",
    b"true",
)


def _lines(change: Callable[[random.Random, list[bytes]], object]) -> Mutation:
    def mutate(rng: random.Random, page: bytes) -> bytes:
        lines = page.split(b"\n")
        change(rng, lines)
        return b"\n".join(lines)

    return mutate


def _replace_value(rng: random.Random, lines: list[bytes]) -> None:
    chosen = rng.randrange(len(lines))
    lines[chosen] = lines[chosen].rpartition(b" ")[0] + b" " + rng.choice(VALUES)


def _replace_label(rng: random.Random, lines: list[bytes]) -> None:
    labelled = [number for number, line in enumerate(lines) if b'="' in line]
    chosen = rng.choice(labelled)
    before, _, rest = lines[chosen].partition(b'="')
    new = rng.choice(
        (b"", b"\\", b'\\"', b"\x00", b"\xff\xfe", b"x" * 100_000, b"\xe2\x80\xae", b"}")
    )
    lines[chosen] = before + b'="' + new + rest[rest.find(b'"') :]


def _replace_values(rng: random.Random, lines: list[bytes]) -> None:
    for _ in range(10):
        _replace_value(rng, lines)


def _leave_out_middle(rng: random.Random, page: bytes) -> bytes:
    return page[: rng.randrange(len(page))] + page[rng.randrange(len(page)) :]


def _another_document(rng: random.Random, page: bytes) -> bytes:
    return rng.choice((b"", b"\n", b"<html>", b"{}", b"\x1f\x8b" + page, b"# EOF\n"))


def _flip_bytes(rng: random.Random, page: bytes) -> bytes:
    damaged = bytearray(page)
    for _ in range(rng.choice((1, 3, 30))):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def _repeat_line(rng: random.Random, lines: list[bytes]) -> None:
    lines[rng.randrange(len(lines))] += b"\n" + rng.choice(lines)


def _other_model(rng: random.Random, page: bytes) -> bytes:
    return page.replace(b'model_name="tiny"', b'model_name="%d"' % rng.randrange(1000))


def _several_models(rng: random.Random, page: bytes) -> bytes:
    lines = page.split(b"\n")
    samples = [line for line in lines if b'model_name="' in line]
    for number in range(rng.choice((2, 40))):
        lines[-1:-1] = [
            line.replace(b'model_name="', b'model_name="%d' % number) for line in samples
        ]
    return b"\n".join(lines)


Mutation = Callable[[random.Random, bytes], bytes]
MUTATIONS: dict[str, Mutation] = {
    "value": _lines(_replace_value),
    "ten values": _lines(_replace_values),
    "label": _lines(_replace_label),
    "bytes": _flip_bytes,
    "cut": lambda rng, page: page[: rng.randrange(len(page))],
    "middle left out": _leave_out_middle,
    "line left out": _lines(lambda rng, lines: lines.pop(rng.randrange(len(lines)))),
    "line repeated": _lines(_repeat_line),
    "lines in any order": _lines(lambda rng, lines: rng.shuffle(lines)),
    "other line ends": lambda rng, page: page.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n"))),
    "page twice": lambda rng, page: page + page,
    "another model": _other_model,
    "several models": _several_models,
    "another document": _another_document,
}


class DamagedPages:
    """A world whose pages are real ones; each but every fifth is damaged."""

    interval = INTERVAL
    name = "damaged"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pages = [[capture(f"{name}.{number}") for number in range(4)] for name in CAPTURES]
        self._chosen = self._pages[0]
        self.done: Counter[str] = Counter()

    def page(self, now: float) -> str:
        """The page of a time; bytes that are not UTF-8 as surrogates."""
        look = round((now - START) / INTERVAL)
        if look % 40 == 0:
            self._chosen = self._random.choice(self._pages)
        page = self._chosen[min(look % 40 // 10, 3)]
        if look % 5:
            name = self._random.choice(sorted(MUTATIONS))
            self.done[name] += 1
            page = MUTATIONS[name](self._random, page)
        return page.decode(errors="surrogateescape")

    def restart(self, now: float, speculation: bool) -> None:
        """A capture cannot be restarted."""

    def truth(self, now: float) -> float:
        """Unknown."""
        return 1.0

    def calibrate(self, *_: Any) -> list[str]:
        """Never asked: the campaign ends before."""
        raise AssertionError


class Outcome(NamedTuple):
    """``defects`` are errors that the daemon logged, ``slowest`` is its longest turn in seconds."""

    pages: int
    defects: list[str]
    slowest: float
    refused: Counter[str]


def _described(seed: int, log: MutableMapping[str, Any]) -> str:
    trace = log.pop("exception", "")
    return f"seed {seed}: {log}\n{trace}"


def run(count: int, seed: int) -> Outcome:
    """Feed so many pages, 700 to each daemon; what a daemon raises is not caught."""
    refused: Counter[str] = Counter()
    defects: list[str] = []
    slowest, fed = 0.0, 0
    while fed < count:
        first = fed
        world = DamagedPages(seed + first)
        daemon, server = Specwatch(world, mode="observe"), Server(world)
        with capture_logs() as logs:
            structlog.get_config()["processors"].insert(0, structlog.processors.format_exc_info)
            for look in range(min(_PAGES_EACH, count - fed)):
                server.look(START + look * INTERVAL)
                begun = time.perf_counter()
                daemon.step(server)
                slowest = max(slowest, time.perf_counter() - begun)
                fed += 1
            daemon.end()
        refused.update(
            log["reason"] for log in logs if "reason" in log and "scrape" in log["event"]
        )
        defects += [
            _described(seed + first, log)
            for log in logs
            if log["log_level"] in ("error", "critical") and log["event"] != UNSTORABLE
        ]
        progress(f"{fed} of {count} pages")
    return Outcome(fed, defects, slowest, refused)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    outcome = run(asked.count, asked.seed)
    print(f"{outcome.pages} pages, {len(outcome.defects)} defects, slowest {outcome.slowest:.3f} s")
    show_defects(outcome.defects)

"""One look at a page of 15.9 MB, just below ``max_page_size``: what reading and counting it take.

Each page is read in its own process, so that the memory is that page's.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping

from specwatch.domain.model import Moment, PageLimits
from specwatch.errors import PageError
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import WindowBuilder
from tests.benchmarks.figure import Figure
from tests.pages import capture

_SIZE = 15_900_000
_LOOKS = 3
_INTERVAL = 5.0
_T0 = 1_700_000_040.0
_ALLOWED = PageLimits().sample_limit
_SAMPLE = b"vllm:request_success_total"


def run() -> list[Figure]:
    """Measure pages of several kinds."""
    spawning = multiprocessing.get_context("spawn")
    figures = []
    for name in _PAGES:
        with spawning.Pool(1) as pool:
            seconds, megabytes = pool.apply(_measure, (name,))
        figures += [
            Figure(f"15.9 MB of {name}: CPU", 1000 * seconds, "ms"),
            Figure(f"15.9 MB of {name}: memory beyond the page", megabytes, "MB"),
        ]
    return figures


def _measure(name: str) -> tuple[float, float]:
    """Median CPU seconds of a look, and how much the process grew by, in MB."""
    pages = [_PAGES[name](look) for look in range(_LOOKS)]
    reader, watch = PageReader(), WindowBuilder("bench", "bench", max_gap=3 * _INTERVAL)
    before, seconds = _resident(), []
    for look, page in enumerate(pages):
        began = time.thread_time()
        with contextlib.suppress(PageError):
            samples = reader.read(page)
            watch.observe(samples, Moment(_T0 + look * _INTERVAL, look * _INTERVAL))
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds), _resident() - before


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _filled(line: Callable[[int], bytes]) -> bytes:
    page, numbers = bytearray(), itertools.count()
    while len(page) < _SIZE:
        page += line(next(numbers))
    return bytes(page)


def _allowed(look: int) -> bytes:
    """As many samples as are allowed, new ones on each page."""
    room = _SIZE // _ALLOWED - 80
    return b"".join(
        _SAMPLE + b'{finished_reason="%d-%d",x="%s"} 1\n' % (look, number, b"x" * room)
        for number in range(_ALLOWED)
    )


_PAGES: Mapping[str, Callable[[int], bytes]] = {
    "one label": lambda look: (
        b'vllm:generation_tokens_total{model_name="%s%d"} 1\n' % (b"x" * _SIZE, look)
    ),
    "samples": lambda look: _filled(
        lambda number: _SAMPLE + b'{finished_reason="%d-%d"} 1\n' % (look, number)
    ),
    "samples within the limits": _allowed,
    "labels of a sample": lambda look: (
        _SAMPLE + b"{" + _filled(lambda number: b'a%d_%d="1",' % (look, number)) + b"} 1\n"
    ),
    "samples that are not read": lambda look: b"a 1\n" * (_SIZE // 4),
    "samples with quoted names": lambda look: _filled(lambda number: b'{"q",a="%d"} 1\n' % number),
    "a family that is not read": lambda look: (
        b"# TYPE node_x counter\n" + _filled(lambda number: b'node_x{a="%d"} 1\n' % number)
    ),
    "blank lines": lambda look: b"\n" * _SIZE,
    "a real vLLM many times": lambda look: capture("draft-k4.0") * (
        _SIZE // len(capture("draft-k4.0"))
    ),
}  # fmt: skip

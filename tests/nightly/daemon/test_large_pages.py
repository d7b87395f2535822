"""A page of thousands of models, which a server may give by mistake."""

from __future__ import annotations

import tracemalloc

from tests.daemon.scraping import Bench, Engine
from tests.fixtures import Serve
from tests.scrape.pages import many_models


def test_a_page_of_thousands_of_models_is_refused_in_bounded_memory(serve: Serve) -> None:
    one = Bench(serve, Engine())
    page = many_models(8_000)
    one.turn(many_models(64))
    assert len(one.scraper.status().models) == 64
    tracemalloc.start()
    try:
        one.turn(page)
        first = tracemalloc.get_traced_memory()[0]
        one.turn(page)
        second = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    one.scraper.finish()
    assert one.scraper.status().failures == {"too_large": 2}
    assert first < 8 << 20  # what a reader may remember of series
    assert second - first < 1 << 18

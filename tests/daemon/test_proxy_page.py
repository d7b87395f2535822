"""A target with a proxy beside it: its page is another process's, and no part of the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specwatch.daemon.proxy_page import ProxyPage
from specwatch.domain.model import Moment, Source
from tests import pages
from tests.daemon.scraping import Bench, Engine, late
from tests.fixtures import CERTIFICATE, Log, Serve, events
from tests.hostile import Behaviour, Visit
from tests.scrape.pages import vllm


def tap(drafts: int, *, start: float = 5.0, temperature: str = "0", **more: Any) -> bytes:
    """The page of a proxy, or the tap's part of an engine's, after so many drafts of k = 2."""
    request = {"model_name": "m", "temperature": temperature, "method": "record", "k": 2, **more}
    text = pages.tap({"accepted": [1] * drafts, **request}) if drafts else pages.tap()
    return (text + pages.page(pages.gauge("process_start_time_seconds", start))).encode()


def inside(drafts: int, **more: Any) -> bytes:
    """The tap's part of an engine's page."""
    return tap(drafts, **more).partition(b"# HELP process_start")[0]


@pytest.fixture
def bench(serve: Serve) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(**settings: Any) -> Bench:
        made.append(
            Bench(
                serve,
                Engine(page=vllm(drafts=0), version=None, models=None),
                Engine(page=tap(0)),
                **settings,
            )
        )
        return made[-1]

    yield build
    for one in made:
        one.scraper.finish()


MakeBench = Callable[..., Bench]


def test_what_a_proxy_counted_makes_windows_beside_the_servers(bench: MakeBench, log: Log) -> None:
    one = bench()
    one.turn()
    one.turn(vllm(drafts=100), tap(60))
    assert [(e["source"], e["target"]) for e in events(log, "tap_found")] == [("proxy", "t")]
    windows = one.end()
    assert (windows["all"].tally.drafts, windows["0"].tally.drafts) == (100, 60)
    assert (windows["0"].source, windows["0"].coverage) == (Source.PROXY, 0.6)


def test_the_proxy_gets_no_credentials_of_the_server(bench: MakeBench, tmp_path: Any) -> None:
    secret = tmp_path / "token"
    secret.write_text("hunter2\n")
    one = bench(bearer_token_file=secret)
    one.turn()
    assert one.server.visits[0].headers["authorization"] == "Bearer hunter2"
    assert all("hunter2" not in visit.head for visit in one.proxy_server.visits)


BAD: dict[str, tuple[bytes | Behaviour, str]] = {
    "html": (b"<html>no</html>\n", "not_metrics"),
    "nothing": (b"", "not_metrics"),
    "half a page": (tap(5)[:-9], "truncated"),
    "NaN": (tap(5).replace(b" 5\n", b" NaN\n"), "not_a_number"),
    "503": (lambda visit: visit.answer(b"", "503 Busy"), "http_status"),
    "hanging": (late, "timeout"),
}


@pytest.mark.parametrize(("answer", "reason"), BAD.values(), ids=BAD.keys())
def test_a_proxy_that_fails_fails_nothing_else_and_is_told_once(
    bench: MakeBench, log: Log, answer: bytes | Behaviour, reason: str
) -> None:
    one = bench()
    one.turn()
    one.turn(vllm(drafts=100), answer)
    one.turn(vllm(drafts=150))
    status = one.scraper.status()
    assert (status.failure, status.failures) == (None, {})
    proxy = status.tap.proxy
    assert (proxy.failure.reason, proxy.failures) == (reason, {reason: 2})
    assert len(events(log, "proxy_failed")) == 1
    one.turn(vllm(drafts=200), tap(90))
    assert [e["after"] for e in events(log, "proxy_recovered")] == [reason]
    proxy = one.scraper.status().tap.proxy
    assert proxy.failure is None
    windows = one.end()
    assert (windows["all"].tally.drafts, windows["0"].tally.drafts) == (200, 90)
    assert windows["all"].scrapes_failed == 0


def test_a_proxy_is_given_what_the_server_left_of_the_time(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pages together take no longer than one scrape may."""
    one = bench(timeout=6.0)
    left = []
    read = ProxyPage.read

    async def reading(proxy: ProxyPage, now: float, seconds: float) -> Any:
        left.append(seconds)
        return await read(proxy, now, seconds)

    def slow(visit: Visit) -> None:
        one.now = Moment(one.now.wall + 5.0, one.now.monotonic + 5.0)
        visit.answer(vllm(drafts=1))

    monkeypatch.setattr(ProxyPage, "read", reading)
    one.turn(slow, late)
    assert left == [1.0]
    proxy = one.scraper.status().tap.proxy
    assert proxy.failures == {"timeout": 1}


def test_a_server_that_fails_leaves_its_proxy_alone(bench: MakeBench) -> None:
    one = bench()
    one.turn(b"<html>\n")
    assert one.proxy_server.visits == []
    assert one.scraper.status().failure is not None


def test_a_proxy_that_restarts_alone_is_told_and_marked(bench: MakeBench, log: Log) -> None:
    one = bench()
    one.turn(proxy=tap(50))
    one.turn(vllm(drafts=30), tap(20, start=6.0))
    assert len(events(log, "proxy_restarted")) == 1
    status = one.scraper.status()
    assert status.restarts == 0
    assert status.tap.proxy.restarts == 1
    windows = one.end()
    assert (windows["0"].restarts, windows["all"].restarts) == (1, 0)
    assert windows["0"].tally.drafts == 20


def test_a_scraper_goes_on_with_the_proxy_of_its_predecessor(bench: MakeBench) -> None:
    one = bench()
    one.turn()
    one.turn(vllm(drafts=30), b"<html>\n")
    one.replace(interval=1, timeout=0.5)
    one.turn(vllm(drafts=50), tap(40))
    proxy = one.scraper.status().tap.proxy
    assert (proxy.failure, proxy.failures) == (None, {"not_metrics": 1})
    assert one.end()["0"].tally.drafts == 40


def test_another_proxy_is_counted_anew_and_none_is_none(bench: MakeBench, serve: Serve) -> None:
    one = bench()
    one.turn()
    one.turn(vllm(drafts=30), tap(20))
    other = serve(Engine(page=tap(1000)))
    one.replace(proxy=other.url)
    one.turn(vllm(drafts=50))
    one.replace(proxy=None)
    one.turn(vllm(drafts=60))
    status = one.scraper.status()
    assert (status.tap.source, status.tap.proxy) == (None, None)
    windows = one.end()
    assert (windows["all"].tally.drafts, windows["0"].tally.drafts) == (60, 20)


def test_trouble_is_told_once_and_when_it_is_over(bench: MakeBench, log: Log) -> None:
    one = bench(proxy=None)
    one.turn(vllm(drafts=10) + inside(5))
    for _ in range(3):
        one.turn(vllm(drafts=10) + inside(500))
    entries = events(log, "tap_trouble")
    assert [(e["kind"], e["model_name"]) for e in entries] == [("counts_twice", "m")]
    assert "500 drafts where the server counted 10" in entries[0]["detail"]
    assert [trouble.kind for trouble in one.scraper.status().tap.trouble] == ["counts_twice"]
    assert one.scraper.status().tap.models == {}
    one.turn(vllm(drafts=600) + inside(500))
    assert [e["kind"] for e in events(log, "tap_trouble_over")] == ["counts_twice"]
    assert one.scraper.status().tap.trouble == ()


def test_a_tap_that_a_restart_took_away_is_told(bench: MakeBench, log: Log) -> None:
    one = bench(proxy=None)
    one.turn(vllm(drafts=10) + inside(5))
    one.turn(vllm(drafts=10, start=1_790_000_077.0))
    assert [e["kind"] for e in events(log, "tap_trouble")] == ["gone"]
    assert len(events(log, "tap_gone")) == 1
    one.turn(vllm(drafts=10, start=1_790_000_099.0))
    assert [e["kind"] for e in events(log, "tap_trouble_over")] == ["gone"]
    assert one.scraper.status().tap.trouble == ()


def test_the_configured_buckets_are_those_of_now(bench: MakeBench, log: Log) -> None:
    """A reload may have changed them, while the target stayed the same."""
    one = bench()
    one.turn(proxy=tap(5, temperature="(0,0.5]"))
    assert [e["kind"] for e in events(log, "tap_trouble")] == ["other_buckets"]
    one.edges = (0.0, 0.5)
    one.turn()
    assert [e["kind"] for e in events(log, "tap_trouble_over")] == ["other_buckets"]


def test_recent_minutes_say_what_was_covered(bench: MakeBench, log: Log) -> None:
    one = bench()
    one.turn()
    one.turn(vllm(drafts=5000), tap(1000), seconds=60.0)
    one.turn()
    tap_now = one.scraper.status().tap
    assert (tap_now.models["m"].coverage, tap_now.models["m"].records) == (0.2, {"record": 1})
    assert [(trouble.kind, trouble.model_name) for trouble in tap_now.trouble] == [
        ("low_coverage", "m")
    ]
    assert [e["kind"] for e in events(log, "tap_trouble")] == ["low_coverage"]


def test_a_model_without_a_name_is_doubted_by_the_name_that_it_has(bench: MakeBench) -> None:
    page = vllm(drafts=10, model="")
    one = bench(proxy=None)
    one.turn(page + inside(0))
    one.turn(page + inside(500))
    (trouble,) = one.scraper.status().tap.trouble
    assert trouble.model_name == "t"


def test_a_proxy_is_watched_over_tls(serve: Serve, server_tls: Any, bench: MakeBench) -> None:
    secure = serve(Engine(page=tap(5)), tls=server_tls)
    plain = bench(proxy=secure.url)
    plain.turn()
    proxy = plain.scraper.status().tap.proxy
    assert set(proxy.failures) == {"tls"}
    trusting = bench(proxy=secure.url, insecure_skip_verify=True)
    trusting.turn()
    assert trusting.scraper.status().tap.source is Source.PROXY
    assert CERTIFICATE.exists()

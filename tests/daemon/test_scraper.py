"""One turn for one target: what a server does never raises, is counted, and is told once."""

from __future__ import annotations

import itertools
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.target import Target
from specwatch.domain.draft_lengths import DraftLengths, shown_by
from specwatch.domain.model import Mode, Moment, Series
from specwatch.errors import ConfigError
from specwatch.runtime.tls import tls_context
from specwatch.scrape.gauges import GpuMemory
from tests.daemon.scraping import MINUTE, Bench, Engine, late, take, turn
from tests.fixtures import CERTIFICATE, Log, Serve, events, target_of
from tests.hostile import Behaviour, Visit, hanging, wait_for
from tests.scrape.pages import START, llama, many_models, vllm


@pytest.fixture
def bench(serve: Serve) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(settings: dict[str, Any] | None = None, **answers: Any) -> Bench:
        made.append(Bench(serve, Engine(**answers), **(settings or {})))
        return made[-1]

    yield build
    for one in made:
        one.scraper.finish()


MakeBench = Callable[..., Bench]


def broken_off(visit: Visit) -> bool:
    visit.answer(vllm(), length=10_000)
    return False


HOSTILE: dict[str, tuple[bytes | Behaviour, str]] = {
    "html": (b"<html>no</html>\n", "not_metrics"),
    "broken off": (broken_off, "truncated"),
    "no engine": (b"node_load1 0.5\n", "no_engine"),
    "not UTF-8": (b'vllm:generation_tokens_total{model_name="\xff"} 1\n', "not_metrics"),
    "NaN": (vllm(float("nan")), "not_a_number"),
    "beyond counting": (vllm(1e300), "not_a_number"),
    "duplicate": (vllm() + vllm(), "duplicate_series"),
    "503": (lambda visit: visit.answer(b"", "503 Busy"), "http_status"),
    "hanging": (late, "timeout"),
    "too many models": (many_models(65), "too_large"),
    "a label too long": (vllm(model="m" * 2049), "label_value_length_limit"),
}


def test_the_command_line_says_why_drafts_vary_where_the_server_does_not(bench: MakeBench) -> None:
    """Also of the next process; nothing is said of one without speculation."""
    one = bench()
    one.launched = DraftLengths.SCHEDULE
    one.replace()
    for page in (vllm(100, drafts=10), vllm(200, drafts=20), vllm(1, drafts=1, start=START + 9)):
        one.turn(page, seconds=60.0)
    one.turn(vllm(2, start=START + 99), seconds=60.0)
    one.scraper.finish()
    causes = [shown_by(window.environment) for window in one.windows]
    assert causes == [DraftLengths.SCHEDULE] * 3 + [None]


@pytest.mark.parametrize(("answer", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("first", [True, False], ids=["at first", "later"])
def test_a_bad_page_is_a_failed_scrape_told_once(
    bench: MakeBench, log: Log, answer: bytes | Behaviour, reason: str, first: bool
) -> None:
    """Whatever comes, no turn raises; the target recovers, and counts go on where they were."""
    one = bench()
    if not first:
        one.turn(vllm(100))
    for _ in range(3):
        one.turn(answer)
    status = one.scraper.status()
    assert status.failures == {reason: 3}
    assert (status.failure.reason, status.scrapes) == (reason, 3 if first else 4)
    assert one.scraper.failing
    assert one.scraper.turned
    (entry,) = events(log, "scrape_failed")
    assert (entry["reason"], entry["target"], entry["log_level"]) == (reason, "t", "warning")
    one.turn(vllm(150))
    (entry,) = events(log, "scrape_recovered")
    assert entry["after"] == reason
    one.turn(vllm(170))
    one.scraper.finish()
    (window,) = one.windows
    assert window.tally.generation_tokens == (20 if first else 70)
    assert (window.scrapes_ok, window.scrapes_failed) == (2 if first else 3, 3)
    assert one.scraper.status().failure is None


def test_a_server_is_empty_only_after_two_pages_without_requests(bench: MakeBench) -> None:
    """The gauges of vLLM leave out a request in its first step; a page that fails says nothing."""
    one = bench()
    idle = vllm().replace(b"} 1\n", b"} 0\n", 1)
    assert idle != vllm()
    loads = []
    for page in (idle, idle, vllm(), idle, idle, b"", idle, idle):
        one.turn(page)
        loads.append(one.scraper.status().load)
    assert loads == [None, 0, 1, 1, 0, None, None, 0]


def test_another_reason_is_told_again_and_the_failure_keeps_its_beginning(
    bench: MakeBench, log: Log
) -> None:
    one = bench()
    one.turn(b"<html>\n")
    one.turn(b"node_load1 1\n")
    assert [entry["reason"] for entry in events(log, "scrape_failed")] == [
        "not_metrics",
        "no_engine",
    ]
    failure = one.scraper.status().failure
    assert failure.since == MINUTE


def test_a_page_of_many_models_is_refused_in_bounded_memory(bench: MakeBench) -> None:
    one = bench()
    page = many_models(1_000)
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
    assert one.scraper.status().failures == {"too_large": 2}
    assert first < 1 << 20
    assert second - first < 1 << 18


def test_models_that_change_on_every_page_take_bounded_memory(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.scrape.counters.MOST_SERIES", 50)
    one = bench()
    for number in range(100):
        one.turn(vllm() + vllm(1, model=f"m{number}", start=None), seconds=2)
    assert one.scraper.status().failures["inconsistent"] == 51


def test_models_of_one_minute_are_bounded_even_where_each_page_names_others(
    bench: MakeBench,
) -> None:
    one = bench()
    for number in range(70):
        one.turn(vllm(model=f"m{number}"), seconds=0.5)
    assert one.scraper.status().failures == {"too_large": 6}
    one.turn(vllm(model="m70"), seconds=60)
    one.turn(vllm(model="m71"))
    assert one.scraper.status().failures == {"too_large": 7}
    assert max(len(batch.windows) for batch in one.batches) == 64


def test_an_engine_is_asked_who_it_is_and_again_when_it_restarted(
    bench: MakeBench, log: Log
) -> None:
    one = bench()
    one.turn()
    one.turn()
    assert one.server.paths == ["/metrics", "/version", "/v1/models", "/metrics"]
    assert one.scraper.status().engine_version == "0.32.0"
    one.engine.version = {"version": "0.33.0"}
    one.turn(vllm(7, start=1_790_000_100.0))
    assert one.scraper.status().engine_version == "0.33.0"
    assert one.scraper.status().restarts == 1
    assert len(events(log, "engine_restarted")) == 1
    one.turn(vllm(8, start=1_790_000_100.0), seconds=60)
    one.turn(vllm(9, start=1_790_000_100.0))
    one.scraper.finish()
    assert [window.environment.engine_version for window in one.windows] == ["0.33.0", "0.33.0"]
    assert [entry["version"] for entry in events(log, "engine_found")] == ["0.32.0", "0.33.0"]


def test_an_engine_that_came_back_is_asked_again(bench: MakeBench) -> None:
    """An idle one may have been exchanged without any counter that fell."""
    one = bench()
    one.turn(vllm(0, start=None))
    one.turn(b"")
    one.engine.version = {"version": "0.33.0"}
    one.turn(vllm(0, start=None))
    assert one.scraper.status().engine_version == "0.33.0"


@pytest.mark.parametrize(
    "version",
    [None, b"<html>", b"[" * 500_000, b'{"version": 7}', b"[1, 2]", b"x" * (2 << 20), late],
    ids=["404", "html", "nested", "number", "list", "large", "hangs"],
)
def test_an_engine_that_does_not_say_is_no_failure_and_asked_once_a_minute(
    bench: MakeBench, version: Any
) -> None:
    one = bench(version=version)
    for _ in range(13):
        one.turn()
    status = one.scraper.status()
    assert (status.engine_version, status.failure, status.scrapes) == (None, None, 13)
    asked = [path for path, _ in itertools.groupby(one.server.paths)].count("/version")
    assert asked == 2


def test_asking_takes_no_longer_than_one_scrape_may(bench: MakeBench) -> None:
    """Slow answers in a row must not make a turn longer than three intervals."""

    def slow(visit: Visit) -> bool:
        take(4)
        visit.answer(b"", "404 Not Found")
        return True

    one = bench({"timeout": 5.0}, version=slow, props=slow, models=slow)
    one.turn()
    assert one.server.paths[:2] == ["/metrics", "/version"]
    assert len(one.server.paths) < 5


def test_a_model_without_a_name_takes_the_one_of_v1_models(bench: MakeBench, log: Log) -> None:
    one = bench(page=llama(), version=None, models={"data": [{"id": "qwen.gguf"}, {"id": "x"}]})
    one.turn()
    assert one.scraper.status().models == {"qwen.gguf": Mode.UNKNOWN}
    one.turn(llama(130))
    one.scraper.finish()
    assert [window.series.model_name for window in one.windows] == ["qwen.gguf"]
    assert [entry["models"] for entry in events(log, "models_changed")] == [{"t": "unknown"}]


PROPS = {"build_info": "b11434-0", "total_slots": 2, "is_sleeping": False}


@pytest.mark.parametrize(
    ("slots", "mode"),
    [
        ([{"speculative": True}, {"speculative": True}], Mode.ON),
        ([{"speculative": False}, {"speculative": False}], Mode.OFF),
        ([{"speculative": False}, {}], Mode.UNKNOWN),
        ([], Mode.UNKNOWN),
        ({"error": 1}, Mode.UNKNOWN),
        (lambda visit: visit.answer(b"{}", "501 Not Implemented") or True, Mode.UNKNOWN),
    ],
    ids=["drafts", "does not", "not all say", "none", "an error", "--no-slots"],
)
def test_a_llama_server_says_by_its_slots_whether_it_speculates(
    bench: MakeBench, slots: Any, mode: Mode
) -> None:
    one = bench(page=llama(), version=None, props=PROPS, slots=slots)
    one.turn()
    one.turn(llama(130))
    assert list(one.scraper.status().models.values()) == [mode]


def test_a_server_that_does_not_tell_whether_it_speculates_is_asked_again(bench: MakeBench) -> None:
    """A sleeping one is not woken for it."""
    one = bench(page=llama(), version=None, props=PROPS | {"is_sleeping": True}, slots=[])
    one.turn(seconds=61)
    assert "/slots" not in {visit.path for visit in one.server.visits}
    one.engine.props, one.engine.slots = PROPS, [{"speculative": False}]
    one.turn()
    one.turn()
    assert list(one.scraper.status().models.values()) == [Mode.OFF]


def test_what_an_engine_says_of_itself_can_be_shown_anywhere(bench: MakeBench) -> None:
    one = bench(version=b'{"version": "0.\\ud800' + b"9" * 900 + b'"}', models={"data": 5})
    one.turn()
    version = one.scraper.status().engine_version
    assert version.encode()
    assert len(version) == 200


def test_speculation_that_is_switched_is_told(bench: MakeBench, log: Log) -> None:
    one = bench()
    one.turn(vllm(1, drafts=1))
    one.turn(vllm(2))
    models = [entry["models"] for entry in events(log, "models_changed")]
    assert models == [{"m": "on"}, {"m": "off"}]


@pytest.mark.parametrize("switched", [vllm(9, start=1_790_000_200.0), vllm(9)])
def test_what_is_current_begins_with_a_restart_or_a_switch(
    bench: MakeBench, switched: bytes
) -> None:
    """At once, though the minute before it is closed only then; figures come with a whole one."""
    one = bench()
    for number in range(24):
        one.turn(vllm(number, drafts=number))
    assert [window.tally.drafts for window in one.scraper.status().recent] == [11]
    one.turn(switched)
    assert len(one.windows) == 2
    assert one.scraper.status().recent == ()
    for _ in range(23):
        one.turn(switched)
    assert one.scraper.status().recent == ()
    one.turn(switched)
    (window,) = one.scraper.status().recent
    assert (window.mode, window.length, window.start) == (Mode.OFF, 60, MINUTE + 180)
    assert one.scraper.status().last_window == MINUTE + 240


def test_counts_that_had_to_be_left_out_are_told_once(bench: MakeBench, log: Log) -> None:
    one = bench()
    bad = b'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="x"} %d\n'
    for number in range(40):
        one.turn(vllm(number, drafts=number) + bad % number)
    assert [bool(batch.windows) for batch in one.batches] == [False, True, True, True]
    assert len(events(log, "counts_left_out")) == 1


@contextmanager
def turning(one: Bench, page: bytes) -> Iterator[None]:
    """A turn that is under way in the block, at the end of which its page comes."""
    entered, leave = threading.Event(), threading.Event()

    def slow(visit: Visit) -> bool:
        entered.set()
        leave.wait(60)
        visit.answer(page)
        return True

    one.engine.page = slow
    under_way = threading.Thread(target=turn, args=(one.scraper,))
    under_way.start()
    assert entered.wait(60)
    yield
    leave.set()
    under_way.join(60)


def test_a_turn_that_is_due_while_one_is_under_way_is_skipped_and_counted(
    bench: MakeBench, log: Log
) -> None:
    one = bench({"timeout": 60})
    with turning(one, vllm()):
        turn(one.scraper)
        turn(one.scraper)
        assert one.scraper.status().skipped == 2
        assert one.scraper.status(current=True).current == ()
    assert one.scraper.status().scrapes == 1
    assert [entry["skipped"] for entry in events(log, "scrape_skipped")] == [1, 2]


def test_finish_waits_for_no_server_and_queues_the_open_window(bench: MakeBench) -> None:
    """The turn that hangs is cut short; it is neither counted nor a failure of the target's."""
    one = bench({"interval": 60, "timeout": 60})
    one.turn(vllm(100))
    one.turn(vllm(130))
    one.engine.page = hanging
    turning = threading.Thread(target=turn, args=(one.scraper,))
    turning.start()
    wait_for(lambda: one.server.paths.count("/metrics") == 3)
    one.scraper.finish()
    (window,) = one.windows
    assert (window.tally.generation_tokens, window.scrapes_ok, window.scrapes_failed) == (30, 2, 0)
    turning.join(60)
    assert not turning.is_alive()
    assert one.scraper.status().failures == {}
    turn(one.scraper)
    assert one.scraper.status().scrapes == 2


def test_a_page_older_than_the_cursor_of_another_process_counts_nothing(bench: MakeBench) -> None:
    """It would look like the page of a server that restarted, whose counts all are new."""
    one = bench({"timeout": 60})
    one.turn(vllm(100))
    cursor = one.scraper._watch.cursor()
    later = {series: 2 * count for series, count in cursor.samples.items()}
    with turning(one, vllm(150)):
        one.scraper.supersede(replace(cursor, samples=later))
    one.turn(seconds=5.0)
    one.turn(vllm(230))
    one.scraper.finish()
    (window,) = one.windows
    assert (window.tally.generation_tokens, window.restarts) == (30, 0)


def test_a_driver_that_hangs_does_not_hold_the_end_up(serve: Serve) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hung() -> GpuMemory | None:
        entered.set()
        leave.wait(60)
        return None

    one = Bench(serve, Engine())
    one.turn(vllm(100))
    one.scraper._gpu_memory = hung
    turning = threading.Thread(target=turn, args=(one.scraper,))
    turning.start()
    assert entered.wait(60)
    one.scraper.finish()
    assert one.windows[0].scrapes_ok == 1
    leave.set()
    turning.join(60)


def test_a_scraper_adopts_the_open_minute_of_its_predecessor(bench: MakeBench) -> None:
    """A target whose settings changed keeps one window a minute, and loses no count."""
    one = bench()
    one.turn(vllm(100))
    one.turn(vllm(130))
    one.replace(interval=1, timeout=0.5)
    one.turn(vllm(150))
    status = one.scraper.status()
    assert (status.scrapes, status.interval) == (3, 1)
    one.scraper.finish()
    (window,) = one.windows
    assert (window.tally.generation_tokens, window.scrapes_ok) == (50, 3)


def test_a_target_that_is_another_server_from_now_on_is_counted_anew(
    bench: MakeBench, serve: Serve
) -> None:
    one = bench()
    one.turn(vllm(100, start=None))
    one.turn(vllm(130, start=None))
    other = serve(Engine(page=vllm(1000, start=None)))
    one.replace(url=other.url)
    one.turn()
    one.scraper.finish()
    (window,) = one.windows
    assert window.tally.generation_tokens == 30
    assert window.restarts == 1


def test_servers_that_answer_in_turn_are_reported_once_and_are_no_restarts(
    bench: MakeBench, log: Log
) -> None:
    one = bench()
    for tokens in (100, 110):
        one.turn(vllm(tokens, start=START))
        one.turn(vllm(9000 + tokens, start=START - 1000))
    status = one.scraper.status()
    assert status.restarts == 0
    assert status.alternated_at == one.now.wall - 5
    assert len(events(log, "several_servers_answer")) == 1
    one.scraper.finish()
    assert [window.tally.generation_tokens for window in one.windows] == [0]


def test_credentials_that_are_gone_are_a_failure_with_their_reason(
    bench: MakeBench, log: Log, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("hush")
    one = bench({"bearer_token_file": token})
    one.turn()
    token.unlink()
    one.turn()
    (entry,) = events(log, "scrape_failed")
    assert entry["reason"] == "credentials"
    assert str(token) in entry["detail"]
    token.write_text("hush2")
    one.turn()
    assert not one.scraper.failing
    assert one.server.visits[-1].headers["authorization"] == "Bearer hush2"
    assert "hush" not in repr(log)


def test_stuck_is_three_intervals_without_the_end_of_a_turn(bench: MakeBench) -> None:
    one = bench()
    assert not one.scraper.stuck(Moment(0, 1015))
    assert one.scraper.stuck(Moment(0, 1015.1))
    one.turn(b"")
    assert not one.scraper.stuck(Moment(0, 1015))


def test_a_page_that_takes_long_to_read_is_read_less_often(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """A tenth of a processor is for one target; nothing that it counts is lost."""
    one = bench()
    spent = itertools.count(0.0, 2.5)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    foreign = b"# HELP a Nothing.\n" * 60_000

    def read_after(seconds: float, tokens: int) -> int:
        before = one.scraper.status().scrapes
        one.now = Moment(one.now.wall + seconds, one.now.monotonic + seconds)
        one.turn(vllm(tokens) + foreign, seconds=0.0)
        assert not one.scraper.stuck(one.now)
        return one.scraper.status().scrapes - before

    assert [read_after(5, 100 + n) for n in range(9)] == [1, 0, 0, 0, 0, 1, 0, 0, 0]
    (entry,) = events(log, "page_expensive")
    assert (entry["seconds"], entry["every"]) == (2.5, 25.0)
    read_after(60, 500)
    window = one.end()["all"]
    assert sum(each.tally.generation_tokens or 0 for each in one.windows) == 400
    assert window.observed_seconds > 0


def test_a_turn_that_raised_has_not_ended(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a defect of ours shows as a loop that does not turn."""
    one = bench()
    one.turn()
    monkeypatch.setattr(one.scraper._reader, "glance", lambda _: 1 / 0)
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            turn(one.scraper)
        one.now = Moment(one.now.wall + 5, one.now.monotonic + 5)
    assert one.scraper.stuck(one.now)


def test_only_the_first_page_is_read_in_full(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a minute ends, what the next pages say is known from how the first looked."""
    one = bench()
    read, pages = one.scraper._reader.read, []

    def reading(page: bytes) -> dict[Series, float]:
        pages.append(page)
        return read(page)

    monkeypatch.setattr(one.scraper._reader, "read", reading)
    for step in range(30):
        one.turn(vllm(100 + step))
    assert pages == [vllm(100)]
    assert sum(window.tally.generation_tokens for window in one.windows) > 20
    one.turn(vllm(200).replace(b"} 1\n", b"} NaN\n", 1))
    assert len(pages) == 2


def test_gpu_memory_joins_the_windows(bench: MakeBench) -> None:
    one = bench()
    one.scraper._gpu_memory = lambda: GpuMemory(7, 9)
    one.turn()
    one.scraper.finish()
    gauges = one.windows[0].gauges
    assert (gauges.gpu_memory_used_max, gauges.gpu_memory_total) == (7, 9)


def test_tls_contexts_are_shared_and_read_a_changed_authority_again(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(CERTIFICATE.read_bytes())

    def target(number: int, **settings: Any) -> Target:
        return target_of(f"https://h{number}", f"t{number}", **settings)

    assert tls_context(target_of("http://h")) is None
    first = tls_context(target(1, ca_file=authority))
    assert first is not None
    assert tls_context(target(2, ca_file=authority)) is first
    assert tls_context(target(3)) is tls_context(target(4))
    authority.write_bytes(CERTIFICATE.read_bytes() * 2)
    assert tls_context(target(1, ca_file=authority)) is not first
    unchecked = tls_context(target(5, insecure_skip_verify=True))
    assert unchecked.verify_mode == ssl.CERT_NONE
    authority.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"t1: ca_file .*PEM"):
        tls_context(target(1, ca_file=authority))
    authority.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        tls_context(target(1, ca_file=authority))


@pytest.mark.parametrize("settings", [{"ca_file": CERTIFICATE}, {"insecure_skip_verify": True}])
def test_a_target_is_watched_over_tls(
    serve: Serve, server_tls: ssl.SSLContext, settings: dict[str, Any]
) -> None:
    one = Bench(serve, Engine(), tls=server_tls, **settings)
    one.turn()
    one.scraper.finish()
    assert one.scraper.status().failure is None

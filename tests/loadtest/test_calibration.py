"""From looks at a server under a constant load to slices, stages and a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from specwatch.domain.baseline import BaselineKey, Origin
from specwatch.domain.model import Environment, Mode, Series
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.errors import ConfigError, PageError
from specwatch.lab.loadtest import calibration, calibration_report
from specwatch.lab.loadtest.calibration import Block, Look, Meter, Stage
from specwatch.lab.loadtest.engine import MeasuredModel, check, engine_of
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from tests import pages
from tests.segments import segment

KEY = BaselineKey("chat", "tiny", "0.32.0", "abc")
OFF = MeasuredModel("tiny", "tiny", Mode.OFF, Environment("0.32.0", "abc-0"))
ON = MeasuredModel("tiny", "tiny", Mode.ON, Environment("0.32.0", "abc-4"))
PACE = 0.01


def page(
    tokens: float,
    requests: float = 0,
    *,
    waiting: float = 0,
    start: float = 1.0,
    pace: float = PACE,
) -> dict[Series, float]:
    """Counters of a server that generates a token of a request each ``pace`` seconds; prompts are
    of 30 tokens, 10 of them from the prefix cache."""
    steps = tokens - requests

    def series(quantity: str, part: str = "", key: str = "") -> Series:
        return Series(quantity, part, "tiny", "0", key)

    def histogram(quantity: str, count: float, total: float) -> dict[Series, float]:
        return {
            series(quantity, "bucket", "0.1"): count,
            series(quantity, "bucket", "+Inf"): count,
            series(quantity, "sum"): total,
            series(quantity, "count"): count,
        }

    return {
        Series("process_start", "", "", "", ""): start,
        series("generation_tokens"): tokens,
        series("requests", key="length"): requests,
        series("running"): 2.0,
        series("waiting"): waiting,
        series("prompt_tokens"): 30 * requests,
        series("prefix_cache_hits"): 10 * requests,
        **histogram("output_length", requests, 50 * requests),
        **histogram("ttft", requests, 0.05 * requests),
        **histogram("tpot", requests, pace * requests),
        **histogram("inter_token", steps, pace * steps),
    }


def answer(tokens: int | None = 50, error: ErrorKind | None = None) -> Answer:
    return Answer(Ask("hello", 50), 0.0, 1.0, tokens=tokens, error=error)


def block(
    counts: Iterable[tuple[float, float]],
    answers: Iterable[Answer] = (),
    *,
    concurrency: float = 2.0,
    waiting: float = 0.0,
    pace: float = PACE,
) -> Block:
    """Looks a second apart, with tokens and ended requests at each."""
    looks = tuple(
        Look(
            page(*count, waiting=waiting, pace=pace),
            1000.0 + second,
            float(second),
            concurrency * second,
        )
        for second, count in enumerate(counts)
    )
    return Block(looks, tuple(answers))


STEADY = [(100 * second, 2 * second) for second in range(9)]
"""Eight seconds: one to start, six slices, one to end."""


def stage(engine: MeasuredModel = OFF, **changes: float) -> Stage:
    measured = Stage(engine, 2)
    measured.add(block(STEADY, [answer()] * 16, **changes), Meter(engine))
    return measured


def test_a_slice_has_what_the_server_counted_between_its_looks() -> None:
    """Neither the start nor the end of a load, where fewer requests run, is in any slice."""
    measured = stage()
    assert [sample.start for sample in measured.samples] == list(range(1001, 1007))
    for sample in measured.samples:
        assert sample.pace.by_token
        assert sample.pace.tokens == 98
        assert sample.pace.seconds / sample.pace.tokens == pytest.approx(PACE)
        assert sample.gauges.concurrency == pytest.approx(2.0)
        assert sample.mode is Mode.OFF
    assert measured.total.generation_tokens == 800
    assert measured.total.ttft.count == 16


def test_the_baseline_has_a_point_with_conditions_for_each_slice_and_latencies_of_all() -> None:
    (measured,) = calibration.measurements(KEY, [stage()])
    assert (measured.key, measured.origin, measured.load_bin) == (KEY, Origin.CALIBRATION, 1)
    assert len(measured.points) == 6
    assert measured.points[-1].at == 1007.0
    for point in measured.points:
        assert (point.firsts, point.first_seconds) == (2, pytest.approx(0.1))
        assert point.prompt_tokens == 40, "without those from the prefix cache"
        assert (point.prompt, point.output) == (30.0, 50.0)
        assert point.concurrency == point.arrival_load == pytest.approx(2.0)
    assert measured.ttft.count == measured.tpot.count == 16


LONG = [(0, 0), (100, 2), *[(100 * second, 2) for second in range(2, 8)], (800, 4)]
"""No request begins or ends in a slice."""


def test_where_no_request_begins_or_ends_the_lengths_are_those_sent() -> None:
    measured = Stage(OFF, 2)
    sent = [Answer(Ask("hello", 400), 0.0, 8.0, prompt_tokens=30, tokens=400)] * 4
    measured.add(block(LONG, sent), Meter(OFF))
    for sample in measured.samples:
        requests = sample.requests
        assert (requests.firsts, requests.prompt, requests.output) == (0, 30.0, 400.0)


def test_slices_in_which_no_request_began_are_compared() -> None:
    off, on = stage(), Stage(ON, 2)
    on.add(block(LONG, [answer(tokens=400)] * 4), Meter(ON))
    report = calibration_report.report(KEY, [off, on], calibration.measurements(KEY, [off]))
    assert report["comparison"]["samples"] == 6


def without(keep: Callable[[Series], bool]) -> Stage:
    """A stage of a server whose page has only some samples."""
    looks = [
        look._replace(samples={s: v for s, v in look.samples.items() if keep(s)})
        for look in block(STEADY).looks
    ]
    measured = Stage(OFF, 2)
    measured.add(Block(tuple(looks), ()), Meter(OFF))
    return measured


def test_a_page_without_conditions_is_doubtful_and_without_latencies_useless() -> None:
    assert calibration.doubts_of([stage(), stage(ON)]) == []
    silent = without(lambda series: series.quantity != "prompt_tokens")
    (doubt,) = calibration.doubts_of([stage(), silent])
    assert "has no prompt tokens or TTFT" in doubt
    shortfall = without(lambda series: not series.part).shortfall
    assert shortfall == "the server's page has neither the time between tokens nor TPOT"


def in_rounds(*paces: tuple[int | None, float], engine: MeasuredModel = OFF) -> Stage:
    """A stage of blocks, each with the length of its prompts and the seconds of a token."""
    measured = Stage(engine, 4)
    for length, pace in paces:
        measured.add(block(STEADY, [answer()] * 16, pace=pace), Meter(engine), None, length)
    return measured


def test_rounds_whose_step_times_differ_are_doubtful() -> None:
    """A slow spell of the machine: it is no cost of prompts."""
    one = in_rounds((100, PACE), (200, 2 * PACE), (200, 2.7 * PACE), (100, 1.1 * PACE))
    (doubt,) = calibration.doubts_of(
        [
            one,
            in_rounds((100, PACE), (200, 3 * PACE), engine=ON),
            in_rounds((None, PACE), (None, 1.5 * PACE), engine=ON),
        ]
    )
    assert doubt == (
        "a step took longer in one round than in another with the same prompts, by up to 35% at"
        " concurrency 4 without speculation, 50% at concurrency 4 with speculation; something"
        " slowed the server for a while, or slices are too short: repeat it on a quiet server, or"
        " with a longer --duration"
    )


def test_more_acceptance_does_not_make_a_step_longer() -> None:
    """Two rounds with speculation may have unlike prompts, and accept more in one of them."""
    measured = Stage(ON, 4)
    for accepted in (50, 10):
        looks = [
            look._replace(
                samples={
                    **look.samples,
                    Series("drafts", "", "tiny", "0", ""): (98 - accepted) * second,
                    Series("draft_tokens", "", "tiny", "0", ""): 4 * (98 - accepted) * second,
                    Series("accepted_tokens", "", "tiny", "0", ""): accepted * second,
                }
            )
            for second, look in enumerate(block(STEADY, pace=0.02 * (98 - accepted) / 98).looks)
        ]
        measured.add(Block(tuple(looks), (answer(),) * 16), Meter(ON), None, 100)
    assert calibration.doubts_of([stage(), measured]) == []


def test_what_happens_between_blocks_does_not_count() -> None:
    meter, measured = Meter(OFF), Stage(OFF, 2)
    measured.add(block(STEADY), meter)
    measured.add(block([(tokens + 5000, ended + 70) for tokens, ended in STEADY]), meter)
    assert measured.total.generation_tokens == 1600
    assert sum(measured.total.requests.values()) == 32
    assert len(measured.slices) == 12


def test_requests_that_the_server_kept_waiting_do_not_count_as_running() -> None:
    assert [sample.gauges.concurrency for sample in stage(waiting=0.5).samples] == [1.5] * 6


def test_a_restart_meanwhile_is_an_error() -> None:
    looks = list(block(STEADY).looks)
    looks[5] = looks[5]._replace(samples=page(3, start=2.0))
    with pytest.raises(PageError, match="restarted"):
        Stage(OFF, 2).add(Block(tuple(looks), ()), Meter(OFF))


def test_slices_of_one_temperature_are_its_bucket() -> None:
    measured = Stage(ON, 2)
    measured.add(block(STEADY), Meter(ON), "(0.3,0.7]")
    assert all(
        sample.buckets == {segment("(0.3,0.7]"): sample.tally} for sample in measured.samples
    )


def test_a_tap_counts_each_temperature_over_the_whole_block() -> None:
    looks = [
        look._replace(
            samples={
                **look.samples,
                Series("drafts", "", "tiny", "0", "", segment("0")): 10 * second,
                Series("drafts", "", "tiny", "1", "", segment("0")): second,
                Series("drafts", "", "tiny", "0", "", segment(">1")): 5 * second,
                Series("drafts", "", "tiny", "", "", segment("output=text")): 15 * second,
            }
        )
        for second, look in enumerate(block(STEADY).looks)
    ]
    measured = Stage(ON, 2)
    measured.add(Block(tuple(looks), ()), Meter(ON))
    for sample in measured.samples:
        assert {one.value: counted.drafts for one, counted in sample.buckets.items()} == {
            "0": 88,
            ">1": 40,
        }


def test_many_failed_requests_make_a_stage_useless() -> None:
    measured = stage()
    measured.answers += [answer(None, ErrorKind.TIMEOUT)] * 2
    assert measured.shortfall == "2 of 18 requests failed (timeout 2)"
    assert calibration.measurements(KEY, [measured]) == []
    measured.answers += [answer()] * 30
    assert measured.shortfall is None


def test_slices_without_tokens_are_too_little() -> None:
    measured = Stage(OFF, 2)
    measured.add(block([(0, 0), *STEADY[:5], *[STEADY[4]] * 3]), Meter(OFF))
    assert "tokens came in 4 of 6 slices, 5 are needed" in measured.shortfall
    assert calibration.measurements(KEY, [measured]) == []


def test_requests_and_tokens_of_others_are_seen() -> None:
    measured = stage()
    assert (measured.shared, measured.foreign_requests) == (False, 0)
    measured.answers.pop()
    assert (measured.shared, measured.foreign_requests) == (True, 1)
    endless = Stage(OFF, 2)  # a request of others that does not end
    endless.add(block(STEADY, [answer(tokens=40)] * 16), Meter(OFF))
    assert (endless.shared, endless.foreign_requests) == (True, 0)


def test_the_only_model_of_a_page_is_measured() -> None:
    engine = engine_of(pages.read(pages.capture("draft-k4.2")), "0.32.0", ["tiny"])
    assert (engine.model_name, engine.series_name, engine.mode) == ("tiny", "tiny", Mode.ON)
    assert engine.environment.engine_version == "0.32.0"
    assert engine.environment.fingerprint.endswith("-4")
    nameless = {s._replace(model_name=""): v for s, v in page(1).items()}
    engine = engine_of(nameless, None, ["llama"])
    assert (engine.series_name, engine.model_name) == ("", "llama")


TWO = {**page(1), **{s._replace(model_name="other"): v for s, v in page(1).items()}}


@pytest.mark.parametrize(
    ("samples", "model", "message"),
    [
        ({}, None, "not of vLLM, llama.cpp"),
        (TWO, None, "serves other, tiny; choose one with --model"),
        (page(1), "huge", "does not serve huge; it serves tiny"),
    ],
    ids=["no engine", "two models", "not this model"],
)
def test_a_page_without_the_one_model_is_refused(
    samples: dict[Series, float], model: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        engine_of(samples, None, [], model=model, where="--off: http://h:1")
    assert str(refused.value).startswith("--off: http://h:1 ")
    assert engine_of(TWO, None, [], model="other").series_name == "other"


@pytest.mark.parametrize(
    ("off", "on", "message"),
    [
        (ON, None, "--off: this server speculates for tiny; start one without --speculative-conf"),
        (replace(ON, engine=LLAMACPP), None, "without a draft model .-md. and --spec-type"),
        (OFF, OFF, "--on: this server does not speculate"),
        (replace(OFF, mode=Mode.UNKNOWN), None, "--off: it is not known whether this server"),
        (OFF, replace(ON, mode=Mode.UNKNOWN), "--on: it is not known whether this server"),
        (OFF, replace(ON, model_name="huge"), "--off serves tiny and --on huge"),
    ],
    ids=[
        "off speculates",
        "llama-server speculates",
        "on does not",
        "off does not say",
        "on does not say",
        "unlike models",
    ],
)
def test_servers_that_cannot_be_compared_are_refused(
    off: MeasuredModel, on: MeasuredModel | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(off, on)


def test_unlike_versions_and_configurations_are_doubtful() -> None:
    assert check(OFF, ON) == []
    assert check(OFF, None) == []
    newer = replace(ON, environment=Environment("0.33.0", "def-4"))
    version, configuration = check(OFF, newer)
    assert "engine version (0.32.0 off, 0.33.0 on)" in version
    assert "configuration (abc off, def on)" in configuration

"""What was measured on purpose is told with its headline, newest first, and no more than a few."""

from __future__ import annotations

import json

import msgspec
import pytest

from specwatch.domain.switchback import new_state
from specwatch.lab.loadtest.compare import compare
from specwatch.report.estimates import Ratio
from specwatch.report.experiments import (
    MOST,
    experiment,
    headline,
    live_experiment,
    newest,
    notes,
)
from specwatch.report.layout import Sentence, Table
from specwatch.report.model import Report
from specwatch.report.sections import sections
from tests.report import sample
from tests.report.experiments import comparison, measured, probe, switchback

NOON = 1_793_620_800.0
"""2 November 2026, 12:00 UTC."""


def test_a_probe_has_the_acceptance_and_zone_of_each_temperature_and_the_line() -> None:
    result = experiment(probe(NOON))
    assert [(temperature.temperature, temperature.zone) for temperature in result.temperatures] == [
        (0.0, "wins"),
        (0.7, "near"),
        (1.3, "unknown"),
    ]
    assert result.temperatures[0].acceptance_rate == Ratio(value=0.75, lower=0.5, upper=0.875)
    assert result.temperatures[2].acceptance_rate is None
    assert result.break_even_acceptance == Ratio(value=0.58, lower=0.55, upper=0.61)
    assert headline(result) == (
        "2026-11-02 12:00 UTC, probe at temperatures 0, 0.7, 1.3, 4 requests at a time."
        " Speculation pays at temperature 0; is near break-even at temperature 0.7; does not"
        " clearly pay or lose at temperature 1.3; break-even at load 3-4, measured: 58.0%"
        " (55.0-61.0)."
    )


def test_a_line_that_is_assumed_has_no_interval_and_says_so() -> None:
    whole = probe(NOON)
    line = msgspec.structs.replace(whole.line, basis="assumed", load=None)
    result = experiment(msgspec.structs.replace(whole, line=line))
    assert result.break_even_acceptance == Ratio(value=0.58, basis="assumed")
    assert "break-even: about 58%, by the assumed draft cost" in result.sentence


def test_a_comparison_has_its_speedups_its_crossing_and_its_own_sentence() -> None:
    whole = comparison(NOON)
    result = experiment(whole)
    assert (result.sentence, result.verdict) == (whole.sentence, whole.verdict)
    assert result.crossing == whole.crossing
    assert result.speculation, "it is of a server that speculates, and of one that does not"
    assert [load.verdict for load in result.loads] == ["ship", "do_not"]
    first = result.loads[0].speedup
    assert first is not None
    assert first.lower is not None
    assert first.upper is not None
    assert first.lower < first.value < first.upper
    assert result.loads[1].throughput_off == pytest.approx(16 / 0.02, rel=0.05)
    assert result.loads[1].throughput == pytest.approx(16 / 0.03, rel=0.05)


def test_a_bench_has_the_throughput_of_each_load() -> None:
    whole = measured(NOON, "off")
    result = experiment(whole)
    assert [(load.concurrency, load.rate) for load in result.loads] == [(1, None), (16, None)]
    assert [load.throughput for load in result.loads] == [
        level.throughput for level in whole.levels
    ]
    last = result.loads[-1]
    assert (last.per_user, last.tpot_p99) == pytest.approx((50, 0.02), rel=0.05)
    assert (last.speedup, last.throughput_off, last.verdict) == (None, None, None)
    assert not result.speculation
    assert headline(result).startswith(
        "2026-11-02 12:00 UTC, bench without speculation at concurrency 1, 16, temperatures 0, 0.7."
        " At most"
    )
    assert result.sentence.endswith("tokens a second, at concurrency 16.")


def test_a_load_of_requests_a_second_is_told_as_one() -> None:
    whole = measured(NOON)
    open_loop = msgspec.structs.replace(whole.levels[0], concurrency=None, rate=2.5)
    result = experiment(msgspec.structs.replace(whole, levels=(open_loop,)))
    assert "at 2.5 requests a second" in result.asked
    assert result.sentence.endswith("at 2.5 requests a second.")


def test_what_was_broken_off_says_so_even_where_nothing_was_measured() -> None:
    assert "broken off" in headline(experiment(probe(NOON, complete=False)))
    assert "broken off" not in headline(experiment(probe(NOON)))
    nothing = msgspec.structs.replace(measured(NOON), levels=(), complete=False)
    assert headline(experiment(nothing)).endswith("until then. Nothing was measured.")


def test_a_load_that_was_broken_off_is_named_and_is_not_the_best() -> None:
    whole = measured(NOON, "off")
    last = msgspec.structs.replace(whole.levels[-1], complete=False)
    levels = (whole.levels[0], msgspec.structs.replace(last, throughput=1e6))
    result = experiment(msgspec.structs.replace(whole, levels=levels, complete=False))
    assert "broken off at concurrency 16: what follows is" in headline(result)
    assert result.sentence.endswith("at concurrency 1."), "the most is that of a whole load"
    assert [load.complete for load in result.loads] == [True, False]


def test_a_comparison_of_benches_that_were_broken_off_says_so() -> None:
    off, on = measured(NOON, "off"), measured(NOON)
    last = msgspec.structs.replace(on.levels[-1], complete=False)
    on = msgspec.structs.replace(on, levels=(on.levels[0], last), complete=False)
    result = experiment(compare(off, on, version="1"))
    assert [load.concurrency for load in result.loads] == [1]
    assert "broken off: what follows" in headline(result)


def test_the_newest_come_first_and_the_rest_is_counted() -> None:
    result, left_out = newest([probe(NOON + at) for at in range(MOST + 2)])
    assert [item.at - NOON for item in result] == [6, 5, 4, 3, 2]
    assert left_out == 2
    assert newest([]) == ((), 0)


def test_the_experiment_on_live_traffic_has_its_answer_its_groups_and_its_cost() -> None:
    live = live_experiment(switchback(NOON))
    assert live.sentence.startswith("2 draft tokens is 1.11 times as fast as the launch (1.07 to")
    assert [(group.by, group.value, group.share) for group in live.groups] == [
        ("all", "all", 1.0),
        ("load", "3-4", 1.0),
        ("temperature", ">1", 0.9),
    ]
    assert [(arm.arm, arm.episodes) for arm in live.groups[1].arms] == [("0", 3), ("2", 42)]
    assert live.groups[1].arms[0].speedup is None
    speedup = live.groups[2].arms[1].speedup
    assert speedup is not None
    assert speedup.value == pytest.approx(0.82, abs=0.01)
    assert (live.share, live.share_allowed, live.regret, live.covered) == (0.04, 0.05, 0.005, 0.9)


def test_an_experiment_that_has_just_begun_says_how_far_it_is() -> None:
    begun = switchback(NOON)
    state = new_state(begun.design, "e", NOON)
    live = live_experiment(msgspec.structs.replace(begun, state=state))
    model = msgspec.structs.replace(sample.blank(), live_experiment=live)
    (section,) = [one for one in sections(model) if one.title == "Experiment on live traffic"]
    answer, table, cost = section.parts
    assert isinstance(answer, Sentence)
    assert answer.text.endswith("not known yet: 0 of 6 episodes.")
    assert isinstance(table, Table)
    assert [row[2].text for row in table.rows] == ["-", "-"]
    assert isinstance(cost, Sentence)
    assert cost.text.startswith("0 episodes since 2026-11-02 12:00 UTC. Other arms than")


def test_of_a_model_that_was_not_watched_each_is_a_note() -> None:
    result = notes("chat\x1b", "llama", *newest([probe(NOON + at) for at in range(MOST + 1)]))
    assert len(result) == MOST + 1
    assert result[0].startswith(r"chat\x1b, llama: 2026-11-02 12:00 UTC, probe")
    assert result[-1] == r"chat\x1b, llama: 1 older experiment of this period"


def test_a_report_from_before_there_were_any_is_still_read() -> None:
    plain = json.loads(msgspec.json.encode(sample.full()))
    for item in plain["targets"]:
        del item["experiments"], item["more_experiments"]
    result = msgspec.convert(plain, Report)
    assert [(target.experiments, target.more_experiments) for target in result.targets] == [
        ((), 0)
    ] * 3

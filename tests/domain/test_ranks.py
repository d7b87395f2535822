"""Data-parallel ranks whose drafts fare otherwise than those of their siblings are found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.model import ALL, Environment, Moment, RankCounts
from specwatch.domain.ranks import ranks_of
from specwatch.rules.decision_view import ReadingView
from specwatch.rules.judge import Judge
from specwatch.rules.readings import read
from specwatch.scrape import tally
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.wording import speculation
from tests.domain.samples import START, evidence, minutes
from tests.pages import capture, multiprocess
from tests.pages import read as samples_of
from tests.scrape import closing

HOUR = 3600.0


def hour(
    rates: Sequence[float], *, drafts: int = 300, seed: int = 1
) -> list[dict[str, RankCounts]]:
    """An hour of ranks that accept these shares of 4 tokens a draft, with the noise of requests."""
    source = random.Random(seed)

    def minute(rate: float) -> RankCounts:
        made = round(drafts * source.uniform(0.5, 1.5))
        accepted = sum(
            round(80 * min(max(source.gauss(rate, 0.15), 0.0), 1.0)) for _ in range(made // 20)
        )
        return RankCounts(made, 4 * made, accepted, made + accepted, made // 20)

    return [{str(n): minute(rate) for n, rate in enumerate(rates)} for _ in range(60)]


def outliers(known: list[dict[str, RankCounts]]) -> list[str]:
    return [rank.rank for rank in ranks_of(known) if rank.stands_out]


@pytest.mark.parametrize("seed", range(3))
def test_alike_ranks_do_not_stand_out(seed: int) -> None:
    assert outliers(hour([0.5] * 8, seed=seed)) == []
    assert outliers(hour([0.5] * 8, drafts=30, seed=seed)) == []


def test_ranks_that_accept_less_or_nothing_stand_out() -> None:
    assert outliers(hour([0.5, 0.5, 0.3, 0.5])) == ["2"]
    assert outliers(hour([0.5, 0.0, 0.5])) == ["1"]
    assert outliers(hour([0.5, 0.48, 0.5, 0.5], drafts=3000)) == [], "less than a tenth apart"


def test_a_rank_that_generates_without_drafts_stands_out() -> None:
    known = hour([0.5] * 4)
    for minute in known:
        minute["3"] = minute["3"]._replace(drafts=0, draft_tokens=0, accepted_tokens=0)
    assert outliers(known) == ["3"]


def test_work_that_the_router_shares_unevenly_is_no_outlier() -> None:
    known = hour([0.5] * 4)
    for minute in known:
        minute["3"] = RankCounts(*(10 * count for count in minute["3"]))
    assert outliers(known) == []


def test_an_hour_of_a_few_long_requests_is_not_compared() -> None:
    """Each request has its own acceptance: three ranks with one each differ by that alone."""
    known = hour([0.5, 0.3, 0.6], drafts=3000)
    few = [
        {name: counts._replace(requests=n % 15 == 0) for name, counts in minute.items()}
        for n, minute in enumerate(known)
    ]
    assert outliers(known) != []
    assert [(rank.acceptance, rank.drafting) for rank in ranks_of(few)] == [(None, None)] * 3


def test_ranks_of_before_a_restart_are_not_compared() -> None:
    """Ray names workers anew, and a server may be started with fewer ranks."""
    before = hour([0.8] * 4)[:30]
    after = [{f"w{name}": one for name, one in minute.items()} for minute in hour([0.5] * 4)[:30]]
    known = ranks_of([*before, *after])
    assert [rank.rank for rank in known] == ["w0", "w1", "w2", "w3"]
    assert not any(rank.stands_out for rank in known)


def test_a_rank_that_a_restart_with_another_draft_has_mended_does_not_stand_out() -> None:
    judge, found = Judge("t", [], []), list[list[str]]()
    for number, ranks in enumerate([*hour([0.5, 0.5, 0.1])[:30], *hour([0.5] * 3)[:20]]):
        (window,) = closing.minute(number)
        fingerprint = "c-4" if number < 30 else "c-3"
        window = msgspec.structs.replace(window, environment=Environment("0.32.0", fingerprint))
        judge.observe([window], START + 60.0 * (number + 1), {window.series.model_name: ranks})
        (known,) = judge.ranks().values()
        found.append([rank.rank for rank in known if rank.stands_out])
    assert found[20:30] == [["2"]] * 10
    assert found[30:] == [[]] * 20


def test_of_two_ranks_none_stands_out() -> None:
    assert outliers(hour([0.5, 0.1])) == []
    assert ranks_of([]) == ()


def test_a_rule_reads_how_many_and_names_them() -> None:
    samples = minutes(60)
    ranks = hour([0.5, 0.5, 0.2, 0.5])
    ends = [sample.start + sample.length for sample in samples]
    known = evidence(samples, ranks=list(zip(ends, ranks, strict=True)))
    reading = read("outlier_ranks", known, window=HOUR)
    assert reading.value == 1
    assert reading.note == (
        "rank 2: 19.9% accepted, 0.56 drafts a token; the median: 48.2% accepted, 0.34 drafts a"
        " token"
    )
    view = ReadingView(
        "outlier_ranks", 0.0, None, None, HOUR, 1.0, None, None, 9, 9, "counted", None, reading.note
    )
    assert speculation.breach("rank-outlier", ALL, view) == f"rank-outlier: {reading.note}"
    alone = read("outlier_ranks", evidence(samples), window=HOUR)
    assert (alone.value, alone.moot) == (None, True)
    later = evidence(samples, ranks=[(START - 7200, ranks[0])])
    assert read("outlier_ranks", later, window=HOUR).moot


def test_where_drafts_vary_in_length_no_rank_stands_out() -> None:
    ends = [START + 60 * (n + 1) for n in range(60)]
    ranks = list(zip(ends, hour([0.5, 0.5, 0.2, 0.5]), strict=True))
    for fingerprint, standing_out in (("c-4", ["2"]), ("c-4 schedule", [])):
        environment = Environment(fingerprint=fingerprint)
        samples = [replace(sample, environment=environment) for sample in minutes(60)]
        known = evidence(samples, ranks=ranks).ranks
        assert [rank.rank for rank in known if rank.stands_out] == standing_out


def test_the_ranks_of_a_page_are_counted_apart() -> None:
    """A rank that drafted nothing is there with zeros; a restarted minute is left out."""
    first, second = (multiprocess(capture(f"draft-k4.{n}"), ("0", "1", "2")) for n in (1, 2))
    lines = zip(first.split(b"\n"), second.split(b"\n"), strict=True)
    stuck = b"\n".join(before if b'engine="2"' in before else now for before, now in lines)
    watch = WindowBuilder("d", "t", max_gap=15)
    watch.observe(samples_of(first), Moment(0, 0))
    watch.observe(samples_of(stuck), Moment(5, 5))
    batch = watch.close().batch
    assert batch is not None
    assert set(batch.ranks) == {"tiny"}
    ranks = batch.ranks["tiny"]
    assert list(ranks) == ["0", "1", "2"]
    assert ranks["0"] == ranks["1"]
    assert ranks["0"].drafts > 0
    assert ranks["2"] == RankCounts(0, 0, 0, 0, 0)
    assert sum(rank.drafts for rank in ranks.values()) == batch.windows[0].tally.drafts
    requests = sum(batch.windows[0].tally.requests.values())
    assert sum(rank.requests for rank in ranks.values()) == requests > 0
    watch.observe(samples_of(second), Moment(65, 65))
    watch.observe(samples_of(first), Moment(70, 70))
    restarted = watch.close().batch
    assert restarted is not None
    assert restarted.windows[0].restarts == 1
    assert restarted.ranks == {}


def test_one_rank_and_too_many_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_RANKS", 4)
    page = samples_of(capture("draft-k4.2"))
    assert tally.ranks_of(page, page) == {}
    names = tuple(str(n) for n in range(tally.MOST_RANKS + 1))
    many = samples_of(multiprocess(capture("draft-k4.2"), names))
    assert tally.ranks_of(many, many) == {}
    fewer = samples_of(multiprocess(capture("draft-k4.2"), names[1:]))
    assert len(tally.ranks_of(fewer, fewer)["tiny"]) == tally.MOST_RANKS
    odd = samples_of(multiprocess(capture("draft-k4.2"), ("0", "a b", "1")))
    assert list(tally.ranks_of(odd, odd)["tiny"]) == ["0", "1"]

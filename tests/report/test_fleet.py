"""Of all targets: who loses, who gains, how much, and what to do first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.report.estimates import Amount
from specwatch.report.fleet import fleet, to_change, worst_first
from specwatch.report.layout import Listing
from specwatch.report.model import ModelReport
from specwatch.report.sections.answer import all_targets
from tests.report import sample

PAYS, LOSES, UNKNOWN = sample.full().targets


def called(model: ModelReport, name: str, **answer: Any) -> ModelReport:
    return replace(model, target=name, answer=replace(model.answer, **answer))


def saving(hours: float, gpus: int) -> dict[str, Amount]:
    return {
        "hours_saved": Amount(value=hours),
        "gpu_hours_saved": Amount(value=hours * gpus),
    }


SENTENCES: dict[str, tuple[ModelReport, ...]] = {
    "chat-70b gains 165 GPU hours with speculation.": (PAYS,),
    "code-32b loses 19 server hours with speculation.": (LOSES,),
    (
        "Of 3 targets, code-32b loses 19 server hours with speculation, chat-70b gains 41"
        " and 1 is not measured: 22 gained in all."
    ): (PAYS, LOSES, UNKNOWN),
    "Of 3 targets, 1 shows no certain difference, 1 is not measured and 1 had no traffic.": (
        UNKNOWN,
        sample.blank(),
        called(UNKNOWN, "c", outcome="even"),
    ),
    "Of 3 targets, 3 gain 494 GPU hours with speculation.": (
        called(PAYS, "a"),
        called(PAYS, "b"),
        called(PAYS, "c"),
    ),
    "Of 2 models, 1 loses 19 server hours with speculation and 1 gains 41: 22 gained in all.": (
        PAYS,
        called(LOSES, "chat-70b"),
    ),
    "Of 3 targets, b and c lose 44 GPU hours with speculation and a gains 6.0: 38 lost in all.": (
        called(PAYS, "a", **saving(3, 2)),
        called(LOSES, "b", **saving(-4.5, 8)),
        called(LOSES, "c", **saving(-1, 8)),
    ),
    "No server was watched in this period.": (),
}


@pytest.mark.parametrize(("expected", "models"), SENTENCES.items())
def test_the_total_is_one_sentence(expected: str, models: tuple[ModelReport, ...]) -> None:
    assert fleet(models).sentence == expected


def test_the_total_has_its_figures() -> None:
    total = fleet(sample.many(50).targets)
    assert (total.models, total.losing, total.gaining, total.unit) == (50, 17, 17, "server hours")
    assert total.hours_gained == pytest.approx(17 * 41.2)
    assert total.hours_lost == pytest.approx(17 * 19.3)
    assert total.hours_saved == pytest.approx(17 * (41.2 - 19.3))


def test_the_worst_come_first_and_those_without_traffic_last() -> None:
    assert PAYS.answer.speedup is not None
    slower = replace(PAYS.answer.speedup, value=0.5, lower=0.4, upper=1.1)
    even = called(PAYS, "even", outcome="even", speedup=slower)
    models = (sample.blank(), UNKNOWN, PAYS, even, LOSES)
    assert worst_first(models) == [LOSES, even, PAYS, UNKNOWN, sample.blank()]


def test_the_change_that_saves_most_hours_comes_first() -> None:
    """Four GPUs for 112 h at 7 % are more than one server for 145 h at 14 %."""
    assert to_change(sample.full().targets) == [PAYS, LOSES]
    one_gpu = called(PAYS, "chat-70b", gpus=1)
    assert to_change([one_gpu, LOSES, UNKNOWN]) == [LOSES, one_gpu]
    (listing,) = (part for part in all_targets(sample.full()).parts if isinstance(part, Listing))
    assert listing.items == [
        "chat-70b, 7% faster: Do without speculation above 32 running requests.",
        "code-32b, 14% faster: Switch speculation off.",
    ]


def test_of_many_changes_the_first_are_listed_and_the_others_counted() -> None:
    (listing,) = (p for p in all_targets(sample.many(50)).parts if isinstance(p, Listing))
    assert len(listing.items) == 4
    assert listing.items[-1] == "31 more changes."
    nothing = replace(sample.full(), targets=(UNKNOWN, sample.blank()))
    assert not [part for part in all_targets(nothing).parts if isinstance(part, Listing)]

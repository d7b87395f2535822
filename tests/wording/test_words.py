"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from specwatch.domain.model import Histogram
from specwatch.rules import summary
from specwatch.rules.decision_view import BestKView, GoodputView, SloView, model_view
from specwatch.rules.summary import RequestAcceptance
from specwatch.wording import figures, speculation
from specwatch.wording import rules as rule_words
from specwatch.wording.text import clean, shown
from tests.web.decided import START, decided

TEXTS: list[tuple[Callable[[Any], str], dict[Any, str]]] = [
    (
        figures.seconds,
        {
            None: "-",
            0.0: "0 s",
            0.0000123: "0.01 ms",
            0.0059: "5.90 ms",
            0.009996: "10.0 ms",
            0.0525: "52.5 ms",
            0.09996: "100 ms",
            0.2354: "235 ms",
            0.9996: "1.00 s",
            1.0: "1.00 s",
            9.996: "10.0 s",
            99.96: "100 s",
            2560: "2,560 s",
        },
    ),
    (
        figures.budget_left,
        {
            None: "-",
            1.0: "100% of the error budget left",
            0.0: "0% of the error budget left",
            -0.0001: "used 1.0 times its error budget",
            -0.5: "used 1.5 times its error budget",
            -65.24: "used 66 times its error budget",
            -9000.0: "used more than 99 times its error budget",
        },
    ),
    (
        figures.budget_spent,
        {None: "-", 0.4: "40%", 1.5: "1.5x", 66.24: "66x", 98.6: "99x", 5000.0: ">99x"},
    ),
    (
        lambda bounds: figures.within(*bounds),
        {
            (0.0, 0.001): "up to 1 ms",
            (0.01, 0.025): "10 to 25 ms",
            (0.0125, 0.015): "12.5 to 15 ms",
            (0.75, 1.0): "0.75 to 1 s",
            (640.0, 2560.0): "640 to 2,560 s",
        },
    ),
    (
        figures.span,
        {-1: "0 s", 3.4: "3 s", 300: "5 min", 7300: "2 h", 90_000: "25 h", 400_000: "5 days"},
    ),
    (
        figures.compact,
        {
            None: "-",
            0: "0",
            999: "999",
            1000: "1.00k",
            12_345: "12.3k",
            999_499: "999k",
            1_000_000: "1.00M",
            310_000_000_000: "310G",
            2.0**62: "4.61E",
        },
    ),
    (
        lambda count: figures.counted(count, "draft"),
        {1: "1 draft", 0: "0 drafts", 1234: "1,234 drafts"},
    ),
    (
        lambda amount: rule_words.amount(*amount),
        {
            ("speedup_ratio", 0.83219): "0.832",
            ("ttft_p99", 0.2354): "235 ms",
            ("ttft_p99", None): "-",
            ("of_a_newer_daemon", 12.0): "12",
        },
    ),
]


def test_figures_have_few_digits_and_a_fitting_unit() -> None:
    for word, texts in TEXTS:
        assert {value: word(value) for value in texts} == texts


def test_what_an_objective_cannot_tell_is_said_where_it_matters() -> None:
    slo = SloView("fast", "llama", "tpot", 0.05, 0.99, 3600, 34, 100, 66, 0.0, 1.0, {})
    assert speculation.objective(slo) == (
        "100% of the error budget left; 66% of the requests unknown"
    )
    assert (
        speculation.objective(msgspec.structs.replace(slo, unknown=0.9))
        == "100% of the error budget left"
    )


def test_a_quantile_beyond_the_last_bound_is_greater_than_it() -> None:
    beyond = summary.latency(Histogram((0.1, 10.0), (6, 0, 4), 99.0))
    assert figures.quantile(beyond, "p50") == "~83 ms"
    assert figures.quantile(beyond, "p90") == "> 10 s"
    assert figures.quantile(beyond, "p99") == "> 10 s"
    assert figures.quantile(summary.latency(Histogram((10.0,), (4, 0), 9.0)), "p99") == "~9.9 s"


def test_a_quantile_in_a_wide_bucket_is_told_as_rough_and_one_in_a_narrow_as_it_is() -> None:
    rough = summary.latency(Histogram((0.01, 0.025), (0, 9, 0), 0.2))
    exact = summary.latency(Histogram((0.022, 0.025), (0, 9, 0), 0.2))
    assert (figures.quantile(rough, "p50"), figures.quantile(exact, "p50")) == ("~18 ms", "23.5 ms")


def test_what_is_not_known_is_a_dash() -> None:
    assert figures.quantile(None, "p50") == figures.mean(None) == figures.percent(None) == "-"
    mean = summary.latency(Histogram((), (60,), 2.0))
    assert (figures.quantile(mean, "p50"), figures.mean(mean)) == ("-", "33.3 ms")
    assert figures.mean(summary.latency(Histogram((1.0,), (0, 0), 0.0))) == "-"


def test_foreign_text_is_spelt_and_cut_in_the_middle() -> None:
    assert clean("\x1b[31m\n\u202e\x85模") == r"\x1b[31m\n\u202e\x85模"
    assert shown("a" * 10_000 + "z", 10) == "aaaa...aaz"
    assert len(shown("a" * 61)) == 60
    assert shown("a" * 60) == "a" * 60


def test_quantiles_of_a_ratio_are_whole_percents() -> None:
    assert figures.percents(None) == "-"
    assert figures.percents(RequestAcceptance(0, None, None, None)) == "-"
    assert figures.percents(RequestAcceptance(9, 0.004, 0.5, 1.0)) == "0/50/100"


def test_a_best_k_that_is_not_known_says_why_and_none_is_called_off() -> None:
    known = model_view(decided().models["llama"], START + 60)
    varying = msgspec.structs.replace(known, best_k=None, best_k_unknown="varying_length")
    text = "best k: not known, drafts vary in length, and how many reach a position is not counted"
    assert speculation.best_k(varying) == text
    assert speculation.best_k(msgspec.structs.replace(varying, best_k_unknown=None)) is None
    off = msgspec.structs.replace(known, best_k=BestKView(0, [1.0, 0.9, 0.8]))
    assert speculation.best_k(off) == (
        "best k: none (speculation off), predicted speedup per token 1.00; with 2 now 0.80"
    )


@pytest.mark.parametrize(
    ("offered", "lower", "upper", "watched", "text"),
    [
        (2.314, 1.82, 2.1, 3600, "1.82 to 2.10 of 2.31 requests/s met all objectives in the last"),
        (2.314, 2.101, 2.102, 3599, "2.10 of 2.31 requests/s met all objectives in the last hour"),
        (0.0312, 0.02, 0.02, 1080, "0.0200 of 0.0312 requests/s met all objectives in the 18 min"),
        (1234.5, 0, 1234.5, 3600, "0 to 1,234 of 1,234 requests/s met all objectives in the last"),
        (0.0, 0.0, 0.0, 3600, None),
        (None, None, None, 0, None),
        (2.3, None, None, 3600, None),
    ],
)
def test_goodput_stands_beside_what_was_offered(
    offered: float | None,
    lower: float | None,
    upper: float | None,
    watched: float,
    text: str | None,
) -> None:
    """Not known without requests, or where an objective was held against none of them."""
    sentence = speculation.goodput({"1h": GoodputView(watched, offered, lower, upper)})
    assert (sentence and sentence[: len(text or "")]) == text
    assert speculation.goodput({}) is None

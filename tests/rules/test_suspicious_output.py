"""The default rule suspicious-output on hours of the past and the minutes of now."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.model import HOUR, MINUTE, Gauges, Mode, Tally, Window
from specwatch.rules.judge import Judge
from tests.scrape.closing import START, minute

RULE = next(rule for rule in DEFAULT_RULES if rule.name == "suspicious-output")
DAY = range(-25, -1)
"""The hours before."""


def cut(window: Window, length: int, tokens: int = 100) -> Window:
    """With so many of 100 requests cut at their limit, and so many tokens an answer."""
    requests = {"stop": 100 - length, "length": length}
    generated = 100 * tokens
    return replace(
        window, tally=replace(window.tally, requests=requests, generation_tokens=generated)
    )


def hour(number: int, length: int, mode: Mode = Mode.ON) -> Window:
    (window,) = minute(60 * number, mode)
    return replace(cut(window, length), length=HOUR, observed_seconds=3600.0)


def findings(past: list[Window], length: int, tokens: int = 120) -> str:
    """The verdict after 45 minutes with a share of requests that are cut."""
    judge = Judge("t", [RULE], [])
    judge.load(past)
    for number in range(45):
        (window,) = minute(number)
        judge.observe([cut(window, length, tokens)], START + (number + 1) * MINUTE)
    (finding,) = judge.findings()
    return finding.verdict.value


STEADY = [hour(n, 4 + n % 3) for n in DAY]
OFF = [hour(-20, 5, Mode.OFF), hour(-6, 4, Mode.OFF)]


@pytest.mark.parametrize(
    ("past", "length", "verdict"),
    [
        ([*STEADY, *OFF], 30, "breach"),
        ([*STEADY, *OFF], 6, "pass"),
        ([*[hour(n, 60 if n % 24 > 14 else 5) for n in DAY], *OFF], 60, "pass"),
        (STEADY, 30, "no_data"),
    ],
    ids=["more than without", "as without", "as every night", "never off"],
)
def test_a_jump_is_a_breach_only_where_traffic_does_not_explain_it(
    past: list[Window], length: int, verdict: str
) -> None:
    assert findings(past, length) == verdict


def test_a_client_with_a_lower_limit_of_length_is_no_fault() -> None:
    """Answers that no longer end by themselves are longer: these are shorter."""
    assert findings([*STEADY, *OFF], 30, 80) == "no_data"


def test_a_breach_lasts_through_a_quiet_time() -> None:
    """Without traffic there are no data: it neither fires nor clears."""
    judge = Judge("t", [RULE], [])
    judge.load([*STEADY, *OFF])
    verdicts = []
    for number in range(140):
        (window,) = minute(number)
        length = 30 if number < 45 else 5
        quiet = replace(window, tally=Tally(), gauges=Gauges())
        window = quiet if 45 <= number < 70 else cut(window, length, 120)
        judge.observe([window], START + (number + 1) * MINUTE)
        (finding,) = judge.findings()
        verdicts.append(finding.verdict.value)
    assert set(verdicts[44:70]) == {"breach"}
    assert verdicts[-1] == "pass"


def test_it_never_disables() -> None:
    assert RULE.action == "alert"

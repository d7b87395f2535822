"""What sections say of unusual models, and that every form says all of it.

What they say of the usual ones is in the golden files.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.domain.model import Mode
from specwatch.pages.report_html import report_html
from specwatch.report import layout
from specwatch.report.estimates import Amount, Bounds, Quantiles, Ratio, ReportLatency, WhatIf
from specwatch.report.layout import Listing, Part, Sentence, Table
from specwatch.report.markdown import markdown
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections import sections
from specwatch.report.text import plain
from tests.report import page, sample
from tests.report.test_markdown import tokens

PAYS, LOSES, ASSUMED = sample.full().targets


def parts(model: ModelReport) -> list[Part]:
    return [part for section in sections(model) for part in section.parts]


def all_sentences(model: ModelReport) -> str:
    """All sentences."""
    return " ".join(part.text for part in parts(model) if isinstance(part, Sentence))


def table(model: ModelReport, caption: str) -> list[list[str]]:
    """The table whose caption begins so, its header first."""
    tables = [part for part in parts(model) if isinstance(part, Table)]
    result = next(part for part in tables if part.caption.startswith(caption))
    return [
        [column.name for column in result.columns],
        *([cell.text for cell in row] for row in result.rows),
    ]


def test_goodput_without_requests_is_not_told_and_where_it_is_not_known_that_is() -> None:
    model = sample.partial().targets[0]
    assert "Goodput" not in all_sentences(model)
    silent = replace(model.goodput[0], requests=9.0, met=None)
    text = all_sentences(replace(model, goodput=(silent,)))
    assert "Goodput is unknown where no request was measured against one of the" in text
    assert "the load was not equal" not in text


def test_an_assumed_speedup_always_says_so() -> None:
    tables = [part for part in parts(ASSUMED) if isinstance(part, Table)]
    speedups = [cell.text for part in tables for row in part.rows for cell in row]
    speedups = [
        text for text in speedups if text.removeprefix("about ")[1:2] == "." and "x" in text
    ]
    assert speedups
    assert all("assumed" in text for text in speedups)


def test_a_quantile_is_told_as_the_bucket_that_it_lies_in() -> None:
    """And nothing of how it changed: one that just crossed a bound would seem to by a lot."""
    wide = Bounds(lower=0.01, upper=0.025)
    within = {"p50": wide, "p95": wide, "p99": Bounds(lower=0.024, upper=0.025)}
    off = Quantiles(count=9, mean=0.0207, p50=0.0174, p95=0.024, p99=0.0248, buckets=within)
    on = replace(off, mean=0.0102, p50=0.0171)
    row = replace(PAYS.segments[0], tpot=ReportLatency(on=on, off=off))
    assert table(replace(PAYS, segments=(row,)), "Time per output token")[1] == [
        "all",
        "10.2 ms",
        "-51%",
        *["10 to 25 ms"] * 4,
        "24.8 ms",
        "24.8 ms",
    ]


def test_what_lies_beyond_the_last_bound_says_so() -> None:
    slow = Quantiles(count=9, mean=7.0, p50=5.0, p95=5.0, p99=5.0, beyond=("p50", "p95", "p99"))
    fast = Quantiles(count=9, mean=0.1, p50=0.1, p95=0.1, p99=0.1)
    row = replace(PAYS.segments[0], ttft=ReportLatency(on=slow, before=fast))
    assert table(replace(PAYS, segments=(row,)), "Time to first token")[1] == [
        "all",
        "7.00 s",
        "70x",
        "> 5 s",
        "> 5 s",
        "> 5 s",
    ]


def test_a_line_that_cannot_be_missed_or_reached_is_told_in_words() -> None:
    for value, text in ((-0.108, "any"), (0.412, "41.2%"), (1.37, "out of reach")):
        load = replace(PAYS.loads[0], break_even_acceptance=Ratio(value=value))
        assert table(replace(PAYS, loads=(load,)), "Speculation by load")[1][5] == text


def test_an_assumed_ratio_shows_no_interval() -> None:
    assert layout.ratio(Ratio(value=1.38, basis="assumed"))[:2] == ("about 1.4x, assumed", "~1.4")
    measured = layout.ratio(Ratio(value=1.618, lower=1.5, upper=1.72))
    assert measured == ("1.62x (1.50 to 1.72)", "1.62 (1.50-1.72)", "good", "")
    assert layout.ratio(None).text == "-"


def test_hours_have_two_figures() -> None:
    for amount, text in (
        (Amount(value=41.3, lower=37.6, upper=45.2), "41 h (38 to 45)"),
        (Amount(value=-1.26), "-1.3 h"),
        (Amount(value=-0.14, lower=-0.18, upper=-0.1), "-0.14 h (-0.18 to -0.10)"),
        (Amount(value=-0.001), "0.00 h"),
        (None, "-"),
    ):
        assert layout.hours(amount) == text


def test_a_speedup_is_coloured_where_its_whole_interval_is_on_one_side() -> None:
    for ratio, style in (
        (Ratio(value=0.9, lower=0.8, upper=0.99), "bad"),
        (Ratio(value=0.9, lower=0.8, upper=1.01), ""),
        (Ratio(value=1.2, lower=1.01, upper=1.3), "good"),
        (Ratio(value=1.2, lower=1.01, upper=1.3, basis="assumed"), ""),
    ):
        assert layout.ratio(ratio).style == style


def test_where_every_load_loses_it_is_to_be_switched_off() -> None:
    text = all_sentences(replace(PAYS, what_if=WhatIf(loads=(), setting=(), share=1.0, gain=1.25)))
    assert "so switch it off: the same work would have been done 1.25x as fast" in text
    assert "per_batch_size" not in text


def test_a_schedule_that_would_lose_as_much_is_not_recommended() -> None:
    assert PAYS.what_if is not None
    text = all_sentences(
        replace(PAYS, what_if=replace(PAYS.what_if, now=0.95, without_drafts=0.91))
    )
    assert "A schedule by batch size does not: 0 is standby: the drafter still runs" in text
    assert "per_batch_size" not in text
    assert "this is 0.19.1" in all_sentences(replace(PAYS, engine_version="0.19.1"))


def test_a_schedule_whose_gain_is_known_says_so() -> None:
    assert PAYS.what_if is not None
    cost = Ratio(value=1.1, lower=1.05, upper=1.15)
    known = replace(PAYS.what_if, now=0.8, without_drafts=0.91, standby_cost=cost, gain=1.02)
    text = all_sentences(replace(PAYS, what_if=known))
    assert "stops drafting there" in text
    assert (
        "With it the same work would have been done 1.02x as fast as it was: 0 is standby: the"
        " drafter still runs, and takes 1.10 times as long as off there (1.05 to 1.15, measured)"
    ) in text
    assert "drafts less there" in all_sentences(replace(PAYS, what_if=replace(known, fewer=0.95)))


def test_the_standby_cost_is_among_the_figures_or_why_it_is_not_known() -> None:
    traffic = replace(PAYS.traffic, seconds={Mode.STANDBY: 3600.0})
    known = replace(PAYS, traffic=traffic, standby_cost=Ratio(value=1.1, lower=1.05, upper=1.15))
    rows = {row[0]: row[1] for row in table(known, "Speedup, traffic and time")}
    assert rows["Time per token in standby over off"] == "1.10x (1.05 to 1.15)"
    unknown = replace(PAYS, traffic=traffic, standby_cost_missing="no baseline")
    assert "What standby costs against off is not known: no baseline." in all_sentences(unknown)
    assert "standby" not in all_sentences(replace(PAYS, what_if=None))


def test_the_time_that_the_engine_switched_off_is_among_the_figures() -> None:
    stopped = replace(PAYS, traffic=replace(PAYS.traffic, seconds={Mode.STOPPED: 3600.0}))
    rows = {row[0]: row[1] for row in table(stopped, "Speedup, traffic and time")}
    assert rows["Time in which the engine had switched it off"] == "1.0 h"


def test_what_was_not_measured_is_not_said_to_pay() -> None:
    low = replace(PAYS.loads[0], speedup=None)
    text = all_sentences(replace(PAYS, crossing=None, loads=(low, *PAYS.loads[1:3])))
    assert "At no load that was measured does speculation lose." in text
    assert "Of these loads nothing was measured: 1." in text


def test_a_best_k_that_is_not_known_says_why() -> None:
    text = all_sentences(replace(PAYS, best_k=None, best_k_unknown="varying_length"))
    assert "draft tokens is not known: drafts vary in length" in text
    assert "predicted to be none (speculation off)" in all_sentences(LOSES)


def rendered(report: Report, form: str) -> str:
    """All words of a form, without its markup."""
    if form == "html":
        text = page.read(report_html(report)).text
    elif form == "markdown":
        text = " ".join(
            "".join(child.content for child in block.children or ())
            for block in tokens(markdown(report))
        )
    else:
        text = plain(report, 1000).replace("`", "")
    return " ".join(text.split())


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_each_form_says_all_of_it(form: str) -> None:
    """The answer, what to do, and the sentences, captions and cells of all sections, in order."""
    text = rendered(replace(sample.full(), targets=(PAYS,)), form)
    place = 0
    wanted = [PAYS.answer.sentence, PAYS.answer.recommendation]
    for section in sections(PAYS):
        wanted.append(section.title)
        for part in section.parts:
            if isinstance(part, Sentence):
                wanted.append(part.text)
            elif isinstance(part, Listing):
                wanted += part.items
            elif isinstance(part, Table):
                wanted.append(part.caption)
                cells = [cell for row in part.rows for cell in row if cell.text not in ("", "-")]
                wanted += [
                    (cell.short or cell.text) if form == "text" else cell.text for cell in cells
                ]
    for words in wanted:
        words = " ".join(words.replace("`", "").split())
        assert words in text[place:], words
        place = text.index(words, place)

"""What every form of a report says, section by section; and that every form says it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.pages.report_html import report_html
from specwatch.report import layout
from specwatch.report.estimates import Amount, Bounds, Quantiles, Ratio, ReportLatency, WhatIf
from specwatch.report.layout import Listing, Part, Sentence, Table
from specwatch.report.markdown import markdown
from specwatch.report.model import ModelReport, Report
from specwatch.report.sections import sections
from specwatch.report.sections.answer import all_targets
from specwatch.report.text import plain
from tests.report import page, sample
from tests.report.test_markdown import tokens

PAYS, LOSES, ASSUMED = sample.full().targets
TITLES = [
    "The answer in figures", "Temperatures", "Latency", "Load", "Draft tokens, and what if",
    "Measured on purpose", "Objectives", "Guard and rules", "Changes", "Health of the data",
]  # fmt: skip


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


def test_sections_are_in_the_order_of_what_is_asked() -> None:
    assert [section.title for section in sections(PAYS)] == TITLES
    quiet = sample.blank()
    assert [section.title for section in sections(quiet)] == [TITLES[0], *TITLES[7:]]
    assert "Measured on purpose" not in [section.title for section in sections(ASSUMED)]


def test_the_overview_has_a_row_for_each_model() -> None:
    table = all_targets(sample.full()).parts[-1]
    assert isinstance(table, Table)
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[:5] for row in rows] == [
        ["code-32b", "Qwen/Qwen2.5-Coder-32B-Instruct", "loses", "0.88x (0.84 to 0.92)",
         "-19 server h (-26 to -12)"],
        ["chat-70b", "meta-llama/Llama-3.3-70B-Instruct", "pays", "1.62x (1.55 to 1.69)",
         "41 server h (38 to 45)"],
        ["embed-and-chat", "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "not known",
         "about 1.4x, assumed", "-"],
    ]  # fmt: skip
    assert rows[0][7] == "Switch speculation off."
    assert [row[5:7] for row in rows] == [["96,120", "42.9%"], ["284,310", "61.3%"],
                                          ["12,004", "52.0%"]]  # fmt: skip


ROWS = {
    "Traffic, acceptance and speedup": (2, [
        "0", "88,136", "31.0%", "74.2%", "-2.1", "40.8%", "74.2%", "96.5%", "3.97",
        "1.93x (1.81 to 2.05)",
    ]),
    "Time to first token": (2, [
        "0", "204 ms", "-4%", "+2%", "100 to 250 ms", "100 to 250 ms", "250 to 500 ms",
        "250 to 500 ms", "500 to 750 ms", "500 to 750 ms",
    ]),
    "Speculation by load": (7, [
        "33-64", "41.8", "9 h", "8.0%", "59.0%", "72.7%", "0.86x (0.81 to 0.91)",
        "3.91x (3.75 to 4.06)", "34.0 ms", "+16%", "100 to 250 ms", "100 to 250 ms",
    ]),
    "Speedup per token predicted": (1, [
        "Predicted speedup", "1.00x", "1.36x", "1.58x", "1.66x", "1.62x",
    ]),
    "Comparison of 2026-11-04 07:00 UTC": (3, [
        "32", "0.86x (0.81 to 0.91)", "1.49k", "1.73k", "-", "-", "do not",
    ]),
    "Probe of": (2, ["0.7", "41.8% (39.1 to 44.7)", "near the line", "1.01x (0.97 to 1.05)"]),
    "Objectives": (1, [
        "first-token", "99% TTFT within 500 ms, over 30 days", "284,310", "3,321", "27%",
        "61.1%", "2026-11-04 13:00 UTC: 411 of 2,950",
    ]),
    "Goodput": (1, ["on or off", "284,310", "98.7% to 98.8%", "0.471", "0.465 to 0.466"]),
    "Incidents": (1, [
        "chat-70b-6aeaf410", "2026-11-04 09:00 UTC", "2026-11-04 15:33 UTC", "6 h",
        "rule net-negative: measured speedup 0.89 (0.84 to 0.93), below 1",
        "switched off, and on again after a trial",
    ]),
    "What the guard did": (1, [
        "2026-11-04 09:00 UTC", "chat-70b-6aeaf410", "confirmed",
        "net-negative: speedup_ratio 0.89 (0.84 to 0.93)",
    ]),
    "Rules in breach": (2, [
        "losing-bucket", ">1", "warning", "9", "27 h", "2026-11-08 22:53 UTC",
    ]),
    "Before and after 2026-11-05 07:00 UTC": (1, ["Acceptance", "58.3%", "59.4%", "+1.1"]),
    "Requests whose acceptance": (2, ["the client went away before the end", "1,873"]),
}  # fmt: skip


@pytest.mark.parametrize("caption", ROWS)
def test_tables_have_their_figures(caption: str) -> None:
    number, row = ROWS[caption]
    assert table(PAYS, caption)[number] == row


def test_tables_have_a_row_for_each_temperature_mode_and_step() -> None:
    assert [row[0] for row in table(PAYS, "Traffic")[1:]] == ["all", *sample.BUCKETS]
    assert [row[0] for row in table(PAYS, "Goodput")[1:]] == ["on or off", "on", "off"]
    assert [row[2] for row in table(PAYS, "Incidents")[1:]] == ["2026-11-04 15:33 UTC", "not over"]
    assert len(table(PAYS, "What the guard did")) == 1 + 7 + 5
    assert table(LOSES, "Bench of")[1:] == [
        ["16", "1.31k", "84.2", "-"], ["4/s, in part", "402", "-", "31.0 ms"],
    ]  # fmt: skip
    assert table(PAYS, "Time to first token")[-1][-2] == "> 1.2067 s"
    for row in table(PAYS, "Share of drafts")[1:]:
        assert sum(float(cell.rstrip("%")) for cell in row[1:]) == pytest.approx(100, abs=0.3)


SENTENCES = (
    "The speedup of the answer and of all temperatures is of whole requests; those of single"
    " temperatures, loads and numbers of draft tokens are per token.",
    "Speculation pays up to about 32 running requests, and loses above that.",
    "The best number of draft tokens is predicted to be 3; it is 4.",
    "It loses above 32 running requests, 31.0% of the measured time",
    '`"num_speculative_tokens_per_batch_size": [[1, 32, 4], [33, 512, 0]]` in the speculative'
    " configuration stops drafting there; it needs vLLM 0.24 or later, no data parallelism; tested"
    " by vLLM with Eagle, Eagle-3 and DFlash only.",
    "What that gains has to be measured: 0 is standby: the drafter still runs; its cost is not",
    "With MTP there are reports of crashes at graph capture (vLLM issue 48494)",
    "2026-11-03 10:00 UTC, probe at temperatures 0, 0.7, 1.3, 4 requests at a time, broken off:"
    " what follows is what was measured until then. Break-even at load 3-4",
    "And 2 older experiments of this period.",
    "these figures are a lower and an upper bound",
    "With and without speculation the load was not equal: the difference is not the effect",
    "The guard had speculation off for 20 h.",
    "vLLM 0.31.0 became 0.32.0; draft tokens 5 became 4",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_it_is_told_in_a_sentence(sentence: str) -> None:
    assert sentence in all_sentences(PAYS)


@pytest.mark.parametrize(
    "sentence",
    [
        "The best number of draft tokens is not known.",
        "The guard had nothing to do: no incident.",
        "No rule was in breach.",
        "How many tokens of a draft were accepted is not known.",
        "The effect is not known: there is nothing to compare with.",
    ],
)
def test_what_is_not_there_is_one_sentence(sentence: str) -> None:
    model = sample.partial().targets[0]
    assert sentence in all_sentences(model)
    assert sentence not in all_sentences(PAYS)


def test_health_has_what_was_watched_and_where_temperatures_come_from() -> None:
    assert table(PAYS, "How well it was watched")[4:] == [
        ["Looks at the server", "117,310, and 212 that failed"],
        ["Restarts of the server", "3"],
        ["Temperatures come from", "the tap inside vLLM"],
        ["Drafts whose temperature is known", "97.3%"],
        ["Gaps", "3, the longest: 2026-11-05 02:00 UTC for 5 h; 2026-11-06 05:00 UTC for 4 min"],
    ]


def test_warnings_are_told_before_the_figures_of_health() -> None:
    warnings, *_ = sections(PAYS)[-1].parts
    assert warnings == Listing(["the tap was away for 12 minutes on 2026-11-05"], "warn")


def test_time_watched_time_down_and_time_not_watched_are_told_apart() -> None:
    assert table(sample.down().targets[0], "How well it was watched")[1:4] == [
        ["Time watched", "66.0% of 168.0 h"],
        ["Time that the server was down", "31.0% of 168.0 h"],
        ["Time that was not watched", "3.0% of 168.0 h"],
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
    row = replace(PAYS.temperatures[0], tpot=ReportLatency(on=on, off=off))
    assert table(replace(PAYS, temperatures=(row,)), "Time per output token")[1] == [
        "all", "10.2 ms", "-51%", *["10 to 25 ms"] * 4, "24.8 ms", "24.8 ms",
    ]  # fmt: skip


def test_what_lies_beyond_the_last_bound_says_so() -> None:
    slow = Quantiles(count=9, mean=7.0, p50=5.0, p95=5.0, p99=5.0, beyond=("p50", "p95", "p99"))
    fast = Quantiles(count=9, mean=0.1, p50=0.1, p95=0.1, p99=0.1)
    row = replace(PAYS.temperatures[0], ttft=ReportLatency(on=slow, before=fast))
    assert table(replace(PAYS, temperatures=(row,)), "Time to first token")[1] == [
        "all", "7.00 s", "70x", "> 5 s", "> 5 s", "> 5 s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(-0.108, "any"), (0.412, "41.2%"), (1.37, "out of reach")]
)
def test_a_line_that_cannot_be_missed_or_reached_is_told_in_words(value: float, text: str) -> None:
    load = replace(PAYS.loads[0], break_even_acceptance=Ratio(value=value))
    assert table(replace(PAYS, loads=(load,)), "Speculation by load")[1][5] == text


def test_an_assumed_ratio_shows_no_interval() -> None:
    assert layout.ratio(Ratio(value=1.38, basis="assumed"))[:2] == ("about 1.4x, assumed", "~1.4")
    measured = layout.ratio(Ratio(value=1.618, lower=1.5, upper=1.72))
    assert measured == ("1.62x (1.50 to 1.72)", "1.62 (1.50-1.72)", "good", "")
    assert layout.ratio(None).text == "-"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Amount(value=41.3, lower=37.6, upper=45.2), "41 h (38 to 45)"),
        (Amount(value=-1.26), "-1.3 h"),
        (Amount(value=-0.14, lower=-0.18, upper=-0.1), "-0.14 h (-0.18 to -0.10)"),
        (Amount(value=-0.001), "0.00 h"),
        (None, "-"),
    ],
)
def test_hours_have_two_figures(amount: Amount | None, text: str) -> None:
    assert layout.hours(amount) == text


@pytest.mark.parametrize(
    ("ratio", "style"),
    [
        (Ratio(value=0.9, lower=0.8, upper=0.99), "bad"),
        (Ratio(value=0.9, lower=0.8, upper=1.01), ""),
        (Ratio(value=1.2, lower=1.01, upper=1.3), "good"),
        (Ratio(value=1.2, lower=1.01, upper=1.3, basis="assumed"), ""),
    ],
)
def test_a_speedup_is_coloured_where_its_whole_interval_is_on_one_side(
    ratio: Ratio, style: str
) -> None:
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
    traffic = replace(PAYS.traffic, seconds_standby=3600.0)
    known = replace(PAYS, traffic=traffic, standby_cost=Ratio(value=1.1, lower=1.05, upper=1.15))
    rows = {row[0]: row[1] for row in table(known, "Speedup, traffic and time")}
    assert rows["Time per token in standby over off"] == "1.10x (1.05 to 1.15)"
    unknown = replace(PAYS, traffic=traffic, standby_cost_missing="no baseline")
    assert "What standby costs against off is not known: no baseline." in all_sentences(unknown)
    assert "standby" not in all_sentences(replace(PAYS, what_if=None))


def test_the_time_that_the_engine_switched_off_is_among_the_figures() -> None:
    stopped = replace(PAYS, traffic=replace(PAYS.traffic, seconds_stopped=3600.0))
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
                wanted += [(cell.short or cell.text) if form == "text" else cell.text
                           for cell in cells]  # fmt: skip
    for words in wanted:
        words = " ".join(words.replace("`", "").split())
        assert words in text[place:], words
        place = text.index(words, place)

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from jinja2 import UndefinedError
from msgspec.structs import replace

from specwatch.pages.environment import coded, render
from specwatch.pages.report_html import report_html
from specwatch.report.model import Report
from tests.report import page, sample
from tests.report.page import Element

SAMPLES: dict[str, Callable[[], Report]] = {
    "full": sample.full,
    "empty": sample.empty,
    "partial": sample.partial,
    "hostile": sample.hostile,
    "broken numbers": sample.broken_numbers,
}


@pytest.fixture(scope="module", params=SAMPLES)
def html(request: pytest.FixtureRequest) -> str:
    return report_html(SAMPLES[request.param]())


@pytest.fixture(scope="module")
def full() -> Element:
    return page.read(report_html(sample.full()))


def cells(table: Element) -> list[list[str]]:
    return [[each.text.strip() for each in row.all("th", "td")] for row in table.all("tr")]


def table_of(root: Element, caption: str, number: int = 0) -> list[list[str]]:
    found = [
        each for each in root.all("table") if next(each.all("caption")).text.startswith(caption)
    ]
    return cells(found[number])


def said(root: Element) -> str:
    return " ".join(root.text.split())


def test_it_is_one_file_without_scripts(html: str) -> None:
    root = page.read(html)
    names = {each.name for each in root.all()}
    assert not names & {"script", "iframe", "object", "embed", "img", "link", "form", "base"}
    for each in root.all():
        for name, value in each.attributes.items():
            assert not name.startswith("on"), (each.name, name)
            assert name != "style", "a strict policy forbids it, and mail clients too"
            if name in ("href", "src"):
                assert value.startswith("#"), value
    (style,) = root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    assert "var(" not in style.text


def test_headings_are_in_order_and_ids_are_unique(html: str) -> None:
    root = page.read(html)
    levels = [int(each.name[1]) for each in root.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = Counter(each.attributes["id"] for each in root.all() if "id" in each.attributes)
    assert max(ids.values(), default=1) == 1
    for each in root.all():
        for name in ("aria-labelledby", "aria-describedby"):
            for id_ in each.attributes.get(name, "").split():
                assert id_ in ids
        if each.attributes.get("href"):
            assert each.attributes["href"][1:] in ids


def test_tables_have_captions_and_headers(html: str) -> None:
    for table in page.read(html).all("table"):
        assert next(table.all("caption")).text.strip()
        rows = list(table.all("tr"))
        assert {each.attributes.get("scope") for each in rows[0].all("th")} == {"col"}
        width = len(list(rows[0].all("th")))
        assert len(rows) > 1, "not an empty table"
        for row in rows[1:]:
            assert [each.attributes.get("scope") for each in row.all("th")] == ["row"]
            assert len(list(row.all("th", "td"))) == width


def test_wide_tables_can_be_scrolled_by_keyboard_and_have_names_of_their_own(html: str) -> None:
    regions = [each for each in page.read(html).all() if each.attributes.get("role") == "region"]
    names = [each.attributes["aria-label"] for each in regions]
    assert len(set(names)) == len(names)
    assert all(each.attributes.get("tabindex") == "0" for each in regions)


def test_charts_are_told_in_words(html: str) -> None:
    root = page.read(html)
    for figure in root.all("figure"):
        assert next(figure.all("figcaption")).text.strip()
        for svg in figure.all("svg"):
            assert svg.attributes["role"] == "img"
            assert next(svg.all("desc")).text


def test_no_number_is_told_that_is_none(html: str) -> None:
    assert not re.search(r"[>\s\"(](nan|[-+]?inf|None)[<\s\"%)]", html)


def test_foreign_text_is_text_and_cut() -> None:
    html = report_html(sample.hostile())
    assert "<script" not in html
    assert "<img" not in html
    assert not set(html) & set("\x1b\x00\u202e\u2066\u200f\u2028\x07")
    assert len(html) < 400_000, "ten kilobytes are not said a hundred times"
    assert "</title><script>alert" in page.read(html).text


def test_the_answer_comes_first(full: Element) -> None:
    text = said(full)
    assert text.index("Speculation pays on 1 and loses on 1 of 3 targets") < text.index("Answers")
    overview = table_of(full, "All models")
    assert [row[0] for row in overview[1:]] == ["chat-70b", "code-32b", "embed-and-chat"]
    assert [row[2] for row in overview[1:]] == ["pays", "loses", "not known"]
    assert [row[3] for row in overview[1:]] == [
        "1.62x (1.55 to 1.69)", "0.88x (0.84 to 0.92)", "about 1.4x, assumed",
    ]  # fmt: skip
    assert [row[4] for row in overview[1:]] == [
        "165 GPU h (150 to 180)", "-19 server h (-26 to -12)", "-",
    ]  # fmt: skip


def test_sections_are_in_the_order_of_what_is_asked(full: Element) -> None:
    first = next(full.all("section"))
    assert [each.text for each in first.all("h3")] == [
        "The answer in figures", "Temperatures", "Latency", "Load", "Draft tokens, and what if",
        "Measured on purpose", "Objectives", "Guard and rules", "Changes", "Health of the data",
    ]  # fmt: skip


def test_temperatures_have_share_acceptance_its_spread_and_the_speedup(full: Element) -> None:
    rows = table_of(full, "Traffic, acceptance and speedup")
    assert rows[0][0] == "Temperature"
    assert [row[0] for row in rows[1:]] == ["all", *sample.BUCKETS]
    assert rows[2] == [
        "0", "88,136", "31.0%", "74.2%", "-2.1", "40.8%", "74.2%", "96.5%", "3.97",
        "1.93x (1.81 to 2.05)",
    ]  # fmt: skip


def test_latency_is_against_before_and_against_off(full: Element) -> None:
    rows = table_of(full, "Time to first token with speculation")
    assert rows[0][1:6] == ["Mean", "Mean against before", "Mean against off", "P50", "P50 off"]
    assert rows[2][1:6] == ["204 ms", "-4%", "+2%", "100 to 250 ms", "100 to 250 ms"]
    assert rows[-1][0] == ">1"
    assert rows[-1][-2] == "> 1.2067 s"


def test_lengths_are_shares_of_the_drafts(full: Element) -> None:
    rows = table_of(full, "Share of drafts by the number")
    assert rows[0] == ["Temperature", "0", "1", "2", "3", "4"]
    for row in rows[1:]:
        assert sum(float(cell.rstrip("%")) for cell in row[1:]) == pytest.approx(100, abs=0.3)


def test_load_says_where_it_stops_to_pay(full: Element) -> None:
    assert "Speculation pays up to about 32 running requests, and loses above that." in said(full)
    rows = table_of(full, "Speculation by load")
    assert rows[-1][0] == "33-64"
    assert "0.86x (0.81 to 0.91)" in rows[-1]


def test_best_k_and_what_if_say_the_setting(full: Element) -> None:
    text = said(full)
    assert "The best number of draft tokens is predicted to be 3; it is 4." in text
    assert "predicted to be none (speculation off)" in text
    assert "Speedup per token predicted for each number of draft tokens" in text
    assert (
        "The speedup of the answer and of all temperatures is of whole requests; those of single"
        " temperatures, loads and numbers of draft tokens are per token."
    ) in text
    (setting,) = {
        each.text for each in next(full.all("section")).all("code") if "per_batch" in each.text
    }
    assert setting == '"num_speculative_tokens_per_batch_size": [[1, 32, 4], [33, 512, 0]]'


def test_what_was_measured_on_purpose_has_its_sentence_and_its_figures(full: Element) -> None:
    text = said(full)
    assert (
        "2026-11-03 10:00 UTC, probe at temperatures 0, 0.7, 1.3, 4 requests at a time, broken off:"
        " what follows is what was measured until then. Break-even at load 3-4"
    ) in text
    assert "And 2 older experiments of this period." in text
    assert table_of(full, "Comparison of 2026-11-04 07:00 UTC")[-1] == [
        "32", "0.86x (0.81 to 0.91)", "1.49k", "1.73k", "-", "-", "do not",
    ]  # fmt: skip
    assert table_of(full, "Probe of")[-1] == [
        "0.7", "41.8% (39.1 to 44.7)", "near the line", "1.01x (0.97 to 1.05)",
    ]  # fmt: skip
    assert table_of(full, "Bench of")[1:] == [
        ["16", "1.31k", "84.2", "-"], ["4/s, in part", "402", "-", "31.0 ms"],
    ]  # fmt: skip
    sections = list(full.all("section"))
    assert "Measured on purpose" not in [each.text for each in sections[2].all("h3")]


def test_objectives_have_their_budget_and_worst_hour(full: Element) -> None:
    rows = table_of(full, "Objectives")
    assert rows[1] == [
        "first-token", "99% TTFT within 500 ms, over 30 days", "284,310", "3,321", "27%",
        "61.1%", "2026-11-04 13:00 UTC: 411 of 2,950",
    ]  # fmt: skip
    assert rows[2][1].startswith("99.9% TPOT within 50.0 ms")


def test_goodput_has_bounds_by_mode_and_what_they_do_not_say(full: Element) -> None:
    rows = table_of(full, "Goodput")
    assert rows[1:] == [
        ["on or off", "284,310", "98.7% to 98.8%", "0.471", "0.465 to 0.466"],
        ["on", "251,400", "99.2% to 99.3%", "0.473", "0.469 to 0.470"],
        ["off", "32,910", "95.1%", "0.457", "0.434"],
    ]
    text = said(full)
    assert "these figures are a lower and an upper bound" in text
    assert "With and without speculation the load was not equal: the difference is not" in text


def test_goodput_without_requests_is_not_told_and_where_it_is_not_known_that_is() -> None:
    report = sample.partial()
    assert "Goodput" not in said(page.read(report_html(report)))
    model = report.targets[0]
    silent = replace(model.goodput[0], requests=9.0, met=None)
    report = replace(report, targets=(replace(model, goodput=(silent,)),))
    text = said(page.read(report_html(report)))
    assert "Goodput is unknown where no request was measured against one of the" in text
    assert "the load was not equal" not in text


def test_the_guard_tells_every_incident_and_step(full: Element) -> None:
    incidents = table_of(full, "Incidents")
    assert [row[2] for row in incidents[1:]] == ["2026-11-04 15:33 UTC", "not over"]
    steps = table_of(full, "What the guard did")
    assert len(steps) == 1 + 7 + 5
    assert steps[1][2:] == ["confirmed", "net-negative: speedup_ratio 0.89 (0.84 to 0.93)"]
    assert "The guard had speculation off for 20 h." in said(full)
    assert table_of(full, "Rules in breach")[2][:4] == ["losing-bucket", ">1", "warning", "9"]


def test_changes_and_health_are_told(full: Element) -> None:
    rows = table_of(full, "Before and after 2026-11-05 07:00 UTC")
    assert ["Acceptance", "58.3%", "59.4%", "+1.1"] in rows
    text = said(full)
    assert "vLLM 0.31.0 became 0.32.0; draft tokens 5 became 4" in text
    assert "the tap was away for 12 minutes" in text
    health = table_of(full, "How well it was watched")
    assert ["Drafts whose temperature is known", "97.3%"] in health
    assert ["Looks at the server", "117,310, and 212 that failed"] in health


def test_time_watched_time_down_and_time_not_watched_are_told_apart() -> None:
    health = table_of(page.read(report_html(sample.down())), "How well it was watched")
    assert health[1:4] == [
        ["Time watched", "66.0% of 168.0 h"],
        ["Time that the server was down", "31.0% of 168.0 h"],
        ["Time that was not watched", "3.0% of 168.0 h"],
    ]


def test_an_assumed_speedup_always_says_so() -> None:
    report = replace(sample.full(), targets=sample.full().targets[2:])
    root = page.read(report_html(report))
    figures = [
        cell
        for table in root.all("table")
        for row in cells(table)
        for cell in row
        if re.search(r"\d\.\dx", cell)
    ]
    assert figures
    assert all("assumed" in each for each in figures), figures


def test_one_model_needs_no_overview() -> None:
    report = replace(sample.full(), targets=sample.full().targets[:1])
    root = page.read(report_html(report))
    assert not list(root.all("nav"))
    assert "Speculation pays on chat-70b" in said(root)


def test_what_is_not_there_is_one_sentence() -> None:
    root = page.read(report_html(sample.partial()))
    sections = list(root.all("section"))
    text = said(sections[0])
    for sentence in (
        "The best number of draft tokens is not known.",
        "The guard had nothing to do: no incident.",
        "No rule was in breach.",
        "How many tokens of a draft were accepted is not known.",
        "The effect is not known: there is nothing to compare with.",
    ):
        assert sentence in text
    assert [each.text for each in sections[1].all("h3")] == [
        "The answer in figures", "Guard and rules", "Changes", "Health of the data",
    ]  # fmt: skip


def test_nothing_at_all_is_a_page_too() -> None:
    text = said(page.read(report_html(sample.empty())))
    assert "Nothing was watched" in text
    assert "there is no history" in text


def test_fifty_targets_have_a_table_that_leads_to_them() -> None:
    models = tuple(sample.blank(f"gpu-{number}") for number in range(50))
    root = page.read(report_html(replace(sample.full(), targets=models)))
    links = [each.attributes["href"] for each in root.all("a")]
    assert len(links) == 50
    assert links[49] == "#target-50"
    assert len(list(root.all("section"))) == 50


def test_styles_are_for_light_dark_and_paper(full: Element) -> None:
    (style,) = full.all("style")
    assert "@media screen and (prefers-color-scheme: dark)" in style.text
    assert "@media print" in style.text


def test_code_is_what_stands_between_backticks_and_escaped() -> None:
    assert coded("run `a <b>` & wait") == "run <code>a &lt;b&gt;</code> &amp; wait"
    assert coded("one ` <i>") == "one ` &lt;i&gt;"


def test_a_template_that_lacks_a_value_fails() -> None:
    with pytest.raises(UndefinedError):
        render("report.html.j2", title="x")


def test_a_daemon_that_nobody_looks_at_does_not_load_the_templates() -> None:
    script = "import sys, specwatch.pages.report_html as r; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def every_pair(root: Element) -> Iterator[str]:
    for each in root.all("td"):
        if each.attributes.get("class") == "pair-of":
            yield each.text


def test_an_interval_is_not_broken_inside(full: Element) -> None:
    """Its cell may have two lines, of which the interval is one."""
    assert "1.93x (1.81 to 2.05)" in set(every_pair(full))

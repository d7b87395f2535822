"""Every query of the dashboards and of the rules finds something in a real Prometheus.

It scrapes the daemon and a real vLLM with the tap, under load; :mod:`tests.e2e.queries_story` tells
how. What finds nothing there is listed here with the reason, and must find nothing.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.dashboards.__main__ import main as draw
from tests.dashboards.asking import Asker, Span
from tests.dashboards.board import Board, Kind, Query, boards
from tests.dashboards.prometheus import PrometheusApi, Series
from tests.e2e.conftest import StartVllm
from tests.e2e.processes import CHECKOUT
from tests.e2e.queries_story import TARGET, Period, Story
from tests.e2e.rule_queries import evaluated_at_once, named, questions, rules_in
from tests.lab.vllm_server import VllmServer

GONE = {
    "vllm:gpu_cache_usage_perc": "up to vLLM 0.11",
}
"""Metrics that this vLLM has not, as others have; each is asked for beside its successor."""
NOTHING_DONE = "the guard observes, and does nothing"
NO_RESTART = "the engine is not restarted while Prometheus looks"
NO_DAY_BEFORE = "Prometheus has seen some minutes"
NO_EXPERIMENT = "the target has no experiment"
MEASURED = "there is a baseline, so that nothing is assumed"
FILTERED = {NOTHING_DONE, NO_RESTART, NO_DAY_BEFORE}
"""Those that do find something if comparisons do not filter, and the day before is today."""
EMPTY: dict[tuple[str, str, str], str] = {
    **{
        (f"specwatch-{board}", name, ""): reason
        for board in ("dimension", "fleet", "guard", "overview")
        for name, reason in (("Guard actions", NOTHING_DONE), ("Engine restarts", NO_RESTART))
    },
    **{
        ("specwatch-overview", name, letter): NO_EXPERIMENT
        for name, letters in (
            ("Speedup of other numbers of draft tokens", "ABC"),
            ("Speedup by load, temperature and prompt length", "ABC"),
            ("Episodes", "A"),
        )
        for letter in letters
    },
    ("specwatch-guard", "Actions and their results", "A"): NOTHING_DONE,
    ("specwatch-guard", "Actions within an hour", "A"): NOTHING_DONE,
    ("specwatch-overview", "Does it pay now?", "D"): MEASURED,
    ("specwatch-overview", "Speedup and its 95 % interval", "D"): MEASURED,
    ("specwatch-overview", "Acceptance against the break-even line", "C"): MEASURED,
    ("specwatch-dimension", "Acceptance by value, and where it breaks even", "E"): MEASURED,
    ("specwatch-dimension", "Acceptance of single requests", "D"): MEASURED,
    ("specwatch-stock", "Acceptance, and a day before", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "Tokens per step, and a day before", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "Drafts", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "TTFT P99, and a day before", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "TPOT P99, and a day before", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "TPOT P99 / P50, and a day before", "B"): NO_DAY_BEFORE,
    ("specwatch-stock", "Tokens, and a day before", "C"): NO_DAY_BEFORE,
}
"""Queries that find nothing, by dashboard, panel and letter, and why."""
CHOSEN = {"specwatch-overview": {"target": [TARGET]}}
"""Of what is repeated for each target: nothing is known of the one that is out of reach."""
EMPTY_RULES = {
    "SpeculationAcceptanceShift": "specwatch has seen an hour, and compares with the day before",
    "SpeculationRankOutlier": "the server has one data-parallel rank",
    "SpecwatchReportOverdue": "no report is made there",
    "SpecwatchReportUndelivered": "no report is made there",
    "VllmTailWidening": "Prometheus has seen some minutes, and compares with what it recorded",
}
"""Rules of which a part finds nothing, and why."""
ASSUMED = {
    "specwatch_assumed_break_even_acceptance_ratio": "specwatch_speedup_measured",
}
"""What rules ask for that is there only without a baseline, and what else has its labels."""

RULE_FILES = {file.name: file.read_text() for file in (CHECKOUT / "alerts").glob("*.rules.yml")}
BOARDS = boards()


@pytest.fixture(scope="module")
def period(
    tapped_server: VllmServer,
    start_vllm: StartVllm,
    tap: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Period]:
    rule_files = {name: evaluated_at_once(text) for name, text in RULE_FILES.items()}
    folder = tmp_path_factory.mktemp("queries")
    with start_vllm(*tap) as off, Story(folder, tapped_server, off).play(rule_files) as story:
        yield story


@pytest.fixture(scope="module")
def prometheus(period: Period) -> PrometheusApi:
    return PrometheusApi(period.prometheus.url)


def span(period: Period) -> Span:
    """As Grafana shows it, with the default interval of its data source.

    Its last step is the end, as some things came up in the last seconds.
    """
    every = Span(period.begun, period.ended).scrape_interval
    return Span(
        period.ended - every * math.ceil((period.ended - period.begun) / every),
        period.ended,
    )


def is_data(found: Sequence[Series]) -> bool:
    return any(not math.isnan(value) for series in found for _, value in series.points)


def finds(asker: Asker, query: Query) -> bool:
    if query.kind is Kind.VARIABLE:
        return bool(asker.options(query.expr))
    return all(is_data(each.answer(query)) for each in asker.repeated(query.repeat))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboards_queries_return_data(
    period: Period, prometheus: PrometheusApi, board: Board
) -> None:
    """Of its panels, variables and annotations; but for those that are known to find nothing."""
    asker = Asker(board, prometheus, span(period), CHOSEN.get(board.name, {}))
    queries = list(board.queries())
    assert {query.kind for query in queries} >= {Kind.PANEL, Kind.VARIABLE}
    empty = {place(query): str(query) for query in queries if not finds(asker, query)}
    known = {where for where in EMPTY if where[0] == board.name}
    assert {where: text for where, text in empty.items() if where not in known} == {}
    assert known <= empty.keys(), "these do find something"
    for query in queries:
        if EMPTY.get(place(query)) in FILTERED:
            for question in questions(asker.query_text(query.expr)):
                assert is_data(prometheus.query(question, period.ended)), question


def place(query: Query) -> tuple[str, str, str]:
    return query.board, query.place, query.ref


def test_the_dashboards_and_the_rules_are_there() -> None:
    assert len(BOARDS) == 5
    assert len(RULE_FILES) == 2
    assert {where[0] for where in EMPTY} <= {board.name for board in BOARDS}
    assert set(EMPTY_RULES) <= {name for name, _ in rules_in(RULE_FILES)}


def test_every_rule_is_evaluated_without_an_error(period: Period) -> None:
    assert len(period.rules) == len(list(rules_in(RULE_FILES)))
    errors = {
        rule["name"]: rule.get("lastError") for rule in period.rules if rule["health"] != "ok"
    }
    assert errors == {}


def test_every_rule_asks_for_something_that_is_there(
    period: Period, prometheus: PrometheusApi
) -> None:
    """Under the labels that it has there, on both sides of each operator."""
    empty: dict[str, list[str]] = {}
    for name, expr in rules_in(RULE_FILES):
        for question in questions(_as_without_a_baseline(expr), GONE):
            if not is_data(prometheus.query(question, period.ended)):
                empty.setdefault(name, []).append(question)
    assert {name: asked for name, asked in empty.items() if name not in EMPTY_RULES} == {}
    assert set(EMPTY_RULES) <= empty.keys(), "these do find something"


def _as_without_a_baseline(expr: str) -> str:
    """An expression with stand-ins for what is only assumed: the rest of it is asked for too."""
    for name, stand_in in ASSUMED.items():
        expr = expr.replace(name, stand_in)
    return expr


def test_older_metrics_are_absent(period: Period, prometheus: PrometheusApi) -> None:
    assert set(GONE) <= named(
        [question for _, expr in rules_in(RULE_FILES) for question in questions(expr)]
    )
    assert [name for name in GONE if prometheus.query(f"{{__name__='{name}'}}", period.ended)] == []


def test_every_dashboard_can_be_drawn(
    period: Period, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No panel is blank but those all of whose queries are known to find nothing."""
    minutes = span(period).seconds / 60
    words = f"--prometheus {period.prometheus.url} --folder {tmp_path} --end {period.ended}"
    expected = []
    for board in BOARDS:
        chosen = [f"{name}={','.join(v)}" for name, v in CHOSEN.get(board.name, {}).items()]
        sets = [word for value in chosen for word in ("--set", value)]
        draw([*words.split(), "--minutes", f"{minutes}", "--only", board.name, *sets])
        blank = ", ".join(blank_panels(board))
        file = tmp_path / f"{board.name}.html"
        drawn = html.unescape(file.read_text())
        titles = {query.place for query in board.queries() if query.kind is Kind.PANEL}
        assert [title for title in titles if title not in drawn] == []
        expected.append(f"{file}: {f'{blank} without' if blank else 'every panel with'} data")
    assert capsys.readouterr().out.splitlines() == expected


def blank_panels(board: Board) -> list[str]:
    panels: dict[str, bool] = {}
    for query in board.queries():
        if query.kind is Kind.PANEL:
            panels[query.place] = panels.get(query.place, True) and place(query) in EMPTY
    return [title for title, is_blank in panels.items() if is_blank]


def test_questions_of_a_rule_have_answers_when_nothing_is_wrong() -> None:
    """Comparisons return 0 or 1, exclusions must exist, each alternative is asked for."""
    asked = questions("a < 1 and on (t) b offset 1h > 2 unless on (t) c == 1")
    assert [each.replace("{}", "") for each in asked] == [
        "((a) < bool (1) and on (t) (b) > bool (2)) and on (t) ((c) == bool (1))"
    ]
    asked = questions('absent(up{job="x"}) or (rate(new[5m]) or rate(old[5m]))', ["old"])
    assert [each.replace("{}", "") for each in asked] == ['up{job="x"}', "(rate(new[5m]))"]

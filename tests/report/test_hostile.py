"""Whatever a model or a target is called: it stays a name, in every format."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.domain.model import (
    Batch,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.pages.report_html import report_html
from specwatch.report.markdown import markdown
from specwatch.report.model import Report, schema
from specwatch.report.reader import read_report
from specwatch.report.text import plain as plain_text
from specwatch.store.packing import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests.report import page
from tests.report.experiments import comparison, probe
from tests.report.page import Element

NAMES = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>\"'`",
    "entities": "&lt;b&gt; &amp;amp; ]]> --> <!--",
    "lines": "a\nb\r\nc\u2028d\u2029e\x0bf\x85g",
    "a table": "a | b || c \\| d\n| --- | --- |\n| x | y |",
    "control": "a\x1b[31mred\x1b[0m\x07\x08\x00\x7f\x9b2J",
    "right to left": "abc\u202egnp.exe\u202c \u2066x\u2069 \u200f\u200e\u061c",
    "invisible": "a\u200bb\u2060c\ufeffd\u00ad",
    "emoji": "🦙🚀 👩‍👩‍👧‍👦 ❤️ 🇩🇪",
    "combining": "Z" + "\u0354\u035a\u033b" * 40,
    "very long": "x" * 10_000,
    "very long words": "<b>lama</b> " * 1_000,
    "templates": "{{ 7 * 7 }} {% raw %} ${7*7} %(x)s {0} #{7}",
    "links": "[a](javascript:alert(1)) <http://x> ![b](http://x/y.png) `c` **d** # e",
    "blank": "  ",
    "urls": "javascript:alert(1)//http://127.0.0.1:8000/?a=1&b=<2>",
}
START = 1_795_003_200 - 1_795_003_200 % 3600
MINUTES = 40
TEMPERATURES = ("all", "0", "unknown", "(0.3,0.7]<b>|\n</b>")
BOUNDS = (0.05, 0.1, 0.2, 0.4)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return NAMES[request.param]


@pytest.fixture(scope="module")
def report(name: str, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a target and a model of that name, which was in the store and came out again."""
    return report_of(name, tmp_path_factory.mktemp("hostile"))


def report_of(name: str, folder: Path) -> Report:
    url = f"sqlite:///{folder}/specwatch.db"
    end = START + MINUTES * 60
    store = Store(url, daemon="d", host="h", pid=1)
    store.open(START)
    minutes = (tuple(windows(name, minute)) for minute in range(MINUTES))
    store.write([pack_batch(Batch(minute, None)) for minute in minutes], end)
    for each in (probe(end - 1, name), comparison(end - 2, name)):
        store.add_experiment(each, end)
    store.close(end)
    reader = Reader.of(url)
    try:
        return read_report(reader, since=START, until=end, now=end)
    finally:
        reader.close()


def windows(name: str, minute: int) -> Iterator[Window]:
    """A minute with speculation or, late in the period, without."""
    mode = Mode.OFF if minute >= 28 else Mode.ON
    for temperature in TEMPERATURES:
        drafted = {"drafts": 300, "draft_tokens": 1200, "accepted_tokens": 500,
                   "accepted_per_position": (200, 150, 100, 50)}  # fmt: skip
        pace = 0.1 if mode is Mode.OFF else 0.06
        yield Window(
            series=SeriesId("d", name, name, temperature),
            start=START + 60 * minute,
            length=60,
            mode=mode,
            tally=Tally(
                **(drafted if mode is Mode.ON else {}),  # type: ignore[arg-type]
                prompt_tokens=1000,
                generation_tokens=800,
                requests={"stop": 9, "length<b>\n": 1},
                ttft=Histogram(BOUNDS, (1, 5, 3, 1, 0), 1.0),
                tpot=Histogram(BOUNDS, (4, 4, 2, 0, 0), 10 * pace),
                inter_token=Histogram((), (500,), 790 * (pace + minute % 3 / 1000)),
                uncovered={"endpoint<b>\n": 1, "stop_string": 1} if temperature != "all" else {},
            ),
            gauges=Gauges(60.0, 60.0, 60.0 * 3),
            environment=Environment(f"0.32.0{name[:200] if minute > 5 else ''}", "abcdef-4"),
            server_drafts=300,
            source_drafts=300,
            observed_seconds=60.0,
            scrapes_ok=12,
        )


def test_the_name_goes_through_the_store_and_back(report: Report, name: str) -> None:
    (found,) = report.targets
    assert found.traffic.requests == 10 * MINUTES
    assert found.answer.speedup is not None
    assert found.answer.speedup.basis == "measured"
    assert [experiment.kind for experiment in found.experiments] == ["probe", "comparison"]
    for each in (found.model_name, found.target):
        # A database takes no NUL, and an index no name of any length.
        assert each.startswith(name.partition("\0")[0][:500])
        assert len(each) < 700


def test_text_moves_no_cursor_and_turns_no_line(report: Report) -> None:
    """At any width, and no line is longer than it."""
    for width in (60, 80, 200):
        text = plain_text(report, width)
        assert unprintable(text) == set()
        assert len(text) < 60_000


def test_json_is_what_its_schema_says(report: Report) -> None:
    encoded = msgspec.json.encode(report)
    assert msgspec.json.decode(encoded, type=Report) == report
    plain = json.loads(encoded)
    assert msgspec.convert(plain, Report) == report
    known = schema()
    assert list(problems(plain, known, known["$defs"])) == []


def problems(value: Any, wanted: Mapping[str, Any], named: Mapping[str, Any]) -> Iterator[str]:
    """Where a value is not as a JSON schema says, by as much of the standard as there is in it."""
    wanted = named[wanted["$ref"].rpartition("/")[2]] if "$ref" in wanted else wanted
    known = {"$schema", "title", "description", "default", "$defs", "$ref", "anyOf", "type", "enum",
             "properties", "required", "items", "prefixItems", "minItems", "maxItems",
             "additionalProperties"}  # fmt: skip
    assert set(wanted) <= known, wanted
    if "anyOf" in wanted:
        if all(any(problems(value, each, named)) for each in wanted["anyOf"]):
            yield f"{value!r:.80} is none of {wanted['anyOf']}"
        return
    if "enum" in wanted and value not in wanted["enum"]:
        yield f"{value!r:.80} is not in {wanted['enum']}"
    if "type" in wanted and not isinstance(value, TYPES[wanted["type"]]):
        yield f"{value!r:.80} is no {wanted['type']}"
        return
    if isinstance(value, dict):
        fields = wanted.get("properties", {})
        yield from (
            f"{each} is missing" for each in wanted.get("required", ()) if each not in value
        )
        for key, each in value.items():
            inner = fields.get(key, wanted.get("additionalProperties", False))
            if inner is False:
                yield f"{key!r:.80} is not known"
            elif inner is not True:
                yield from problems(each, inner, named)
    if isinstance(value, list):
        first = wanted.get("prefixItems", ())
        for at, each in enumerate(value):
            inner = first[at] if at < len(first) else wanted.get("items", False)
            if inner is False:
                yield f"{at} is one too many"
            else:
                yield from problems(each, inner, named)


TYPES: Mapping[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None),
}  # fmt: skip


@pytest.fixture(scope="module")
def html(report: Report) -> Element:
    return page.read(report_html(report))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Element:
    """The same report of a model with a decent name."""
    return page.read(report_html(report_of("chat", tmp_path_factory.mktemp("plain"))))


def test_html_has_the_elements_of_any_other_report(html: Element, plain: Element) -> None:
    """A name adds no element and no attribute, and closes none."""
    # What is quoted in backticks is shown as code, in a name as anywhere else.
    made, expected = (
        [(one.name, *one.attributes) for one in root.all() if one.name != "code"]
        for root in (html, plain)
    )
    assert made == expected
    assert len(html.text) < 2 * len(plain.text) + 50_000


def test_html_leads_nowhere(html: Element) -> None:
    page.require_alone(html)


def test_markdown_keeps_a_row_in_a_line(report: Report) -> None:
    """Every table has as many cells in each row as in its head, and no markup from a name."""
    text = markdown(report)
    assert unprintable(text) == set()
    assert "<script" not in text
    assert "<img" not in text
    rows = 0
    for table in tables(text):
        widths = {len(cells(row)) for row in table}
        assert len(widths) == 1, table[:3]
        rows += len(table)
    assert rows > 10


def tables(text: str) -> Iterator[list[str]]:
    """Runs of lines that are rows."""
    table: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            table.append(line)
        elif table:
            yield table
            table = []


def cells(row: str) -> list[str]:
    return re.split(r"(?<!\\)(?:\\\\)*\|", row)


def unprintable(text: str) -> set[str]:
    """Characters that move the cursor, turn the direction of writing or break a line."""
    return {
        each
        for each in text
        if each != "\n" and (unicodedata.category(each) in ("Cc", "Zl", "Zp", "Cs") or each in BIDI)
    }


BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")

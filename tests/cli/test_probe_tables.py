"""A probe as lines: their width, the bars, and foreign text."""

from __future__ import annotations

import re

import msgspec
import pytest

from specwatch.cli.load_tables import probe_lines
from specwatch.domain.experiments import (
    Acceptance,
    Distribution,
    Estimate,
    Line,
    Probe,
    ProbeTemperature,
    Subject,
    Workload,
    Zone,
)
from specwatch.wording.break_even_zones import line_sentence
from tests.cli.conftest import texts
from tests.plugins.golden import Golden

ASSUMED = Line(acceptance=Estimate(value=0.1), basis="assumed")


def measured(value: float, width: float = 0.05) -> Line:
    shown = Estimate(value=value, lower=value - width, upper=value + width)
    return Line(acceptance=shown, basis="measured", load="3-4")


def one(temperature: float, rate: float, zone: Zone, *, k: int = 4) -> ProbeTemperature:
    latency = Distribution(count=20, mean=0.2, p50=0.18, p95=1.4, p99=12.25)
    return ProbeTemperature(
        temperature=temperature,
        requests=20,
        errors={"timeout": 1} if zone == "loses" else {},
        tokens=2560,
        source="records",
        acceptance=Acceptance(
            drafts=1234,
            draft_tokens=4936,
            accepted_tokens=round(4936 * rate),
            rate=Estimate(value=rate, lower=rate - 0.1, upper=rate + 0.1),
            mean_length=1 + 4 * rate,
            histogram=(123,) * (k + 1),
            per_position=(0.5,) * k,
        ),
        ttft=latency,
        tpot=latency,
        speedup=Estimate(value=1.23, lower=1.1, upper=1.4),
        zone=zone,
    )


def probe(line: Line = ASSUMED, *temperatures: ProbeTemperature) -> Probe:
    return Probe(
        version="1",
        began=0.0,
        ended=1.0,
        complete=True,
        subject=Subject(
            target="chat",
            url="http://h",
            model_name="a\x1b[31mb",
            mode="on",
            k=4,
            engine_version="0.32.0",
        ),
        workload=Workload(
            endpoint="chat",
            source="mine.txt",
            prompts=3,
            digest="x",
            max_tokens=128,
            temperatures=(0.0,),
            seed=0,
        ),
        concurrency=2,
        temperatures=temperatures
        or (one(0.0, 0.8, "wins"), one(0.7, 0.6, "near"), one(1.3, 0.2, "loses")),
        line=line,
        alone=True,
        notes=("something \x07 to know",),
    )


def lines(shown: Probe, width: int = 80, *, fancy: bool = True) -> list[str]:
    return [line.rstrip() for line in texts(probe_lines(shown, width, fancy=fancy))]


@pytest.mark.parametrize("width", [20, 33, 40, 60, 80, 120])
@pytest.mark.parametrize("line", [ASSUMED, measured(0.3), measured(-0.2), measured(1.4)])
def test_no_line_is_wider_than_the_terminal(width: int, line: Line) -> None:
    wide = one(0.123456789, 0.5, "near", k=30)
    assert max(map(len, lines(probe(line, wide, one(1.0, 0.4, "loses")), width))) <= width
    assert max(map(len, lines(probe(line), width))) <= width


def test_foreign_text_cannot_control_the_terminal() -> None:
    text = "\n".join(lines(probe()))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"a\x1b[31mb on chat, engine 0.32.0, k = 4" in text


def test_a_bar_shows_the_interval_and_the_line() -> None:
    """Solid up to the lower bound of the interval, shaded up to the upper one."""
    shown = lines(probe(measured(0.3, 0.1)), 80)
    (row,) = [text for text in shown if text.startswith("    0 ") and "wins" in text]
    bar = row[6 : 80 - len(" 100.0% unknown")]
    assert bar.index("▒") == round(0.7 * 59)
    assert len(bar.rstrip()) == round(0.9 * 59)
    assert bar.index("│") == round(0.3 * 59)
    assert [index for index, text in enumerate(bar) if text == "┊"] == [
        round(0.2 * 59),
        round(0.4 * 59),
    ]
    plain = "\n".join(lines(probe(measured(0.3, 0.1)), 80, fancy=False))
    assert plain.isascii()
    assert "80.0% wins" in plain


@pytest.mark.parametrize(
    ("line", "sentence", "drawn"),
    [
        (ASSUMED, "break-even: about 10%, by the assumed draft cost", True),
        (measured(0.3), "break-even at load 3-4, measured: 30.0% (25.0-35.0)", True),
        (measured(-0.2), "a step costs no more than a plain one, so any acceptance gains", False),
        (measured(1.4), "140.0%, beyond what drafts can reach", False),
    ],
)
def test_the_break_even_line_is_described(line: Line, sentence: str, drawn: bool) -> None:
    assert sentence in line_sentence(line)
    assert ("│" in "".join(lines(probe(line)))) is drawn


@pytest.mark.golden
def test_a_probe_is_a_sentence_a_chart_and_tables(golden: Golden) -> None:
    """The sentence lists zones, the best first."""
    golden("cli/probe.txt", "\n".join(lines(probe(measured(0.3)))) + "\n")
    every = probe(ASSUMED, one(0.0, 0.8, "wins"), one(0.7, 0.6, "wins"))
    assert lines(every)[0].startswith("Speculation pays at every temperature; break-even: ")


def test_without_any_acceptance_latencies_are_shown() -> None:
    bare = msgspec.structs.replace(
        one(0.5, 0.5, "unknown"), acceptance=None, speedup=None, source="none"
    )
    text = "\n".join(lines(probe(ASSUMED, bare)))
    assert "180 ms" in text
    assert text.startswith("Speculation does not clearly pay or lose at temperature 0.5; ")
    assert "█" not in text


def test_a_quantile_of_too_few_is_a_dash_that_keeps_its_column() -> None:
    few = msgspec.structs.replace(one(0.7, 0.6, "near"), ttft=Distribution(count=9, mean=1, p50=1))
    shown = lines(probe(ASSUMED, one(0.0, 0.8, "wins"), few))
    index = next(index for index, text in enumerate(shown) if "TTFT p50" in text)
    head, whole, missing = shown[index : index + 3]
    assert missing.split() == ["0.7", "1.00", "s", "-", "-", "180", "ms", "1.40", "s", "12.2", "s"]
    ends = [
        [match.end() for match in re.finditer(r"(\d ?m?s|-)(?= |$)", text)]
        for text in (whole, missing)
    ]
    assert ends[0] == ends[1]
    assert head.index("p95") + len("p95") == ends[0][1]
    assert max(map(len, shown)) <= 80

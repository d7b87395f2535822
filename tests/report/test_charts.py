from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from specwatch.report import charts
from specwatch.report.charts.drawing import DARK, LIGHT
from specwatch.report.estimates import Ratio
from specwatch.report.fleet import worst_first
from specwatch.report.model import AcceptancePoint, LatencyPoint, Report, ReportSeries
from tests.report import sample
from tests.report.drawing import Drawing
from tests.report.sample import HOUR, SINCE, UNTIL

DRAW: dict[str, Callable[..., str]] = {
    "acceptance": lambda r, m, p="a": charts.acceptance(
        m.series, r.since, r.until, p, segments=m.segments
    ),
    "ttft": lambda r, m, p="f": charts.latency(m.series, "ttft", r.since, r.until, p),
    "tpot": lambda r, m, p="o": charts.latency(m.series, "tpot", r.since, r.until, p),
    "speedup": lambda r, m, p="s": charts.speedup_by_load(
        m.loads, None if m.crossing is None else m.crossing.running, p
    ),
    "histogram": lambda r, m, p="h": charts.histogram(m.segments, p),
    "over_time": lambda r, m, p="v": charts.speedup_over_time(
        m.series, m.incidents, r.since, r.until, p
    ),
    "forest": lambda r, m, p="n": charts.forest([m], p),
}
BAD = (math.nan, math.inf, -math.inf, 1e300, -1e300, -1.0, 0.0, 1e-300, None)


def drawn(name: str, report: Report | None = None, which: int = 0) -> Drawing:
    report = report or sample.full()
    return Drawing(DRAW[name](report, report.targets[which]))


@pytest.mark.parametrize("name", DRAW)
def test_a_chart_is_all_on_the_picture_and_told_in_words(name: str) -> None:
    """Text has at least 11 of 336 pixels; colours are attributes, as mail clients drop styles."""
    drawing = drawn(name)
    drawing.inside()
    drawn(name, which=1).inside()
    assert drawing.places
    assert drawing.title
    assert re.search(r"\d", drawing.words), "its figures"
    width = float(drawing.root.get("viewBox", "").split()[2])
    assert float(drawing.root.get("font-size", "0")) * 336 / width >= 11
    for element in drawing.root.iter():
        if element.tag.endswith(("path", "circle", "rect", "line")):
            assert (element.get("fill") or "none") != "none" or element.get("stroke")
        if element.tag.endswith("text"):
            assert element.get("fill")
        assert not element.get("style")


@pytest.mark.parametrize("name", DRAW)
def test_two_charts_of_a_page_share_no_id(name: str) -> None:
    report = sample.full()

    def made(prefix: str) -> str:
        return DRAW[name](report, report.targets[0], prefix)

    ids = [set(re.findall(r' id="([^"]*)"', made(prefix))) for prefix in ("t1", "t2")]
    assert ids[0]
    assert not ids[0] & ids[1]
    root = Drawing(made('"><script>')).root
    assert re.fullmatch(r"[\w-]+-title [\w-]+-desc", root.get("aria-labelledby", ""))


def require_sound(svg: str) -> None:
    """Fail on a number that is none, or on markup from a name."""
    assert not re.search(r"\b(nan|inf)\b", svg)
    assert not set(svg) & {"\x1b", "\u202e"}
    assert len(svg) < 60_000
    if svg.startswith("<svg"):
        drawing = Drawing(svg)
        assert all(map(math.isfinite, drawing.places))
        drawing.inside()


@pytest.mark.parametrize("report", [sample.hostile(), sample.broken_numbers()], ids=["h", "n"])
@pytest.mark.parametrize("name", DRAW)
def test_hostile_names_stay_text_and_numbers_that_are_none_are_left_out(
    name: str, report: Report
) -> None:
    for model in report.targets:
        svg = DRAW[name](report, model)
        assert "<script" not in svg
        require_sound(svg)


def test_any_number_can_be_a_speedup() -> None:
    for bad in BAD:
        load = sample.full().targets[0].loads[3]
        ratios = [Ratio(value=1.5, lower=bad, upper=bad), Ratio(value=1.5, lower=bad)]
        if bad is not None:
            ratios += [Ratio(value=bad, lower=0.5, upper=2.0), Ratio(value=bad, basis="assumed")]
        for ratio in ratios:
            row = replace(load, speedup=ratio, share=bad or 0.0, running=bad or 0.0)
            require_sound(charts.speedup_by_load([row, row], bad))


def test_any_number_can_be_a_latency_or_a_rate() -> None:
    for bad in BAD:
        latencies = {"ttft_p50": bad, "ttft_p99": 0.5, "tpot_p50": bad, "tpot_p99": bad}
        point = LatencyPoint(start=SINCE, mode="on", requests=1, **latencies)
        rate = AcceptancePoint(start=SINCE, drafts=-1, rate=bad)
        series = ReportSeries(step=HOUR, acceptance={"all": (rate, rate)}, latency=(point, point))
        for svg in (
            charts.latency(series, "ttft", SINCE, UNTIL),
            charts.latency(series, "tpot", SINCE, SINCE),
            charts.acceptance(series, SINCE, UNTIL),
        ):
            require_sound(svg)


def test_a_bucket_without_a_measured_speedup_has_no_colour_of_gain_or_loss() -> None:
    (first, *_) = sample.full().targets
    plain = tuple(replace(bucket, speedup=None) for bucket in first.segments)
    lines = Drawing(charts.acceptance(first.series, SINCE, UNTIL, segments=plain))
    assert {item.get("class") for item in lines.all("path")} == {"s0", "s1", "s7"}
    assert {bar.get("class") for bar in Drawing(charts.histogram(plain)).all("rect")} == {"f0"}
    bars = drawn("histogram").all("rect")
    assert {bar.get("class") for bar in bars} == {"f2", "f4"}


def test_the_forest_has_the_interval_of_each_target_about_the_line_at_1() -> None:
    drawing = Drawing(charts.forest(worst_first(sample.full().targets)))
    assert "code-32b 0.88x (0.84 to 0.92); chat-70b 1.62x (1.55 to 1.69)" in drawing.words
    (even, _) = drawing.pieces("s7")
    intervals = {
        item.get("class"): (float(item.get("x1", "")), float(item.get("x2", "")))
        for item in drawing.all("line")
        if item.get("y1") == item.get("y2")
    }
    assert intervals["s4"][1] < even[0][0] < intervals["s2"][0]
    names = [text for text in drawing.texts if text in ("code-32b", "chat-70b", "embed-and-chat")]
    assert names == ["code-32b", "chat-70b", "embed-and-chat"]


def test_the_forest_of_many_has_the_worst_and_the_best_on_one_screen() -> None:
    drawing = Drawing(charts.forest(worst_first(sample.many(50).targets)))
    drawing.inside()
    assert drawing.texts.count("0.88x") == 8
    assert drawing.texts.count("1.62x") == 4
    assert "22 more between" in drawing.texts
    assert float(drawing.root.get("viewBox", "").split()[3]) < 420


def test_the_speedup_over_time_is_above_or_below_1_beside_what_was_off() -> None:
    report = sample.full()
    drawing = drawn("over_time", which=1)
    across = [float(gap.get("x", "")) for gap in drawing.all("rect") if gap.get("class") == "f6"]
    assert len(across) == 1
    (even, _) = drawing.pieces("s7")[0]
    for bar in drawing.all("rect"):
        top = float(bar.get("y", ""))
        if bar.get("class") == "f4":
            assert top == pytest.approx(even[1], abs=0.1), "a loss hangs from the line"
        elif bar.get("class") == "f2":
            assert top + float(bar.get("height", "")) == pytest.approx(even[1], abs=1)
    losses = sum(point.value < 1 for point in report.targets[1].series.speedup)
    assert sum(bar.get("class") == "f4" for bar in drawing.all("rect")) == losses > 0
    assert "incident of the guard" in drawing.texts
    assert "off" in drawing.texts


@pytest.mark.parametrize("name", DRAW)
def test_of_nothing_there_is_a_sentence(name: str) -> None:
    report = replace(sample.full(), targets=(sample.blank(),))
    sentence = DRAW[name](report, report.targets[0])
    assert re.fullmatch(r'<p class="nothing">[A-Z][^<]*\.</p>', sentence)


def test_acceptance_has_a_line_for_each_bucket_with_gaps_where_nothing_ran() -> None:
    drawing = drawn("acceptance")
    assert drawing.texts[-6:] == [
        "0 pays",
        "(0,0.3] pays",
        "(0.3,0.7] pays",
        "(0.7,1] pays",
        ">1 loses",
        "all",
    ]
    # Hours 74 to 79 nobody watched: two pieces, and the sample in the legend.
    assert len(drawing.pieces("s7")) == 3
    assert len(drawing.pieces("s2")) == 4 * 3, "green are those that pay"
    # And no traffic at night.
    assert len(drawing.pieces("s4")) == 7 + 1
    before, after, _ = drawing.pieces("s7")
    assert len(before) == 74
    assert len(after) == 168 - 79


def test_acceptance_is_where_its_rate_is() -> None:
    rates = (0.0, 0.5, 1.0)
    points = tuple(
        AcceptancePoint(start=SINCE + i * HOUR, drafts=9, rate=rate) for i, rate in enumerate(rates)
    )
    series = ReportSeries(step=HOUR, acceptance={"all": points})
    drawing = Drawing(charts.acceptance(series, SINCE, SINCE + 3 * HOUR))
    (low, middle, high), _ = drawing.pieces("s7")
    assert middle[1] == pytest.approx((low[1] + high[1]) / 2, abs=0.1)
    assert middle[0] == pytest.approx((low[0] + high[0]) / 2, abs=0.1)
    assert low[1] > high[1], "up is more"
    assert "50.0% on average, 0.0% to 100.0%" in drawing.words


def test_the_mean_in_words_is_weighed_by_drafts() -> None:
    points = (
        AcceptancePoint(start=SINCE, drafts=900, rate=0.5),
        AcceptancePoint(start=SINCE + HOUR, drafts=100, rate=1.0),
    )
    series = ReportSeries(step=HOUR, acceptance={"0": points})
    assert "55.0% on average" in Drawing(charts.acceptance(series, SINCE, UNTIL)).words


def test_the_busiest_of_many_buckets_are_drawn() -> None:
    acceptance = {
        f"({i},{i + 1}]": (AcceptancePoint(start=SINCE, drafts=100 + i, rate=0.5),)
        for i in range(30)
    }
    drawing = Drawing(
        charts.acceptance(ReportSeries(step=HOUR, acceptance=acceptance), SINCE, UNTIL)
    )
    assert drawing.texts[-6:] == [f"({i},{i + 1}]" for i in range(24, 30)]


def test_latency_tells_the_modes_by_colour_and_the_quantiles_by_dashes() -> None:
    drawing = drawn("ttft")
    assert drawing.texts[-4:] == ["P50 on", "P99 on", "P50 off", "P99 off"]
    dashes = {
        (element.get("class"), element.get("stroke-dasharray") is not None)
        for element in drawing.all("path")
    }
    assert dashes == {("s0", False), ("s0", True), ("s6", False), ("s6", True)}
    assert drawn("ttft", which=2).texts[-2:] == ["P50 on", "P99 on"]


def test_an_outlier_does_not_hide_the_median() -> None:
    """From a certain ratio on the scale is logarithmic, and says so."""
    points = tuple(
        LatencyPoint(
            start=SINCE + i * HOUR,
            mode="on",
            requests=9,
            ttft_p50=0.1,
            ttft_p99=p99,
            tpot_p50=None,
            tpot_p99=None,
        )
        for i, p99 in enumerate((0.2, 60.0, 0.2))
    )
    drawing = Drawing(charts.latency(ReportSeries(step=HOUR, latency=points), "ttft", SINCE, UNTIL))
    assert "logarithmic" in drawing.words
    assert "logarithmic" not in drawn("ttft").words


def test_the_speedup_has_intervals_the_break_even_line_and_the_crossing() -> None:
    drawing = drawn("speedup")
    for text in ("2.31", "0.86", "33-64", "8%", "break-even", "wins", "loses", "loses from 32"):
        assert text in drawing.texts, text
    assert "at 33-64 running 0.86x (0.81 to 0.91)" in drawing.words
    assert "It crosses 1 at about 32 running." in drawing.words


def test_what_loses_differs_by_shape_too() -> None:
    drawing = drawn("speedup")
    discs = [element for element in drawing.all("circle") if element.get("class") == "f2"]
    squares = [item for item in drawing.all("path") if item.get("class") == "f4"]
    assert len(discs) == 6 + 1, "six loads, and the legend"
    assert len(squares) == 1 + 1


def test_an_assumed_speedup_says_so_and_has_no_interval() -> None:
    drawing = drawn("speedup", which=2)
    assert "assumed" in drawing.texts
    assert "2.3x, assumed" in drawing.words
    assert "2.31" not in drawing.texts


def test_the_crossing_is_marked_between_its_neighbours() -> None:
    """23.4 running are in the sixth bin, 41.8 in the seventh: 31.6 lies about in the middle."""
    drawing = drawn("speedup")
    mark = [entry for entry in drawing.all("line") if entry.get("stroke-dasharray") == "2 3"]
    assert len(mark) == 1
    bins = [element for element in drawing.all("text") if element.text in ("17-32", "33-64")]
    low, high = (float(item.get("x", "")) for item in bins)
    assert float(mark[0].get("x1", "")) == pytest.approx((low + high) / 2, abs=2)


def test_the_histogram_has_a_bar_for_every_number_of_accepted_tokens() -> None:
    drawing = drawn("histogram")
    assert len(drawing.all("rect")) == 6 * 5
    assert [text for text in drawing.texts if text in ("all", *sample.BUCKETS[1:])] == [
        "all",
        *sample.BUCKETS[1:],
    ]
    assert re.search(r"temperature >1: 0 in 53%, 1 in 25%", drawing.words)


def test_a_histogram_of_many_tokens_still_fits() -> None:
    row = sample.full().targets[0].segments[1]
    wide = replace(row, acceptance=replace(row.acceptance, histogram=tuple(range(33))))
    drawing = Drawing(charts.histogram([wide]))
    assert len(drawing.all("rect")) == 33
    assert drawing.texts[-1] != "32", "labels are thinned out"
    drawing.inside()


def test_the_sparkline_is_small_and_says_what_it_is() -> None:
    points: list[tuple[float, float | None]] = [(0, 0.5), (1, 0.7), (2, None), (3, 0.6), (4, 0.6)]
    drawing = Drawing(charts.sparkline(points, 'Acceptance of "<b>"'))
    assert drawing.root.get("aria-label") == drawing.title == 'Acceptance of "<b>"'
    assert drawing.root.get("width") == "120"
    assert len(drawing.pieces("s0")) == 2, "None breaks the line"
    drawing.inside()
    nothing = charts.sparkline([], "no <traffic>")
    assert nothing == '<span class="nothing">no &lt;traffic&gt;</span>'


def test_any_number_can_be_in_a_sparkline() -> None:
    for bad in BAD:
        points: list[tuple[float, float | None]] = [(0, bad), (1, bad), (2, 0.5), (bad or 0.0, 0.5)]
        for svg in (charts.sparkline(points, "x"), charts.sparkline(points[:2], "x")):
            require_sound(svg)


def luminance(colour: str) -> float:
    """Source: WCAG 2.1, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("palette", "ground"), [(LIGHT, "#ffffff"), (DARK, "#15191e")])
def test_every_colour_can_be_seen_on_its_ground(palette: tuple[str, ...], ground: str) -> None:
    for colour in palette:
        assert contrast(colour, ground) >= 3, colour

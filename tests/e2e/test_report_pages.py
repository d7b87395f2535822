"""The report and the status page in a real browser: on a phone, in the dark and on paper.

That they contain no scripts and load nothing, the tests of their rooms prove.

With SPECWATCH_SCREENSHOTS=FOLDER the pages are left there as pictures, to be looked at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.domain.model import ALL
from specwatch.pages.mail_html import mail_html
from specwatch.pages.report_html import report_html
from specwatch.report.model import Report
from tests.e2e import browser, npm
from tests.e2e.browser import Chromium, Page
from tests.e2e.conftest import unavailable
from tests.e2e.processes import DaemonProcess, SimulatedVllm
from tests.e2e.waiting import eventually
from tests.report import sample

SAMPLES: dict[str, Callable[[], Report]] = {
    "full": sample.full,
    "empty": sample.empty,
    "partial": sample.partial,
    "hostile": sample.hostile,
}
AXE_VERSION = "4.14.1"
STATUS = "status"
MIDDLING = 768


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if browser.program() is None:
        unavailable("no Chromium is installed (Debian: chromium)")
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core: the checks of accessibility that a browser can do by itself."""
    folder = tmp_path_factory.mktemp("axe")
    npm.package(folder, dependencies={"axe-core": AXE_VERSION})
    npm.install(folder)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One that watches a simulated vLLM with traffic at several temperatures."""
    folder = tmp_path_factory.mktemp("daemon")
    flags = [
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 4}',
        "--middleware",
        "specwatch_tap.Tap",
        "--per-request-spec-decode-metrics",
        "summary",
        "--simulated-rate",
        "4",
    ]
    with SimulatedVllm(folder / "vllm.log", *flags) as vllm:
        vllm.wait_ready()
        config = {"targets": [{"name": "chat", "url": vllm.url, "interval": "1s"}]}
        database = f"sqlite:///{folder}/specwatch.db"
        with DaemonProcess.configured(folder / "own", database, config) as running:
            running.wait(
                lambda status: all(each["last_success"] for each in status["targets"]),
                what="it has seen the server",
            )
            yield running


@pytest.fixture(scope="module")
def left_open(chromium: Chromium, daemon: DaemonProcess) -> Iterator[tuple[Page, str]]:
    """A tab with the status page, without scripts, and what it said; nobody touches it."""
    with chromium.page(scripts=False) as page:
        page.open(f"{daemon.url}/")
        yield page, page.text()


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory,
    daemon: DaemonProcess,
    left_open: tuple[Page, str],  # so that it waits meanwhile
) -> dict[str, str]:
    """URLs of all pages."""
    folder = tmp_path_factory.mktemp("reports")
    found = {STATUS: f"{daemon.url}/"}
    for name, made in SAMPLES.items():
        file = folder / f"{name}.html"
        file.write_text(report_html(made()), encoding="utf-8")
        found[name] = file.as_uri()
    return found


@pytest.fixture(scope="module")
def lived(daemon: DaemonProcess) -> None:
    """Return when there is something to show on the status page: a whole minute of traffic."""
    eventually(
        lambda: (
            {window.series.segment for window in daemon.windows() if window.tally.drafts} > {ALL}
        ),
        what="a minute by temperature is stored",
        within=180.0,
        every=1.0,
    )


def keep(page: Page, name: str) -> None:
    """Leave a picture where somebody wants to look at them."""
    if wanted := os.environ.get("SPECWATCH_SCREENSHOTS"):
        Path(wanted).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(wanted) / f"{name}.png")


@pytest.mark.parametrize(
    ("width", "height", "texts"),
    [
        (390, 844, ["Of 50 targets", "What to do"]),
        (1280, 800, ["Of 50 targets", "What to do", "as fast as off"]),
    ],
    ids=["phone", "screen"],
)
def test_the_first_screen_has_the_total_and_what_to_do(
    chromium: Chromium, tmp_path: Path, width: int, height: int, texts: list[str]
) -> None:
    """On a wide screen all of the forest plot too: its legend is at its end."""
    file = tmp_path / "report.html"
    file.write_text(report_html(sample.many(50)), encoding="utf-8")
    with chromium.page(width=width, height=height) as page:
        page.open(file)
        keep(page, f"fifty-{width}")
        ends = page.evaluate(ENDS.replace("TEXTS", json.dumps(texts)))
        assert all(0 < end <= height for end in ends), ends


@pytest.mark.parametrize("name", ["full", "hostile"])
def test_sections_tables_and_plots_are_not_split_on_paper(
    chromium: Chromium, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(SAMPLES[name]()), encoding="utf-8")
    with chromium.page(width=700, media="print") as page:
        page.open(file)
        split = page.evaluate(SPLIT)
        assert split == []


@pytest.mark.parametrize("width", [390, 800])
def test_a_mail_fits_the_window_and_has_all_pictures(
    chromium: Chromium, tmp_path: Path, width: int
) -> None:
    """As a mail program shows it: with the pictures that came with it."""
    body = mail_html(sample.many(50))
    for name, picture in body.pictures.items():
        (tmp_path / name).write_bytes(picture)
    file = tmp_path / "mail.html"
    file.write_text(body.html.replace("cid:", ""), encoding="utf-8")
    with chromium.page(width=width) as page:
        page.open(file)
        keep(page, f"mail-{width}")
        assert page.overflow() == []
        assert page.evaluate("[...document.images].map(image => image.naturalWidth)") == [1040] * 6
        assert page.problems() == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (MIDDLING, "dark"), (1440, "light")])
@pytest.mark.parametrize("name", [*SAMPLES, STATUS])
def test_a_page_is_sound(
    chromium: Chromium,
    places: dict[str, str],
    rules: str,
    name: str,
    width: int,
    scheme: str,
    request: pytest.FixtureRequest,
) -> None:
    """Nothing on the console, nothing refused or missing, nothing wider than the window, and
    readable by everybody: narrow and dark, wide and light."""
    if name == STATUS:
        request.getfixturevalue("lived")
    with chromium.page(width=width, scheme=scheme) as page:
        page.open(places[name])
        keep(page, f"{name}-{width}-{scheme}")
        assert page.overflow() == []
        if width != MIDDLING:  # it takes the longest, and has the same elements there
            assert page.violations(rules) == []
        assert page.problems() == []


@pytest.mark.parametrize("name", [*SAMPLES, STATUS])
def test_a_page_follows_the_colour_scheme(
    chromium: Chromium, places: dict[str, str], name: str
) -> None:
    with chromium.page(scheme="light") as page:
        page.open(places[name])
        assert brightness(page) > 0.8
        page.view(scheme="dark")
        assert brightness(page) < 0.25


@pytest.mark.parametrize("name", SAMPLES)
def test_a_report_prints_on_white_paper(
    chromium: Chromium, places: dict[str, str], name: str
) -> None:
    """Even from a browser that is dark; and no table or plot is cut off at the right."""
    with chromium.page(width=700, scheme="dark", media="print") as page:
        page.open(places[name])
        keep(page, f"{name}-print")
        assert brightness(page) > 0.8
        assert page.overflow() == []
        assert page.evaluate(HIDDEN) == []
        assert page.pdf().startswith(b"%PDF")


def test_the_status_page_refreshes_itself(left_open: tuple[Page, str]) -> None:
    """Without scripts, and what it shows then is newer."""
    page, before = left_open
    page.wait_loaded(2, what="it is loaded again", within=90.0)
    assert page.text() != before


def test_the_status_page_follows_the_daemon(chromium: Chromium, daemon: DaemonProcess) -> None:
    """With scripts it is never loaded again, and is new within seconds after each minute."""
    with chromium.page() as page:
        page.open(f"{daemon.url}/")
        before = page.evaluate("document.querySelector('time').dateTime")
        eventually(
            lambda: page.evaluate("document.querySelector('time').dateTime") != before,
            what="it shows a later minute",
            within=120.0,
            every=1.0,
        )
        assert "Follows the daemon" in page.text()
        assert len(page.happened("Page.loadEventFired")) == 1
        assert page.problems() == []


def brightness(page: Page) -> float:
    """Of the background, 0 for black to 1 for white."""
    colour = page.evaluate(BACKGROUND)
    red, green, blue = (int(each) for each in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 765


BACKGROUND = """
[document.body, document.documentElement].map(each => getComputedStyle(each).backgroundColor)
    .filter(each => !/, 0\\)$/.test(each)).concat("rgb(255, 255, 255)")[0]
"""
ENDS = """
TEXTS.map(text => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode())
        if (walker.currentNode.textContent.includes(text)
            && walker.currentNode.parentElement.checkVisibility())
            return walker.currentNode.parentElement.getBoundingClientRect().bottom;
    return -1;
})
"""
SPLIT = """
[...document.querySelectorAll(".part, figure, table")]
    .filter(each => getComputedStyle(each).breakInside !== "avoid" && !each.closest(".part"))
    .filter(each => !each.closest(".wide"))
    .map(each => each.outerHTML.slice(0, 120))
"""
HIDDEN = """
[...document.querySelectorAll("table, svg")].filter(each => {
    const box = each.getBoundingClientRect();
    if (!box.width) return false;
    for (let up = each.parentElement; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== "visible"
            && box.right > up.getBoundingClientRect().right + 1) return true;
    return false;
}).map(each => each.outerHTML.slice(0, 120))
"""

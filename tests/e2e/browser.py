"""A headless Chromium that tests drive over its DevTools protocol, through a pipe.

Methods and events are those of https://chromedevtools.github.io/devtools-protocol.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

WITHIN = 60.0
"""Seconds for an answer, or for a page to load."""
PHONE = 500
"""A narrower page is shown as on a phone: as wide as its viewport tag says."""
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
    "--force-color-profile=srgb",
)
_DOMAINS = ("Page", "Runtime", "Log", "Network")
# On the pipe it reads descriptor 3 and writes descriptor 4.
_LAUNCH = 'exec "$0" "$@" 3<&{reads} 4>&{writes}'

Event = dict[str, Any]


def program() -> str | None:
    """The path of Chromium; None if it is not installed."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


class BrowserError(AssertionError):
    """The browser refused, ended, or did not answer in time."""


class Chromium:
    """One browser with its own profile in ``folder``; ends with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "chromium.log"
        self._number = 0
        self._buffer = b""
        self._answers: dict[int, Event] = {}
        self._events: dict[str, list[Event]] = {}

    def __enter__(self) -> Self:
        path = program()
        assert path is not None, "no Chromium is installed"
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        launch = _LAUNCH.format(reads=reads, writes=writes)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                # Should the test run be killed, it ends with it.
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "bash",
                    "-c",
                    launch,
                    path,
                    *_FLAGS,
                    *sandbox,
                    f"--user-data-dir={self._folder / 'profile'}",
                    "about:blank",
                ],
                pass_fds=(reads, writes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(reads)
        os.close(writes)
        return self

    def __exit__(self, *_exception: object) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close", within=10)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Its own session: whatever of it is left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
            os.close(self._to)
            os.close(self._from)

    @contextlib.contextmanager
    def page(self, **view: Any) -> Iterator[Page]:
        """A new tab, seen as in :meth:`Page.view`."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)[
            "sessionId"
        ]
        page = Page(self, session)
        try:
            for domain in _DOMAINS:
                page.call(f"{domain}.enable")
            page.view(**view)
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)
            self._events.pop(session, None)

    def call(
        self, method: str, *, session: str | None = None, within: float = WITHIN, **parameters: Any
    ) -> dict[str, Any]:
        """What the browser answers to a method; BrowserError when it refuses."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        _write(self._to, json.dumps(message).encode() + b"\0")
        self.wait(lambda: number in self._answers, what=method, within=within)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, until: Callable[[], bool], *, what: str, within: float = WITHIN) -> None:
        """Read messages of the browser until ``until`` returns true."""
        deadline = time.monotonic() + within
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                raise BrowserError(f"{what}: nothing within {within:g} s")
            if select.select([self._from], [], [], left)[0]:
                self._read(what)

    def events(self, session: str) -> list[Event]:
        """What happened in a tab so far, as events in their order."""
        return self._events.setdefault(session, [])

    def _read(self, what: str) -> None:
        read = os.read(self._from, 1 << 20)
        if not read:
            log = self._log.read_text(errors="replace")[-4000:]
            raise BrowserError(f"{what}: the browser ended\n{log}")
        *messages, self._buffer = (self._buffer + read).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif session := message.get("sessionId"):
                self.events(session).append(message)


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol, of this tab."""
        return self._browser.call(method, session=self._session, **parameters)

    def view(
        self,
        *,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        media: str = "screen",
        scripts: bool = True,
    ) -> None:
        """Show it so wide (CSS pixels), ``light`` or ``dark``, on ``screen`` or in ``print``."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            screenWidth=width,
            screenHeight=height,
            deviceScaleFactor=1,
            mobile=width < PHONE,
        )
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, place: str | Path) -> None:
        """Load a URL or a file and return once all of it is there."""
        url = place.absolute().as_uri() if isinstance(place, Path) else place
        self._browser.events(self._session).clear()
        answer = self.call("Page.navigate", url=url)
        assert not answer.get("errorText"), f"{url}: {answer['errorText']}"
        self.wait_loaded(1, what=f"{url} loads")

    def wait_loaded(self, times: int, *, what: str, within: float = WITHIN) -> None:
        """Return once the page was loaded so often since it was opened."""
        self._browser.wait(
            lambda: len(self.happened("Page.loadEventFired")) >= times, what=what, within=within
        )

    def happened(self, method: str) -> list[Event]:
        """The parameters of all events of a kind since the page was opened."""
        events = self._browser.events(self._session)
        return [event["params"] for event in events if event["method"] == method]

    def problems(self) -> list[str]:
        """Errors and warnings of the console, what was refused by a policy, what did not load."""
        self.evaluate("0")  # so that whatever came before it was read
        return [
            line
            for event in self._browser.events(self._session)
            if (line := _problem(event["method"], event["params"]))
        ]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def text(self) -> str:
        """The visible text."""
        return str(self.evaluate("document.body.innerText"))

    def overflow(self) -> list[str]:
        """Elements that make the page wider than the window; empty when it fits."""
        found: list[str] = self.evaluate(_OVERFLOW)
        return found

    def screenshot(self, file: Path) -> None:
        """Write the whole page to a PNG file, its tail cut off after 16000 pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], 16000),
            "scale": 1,
        }
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        printed = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(printed["data"])

    def violations(self, axe: str) -> list[str]:
        """What axe-core, given as its source, finds wrong: rule, elements and reason."""
        # Not as a <script>: a policy of the page would refuse it.
        self.evaluate(f"{axe};0")
        found = self.evaluate(_AXE)
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]}: {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"][:5]
        ]


_AXE = """
axe.run(document, {
    runOnly: {type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]},
    resultTypes: ["violations"],
}).then(found => JSON.parse(JSON.stringify(found)))
"""
_OVERFLOW = """
(() => {
    const root = document.documentElement, wide = root.clientWidth;
    if (root.scrollWidth <= wide && wide <= window.screen.width) return [];
    const scrolls = element => {
        for (let up = element.parentElement; up && up !== root; up = up.parentElement)
            if (up !== document.body && getComputedStyle(up).overflowX !== "visible") return true;
        return false;
    };
    const out = [...document.body.querySelectorAll("*")]
        .filter(each => each.getBoundingClientRect().right > wide + 0.5 && !scrolls(each))
        .map(each => `${each.outerHTML.slice(0, 120)}: ${each.getBoundingClientRect().right}`);
    return [`${root.scrollWidth} pixels in ${wide}`, ...out.slice(0, 10)];
})()
"""


def _problem(method: str, event: Mapping[str, Any]) -> str | None:
    """The problem that an event reports, if any."""
    if method == "Runtime.exceptionThrown":
        return f"exception: {json.dumps(event['exceptionDetails'])[:500]}"
    if method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
        return f"console {event['type']}: {json.dumps(event['args'])[:500]}"
    if method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
        entry = event["entry"]
        return f"{entry['source']} {entry['level']}: {entry['text']} {entry.get('url', '')}"
    if method == "Network.loadingFailed" and not event.get("canceled"):
        return f"not loaded: {event['errorText']} {event.get('blockedReason', '')}"
    if method == "Network.responseReceived" and event["response"]["status"] >= 400:
        return f"{event['response']['status']} {event['response']['url']}"
    return None


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

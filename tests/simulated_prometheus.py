"""A simulated Prometheus: it serves the part of the HTTP API that a backfill uses, from pages.

Only the queries that specwatch sends are understood. Ranges are closed on both sides, as up to
Prometheus 2; the real one is met in the end-to-end tests.
"""

from __future__ import annotations

import bisect
import functools
import io
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

import requests
import urllib3
from prometheus_client.parser import text_string_to_metric_families
from requests.adapters import HTTPAdapter

Labels = dict[str, str]
Series = tuple[Labels, list[tuple[float, float]]]

_MATCHER = re.compile(r'(\w+)(=~|=)("(?:[^"\\]|\\.)*")')
_COUNT = re.compile(r"count_over_time\((\{.*\})\[1m\]\)")
_RANGE = re.compile(r"(\{.*\})\[([0-9]+)ms\]")
_GROUP = re.compile(r"group by \((\w+)\) \(last_over_time\((\{.*\})\[1h\]\)\)")


class Recording:
    """What was scraped."""

    def __init__(self) -> None:
        self.series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}

    def scrape(self, page: str, at: float, **labels: str) -> None:
        """Take in a page that a server with these labels showed at a time."""
        for own, value in _samples(page):
            key = tuple(sorted({**own, **labels}.items()))
            self.series.setdefault(key, []).append((at, value))

    def add(self, other: Recording, since: float = 0.0, until: float = 1e11, **more: str) -> None:
        """Take in a span of another, under further labels."""
        for key, points in other.series.items():
            inside = [point for point in points if since <= point[0] < until]
            if inside:
                labels = tuple(sorted({**dict(key), **more}.items()))
                self.series.setdefault(labels, []).extend(inside)


@functools.cache
def _samples(page: str) -> list[tuple[Labels, float]]:
    """Several recordings are of the same pages."""
    return [
        ({"__name__": sample.name, **sample.labels}, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


class RecordedPrometheus:
    """Answers from a recording; ``asked`` has the path, parameters and headers of every query.

    Refuses queries that would touch more than ``most_samples``. ``refusals`` are answers to give
    instead, each once: status, body and headers.
    """

    url = "http://127.0.0.1:9090"
    """Where the API is."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.most_samples = 50_000_000
        self.look_back = 29.0
        """Seconds; shorter than between scrapes, as there are no markers of staleness."""
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.refusals: list[tuple[int, bytes, dict[str, str]]] = []

    def page_queries(self) -> int:
        """How many queries for pages there were."""
        return sum("spec_decode_num_drafts" in asked["query"] for _, asked, _ in self.asked)

    def answer(self, what: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        """The result of a query. Raises ValueError for one that is not understood, and
        OverflowError beyond the limit."""
        query = asked["query"]
        if what == "query":
            if grouped := _GROUP.fullmatch(query):
                found = self._select(grouped[2], float(asked["time"]) - 3600, float(asked["time"]))
                values = {labels.get(grouped[1], "") for labels, _ in found}
                at = float(asked["time"])
                return [{"metric": {grouped[1]: v}, "value": [at, "1"]} for v in sorted(values)]
            ranged = _RANGE.fullmatch(query)
            if ranged is None:
                raise ValueError(f'parse error: unexpected "{query[-20:]}"')
            until = float(asked["time"])
            found = self._select(ranged[1], until - int(ranged[2]) / 1000, until)
            return [_matrix(labels, points) for labels, points in found]
        start, end, step = (float(asked[name]) for name in ("start", "end", "step"))
        counted = _COUNT.fullmatch(query)
        selector, back = (counted[1], 60.0) if counted else (query, self.look_back)
        steps = [start + number * step for number in range(int((end - start) / step + 1e-6) + 1)]
        result = []
        for labels, points in self._select(selector, start - back, end):
            values = []
            for at in steps:
                first = bisect.bisect_left(points, (at - back, -math.inf))
                last = bisect.bisect_right(points, (at, math.inf))
                inside = [value for _, value in points[first:last]]
                if inside:
                    values.append((at, float(len(inside)) if counted else inside[-1]))
            named = {k: v for k, v in labels.items() if k != "__name__" or not counted}
            if values:
                result.append(_matrix(named, values))
        return result

    def _select(self, selector: str, since: float, until: float) -> list[Series]:
        matchers = [
            (name, operator, json.loads(value))
            for name, operator, value in _MATCHER.findall(selector)
        ]
        if re.sub(r"[{},\s]", "", _MATCHER.sub("", selector)):
            raise ValueError(f'parse error: unexpected "{selector[-20:]}"')
        found: list[Series] = []
        touched = 0
        for key, points in self.recording.series.items():
            labels = dict(key)
            if all(_matches(labels.get(name, ""), op, value) for name, op, value in matchers):
                inside = [point for point in points if since - 1e-6 <= point[0] <= until + 1e-6]
                touched += len(inside)
                if inside:
                    found.append((labels, inside))
        if touched > self.most_samples:
            raise OverflowError("query processing would load too many samples into memory")
        return found

    def respond(
        self, what: str, asked: dict[str, str], headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """The status, body and headers of the answer to a query."""
        self.asked.append((what, asked, dict(headers)))
        if self.refusals:
            return self.refusals.pop(0)
        try:
            result = self.answer(what, asked)
        except ValueError as error:
            return _failure(400, "bad_data", str(error))
        except OverflowError as error:
            return _failure(422, "execution", str(error))
        data = {"resultType": "matrix", "result": result}
        return 200, json.dumps({"status": "success", "data": data}).encode(), {}


class SimulatedPrometheus(RecordedPrometheus, ThreadingHTTPServer):
    """Serves from entering to leaving."""

    daemon_threads = True

    def __init__(self) -> None:
        RecordedPrometheus.__init__(self)
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()
        self.server_close()


class InProcess(HTTPAdapter):
    """Has a session of requests ask a Prometheus that does not listen."""

    def __init__(self, prometheus: RecordedPrometheus) -> None:
        super().__init__()
        self._prometheus = prometheus

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        assert request.url is not None
        asked = dict(parse_qsl(str(request.body)))
        what = request.url.partition("/api/v1/")[2]
        status, body, headers = self._prometheus.respond(what, asked, request.headers)
        raw = urllib3.HTTPResponse(
            io.BytesIO(body), headers, status=status, preload_content=False, decode_content=False
        )
        return self.build_response(request, raw)


def _failure(status: int, kind: str, text: str) -> tuple[int, bytes, dict[str, str]]:
    body = {"status": "error", "errorType": kind, "error": text}
    return status, json.dumps(body).encode(), {}


def _matches(found: str, operator: str, wanted: str) -> bool:
    return found == wanted if operator == "=" else bool(re.fullmatch(wanted, found))


def _matrix(labels: Labels, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {"metric": labels, "values": [[at, repr(value)] for at, value in points]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies are sent apart
    server: SimulatedPrometheus

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        what = self.path.removeprefix("/api/v1/")
        asked = dict(parse_qsl(body))
        status, text, headers = self.server.respond(what, asked, dict(self.headers))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_arguments: object) -> None:
        pass

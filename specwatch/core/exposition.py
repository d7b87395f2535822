"""Reading the samples that we know off a metrics page, fast.

A general parser builds an object per sample and looks at every family; a busy vLLM page has more
than four hundred samples of which we want a quarter, every few seconds, of hundreds of servers. So
a reader remembers, per server, what the text before the value of each line means, and a line costs
one dictionary look-up, a whole foreign family two counts. The grammar is that of the Prometheus
text format and of OpenMetrics (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import re

from specwatch.errors import PageError, ScrapeReason
from specwatch.model import Series
from specwatch.names import SAMPLES, TAKE_MAXIMUM, series_of

_NAMES = frozenset(name.encode() for name in SAMPLES)
_REMEMBERED = 5_000
"""Series remembered for one server: above any real page, so that a hostile one stays bounded."""

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*")
_LABEL = re.compile(
    r'[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*)?"((?:[^"\\]|\\.)*)"[ \t]*(,?)[ \t]*'
)
_VALUE = re.compile(r"[ \t]*([^ \t#]+)(?:[ \t]+([^ \t#]+))?[ \t]*(?:#.*)?$")
_ESCAPE = re.compile(r'\\([\\n"])')


_KNOWN: dict[bytes, Series] = {}
"""What the text before a value means. Shared by all readers, as servers of a fleet have the same
series: then hundreds of pages are read out of memory that the processor's caches can hold."""


class PageReader:
    """Reads pages of one server, remembering its series from page to page."""

    def __init__(self) -> None:
        self._known = _KNOWN
        self._learnt = 0

    def read(self, page: bytes) -> dict[Series, float]:
        """The value of each of our series on a page, in the page's order.

        Samples that differ only in labels that mean nothing to us are combined. Raises PageError:
        ``truncated`` for a page that does not end in a line feed, ``not_metrics`` for a page of
        another kind, ``malformed`` for a line that cannot be read, ``duplicate_series``.
        """
        if not page.endswith(b"\n") or page[:80].lstrip()[:1] in _OTHER_DOCUMENTS:
            raise _not_a_page(page)
        samples: dict[Series, float] = {}
        ours = 0
        try:
            groups = page[:-1].split(b"\n# ")
            if not page.startswith(b"# "):
                ours += self._read_group(groups.pop(0), samples)
            for group in groups:
                start = group.find(b"\n")
                if start < 0:
                    continue  # a HELP, or a TYPE without samples
                head = group[:start]
                meaning = _HEADS.get(head)
                if meaning is None:
                    meaning = _learn_head(head)
                if meaning is _OURS:
                    ours += self._read_group(group[start + 1 :], samples)
                elif group.count(b"\n" + meaning) != group.count(b"\n"):
                    return _read_line_by_line(page)
        except ValueError:
            return _read_line_by_line(page)
        return samples if ours == len(samples) else _read_line_by_line(page)

    def _read_group(self, lines: bytes, samples: dict[Series, float]) -> int:
        """Add the samples of a family's lines; raises ValueError for lines written unusually."""
        known = self._known
        ours = 0
        for line in lines.split(b"\n"):
            key, _, value = line.rpartition(b" ")
            series = known.get(key)
            if series is None:
                if key.partition(b"{")[0] not in _NAMES:
                    _check_foreign(line)
                    continue
                series = self._learn(key)
            if b"_" in value:
                raise ValueError("Python takes 1_000 for a number, nobody else does")
            ours += 1
            samples[series] = float(value)
        return ours

    def _learn(self, key: bytes) -> Series:
        """What the text before the last space of a line means; raises ValueError if in doubt."""
        name, labels, value, after = _parse_sample(key.decode("utf-8") + " value")
        series = series_of(name, labels)
        if series is None or value != "value" or after:
            raise ValueError("not written in the usual way")
        if self._learnt < _REMEMBERED:
            self._learnt += 1
            self._known[key] = series
        return series


_OTHER_DOCUMENTS = (b"<", b"[", b'"')
"""What HTML and most JSON begin with; a metrics page may begin with a brace."""
_OURS = b""
_HEADS: dict[bytes, bytes] = {}
"""TYPE lines seen: empty where samples may be ours, else what all of its samples start with."""


def _learn_head(head: bytes) -> bytes:
    words = head.removeprefix(b"# ").split(b" ")
    is_type = len(words) == 3 and words[0] == b"TYPE" and words[1]
    foreign = is_type and not any(name.startswith(words[1]) for name in _NAMES)
    meaning = words[1] if foreign else _OURS
    if len(_HEADS) < _REMEMBERED:
        _HEADS[head] = meaning
    return meaning


def _check_foreign(line: bytes) -> None:
    """Raise ValueError for a line that may be ours in unusual spelling: look at it slowly."""
    if line and line[:1] != b"#" and _may_be_ours(line.decode("utf-8").strip() or "#"):
        raise ValueError("not written in the usual way")


def _read_line_by_line(page: bytes) -> dict[Series, float]:
    samples: dict[Series, float] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    try:
        text = page.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PageError(ScrapeReason.NOT_METRICS, f"the page is not UTF-8: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or not _may_be_ours(stripped):
            continue
        try:
            name, labels, value, _ = _parse_sample(stripped)
            number_read = _parse_value(value)
        except ValueError as error:
            raise PageError(ScrapeReason.MALFORMED, f"line {number}: {error}") from error
        series = series_of(name, labels)
        if series is None:
            continue
        identity = (name, frozenset(labels.items()))
        if identity in seen:
            raise PageError(
                ScrapeReason.DUPLICATE_SERIES, f"line {number}: {_excerpt(stripped)} stands twice"
            )
        seen.add(identity)
        before = samples.get(series)
        samples[series] = number_read if before is None else _combine(series, before, number_read)
    return samples


def _may_be_ours(line: str) -> bool:
    name = _NAME.match(line)
    return line[0] == "{" or (name is not None and name[1] in SAMPLES)


def _parse_sample(line: str) -> tuple[str, dict[str, str], str, str]:
    """Name, labels, value and whatever stands after the value; raises ValueError."""
    head = _NAME.match(line)
    name = (head and head[1]) or ""
    position = head.end() if head else 0
    labels: dict[str, str] = {}
    if line[position : position + 1] == "{":
        name, position = _parse_labels(line, position + 1, name, labels)
    rest = _VALUE.match(line, position)
    if not name or rest is None:
        raise ValueError(f"cannot read {_excerpt(line)}: expected NAME{{LABELS}} VALUE")
    return name, labels, rest[1], rest[2] or ""


def _parse_labels(line: str, position: int, name: str, labels: dict[str, str]) -> tuple[str, int]:
    while line[position : position + 1] not in ("}", ""):
        label = _LABEL.match(line, position)
        if label is None:
            raise ValueError(f'cannot read {_excerpt(line)}: expected LABEL="VALUE"')
        text = _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], label[2])
        if label[1] is None:
            name = text  # a quoted metric name: {"vllm:...", model_name="..."}
        else:
            labels[label[1]] = text
        position = label.end()
        if not label[3] and line[position : position + 1] != "}":
            raise ValueError(f"cannot read {_excerpt(line)}: expected a comma or a brace")
    if line[position : position + 1] != "}":
        raise ValueError(f"cannot read {_excerpt(line)}: the labels do not end")
    return name, position + 1


def _parse_value(text: str) -> float:
    if "_" in text:
        raise ValueError(f"{_excerpt(text)} is not a number")
    return float(text)


def _combine(series: Series, first: float, second: float) -> float:
    return max(first, second) if series.quantity in TAKE_MAXIMUM else first + second


def _not_a_page(page: bytes) -> PageError:
    if not page:
        return PageError(ScrapeReason.NOT_METRICS, "the page is empty")
    start = page[:80].decode("utf-8", "replace").strip()
    if start[:1] in ("<", "{", "[", '"'):
        return PageError(
            ScrapeReason.NOT_METRICS, f"expected a metrics page, found {_excerpt(start)}"
        )
    return PageError(
        ScrapeReason.TRUNCATED, f"the page ends in the middle of a line after {len(page)} bytes"
    )


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

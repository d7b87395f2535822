"""A fast reader for the samples of a metrics page that specwatch uses.

A general parser builds an object per sample and reads every family. A busy vLLM page has more than
four hundred samples, of which specwatch uses a quarter, every few seconds, on hundreds of servers.
So the reader remembers which series the text before the value of each line means. A line costs one
dictionary look-up, a whole foreign family two counts. The grammar is that of the Prometheus
text format and of OpenMetrics (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import codecs
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator

from specwatch.domain.model import PageLimits, Series
from specwatch.engines import tensorrtllm
from specwatch.engines.sample_names import (
    SAMPLES,
    is_of_router,
    repeated,
    series_of,
    several_servers,
)
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape.page_layout import Glance, PageLayout

_NAMES = frozenset(name.encode() for name in SAMPLES)
_PREFIXES = frozenset(name[:end] for name in _NAMES for end in range(1, len(name) + 1))
_REMEMBERED = 8 << 20
"""Bytes for remembered series of one server, which a hostile page could fill."""
_REMEMBERED_BY_ALL = 64 << 20
"""Bytes for those of all servers, also of those that are no longer watched."""
_OVERHEAD = 500
"""Bytes of a remembered series besides the text of its labels."""
_HEADS_REMEMBERED = 5_000
_LONGEST_HEAD = 200
_ROOM = 4096
"""Bytes for the name, the value and the exemplar of a sample."""
_LARGE = 1 << 20
"""From this size on, the lines with our samples are picked out before a page is read."""


@functools.cache
def _ours_on_page() -> re.Pattern[bytes]:
    """A line that may have one of our samples, in any spelling, and the line feed before it.

    Our names are grouped by prefix, so that a foreign name fails at its first byte. Compiling takes
    longer than starting anything else here, and few pages need it.
    """
    ends: dict[str, list[str]] = {}
    for name in sorted(SAMPLES):
        family, colon, end = name.rpartition(":")
        ends.setdefault(family + colon, []).append(end)
    ours = "|".join(f"{start}(?:{'|'.join(names)})" for start, names in ends.items())
    return re.compile(
        rf"\n([^!-~\n]*+(?=[{{{''.join({name[0] for name in SAMPLES})}])"
        rf"(?:(?:{ours})(?![a-zA-Z0-9_:])"
        rf'|\{{[^\n]*"(?:{ours})")[^\n]*)'.encode()
    )


_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*")
# Possessive: otherwise each character of a value costs 160 bytes of memory during the match.
_LABEL = re.compile(
    r"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*)?"
    r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*(,?)[ \t]*'
)
_VALUE = re.compile(r"[ \t]*([^ \t#]+)(?:[ \t]+([^ \t#]+))?[ \t]*(?:#.*)?$")
_ESCAPE = re.compile(r'\\([\\n"])')


class _Known:
    """Series by the text before the value, for text within the limits of the pages.

    Shared by all readers: the servers of a fleet have the same series, which then fit into the
    processor's caches. All is forgotten when it takes too much: what is still on pages is learnt
    again from the next ones.
    """

    def __init__(self) -> None:
        self._by_limits: dict[PageLimits, dict[bytes, Series]] = {}
        self._size = 0
        self.forgotten = 0
        """How often all was forgotten."""

    def within(self, limits: PageLimits) -> dict[bytes, Series]:
        return self._by_limits.setdefault(limits, {})

    def make_room(self, size: int) -> None:
        if self._size + size > _REMEMBERED_BY_ALL:
            for known in self._by_limits.values():
                known.clear()
            self._size = 0
            self.forgotten += 1
        self._size += size


_KNOWN = _Known()


class PageReader:
    """Reads pages of one server, remembering its series from page to page."""

    def __init__(self, limits: PageLimits = PageLimits()) -> None:  # noqa: B008
        self._limits = limits
        self._known = _KNOWN.within(limits)
        self._learnt = 0
        self._forgotten = _KNOWN.forgotten
        self._layout: PageLayout | None = None

    def glance(self, page: bytes) -> Glance | None:
        """A page that differs from one that was learnt in its numbers only; None for others."""
        return None if self._layout is None else self._layout.read(page)

    def learn(self, page: bytes) -> Glance | None:
        """A glance at a page that was read, as which others are recognised from now on."""
        self._layout = PageLayout.of(page, self._known) if len(page) <= _LARGE else None
        return self.glance(page)

    def read(self, page: bytes) -> dict[Series, float]:
        """The value of each of our series on a page, in the page's order.

        Samples that differ only in labels that specwatch does not use are combined.

        Raises PageError: ``truncated`` for a page that does not end in a line feed, ``not_metrics``
        for a page of another kind, ``malformed`` for a line that cannot be read,
        ``duplicate_series``, and the name of a limit that our samples exceed.
        """
        if not page.endswith(b"\n") or page[:80].lstrip()[:1] in _OTHER_DOCUMENTS:
            raise _not_a_page(page)
        samples: dict[Series, float] = {}
        try:
            if len(page) > _LARGE:
                lines = [match[1] for match in self._picked(page)]
                ours = self._read_lines(lines, samples)
            else:
                ours = self._read_groups(page, samples)
        except ValueError:
            ours = -1
        if ours != len(samples):
            samples = self._read_line_by_line(page)
        if not samples:
            _check_encoding(page)
        return samples

    def _read_groups(self, page: bytes, samples: dict[Series, float]) -> int:
        """Add the samples of a page, family by family; returns how many are ours.

        Raises ValueError for lines in an unusual notation.
        """
        ours = 0
        groups = page[:-1].split(b"\n# ")
        if not page.startswith(b"# "):
            ours += self._read_lines(groups.pop(0).split(b"\n"), samples)
        for group in groups:
            start = group.find(b"\n")
            if start < 0:
                continue  # a HELP, or a TYPE without samples
            head = group[:start]
            meaning = _HEADS.get(head)
            if meaning is None:
                meaning = _learn_head(head)
            if meaning is _OURS:
                ours += self._read_lines(group[start + 1 :].split(b"\n"), samples)
            elif group.count(b"\n" + meaning) != group.count(b"\n"):
                raise ValueError("a family has samples of another name")
        if 0 < self._limits.sample_limit < ours:
            raise self._too_many(ours)
        return ours

    def _read_lines(self, lines: Iterable[bytes], samples: dict[Series, float]) -> int:
        """Add the samples of lines. Raises ValueError for lines in an unusual notation."""
        known = self._known
        ours = 0
        for line in lines:
            key, _, value = line.rpartition(b" ")
            series = known.get(key)
            if series is None:
                if key.partition(b"{")[0] not in _NAMES:
                    if _ours_on_page().match(b"\n" + line):
                        raise ValueError("not written in the usual way")
                    continue
                series = self._learn(key)
            if b"_" in value:
                raise ValueError("Python reads 1_000 as a number, Prometheus does not")
            ours += 1
            samples[series] = float(value)
        return ours

    def _learn(self, key: bytes) -> Series:
        """The series of the text before the last space of a line. Raises ValueError if in doubt."""
        name, labels, value, after = self._parse_sample(key.decode("utf-8") + " value")
        series = series_of(name, labels)
        if series is None or value != "value" or after or is_of_router(labels):
            raise ValueError("not written in the usual way")
        size = 2 * len(key) + _OVERHEAD
        if self._forgotten != _KNOWN.forgotten:
            self._forgotten = _KNOWN.forgotten
            self._learnt = 0
        if self._learnt + size <= _REMEMBERED:
            self._learnt += size
            _KNOWN.make_room(size)
            self._known[key] = series
        return series

    def _picked(self, page: bytes) -> Iterator[re.Match[bytes]]:
        """Yield the lines that may have our samples, each with the line feed before it."""
        most = self._limits.sample_limit
        longest = _longest_line(self._limits)
        matches = _ours_on_page().finditer(b"\n" + page)
        for line in itertools.islice(matches, most or None):
            if line.end() - line.start(1) > longest:
                raise self._too_long(line, page)
            yield line
        more = sum(1 for _ in matches)
        if more:
            raise self._too_many(most + more)

    def _too_long(self, line: re.Match[bytes], page: bytes) -> PageError:
        start = line.string[line.start(1) : line.start(1) + 100].decode("utf-8", "replace")
        return _beyond(
            ScrapeReason.LABEL_VALUE_LENGTH_LIMIT,
            f"line {_number(page, line)}: {_excerpt(start)} has {line.end() - line.start(1)} bytes",
            f"{_longest_line(self._limits)}, as of {self._limits.label_limit} labels at their"
            " longest; if it should be longer",
        )

    def _too_many(self, count: int) -> PageError:
        return _beyond(
            ScrapeReason.SAMPLE_LIMIT,
            f"the page has {count} samples that specwatch reads",
            f"{self._limits.sample_limit}; if it should have as many",
        )

    def _read_line_by_line(self, page: bytes) -> dict[Series, float]:
        samples: dict[Series, float] = {}
        seen: set[tuple[Series, frozenset[tuple[str, str]]]] = set()
        firsts: dict[Series, dict[str, str]] = {}
        for match in self._picked(page):
            try:
                line = match[1].decode("utf-8").strip()
                name, labels, value, _ = self._parse_sample(line)
                number = _parse_value(value)
            except UnicodeDecodeError as error:
                message = f"line {_number(page, match)} is not UTF-8: {error.reason}"
                raise PageError(ScrapeReason.NOT_METRICS, message) from error
            except ValueError as error:
                message = f"line {_number(page, match)}: {error}"
                raise PageError(ScrapeReason.MALFORMED, message) from error
            series = series_of(name, labels)
            if series is None:
                continue
            identity = (series, frozenset(labels.items()))
            if identity in seen:
                message = f"line {_number(page, match)}: {_excerpt(line)} occurs twice"
                raise PageError(ScrapeReason.DUPLICATE_SERIES, message)
            seen.add(identity)
            if several := several_servers(labels, firsts.setdefault(series, labels)):
                message = f"line {_number(page, match)}: {several}"
                raise PageError(ScrapeReason.SEVERAL_SERVERS, message)
            before = samples.get(series)
            samples[series] = number if before is None else repeated(series, before, number)
        return samples

    def _parse_sample(self, line: str) -> tuple[str, dict[str, str], str, str]:
        """Name, labels, value and whatever stands after the value; raises ValueError."""
        head = _NAME.match(line)
        name = (head and head[1]) or ""
        position = head.end() if head else 0
        labels: dict[str, str] = {}
        if line[position : position + 1] == "{":
            name, position = self._parse_labels(line, position + 1, name, labels)
        value = _VALUE.match(line, position)
        if not name or value is None:
            raise ValueError(f"cannot read {_excerpt(line)}: expected NAME{{LABELS}} VALUE")
        return name, labels, value[1], value[2] or ""

    def _parse_labels(
        self, line: str, position: int, name: str, labels: dict[str, str]
    ) -> tuple[str, int]:
        while line[position : position + 1] not in ("}", ""):
            label = _LABEL.match(line, position)
            if label is None:
                raise ValueError(f'cannot read {_excerpt(line)}: expected LABEL="VALUE"')
            if label[1] is None:
                if name:
                    raise ValueError(f"{_excerpt(name)} has a second name among its labels")
                name = label[2]  # a quoted metric name: {"vllm:...", model_name="..."}
            elif label[1] in labels:
                raise ValueError(f"the label {_excerpt(label[1])} of {_excerpt(name)} occurs twice")
            else:
                labels[label[1]] = self._label_value(name, label[1], label[2])
            most = self._limits.label_limit
            if 0 < most < len(labels):
                raise PageError(
                    ScrapeReason.LABEL_LIMIT,
                    f"a sample of {_excerpt(name)} has more than {most} labels; if it should,"
                    " raise label_limit",
                )
            position = label.end()
            if not label[3] and line[position : position + 1] != "}":
                raise ValueError(f"cannot read {_excerpt(line)}: expected a comma or a brace")
        if line[position : position + 1] != "}":
            raise ValueError(f"cannot read {_excerpt(line)}: the labels are not closed")
        return name, position + 1

    def _label_value(self, sample: str, label: str, written: str) -> str:
        """The value of a label that is ``written`` with escapes."""
        limits = self._limits
        most = limits.label_name_length_limit
        if 0 < most < len(label):
            raise _beyond(
                ScrapeReason.LABEL_NAME_LENGTH_LIMIT,
                f"the label {_excerpt(label)} of {_excerpt(sample)} has {len(label)} bytes",
                f"{most}; if it should be longer",
            )
        most = limits.label_value_length_limit
        size = len(written.encode()) if most and 4 * len(written) > most else 0
        # Unescaping leaves at least half of the bytes, so that much longer text is refused at once.
        if size <= 2 * most:
            value = _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], written)
            size = len(value.encode()) if size > most else 0
            if size <= most:
                return value
        raise _beyond(
            ScrapeReason.LABEL_VALUE_LENGTH_LIMIT,
            f"the label {_excerpt(label)} of {_excerpt(sample)} has a value of {size} bytes",
            f"{most}; if it should be longer",
        )


def _beyond(limit: ScrapeReason, what: str, expected: str) -> PageError:
    return PageError(limit, f"{what}: expected at most {expected}, raise {limit}")


def _longest_line(limits: PageLimits) -> float:
    """Bytes of a sample with as many and as long labels as allowed, and room for its value.

    Each byte of a label's value may be escaped. Longer lines are refused before they are decoded:
    text takes up to four times the memory of its bytes, and is copied when it is split.
    """
    _, labels, name, value = limits
    if not (labels and name and value):
        return math.inf
    return labels * (name + 2 * value + len('="", ')) + _ROOM


_OTHER_DOCUMENTS = (b"<", b"[", b'"')
"""First bytes of HTML and most JSON; a metrics page may begin with a brace."""
_OURS = b""
_HEADS: dict[bytes, bytes] = {}
"""TYPE lines seen: empty if the samples may be ours, else the prefix of all their samples."""


def _learn_head(head: bytes) -> bytes:
    words = head.removeprefix(b"# ").split(b" ")
    foreign = len(words) == 3 and words[0] == b"TYPE" and words[1] and words[1] not in _PREFIXES
    meaning = words[1] if foreign else _OURS
    if len(_HEADS) < _HEADS_REMEMBERED and len(head) <= _LONGEST_HEAD:
        _HEADS[head] = meaning
    return meaning


def _check_encoding(page: bytes) -> None:
    """Raise PageError for a page that is not UTF-8; called only for pages without our samples."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(page), _LARGE):
            decoder.decode(page[start : start + _LARGE])
    except UnicodeDecodeError as error:
        raise PageError(ScrapeReason.NOT_METRICS, f"the page is not UTF-8: {error}") from error


def _number(page: bytes, line: re.Match[bytes]) -> int:
    """The number of a line on the page, counted from 1."""
    return page.count(b"\n", 0, line.start()) + 1


def _parse_value(text: str) -> float:
    if "_" in text:
        raise ValueError(f"{_excerpt(text)} is not a number")
    return float(text)


def _not_a_page(page: bytes) -> PageError:
    if not page:
        return PageError(ScrapeReason.NOT_METRICS, "the page is empty")
    start = page[:80].decode("utf-8", "replace").strip()
    if start[:1] == "[" and tensorrtllm.is_iterations(page):
        return PageError(
            ScrapeReason.NOT_METRICS,
            "the JSON of TensorRT-LLM's iterations, not its metrics; set metrics_path:"
            f" {tensorrtllm.PATH}",
        )
    if start[:1] in ("<", "{", "[", '"'):
        return PageError(
            ScrapeReason.NOT_METRICS, f"expected a metrics page, found {_excerpt(start)}"
        )
    return PageError(
        ScrapeReason.TRUNCATED, f"the page ends in the middle of a line after {len(page)} bytes"
    )


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""YAML text as plain data, with the line number of each key.

Scalars follow YAML 1.2 (``on``, ``1:30`` and dates are text). ``${NAME}`` and ``${NAME:-default}``
in values come from the environment, ``$$`` is a dollar. Problems are collected, not raised, so that
one reading can report all of them; a value with a problem becomes ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

KeyPath = tuple[str | int, ...]

_MOST_NODES = 100_000
_BOOL, _FLOAT, _INT, _NULL, _STR = (
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "str")
)
_MERGE = "tag:yaml.org,2002:merge"
_VARIABLE = re.compile(
    r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<given>:-(?P<default>[^}]*))?\}|\$\{"
)

_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
"""Names of anchors and tags in messages: they may be an unquoted secret."""
_TOKEN = re.compile(r"<[a-z ]+>|.?", re.DOTALL)
"""Tokens that messages quote, such as ``<block end>`` and single characters; all else is masked."""


class Problem(NamedTuple):
    """A problem and its place; ``line`` counts from 1 and is None if unknown."""

    path: KeyPath
    message: str
    line: int | None = None


@dataclass(slots=True)
class Document:
    """Data of a file, the line of each key path in it, and its problems."""

    data: object = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    readable: bool = True
    """False when the text is not YAML at all, so that ``data`` says nothing."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema, and merge keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?[0-9]{1,18}", "-+0123456789"),
    (_FLOAT, r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    (_NULL, r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    (_MERGE, r"<<", "<"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read(text: str, environ: Mapping[str, str]) -> Document:
    """Read one YAML document, with variables from ``environ`` put in."""
    document = Document()
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is not None:
            document.lines[()] = root.start_mark.line + 1
            document.data = _Builder(document, environ).value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return _unreadable(_syntax(error), mark.line + 1 if mark else None)
    except yaml.reader.ReaderError as error:
        character = f"U+{ord(text[error.position]):04X}"
        message = f"the character {character} is not allowed in YAML; remove it"
        return _unreadable(message, text.count("\n", 0, error.position) + 1)
    except RecursionError:
        return _unreadable("is nested too deeply")
    except _TooLarge:
        return _unreadable("holds too many values once its aliases are followed")
    return document


class _TooLarge(Exception):
    """Aliases expand to too many values."""


def _unreadable(message: str, line: int | None = None) -> Document:
    return Document(problems=[Problem((), message, line)], readable=False)


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "a tab is used for indentation; indent with spaces"
    if "expected a single document" in f"{error.context}":
        return "a second document begins here; keep one, without ---"
    if "undefined alias" in problem:
        return "an alias (*NAME) has no anchor (&NAME); in quotes, a value may begin with *"
    message = f"{error.context}, {problem}" if error.context else problem
    hint = (
        '; a value with a bracket needs quotes, like "(0,0.3]"' if "but got ']'" in problem else ""
    )
    return f"not valid YAML: {_QUOTED.sub(_masked, message)}{hint}"


def _masked(quoted: re.Match[str]) -> str:
    """A quoted part of a message; what is of the file may be a secret."""
    return quoted[0] if _TOKEN.fullmatch(quoted[0][1:-1]) else "'***'"


class _Builder:
    """Turns composed nodes into data, noting lines and problems in a document."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self._above: set[int] = set()
        self._left = _MOST_NODES

    def _problem(self, path: KeyPath, message: str, line: int | None = None) -> None:
        self._document.problems.append(Problem(path, message, line))

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        """The data of ``node`` at ``path``."""
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        if id(node) in self._above:
            self._problem(path, "is an alias of a value that contains it; write it out")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._above.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return self._sequence(node, path)
        finally:
            self._above.remove(id(node))

    def _sequence(self, node: yaml.Node, path: KeyPath) -> list[object]:
        items = []
        for index, child in enumerate(node.value):
            here = (*path, index)
            self._document.lines[here] = child.start_mark.line + 1
            items.append(self.value(child, here))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        data: dict[str, object] = {}
        for key, child in self._pairs(node, path):
            here = (*path, key.value)
            line = key.start_mark.line + 1
            if key.value in data:
                first = self._document.lines[here]
                message = f"given on line {first} and again on line {line}; keep one"
                self._problem(here, message, line)
                continue
            self._document.lines[here] = line
            data[key.value] = self.value(child, here)
        return data

    def _pairs(
        self, node: yaml.MappingNode, path: KeyPath
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Pairs of a mapping, those of merged mappings last unless overridden."""
        merged: list[yaml.Node] = []
        seen = set()
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problem(path, "has a key that is not text", key.start_mark.line + 1)
            elif key.tag == _MERGE:
                merged += child.value if isinstance(child, yaml.SequenceNode) else [child]
            else:
                seen.add(key.value)
                yield key, child
        for other in merged:
            if not isinstance(other, yaml.MappingNode) or id(other) in self._above:
                self._problem(path, "<< takes a mapping", other.start_mark.line + 1)
                continue
            self._above.add(id(other))
            for key, child in self._pairs(other, path):
                if key.value not in seen:
                    seen.add(key.value)
                    yield key, child
            self._above.remove(id(other))

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        text: str = node.value
        if node.tag == _STR:
            return self._expanded(text, path)
        if node.tag == _NULL:
            self._problem(path, "has no value; give it one or remove it")
            return None
        # A tag written out (!!int x) need not fit its text.
        try:
            if node.tag == _BOOL:
                return {"true": True, "false": False}[text.lower()]
            if node.tag == _INT:
                return int(text)
            if node.tag == _FLOAT:
                return float(text)
        except (KeyError, ValueError):
            pass
        self._problem(path, "has a tag (!NAME); in quotes, a value may begin with !")
        return None

    def _expanded(self, text: str, path: KeyPath) -> str | None:
        failures: list[str] = []

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name = match["name"]
            if name is None:
                failures.append("${ does not begin a ${NAME}; write $$ for a plain dollar")
                return ""
            value = self._environ.get(name)
            if match["given"]:
                return value or match["default"]
            if value is None:
                failures.append(
                    f"the environment variable {name} is not set;"
                    f" set it, or write ${{{name}:-default}}"
                )
            return value or ""

        expanded = _VARIABLE.sub(replace, text)
        for failure in failures:
            self._problem(path, failure)
        return None if failures else expanded

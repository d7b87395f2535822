"""An HTML page taken apart, strictly: what is not closed, or closed twice, fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = {"meta", "br", "hr", "img", "link", "input"}
_SELF_CLOSED = {"line", "circle", "rect", "path"}
_SHORT = 150
"""Columns of an outline within which elements stay in one line."""


@dataclass
class Element:
    """One element; ``children`` are elements and texts."""

    name: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, *names: str) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                if not names or child.name in names:
                    yield child
                yield from child.all(*names)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    @property
    def words(self) -> str:
        """The text as it is seen: cells and items are apart, and styles and scripts left out."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.name not in ("style", "script"):
                yield from child._pieces()
                yield " " if child.name in ("td", "th", "li", "span", "svg") else ""

    @property
    def links(self) -> dict[str, str]:
        """Addresses by the words that lead there."""
        return {link.text: link.attributes["href"] for link in self.all("a")}

    def count(self, name: str) -> int:
        return len(list(self.all(name)))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(made)
        if tag not in _EMPTY:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SELF_CLOSED, f"<{tag}/> does not close itself"
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> ends <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(html: str) -> Element:
    """The page as a tree."""
    assert html.startswith("<!DOCTYPE html>\n")
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root], f"not closed: {[item.name for item in reader.open[1:]]}"
    return reader.root


def require_alone(root: Element) -> None:
    """Fail where a page has a script, a style of an element, or an address beyond itself."""
    names = {one.name for one in root.all()}
    assert not names & {"script", "iframe", "object", "embed", "img", "link", "form", "base"}
    ids = [one.attributes["id"] for one in root.all() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z][\w-]*", id_) for id_ in ids)
    for one in root.all():
        for name, value in one.attributes.items():
            assert not name.startswith("on"), (one.name, name)
            assert name != "style", "a strict policy forbids it, and mail clients too"
            if name in ("href", "src", "xlink:href", "action"):
                assert value.removeprefix("#") in ids, value


def outline(root: Element) -> str:
    """The page as indented lines, each of an element with its attributes and, as far as it is
    short, all that is in it; of styles and drawings only that they are there."""
    return "\n".join(_outline(root)) + "\n"


def _outline(parent: Element) -> Iterator[str]:
    for child in parent.children:
        if isinstance(child, str):
            if words := " ".join(child.split()):
                yield words
            continue
        attributes = "".join(f' {name}="{value}"' for name, value in child.attributes.items())
        inside = [] if child.name in ("style", "svg") else list(_outline(child))
        whole = " ".join([f"<{child.name}{attributes}>", *map(str.strip, inside)])
        if len(inside) == 1 or len(whole) <= _SHORT:
            yield whole
        else:
            yield f"<{child.name}{attributes}>"
            yield from (f" {line}" for line in inside)

"""A chart taken apart."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = {
    "x",
    "y",
    "x1",
    "x2",
    "y1",
    "y2",
    "cx",
    "cy",
    "r",
    "width",
    "height",
    "stroke-width",
}


class Drawing:
    """Of a string that has to be one well-formed SVG."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        assert self.root.tag == f"{SVG}svg"
        assert self.root.get("role") == "img"

    def all(self, name: str) -> list[ElementTree.Element]:
        return list(self.root.iter(f"{SVG}{name}"))

    @property
    def title(self) -> str:
        return "".join(self.all("title")[0].itertext())

    @property
    def words(self) -> str:
        """What it tells those who cannot see it."""
        return "".join(self.all("desc")[0].itertext())

    @property
    def texts(self) -> list[str]:
        return ["".join(element.itertext()) for element in self.all("text")]

    @property
    def places(self) -> list[float]:
        """Every coordinate, that of paths too; fails on what is no number."""
        result = []
        for element in self.root.iter():
            for name, value in element.attrib.items():
                if name in NUMBERS and value != "100%":
                    result.append(float(value))
                if name == "d":
                    assert re.fullmatch(r"[MLmlhvz\d .-]*", value), value
                    result += map(float, re.findall(r"-?[\d.]+", value))
        return result

    def pieces(self, class_: str) -> list[list[tuple[float, float]]]:
        """The pieces of the lines of a colour, those of samples in the legend too."""
        return [
            [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", piece)]
            for path in self.all("path")
            if path.get("class") == class_
            for piece in path.get("d", "").split("M")[1:]
        ]

    def inside(self) -> None:
        """Fail where something is not on the picture."""
        _, _, width, height = map(float, self.root.get("viewBox", "").split())
        for element in self.root.iter():
            for names, most in (
                (("x", "x1", "x2", "cx"), width),
                (("y", "y1", "y2", "cy"), height),
            ):
                for name in names:
                    if name in element.attrib:
                        assert 0 <= float(element.attrib[name]) <= most, ElementTree.tostring(
                            element
                        )

"""How a series or column is to look: the defaults of its panel, and what overrides them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.prometheus import Series
from tests.dashboards.units import formatted

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Field:
    """Everything that a panel says of one series or column, by its shown name."""

    name: str
    unit: str = ""
    decimals: int | None = None
    colour: str | None = None
    colour_mode: str = ""
    steps: Sequence[Mapping[str, Any]] = ()
    mappings: Sequence[Mapping[str, Any]] = ()
    links: bool = False
    custom: Mapping[str, Any] = field(default_factory=dict)

    def text(self, value: float | str | None) -> str:
        """The value as it is shown."""
        mapped = self._mapped(value)
        if mapped and mapped.get("text"):
            return str(mapped["text"])
        if value is None:
            return ""
        return value if isinstance(value, str) else formatted(value, self.unit, self.decimals)

    def colour_of(self, value: float | str | None) -> str | None:
        """The name of the colour that the value has by mappings or thresholds."""
        mapped = self._mapped(value)
        if mapped and mapped.get("color"):
            return str(mapped["color"])
        if self.colour_mode == "fixed" or isinstance(value, str) or value is None:
            return self.colour
        found = None
        for step in self.steps:
            if step["value"] is None or value >= step["value"]:
                found = step["color"]
        return found

    def _mapped(self, value: float | str | None) -> Mapping[str, Any] | None:
        key = value if isinstance(value, str) else None if value is None else f"{value:g}"
        for mapping in self.mappings:
            if mapping["type"] == "value" and key in mapping["options"]:
                return dict(mapping["options"][key])
            empty = value is None or value != value
            if mapping["type"] == "special" and empty:
                return dict(mapping["options"]["result"])
        return None


def field_of(panel: Mapping[str, Any], name: str) -> Field:
    """The field of that name."""
    config = panel.get("fieldConfig") or {}
    found = dict(config.get("defaults") or {})
    custom = dict(found.get("custom") or {})
    for override in config.get("overrides") or ():
        if not _matches(override["matcher"], name):
            continue
        for setting in override["properties"]:
            key, value = setting["id"], setting["value"]
            if key.startswith("custom."):
                custom[key.removeprefix("custom.")] = value
            else:
                found[key] = value
    colour = found.get("color") or {}
    return Field(
        found.get("displayName") or name,
        found.get("unit") or "",
        found.get("decimals"),
        colour.get("fixedColor"),
        colour.get("mode") or "",
        (found.get("thresholds") or {}).get("steps") or (),
        found.get("mappings") or (),
        bool(found.get("links")),
        custom,
    )


def _matches(matcher: Mapping[str, Any], name: str) -> bool:
    kind, wanted = matcher["id"], matcher["options"]
    if kind == "byName":
        return bool(wanted == name)
    if kind == "byRegexp":
        return re.search(str(wanted).strip("/"), name) is not None
    raise ValueError(f"a matcher of overrides that is not understood: {kind}")


def legend(template: str, series: Series) -> str:
    """The name of a series, as its query has it in its legend."""
    return _LABEL.sub(lambda match: series.labels.get(match[1], match[0]), template)

"""Colours by the names that Grafana has for them, and its two themes."""

from __future__ import annotations

from dataclasses import dataclass

_SHADES = {
    "red": "#F2495C", "orange": "#FF9830", "yellow": "#FADE2A", "green": "#73BF69",
    "blue": "#5794F2", "purple": "#B877D9",
}  # fmt: skip
_VARIANTS = {
    "dark-red": "#C4162A", "semi-dark-red": "#E02F44", "light-red": "#FF7383",
    "dark-orange": "#FA6400", "semi-dark-orange": "#FF780A", "light-orange": "#FFB357",
    "dark-yellow": "#E0B400", "semi-dark-yellow": "#F2CC0C", "light-yellow": "#FFEE52",
    "dark-green": "#37872D", "semi-dark-green": "#56A64B", "light-green": "#96D98D",
    "dark-blue": "#1F60C4", "semi-dark-blue": "#3274D9", "light-blue": "#8AB8FF",
    "dark-purple": "#8F3BB8", "semi-dark-purple": "#A352CC", "light-purple": "#CA95E5",
    "super-light-blue": "#C0D8FF", "super-light-green": "#C8F2C2", "super-light-red": "#FFA6B0",
    "super-light-orange": "#FFCB7D", "super-light-yellow": "#FFF899",
    "super-light-purple": "#DEB6F2", "gray": "#808080", "grey": "#808080",
}  # fmt: skip
_PALETTE = (
    "green", "yellow", "blue", "orange", "red", "light-blue", "purple", "dark-purple",
    "light-green", "dark-yellow", "light-orange", "dark-blue", "light-red", "dark-green",
)  # fmt: skip


@dataclass(frozen=True)
class Theme:
    """Colours of everything but data."""

    name: str
    canvas: str
    panel: str
    border: str
    text: str
    faint: str
    grid: str

    def colour(self, name: str | None) -> str:
        """The hex code of one of Grafana's colours; without a name, that of text."""
        if not name or name in ("text", "transparent"):
            return self.text if name != "transparent" else self.panel
        if name.startswith("#"):
            return name
        if self.name == "light":
            name = _darker(name)
        return _SHADES.get(name) or _VARIANTS.get(name) or self.faint

    def of_series(self, number: int) -> str:
        """The colour of a series, by its number, if its panel names none."""
        return self.colour(_PALETTE[number % len(_PALETTE)])


def _darker(name: str) -> str:
    """The name of the shade that the light theme shows for a name of the dark theme."""
    shade, _, hue = name.rpartition("-")
    darker = {"super-light": "light-", "light": "", "": "semi-dark-", "semi-dark": "dark-"}
    return f"{darker.get(shade, 'dark-')}{hue}" if hue in _SHADES else name


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#111217" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


DARK = Theme("dark", "#111217", "#181b1f", "#2c3235", "#ccccdc", "#8e8e9c", "#2c3036")
LIGHT = Theme("light", "#f4f5f5", "#ffffff", "#e1e2e6", "#24292e", "#6e7280", "#e4e5e8")
THEMES = {theme.name: theme for theme in (DARK, LIGHT)}

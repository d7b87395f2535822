"""Foreign text made fit to print: it cannot command a terminal, nor fill it."""

from __future__ import annotations

LONGEST_NAME = 60
LONGEST_SENTENCE = 300
MOST_COLUMNS = 80
"""Of what is read on a terminal without looking sideways."""


def clean(text: str) -> str:
    r"""Text that says what it holds: control characters are spelt, such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_json(data: bytes) -> bytes:
    r"""JSON that holds the same values, with control characters spelt as JSON does: ``\u009b``."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return "".join(c if c.isprintable() or c == "\n" else _spelt(c) for c in data.decode()).encode()


def _spelt(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))


def clean_lines(text: str) -> str:
    """As :func:`clean`, with line feeds left in."""
    return "\n".join(map(clean, text.split("\n")))


def shown(text: str, longest: int = LONGEST_NAME) -> str:
    """Foreign text, clean, and with its middle left out where it is too long."""
    if len(text) > longest:
        head = (longest - 3) * 2 // 3
        text = f"{text[:head]}...{text[len(text) - (longest - 3 - head) :]}"
    return clean(text)

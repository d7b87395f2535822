"""Where the runbook says what to do about an alert."""

from __future__ import annotations


def anchor(name: str) -> str:
    """The fragment of a section's address, as renderers of Markdown make it of a heading."""
    return name.lower()


def address(runbook_url: str, name: str) -> str:
    """Where the section of an alert is found."""
    return f"{runbook_url}#{anchor(name)}"

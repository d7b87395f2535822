"""``python -m tests.architecture``: lines by room, and of the tap, with those of their tests.

Seconds by room close each run of ``python -m tests``.
"""

from __future__ import annotations

from pathlib import Path

from tests.__main__ import ROOT


def lines(folder: Path) -> int:
    """Lines of Python below a folder."""
    return sum(source.read_text().count("\n") for source in folder.rglob("*.py"))


def main() -> None:
    """Print the table."""
    package, tap, tests = ROOT / "specwatch", ROOT / "tap", ROOT / "tests"
    folders = {folder.name for base in (package, tests) for folder in base.iterdir()} - {tap.name}
    rows = [(lines(package / name), lines(tests / name), name) for name in folders]
    rows.append((lines(tap), lines(tests / tap.name), tap.name))
    print(f"{'room':16} {'lines':>7} {'tests':>7}")
    for own, tested, name in sorted(rows, reverse=True):
        if own or tested:
            print(f"{name:16} {own:7} {tested:7}")
    print(f"{'all':16} {lines(package) + lines(tap):7} {lines(tests):7}")


if __name__ == "__main__":
    main()

"""Variables are called what they hold: some names say nothing, and are used nowhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specwatch"
EMPTY = {"each", "found", "said", "told", "at"}
ROOMS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})


def bound(tree: ast.AST) -> list[tuple[int, str]]:
    """Names of variables and parameters, with the lines that bind them; fields of classes not."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    names = [
        (node.lineno, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields
    ]
    return names + [(node.lineno, node.arg) for node in ast.walk(tree) if isinstance(node, ast.arg)]


@pytest.mark.parametrize("room", ROOMS)
def test_variables_are_called_what_they_hold(room: str) -> None:
    path = PACKAGE / room
    modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
    empty = [
        f"{module.relative_to(PACKAGE)}:{line}: {name}"
        for module in modules
        for line, name in bound(ast.parse(module.read_text()))
        if name in EMPTY
    ]
    assert empty == []


def test_empty_names_are_seen() -> None:
    text = (
        "class A:\n    at: float\n    def b(self, told): return [each for each in told]\nat = 1\n"
    )
    assert sorted(bound(ast.parse(text))) == [(3, "each"), (3, "self"), (3, "told"), (4, "at")]

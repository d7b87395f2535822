"""Where a module can be broken, and how: one operator, constant, condition or statement at once."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SWAPPED: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NOT_BROKEN = {"log", "_log", "logger", "warnings", "TypeVar", "cast", "field", "sleep"}
"""Calls that tests need not notice."""


@dataclass(frozen=True)
class Mutant:
    """A module with one place that is wrong."""

    module: Path
    line: int
    before: str
    after: str
    source: str
    """The whole module, broken."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {shown(self.before)}  ->  {shown(self.after)}"


def shown(text: str) -> str:
    """One short line of it."""
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:97]}..."


def sample(
    rooms: Mapping[str, Sequence[Path]], count: int, chance: random.Random
) -> list[tuple[str, Mutant]]:
    """So many mutants, as many from each room; the room of each."""
    chosen = []
    names = list(rooms)
    for number in range(count):
        room = names[number % len(names)]
        # A module is as likely as it is long.
        modules = list(rooms[room])
        sizes = [module.stat().st_size for module in modules]
        while True:
            (module,) = chance.choices(modules, sizes)
            mutants = list(mutants_of(module))
            if mutants:
                chosen.append((room, chance.choice(mutants)))
                break
    return chosen


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Every way to break a module."""
    source = module.read_text()
    tree = ast.parse(source)
    skipped = {id(node) for node in left_alone(tree)}
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    encoded = source.encode()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for broken in broken_forms(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before = encoded[begin:end].decode()
            after = ast.unparse(broken)
            if isinstance(node, ast.expr):
                after = f"({after})"
            changed = (encoded[:begin] + after.encode() + encoded[end:]).decode()
            yield Mutant(module, node.lineno, before, after, changed)


def broken_forms(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield changed(node, ops=[SWAPPED[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        yield changed(node, op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield ast.Constant(node.value * 2 + 0.125)
    elif isinstance(node, ast.IfExp):
        yield changed(node, body=node.orelse, orelse=node.body)
    elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(
        node, ast.AugAssign | ast.Continue | ast.Break
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
        yield changed(node, value=ast.Constant(None))


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def is_none(node: ast.expr) -> bool:
    """Whether it is ``None`` already."""
    return isinstance(node, ast.Constant) and node.value is None


def left_alone(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that do nothing when the program runs, or that tests need not notice."""
    for node in ast.walk(tree):
        unused: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            unused = [node.returns, *(argument.annotation for argument in arguments)]
        elif isinstance(node, ast.AnnAssign):
            unused = [node.annotation]
        elif (
            isinstance(node, ast.JoinedStr)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Expr | ast.Call) and name_of(node) in NOT_BROKEN)
        ):
            unused = [node]
        for each in unused:
            if each is not None:
                yield from ast.walk(each)


def name_of(node: ast.AST) -> str:
    """The first name of what an expression calls; for a method that closes or sleeps, the last."""
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return ""
    names = ast.unparse(call.func).split(".")
    return names[-1] if names[-1] in NOT_BROKEN else names[0]

"""What switching speculation off would do, in words and as a diff."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence

from specwatch.guard.plan import FileChange, Plan
from specwatch.wording.text import clean, wrapped

Line = tuple[str, str]
"""Text and style."""

_NOWHERE = "/dev/null"
_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def lines(plan: Plan) -> Iterator[Line]:
    """Yield commands, files and steps; commands and files are not wrapped, to be copied."""
    if plan.before:
        yield "the command now", "bold"
        yield f"  {clean(shlex.join(plan.before))}", ""
    if plan.after:
        yield "the command without speculation", "bold"
        yield f"  {clean(shlex.join(plan.after))}", ""
        removed, added = words_changed(plan)
        for title, words, style in (("removed", removed, "red"), ("added", added, "green")):
            if words:
                yield f"  {title}: {clean(shlex.join(words))}", style
    for change in plan.files:
        yield from diff(change)
    yield "steps", "bold"
    for number, step in enumerate(plan.steps, 1):
        yield from wrapped(f"  {number}. {step}")
    for note in plan.notes:
        yield from wrapped(f"note: {note}", "yellow")


def diff(change: FileChange) -> Iterator[Line]:
    """Yield a change of a file as a unified diff; nothing where there is none."""
    old, new = (text.splitlines() if text else [] for text in (change.before, change.after))
    source = _NOWHERE if change.before is None else change.path
    result = _NOWHERE if change.after is None else change.path
    for number, line in enumerate(difflib.unified_diff(old, new, source, result, lineterm="")):
        yield clean(line), "bold" if number < 2 else _STYLES.get(line[:1], "")


def words_changed(plan: Plan) -> tuple[Sequence[str], Sequence[str]]:
    """The words that go from the command, and those that come."""
    removed: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, plan.before, plan.after, autojunk=False)
    for kind, at, end, new, new_end in matcher.get_opcodes():
        if kind != "equal":
            removed += plan.before[at:end]
            added += plan.after[new:new_end]
    return removed, added


def summary(plan: Plan) -> str:
    """A sentence: what goes from the command, and the steps."""
    said = []
    removed, added = words_changed(plan) if plan.after else ((), ())
    if removed:
        said.append(f"without {shlex.join(removed)}")
    if added:
        said.append(f"with {shlex.join(added)}")
    return "; ".join([*said, *plan.steps, *plan.notes])

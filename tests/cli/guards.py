"""Guards in a database, written as daemons do."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from specwatch.guard.state import GuardState, Step
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store

Run = Callable[..., Result]

NOW = time.time()
LATER = 3000.0
"""Most seconds from ``NOW``, when tests are collected, to the end of a test."""


class Guards:
    """The guards of one database; ``url`` is its URL."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.path = folder / "guards.db"
        shutil.copy(template, self.path)
        self.url = f"sqlite:///{self.path}"
        self.store = Store(self.url, daemon="left")
        self.book = GuardBook(self.store)

    def put(self, target: str = "chat", *, guarded: bool = True, **changes: Any) -> GuardState:
        """The guard of a target in a state, guarded by the daemon ``left`` or by nobody."""
        self.book.hold([target], f"left:{target}", NOW, able=True)
        state = self.step("it is so", target, since=time.time() - 600, **changes)
        if not guarded:
            self.leave(target)
        return state

    def leave(self, target: str = "chat") -> None:
        """The daemon that guards it ends."""
        self.book.release(f"left:{target}", NOW)

    def step(
        self,
        reason: str,
        target: str = "chat",
        *,
        at: float = NOW,
        inputs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> GuardState:
        """One more step of a daemon."""
        entry = self.book.look(target)[target]
        step = Step(replace(entry.state, **changes), reason, inputs or {})
        return self.book.advance(entry, step, at, by="left").state

    def state(self, target: str = "chat") -> GuardState:
        """As it is stored."""
        return self.book.look(target)[target].state


def answer(run: Run, guards: Guards, *words: object, code: int = 0) -> Any:
    """The JSON output of a command."""
    done = run("guard", *words, "--database", guards.url, "--json")
    assert (done.exit_code, done.stderr) == (code, "")
    return json.loads(done.stdout)


def lines(run: Run, guards: Guards, *words: object, code: int = 0) -> list[str]:
    """The lines that a command prints; only lines about steps are wider than a terminal."""
    done = run("guard", *words, "--database", guards.url)
    assert (done.exit_code, done.stderr) == (code, "")
    printed: list[str] = done.stdout.splitlines()
    assert max(map(len, printed)) <= 80 or words[0] in ("history", "enable", "disable")
    return printed


def refusal(run: Run, guards: Guards, *words: object, code: int = 2) -> str:
    done = run("guard", *words, "--database", guards.url)
    assert (done.exit_code, done.stdout) == (code, "")
    return str(done.stderr.splitlines()[-1])

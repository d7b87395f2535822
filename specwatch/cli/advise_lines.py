"""Advice as lines of a given width: worst findings first, each with its reason and source."""

from __future__ import annotations

import re
import textwrap

from specwatch.cli.terminal import Columns, Lines, table
from specwatch.lab.advise.advice import LEVELS, Advice, Expected, Finding, Level, Memory, Model
from specwatch.lab.advise.heuristics import parameters_text
from specwatch.lab.advise.model_names import plain_size
from specwatch.lab.advise.speedup import MOST_TOKENS
from specwatch.wording import figures
from specwatch.wording.text import clean

_TITLES: dict[Level, str] = {
    "wrong": "Wrong: do not start it like this",
    "doubt": "Measure first",
    "note": "Notes",
    "ok": "Fine",
}
_STYLES: dict[Level, str] = {
    "wrong": "bold red",
    "doubt": "bold yellow",
    "note": "bold",
    "ok": "bold green",
}
_NARROWEST = 40
_NO_BREAK = "\N{NO-BREAK SPACE}"
_K = re.compile(r"\bk = (\d+)")
_KEPT_TOGETHER = rf"k{_NO_BREAK}={_NO_BREAK}\1"


def lines(advice: Advice, width: int) -> Lines:
    """Yield the lines of some advice, the answer first; none wider than ``width`` where words
    allow."""
    width = max(width, _NARROWEST)
    style = "bold red" if not advice.sound else "bold"
    yield from _wrapped(_answer(advice), width, 0, 2, style)
    yield from _head(advice, width)
    for level in LEVELS:
        findings = [finding for finding in advice.findings if finding.level == level]
        if findings:
            yield ()
            yield ((f"{_TITLES[level]} ({len(findings)})", _STYLES[level]),)
            for finding in findings:
                yield from _finding(finding, width)
    if advice.memory is not None:
        yield ()
        yield from _memory(advice.memory, width)
    if advice.expected and advice.k is not None:
        yield ()
        yield from _expected(advice, width)
    if advice.sources:
        yield ()
        yield (("Sources", "bold"),)
        for letter, title in advice.sources.items():
            yield from _wrapped(f"[{letter}] {title}", width, 0, 4, "dim")


def _answer(advice: Advice) -> str:
    """Whether to start it, and what to expect of it."""
    wrong, doubts = (
        [finding.text for finding in advice.findings if finding.level == level]
        for level in ("wrong", "doubt")
    )
    if wrong:
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return f"Do not start it like this: {wrong[0]}{more}."
    if advice.method is None:
        return "Nothing is wrong, but nothing drafts."
    parts = ["Nothing is wrong with it"]
    if advice.expected:
        low, *_, high = advice.expected if len(advice.expected) > 1 else advice.expected * 2
        parts.append(
            f"assumed speedup {low.speedup:.2f}x at {low.acceptance:.0%} acceptance to"
            f" {high.speedup:.2f}x at {high.acceptance:.0%}, if the load is low"
        )
    if doubts:
        parts.append(f"{figures.counted(len(doubts), 'doubt')} below")
    return (
        f"{'; '.join(parts)}. Measure whether it pays: specwatch bench with --baseline, and"
        " specwatch probe for temperatures."
    )


def _head(advice: Advice, width: int) -> Lines:
    for role, model in (("target", advice.target), ("draft", advice.draft)):
        if model is not None:
            yield from _wrapped(f"{role}: {_model(model)}", width, 0, 8, "")
    if advice.method is not None:
        k = "" if advice.k is None else f", k = {advice.k}"
        yield (("method: ", ""), (f"{advice.method}{k}", ""))


def _model(model: Model) -> str:
    parts = [model.name]
    if model.parameters is not None and plain_size(model.name) is None:
        active = model.active_parameters
        parts.append(
            f"{parameters_text(model.parameters)}"
            + (f" ({parameters_text(active)} active)" if active else "")
        )
    if model.quantization is not None:
        parts.append(model.quantization)
    if model.weights is not None:
        parts.append(f"{_bytes(model.weights)} of weights")
    if model.kv_per_token:
        parts.append(f"{_bytes(model.kv_per_token)} of KV cache per token")
    if model.context is not None:
        parts.append(f"{model.context:,} tokens")
    return ", ".join(parts)


def _finding(finding: Finding, width: int) -> Lines:
    yield from _wrapped(f"* {finding.text}", width, 0, 2, "")
    if finding.reason:
        yield from _wrapped(finding.reason, width, 4, 4, "dim")
    if finding.remedy:
        yield from _wrapped(f"-> {finding.remedy}", width, 2, 5, "")
    if finding.source:
        yield from _wrapped(f"({finding.source})", width, 4, 5, "dim")


def _wrapped(text: str, width: int, first: int, later: int, style: str) -> Lines:
    for line in textwrap.wrap(
        _K.sub(_KEPT_TOGETHER, clean(text)),
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * later,
        break_on_hyphens=False,
    ):
        yield ((line.replace(_NO_BREAK, " "), style),)


def _memory(memory: Memory, width: int) -> Lines:
    gpus = figures.counted(memory.gpus, "GPU")
    whose = f"of each of {gpus}" if memory.gpus > 1 else "of one GPU"
    sentence = f"{_bytes(memory.usable)} usable {whose} with {_bytes(memory.gpu_memory)}"
    yield from _wrapped(f"Memory: {sentence}", width, 0, 2, "bold")
    rows: list[tuple[str, str, str]] = [
        ("target's weights", _bytes(memory.target_weights), _bytes(memory.target_weights)),
        ("draft's weights", figures.UNKNOWN, _bytes(memory.draft_weights)),
        ("runtime (assumed)", _bytes(memory.reserved), _bytes(memory.reserved)),
        ("left for KV cache", _bytes(memory.kv_without), _bytes(memory.kv_with)),
        ("tokens of it", figures.number(memory.tokens_without), figures.number(memory.tokens_with)),
        (
            "requests at once",
            figures.number(memory.requests_without),
            figures.number(memory.requests_with),
        ),
    ]
    columns: Columns[tuple[str, str, str]] = {
        "": lambda row: row[0],
        "without draft": lambda row: row[1],
        "with draft": lambda row: row[2],
    }
    known = [row for row in rows if row[1:] != (figures.UNKNOWN, figures.UNKNOWN)]
    yield from table(columns, known, width)


def _expected(advice: Advice, width: int) -> Lines:
    cost = ""
    if advice.draft_cost:
        costs = "is assumed to cost" if advice.draft_cost_assumed else "costs"
        cost = f" and a draft token {costs} {advice.draft_cost:.2g} times a step"
    yield from _wrapped(
        f"Speedup to expect with k = {advice.k}, if the load is low{cost}: assumed, not measured",
        width,
        0,
        2,
        "bold",
    )
    columns: Columns[Expected] = {
        "acceptance": lambda row: f"{row.acceptance:.0%}",
        "per token": lambda row: f"{row.per_token:.0%}",
        "tokens/step": lambda row: f"{row.mean_length:.2f}",
        "speedup": lambda row: f"{row.speedup:.2f}x",
        "best k": lambda row: (
            f"{row.best_k}+" if row.best_k == MOST_TOKENS else figures.number(row.best_k)
        ),
        "with it": lambda row: "" if row.best_speedup is None else f"{row.best_speedup:.2f}x",
    }
    yield from table(columns, advice.expected, width, lambda row: "red" if row.speedup < 1 else "")
    yield from _wrapped(
        "acceptance: accepted / draft tokens, as everywhere; per token: the chance at each position"
        " that gives it, if all are alike. Real servers stay below: 1.5 to 2x is typical [G].",
        width,
        0,
        0,
        "dim",
    )


def _bytes(count: float | None) -> str:
    """``141 GB``, ``327 kB``: powers of ten, as GPUs are sold."""
    if count is None:
        return figures.UNKNOWN
    shown = figures.compact(count)
    return f"{shown} B" if shown[-1].isdigit() else f"{shown[:-1]} {shown[-1]}B"

"""Targets and temperature buckets as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from specwatch.cli.terminal import Columns, Lines, table
from specwatch.domain import buckets
from specwatch.domain.model import ALL_TEMPERATURES, METHODS
from specwatch.scrape.coverage import leading_reasons, share_derived
from specwatch.wording import figures, speculation
from specwatch.wording.speculation import MODE_NOT_KNOWN, MODE_REMEDY
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

_RECENT: Columns[dict[str, Any]] = {
    "temp": lambda window: shown(window["temperature"], 9),
    "acceptance": lambda window: figures.percent(window["acceptance_rate"]),
    "tok/step": lambda window: figures.number(window["mean_acceptance_length"], 2),
    "requests": lambda window: figures.number(sum(window["requests"].values())),
    "TTFT p50": lambda window: figures.quantile(window["ttft"], "p50"),
    "TTFT p99": lambda window: figures.quantile(window["ttft"], "p99"),
    "TPOT p50": lambda window: figures.quantile(window["tpot"], "p50"),
    "TPOT p99": lambda window: figures.quantile(window["tpot"], "p99"),
}
_BUCKETS: Columns[dict[str, Any]] = {
    "temp": _RECENT["temp"],
    "share": lambda row: figures.UNKNOWN if row["share"] is None else f"{row['share']:.0%}",
    "drafts": lambda row: figures.compact(row["drafts"]),
    "accept": _RECENT["acceptance"],
    "length": _RECENT["tok/step"],
    "P10/50/90 %": lambda row: figures.percents(row["request_acceptance"], ("p10", "p50", "p90")),
    "TTFT": _RECENT["TTFT p50"],
    "p99": _RECENT["TTFT p99"],
    "TPOT": _RECENT["TPOT p50"],
    " p99": _RECENT["TPOT p99"],
}
_LEAST_DERIVED = 0.005
_MOST_PENDING = 5
_URGENT = ("critical", "warning")


def in_breach(target: dict[str, Any]) -> bool:
    """Whether a rule of which somebody has to know is in breach."""
    return any(
        finding["verdict"] == "breach" and finding["severity"] in _URGENT
        for finding in target["decision"]["findings"]
    )


def recent_lines(target: dict[str, Any], now: float) -> Lines:
    """Yield lines and their styles for the last minutes of a target as the API gives it.

    ``now`` is the Unix time of the daemon.
    """
    recent = sorted(target["recent"], key=lambda window: window["model_name"])
    shown_models = set()
    for model, group in groupby(recent, key=lambda window: str(window["model_name"])):
        shown_models.add(model)
        windows = list(group)
        whole = [one for one in windows if one["temperature"] == ALL_TEMPERATURES]
        yield from _model(model, target["models"].get(model), whole or windows)
        yield from _decision(model, target, (whole or [None])[0], now)
        yield from table(_RECENT, whole or windows)
        yield from _tap(model, target, [one for one in windows if one not in whole])
    judged = {finding["model_name"] for finding in target["decision"]["findings"]}
    for model in sorted({*target["models"], *judged} - shown_models):
        yield shown(model), "bold"
        if model in target["models"]:
            mode = target["models"][model]
            yield f"speculation {mode}; no whole minute seen since the last start or switch", ""
        yield from _decision(model, target, None, now)


def _decision(
    model: str, target: dict[str, Any], window: dict[str, Any] | None, now: float
) -> Lines:
    """Whether speculation pays for a model, and what the rules and objectives say of it."""
    decision = target["decision"]
    if target["models"].get(model) == "unknown":
        yield from wrapped(f"It is {MODE_NOT_KNOWN}. {MODE_REMEDY}", "yellow")
    if target["models"].get(model) != "off":
        yield from _pay_lines(decision["models"].get(model), window)
    yield from _rule_lines([one for one in decision["findings"] if one["model_name"] == model], now)
    slos = (one for one in decision["slos"] if one["model_name"] == model)
    yield from _slo_lines(slos, decision["goodput"].get(model, {}))


def _model(model: str, mode: str | None, windows: list[dict[str, Any]]) -> Lines:
    yield shown(model), "bold"
    first = windows[0]
    parts = [
        f"speculation {mode or first['mode']}",
        f"last {figures.span(first['length'])}: {figures.number(first['running_mean'], 1)} running",
        f"KV cache up to {figures.percent(first['kv_cache_usage_max'])}",
    ]
    if first["preemptions"]:
        parts.append(figures.counted(first["preemptions"], "preemption"))
    yield ", ".join(part for part in parts if figures.UNKNOWN not in part.split()), ""


def _tap(model: str, target: dict[str, Any], windows: list[dict[str, Any]]) -> Lines:
    """What is known by temperature, and how well."""
    tap = target["tap"]
    seen = tap["models"].get(model)
    trouble = [one for one in tap["trouble"] if one["model_name"] == model]
    if seen is not None:
        yield from coverage_lines(seen)
    elif not tap["source"] and target["models"].get(model) != "off":
        yield "tap: none: temperatures unknown (specwatch tap flags shows what to add)", ""
    for one in trouble:
        yield f"tap: {shown(one['text'], LONGEST_SENTENCE)}", "red"
    drafts = sum(window["drafts"] or 0 for window in windows)
    known = target["decision"]["models"].get(model)
    speedups = {one["temperature"]: one for one in known["buckets"]} if known else {}
    shares = [
        {
            **one,
            "share": (one["drafts"] or 0) / drafts if drafts else None,
            "speedup": speedups.get(one["temperature"]),
        }
        for one in windows
    ]
    yield from bucket_lines(sorted(shares, key=lambda one: buckets.order_of(one["temperature"])))


def trouble_lines(tap: dict[str, Any]) -> Lines:
    """Yield lines about what is wrong with the tap of a target as a whole."""
    for one in tap["trouble"]:
        if not one["model_name"]:
            yield f"tap: {shown(one['text'], LONGEST_SENTENCE)}", "red"


def coverage_lines(seen: dict[str, Any]) -> Lines:
    """Yield lines about how much a tap saw of a model, and what it could not."""
    who = shown(seen["source"])
    if seen["coverage"] is None:
        yield f"{who}: {figures.number(seen['drafts'])} drafts seen, the server counted none", ""
    else:
        yield f"{who}: covers {figures.percent(seen['coverage'])} of drafts", ""
    for count, reason in leading_reasons(seen["uncovered"]):
        yield from wrapped(f"  not covered: {figures.counted(count, 'request')}, {reason}")
    derived = share_derived(seen["records"])
    if derived >= _LEAST_DERIVED:
        text = f"  of {derived:.0%} of requests the acceptance is derived: {METHODS['derived']}"
        yield from wrapped(text)


def bucket_lines(rows: list[dict[str, Any]]) -> Lines:
    """Yield a table of temperature buckets.

    ``P10/50/90 %`` are quantiles of single requests' acceptance; TTFT and TPOT stand for P50.
    Where a speedup was measured it takes the place of the mean acceptance length, and buckets that
    lose are red.
    """

    def faster(row: dict[str, Any]) -> str:
        speedup = row.get("speedup")
        return f"{speedup['speedup']['value']:.2f}x" if speedup else figures.UNKNOWN

    def style(row: dict[str, Any]) -> str:
        return "red" if (row.get("speedup") or {}).get("loses") else ""

    columns = dict(_BUCKETS)
    if any(row.get("speedup") for row in rows):
        columns = {
            "faster" if name == "length" else name: faster if name == "length" else column
            for name, column in _BUCKETS.items()
        }
    yield from table(columns, rows, style=style)


def _pay_lines(known: dict[str, Any] | None, window: dict[str, Any] | None) -> Lines:
    """Yield the speedup of a model and its break-even line at the load of a window.

    Both as the API gives them; nothing where nothing was generated with speculation.
    """
    if known is None or (known["speedup"] is None and not known["minutes"]):
        return
    yield from wrapped(speculation.speedup(known))
    yield from wrapped(speculation.break_even(known, window))
    best = speculation.best_k(known)
    if best is not None:
        yield from wrapped(best)


def _rule_lines(findings: list[dict[str, Any]], now: float) -> Lines:
    """Yield what the rules say of one model: breaches, what may become one, and how many pass."""
    breaches = [finding for finding in findings if finding["verdict"] == "breach"]
    for finding in sorted(breaches, key=lambda one: one["since"]):
        style = "red" if finding["severity"] in _URGENT else "yellow"
        yield from wrapped(f"breach: {speculation.confirmed(finding, now)}", style)
    for finding in list(filter(speculation.may_become, findings))[:_MOST_PENDING]:
        yield from wrapped(f"pending: {speculation.pending(finding, now)}", "dim")
    if findings:
        yield f"rules: {speculation.counts(findings)}", "dim"


def _slo_lines(slos: Iterable[dict[str, Any]], goodput: dict[str, Any]) -> Lines:
    """Yield the objectives of one model that had requests, and its goodput."""
    for slo in slos:
        sentence = speculation.objective(slo)
        if sentence is not None:
            style = "red" if slo["budget_left"] < 0 else ""
            yield from wrapped(f"objective {shown(slo['name'])}: {sentence}", style)
    met = speculation.goodput(goodput)
    if met is not None:
        yield from wrapped(f"goodput: {met}")
